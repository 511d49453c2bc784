//! The cluster's machine and real nodes on one clock, over links that lose, delay and repeat.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod chaos;
mod conversation;
mod hostile;
mod idle;
mod large;
#[path = "../node/one_by_one.rs"]
mod one_by_one;
mod paper;
mod split;
mod world;
