//! See tests/src/fuzz/cluster_file.rs.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidegate_tests::fuzz::cluster_file::run(bytes));
