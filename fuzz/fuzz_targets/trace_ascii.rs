//! See tests/src/fuzz/trace.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::trace::ascii(bytes));
