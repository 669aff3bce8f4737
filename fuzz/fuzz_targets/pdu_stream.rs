//! A host's byte stream into the target's side of NVMe/TCP.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvmeof_fuzz::pdu_stream::run(bytes));
