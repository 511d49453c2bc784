//! The link between host and controller: PCI Express in two directions, each first come, first
//! served.
//!
//! Data travel in packets with a payload of 128 B and 28 B around it, so on a link of 4 GB/s:
//!
//! | what | bytes | time |
//! |---|---|---|
//! | doorbell (a register of 4 B), or a request to read | 4 + 28 | 8 ns |
//! | submission queue entry | 64 + 28 | 23 ns |
//! | completion queue entry | 16 + 28 | 11 ns |
//! | 4 KiB of data | 32 packets of 128 + 28 | 1,248 ns |
//!
//! Left out: doorbells and entries that go down take their time but do not delay data that go down,
//! which take at least fifty times as long.

use tidegate_model::Bytes;

use super::parameters;
use super::parameters::duration;
use tidegate_sim::time::Picoseconds;

/// Something that serves one after the other, in the order in which they come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SerialServer {
    free_at: Picoseconds,
}

impl SerialServer {
    /// Takes one; the time at which it is done.
    pub(super) fn take(&mut self, now: Picoseconds, time: Picoseconds) -> Picoseconds {
        self.free_at = self.free_at.max(now).after(time);
        self.free_at
    }
}

#[derive(Debug)]
pub(super) struct HostLink {
    parameters: parameters::HostLinkParameters,
    /// From the host to the controller, and back.
    down: SerialServer,
    up: SerialServer,
    /// A word of four bytes, an entry of a submission queue, one of a completion queue.
    word: Picoseconds,
    submission: Picoseconds,
    completion: Picoseconds,
}

impl HostLink {
    pub(super) fn new(parameters: parameters::HostLinkParameters) -> Self {
        let time = |bytes| packets(bytes, &parameters);
        let (word, submission, completion) = (time(4), time(64), time(16));
        Self {
            parameters,
            down: SerialServer::default(),
            up: SerialServer::default(),
            word,
            submission,
            completion,
        }
    }

    /// When a doorbell that the host rings now is seen.
    pub(super) const fn ring(&self, now: Picoseconds) -> Picoseconds {
        now.after(self.word)
    }

    /// When the controller has an entry that it requests now.
    pub(super) fn fetch(&mut self, now: Picoseconds) -> Picoseconds {
        self.up.take(now, self.word).after(self.submission)
    }

    /// When it has the data that it requests now.
    pub(super) fn pull(&mut self, now: Picoseconds, bytes: u32) -> Picoseconds {
        let requested_at = self.up.take(now, self.word);
        self.down.take(requested_at, packets(bytes, &self.parameters))
    }

    /// When the host has the data that the controller sends now, if any, and the completion.
    pub(super) fn complete(&mut self, now: Picoseconds, bytes: Option<u32>) -> Picoseconds {
        let data = bytes.map_or(Picoseconds::ZERO, |bytes| packets(bytes, &self.parameters));
        self.up.take(now, data.after(self.completion))
    }
}

/// How long so many bytes take in packets.
fn packets(bytes: u32, link: &parameters::HostLinkParameters) -> Picoseconds {
    let Bytes(payload) = link.payload;
    let bytes = u64::from(bytes);
    duration(bytes + bytes.div_ceil(payload) * link.overhead.0, link.rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table above.
    #[test]
    fn times_on_the_link() {
        let link = HostLink::new(parameters::HostLinkParameters::default());
        assert_eq!([link.word.0, link.submission.0, link.completion.0], [8_000, 23_000, 11_000]);
        assert_eq!(packets(4_096, &link.parameters).0, 1_248_000);
    }
}
