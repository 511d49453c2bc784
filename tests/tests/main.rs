//! Every scenario, a module each, in one binary.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "all of this is tests, also what no #[test] stands above")]

mod admission;
mod apply;
mod backups;
mod cluster;
mod daemon;
mod defects;
mod demo;
mod durability;
mod fuzz;
mod limits;
mod lsm;
mod orphans;
mod python;
mod readme;
mod rocksdb;
mod sturdy;
mod supervision;
mod sweeps;
mod training;
mod transparent;
mod trusted;
mod ungated;
