//! Engines and a monitor over memory whose operations happen when a test says so.
//!
//! - `races`: each race that one-sided operations make possible, driven on purpose, by its number.
//! - `search`: all that can happen to two clients and a monitor in a few periods, in small numbers.
//! - `share_agent`: between a monitor and a controller that says what is kept here.
//! - `words`: the words that both sides write, as bytes.
#![allow(clippy::unwrap_used, reason = "a test may end by panicking")]

mod memory;
mod races;
mod search;
mod share_agent;
mod sim;
mod words;
