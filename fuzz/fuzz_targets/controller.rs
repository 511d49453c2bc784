//! See tests/src/fuzz/controller.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::controller::run(bytes));
