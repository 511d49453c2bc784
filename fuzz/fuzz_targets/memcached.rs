//! See tests/src/fuzz/memcached.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::memcached::run(bytes));
