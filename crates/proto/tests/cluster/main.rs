//! The cluster's machine and real nodes on one clock, over links that lose, delay and repeat.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod conversation;
mod groups;
mod hostile;
mod idle;
mod large;
mod paper;
mod periods;
mod split;

use tidegate_model::Span;
use tidegate_sim::link::Conduct;

const MS: u64 = Span::MILLISECOND.0;

/// Links on which a message takes so many milliseconds.
fn slow(least: u64, most: u64) -> Conduct {
    let [least, most] = [least, most].map(|ms| Span(ms * MS).into());
    Conduct { least, most, ..Conduct::default() }
}
