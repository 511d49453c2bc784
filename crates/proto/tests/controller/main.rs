//! The controller's machine in virtual time, with stages that a test plays.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod background;
mod conversation;
mod debts;
mod hosts;
mod measured;
mod orphans;
mod paper;
mod resources;
mod short_programs;
mod start_queue;
mod together;
mod world;
