//! See tests/src/fuzz/node_machine.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::node_machine::run(bytes));
