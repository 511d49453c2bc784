//! See tests/src/fuzz/policy.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::policy::run(bytes));
