//! See tests/src/fuzz/table.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::table::run(bytes));
