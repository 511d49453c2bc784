//! A node as its gateways meet it: in the same process, over its socket, and with a controller.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod controller;
mod fence;
mod hostile;
mod keys;
mod local;
mod pieces;
mod remote;
mod support;
