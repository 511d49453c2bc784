//! See tests/src/fuzz/pshift.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::pshift::run(bytes));
