//! Persistent memory: a device of a few banks that answers in less than a microsecond.
//!
//! # Model
//! An access is 64 to 256 B and takes 300 to 800 ns (the end-to-end paper, section 4.4; the memory
//! that could be bought took 305 ns to read at random when no other access did: Yang et al., FAST
//! 2020). Consecutive bytes lie in one bank, then in the next; a bank serves one access at a time,
//! in the order in which they come, each for a time that is uniform between two bounds. An access
//! that goes on into other banks needs all of them and is done when the last one is.
//!
//! For example with 4 banks of 256 B and 500 ns each: accesses to the bytes 0, 256 and 1024 at the
//! same moment are done after 500, 500 and 1,000 ns, because the first and the last share a bank.
//!
//! When an access comes, its end is known: it is a single event of the simulation around.

use serde::Deserialize;
use tidegate_model::{Bytes, Span};

use super::link::SerialServer;
use tidegate_sim::rng::Stream;
use tidegate_sim::scenario::{ScenarioError, must, read, text, texts};
use tidegate_sim::time::Picoseconds;

/// Parameters of a persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryParameters {
    /// How many banks serve at the same time, 1 to 4,096; default 6, the modules of a socket in
    /// Yang et al.
    pub banks: u32,
    /// How many bytes in a row a bank holds, a power of two from 64 B to 1 MiB; default 256 B, what
    /// such a module reads at a time inside. (Sockets deal 4 KiB to each; small accesses at random
    /// see no difference.)
    #[serde(deserialize_with = "text")]
    pub stripe: Bytes,
    /// The least and the most time of an access, from 1 ns to 1 ms; default 300 to 800 ns. Twice
    /// the same for a fixed time.
    #[serde(deserialize_with = "texts")]
    pub access: [Span; 2],
}

impl Default for MemoryParameters {
    fn default() -> Self {
        Self { banks: 6, stripe: Bytes(256), access: [Span(300), Span(800)] }
    }
}

impl MemoryParameters {
    /// Reads a memory from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    /// Whether it can be built.
    ///
    /// # Errors
    /// The first thing that is out of its range, and what to write instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let Self { banks, stripe, access: [least, most] } = *self;
        must((1..=4_096).contains(&banks), "banks: 1 to 4096")?;
        let fits = stripe.0.is_power_of_two() && (64..=1 << 20).contains(&stripe.0);
        must(fits, "stripe: a power of two from \"64B\" to \"1MiB\"")?;
        let fits = 1 <= least.0 && least <= most && most <= Span::MILLISECOND;
        must(fits, "access: [least, most], from \"1ns\" to \"1ms\", the least first")
    }
}

/// A persistent memory.
///
/// ```
/// use tidegate_model::{Bytes, Span};
/// use tidegate_netsim::storage::{Memory, MemoryParameters};
/// use tidegate_sim::time::Picoseconds;
/// let access = [Span(500), Span(500)];
/// let parameters = MemoryParameters { banks: 4, access, ..MemoryParameters::default() };
/// let mut memory = Memory::new(&parameters, 1, 0);
/// let done = [0, 256, 1_024].map(|at| memory.take(Picoseconds::ZERO, Bytes(at), 64));
/// assert_eq!(done.map(|at| at.time().0), [500, 500, 1_000]);
/// ```
#[derive(Debug)]
pub struct Memory {
    banks: Vec<SerialServer>,
    stripe: u64,
    access: [u64; 2],
    random: Stream,
}

impl Memory {
    /// A memory with nothing to do; number `memory` of the run of `seed`.
    ///
    /// # Panics
    /// If the parameters do not pass their own check.
    pub fn new(parameters: &MemoryParameters, seed: u64, memory: u64) -> Self {
        if let Err(error) = parameters.check() {
            panic!("a memory that cannot be built: {error}");
        }
        Self {
            banks: vec![SerialServer::default(); parameters.banks as usize],
            stripe: parameters.stripe.0,
            access: parameters.access.map(|span| Picoseconds::from(span).0),
            random: Stream::new(seed, "memory", memory),
        }
    }

    /// Takes an access; the time at which it is done.
    ///
    /// # Panics
    /// If it is of no bytes.
    pub fn take(&mut self, now: Picoseconds, at: Bytes, bytes: u32) -> Picoseconds {
        assert!(bytes > 0, "an access to nothing");
        let [least, most] = self.access;
        let last = at.0 + u64::from(bytes) - 1;
        let mut done = now;
        for stripe in at.0 / self.stripe..=last / self.stripe {
            let bank = (stripe % self.banks.len() as u64) as usize;
            let time = Picoseconds(self.random.within(least, most));
            done = done.max(self.banks[bank].take(now, time));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused() {
        assert_eq!(MemoryParameters::parse(""), Ok(MemoryParameters::default()));
        for (text, message) in [
            ("bank = 1", "bank"),
            ("banks = 0", "1 to 4096"),
            ("stripe = \"96B\"", "power of two"),
            ("access = [\"2us\", \"1us\"]", "the least first"),
        ] {
            let error = MemoryParameters::parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    /// One bank under Poisson arrivals: the mean wait is that of Pollaczek and Khinchine,
    /// λ E[S²] / (2 (1 - λ E[S])), with S uniform from 300 to 800 ns.
    #[test]
    fn waits_follow_the_formula() {
        let parameters = MemoryParameters { banks: 1, ..MemoryParameters::default() };
        let mut memory = Memory::new(&parameters, 1, 0);
        let mut arrivals = Stream::new(1, "arrivals", 0);
        let gap = Picoseconds(1_000_000);
        let (mut now, mut sum, count) = (Picoseconds::ZERO, 0.0, 200_000);
        for _ in 0..count {
            now = now.after(arrivals.exponential(gap));
            sum += memory.take(now, Bytes(0), 64).since(now).0 as f64 / 1_000.0;
        }
        let (mean, square) = (550.0, (300.0f64.powi(2) + 300.0 * 800.0 + 800.0f64.powi(2)) / 3.0);
        let rate = 1.0 / 1_000.0;
        let expected = mean + rate * square / (2.0 * (1.0 - rate * mean));
        let measured = sum / f64::from(count);
        assert!((measured / expected - 1.0).abs() < 0.02, "{measured} ns for {expected} ns");
    }
}
