//! Parsing of a host's command capsules over RDMA.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvmeof_fuzz::rdma_capsule::run(bytes));
