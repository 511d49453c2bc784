//! See tests/src/fuzz/data_wire.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::data_wire::run(bytes));
