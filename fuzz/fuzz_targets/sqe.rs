//! Submission queue entries, and their data, into the queues of a target.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvmeof_fuzz::sqe::run(bytes));
