//! The shim in real programs: C programs that do one thing each, with its counters before them.
//!
//! Every program runs in a directory of its own, under a table that has one channel for each
//! operation and asks for the directory's path. So the counters hold what the program did to its
//! files, and nothing of what the loader or the C library read on the way.

mod cost;
mod coverage;
mod hostile;
mod leases;
mod lifecycle;
mod sandbox;
mod support;
