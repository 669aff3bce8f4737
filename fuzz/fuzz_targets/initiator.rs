//! A target's bytes into the host's side of NVMe/TCP.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvmeof_fuzz::initiator::run(bytes));
