//! The storage node's machine in virtual time, with a controller that a test plays.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod device;
mod grants;
mod guard;
mod latency;
mod limits;
mod one_by_one;
mod periods;
mod plans;
mod reserves;
mod switches;
mod world;
