//! See tests/src/fuzz/recording.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::recording::run(bytes));
