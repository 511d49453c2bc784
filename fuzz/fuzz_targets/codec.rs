//! See tests/src/fuzz/codec.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::codec::run(bytes));
