//! See tests/src/fuzz/nbd.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::nbd::run(bytes));
