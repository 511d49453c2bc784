//! The daemon, through its listeners: real sockets in a directory of the test's own, nothing mocked
//! but the stages, which are played by the test.

#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod apply;
mod cluster;
mod crowded;
mod harness;
mod hostile;
mod http;
mod lifecycle;
mod many;
