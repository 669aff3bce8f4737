//! A drive's answers into the VFIO driver.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nvmeof_fuzz::nvme_driver::run(bytes));
