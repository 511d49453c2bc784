//! A drive of channels that are all alike.

use tidegate_model::Span;

use super::{Access, Drive, DriveRequest};
use crate::rng::Stream;
use crate::time::Picoseconds;

/// How long requests take at a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelTimes {
    /// Of a read, and of a flush or a trim.
    pub read: Span,
    /// Of a write.
    pub write: Span,
    /// Of each MiB that is read or written, in addition.
    pub per_mib: Span,
    /// How far a time may lie from its mean, both ways, in percent, at most 100.
    pub spread_percent: u64,
}

/// A number of channels. A request goes to a channel that its offset decides, each equally likely,
/// and waits there for those that came before it. With one channel it is a disk.
#[derive(Clone, Debug)]
pub struct Channels {
    times: ChannelTimes,
    free_at: Vec<Picoseconds>,
    random: Stream,
}

/// Spreads offsets over channels whatever their distances are: 2^64 by the golden ratio, as Knuth
/// has it for hashes by multiplication.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Channels {
    /// Idle channels, at least one.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(count: usize, times: ChannelTimes, seed: u64) -> Self {
        assert!(count > 0, "a drive without channels");
        let random = Stream::new(seed, "channels", 0);
        Self { times, free_at: vec![Picoseconds::ZERO; count], random }
    }
}

impl Drive for Channels {
    type Event = u32;

    fn submit(
        &mut self,
        now: Picoseconds,
        request: DriveRequest,
        later: &mut impl FnMut(Picoseconds, u32),
    ) {
        let ChannelTimes { read, write, per_mib, spread_percent } = self.times;
        let (base, moved) = match request.access {
            Access::Read => (read, request.bytes),
            Access::Write => (write, request.bytes),
            Access::NoData => (read, 0),
        };
        let per_mib = u128::from(Picoseconds::from(per_mib).0);
        let mean = Picoseconds::from(base).0 + ((per_mib * u128::from(moved)) >> 20) as u64;
        let spread = mean / 100 * spread_percent;
        let takes = Picoseconds(self.random.within(mean - spread, mean + spread));
        let hash = (request.offset >> 12).wrapping_mul(SPREAD) >> 32;
        let channel = hash as usize % self.free_at.len();
        let free_at = &mut self.free_at[channel];
        *free_at = now.max(*free_at).after(takes);
        later(*free_at, request.number);
    }

    fn on_event(
        &mut self,
        _now: Picoseconds,
        event: u32,
        _later: &mut impl FnMut(Picoseconds, u32),
    ) -> Option<u32> {
        Some(event)
    }
}
