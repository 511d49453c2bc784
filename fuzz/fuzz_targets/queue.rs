//! See tests/src/fuzz/queue.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::queue::run(bytes));
