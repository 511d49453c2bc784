//! See tests/src/fuzz/stage.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::stage::run(bytes));
