//! A host's connection requests over RDMA, with any private data, into the target's side.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvmeof_fuzz::rdma_connect::run(bytes));
