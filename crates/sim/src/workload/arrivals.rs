//! Arrival times of the requests of an open-loop load.
//!
//! A clock runs only while the workload is on. On that clock requests come evenly, each when the
//! bytes (or, with a rate in operations, the requests) before it have just passed, or after
//! exponential times. The clock's time becomes the run's by adding the pauses so far.
//!
//! *Example.* 8 kB/s in requests of 1 kB: every 125 ms. On for 200 ms and off for 800 ms: requests
//! at 0, 125 | 1050, 1175 | 2100, 2225 ms, since 250 ms on the clock lie 50 ms in the second time
//! on. The mean rate is a fifth of the rate while on.

use core::str::FromStr;

use serde::Deserialize;
use tidegate_model::units::UnitError;
use tidegate_model::{Bytes, Iops, Rate, Span};

use crate::rng::Stream;
use crate::scenario::{Arrivals, ScenarioError, must, text};
use crate::time::Picoseconds;

/// The longest mean time between two requests; longer ones are no load.
pub(super) const INTERVAL_MAX: Picoseconds = Picoseconds(3_600 * Picoseconds::SECOND.0);

/// Requests at a rate.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// The demand while it is on.
    #[serde(deserialize_with = "text")]
    pub rate: Offered,
    /// Whether requests come evenly (`constant`) or without memory (`poisson`).
    #[serde(default)]
    pub arrivals: Arrivals,
    /// If it is not always on.
    #[serde(default)]
    pub pulse: Option<Pulse>,
}

/// The demand in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// So many bytes: `"90Gbps"`, `"100MiB/s"`.
    Bytes(Rate),
    /// So many requests: `"30k iops"`.
    Requests(Iops),
}

impl Open {
    /// Whether requests of this mean size can come so; `key` is where it stands.
    pub fn check(&self, mean_size: [u128; 2], key: &str) -> Result<(), ScenarioError> {
        let must = |holds, what: &str| must(holds, &format!("{key}.{what}"));
        must(self.rate.per_second() > 0, "rate: more than nothing")?;
        let mean = interval(self.rate, mean_size).unwrap_or(Picoseconds::MAX);
        must(mean <= INTERVAL_MAX, "rate: at least one request in an hour")?;
        must(mean > Picoseconds::ZERO, "rate: at most a request each picosecond")?;
        let Some(pulse) = &self.pulse else { return Ok(()) };
        must(pulse.on.0 > 0 && pulse.off.0 > 0, "pulse: both longer than 0")?;
        // This bound keeps the search for the phase of a request short.
        let few = mean.0 / 1_000 <= pulse.on.0.saturating_mul(1_000);
        must(few, "pulse: a request in 1,000 times on, at least")
    }
}

impl Offered {
    /// Bytes or requests.
    const fn per_second(self) -> u64 {
        match self {
            Self::Bytes(rate) => rate.0,
            Self::Requests(rate) => rate.0,
        }
    }

    /// Requests of this mean size in a second.
    pub fn requests(self, [bytes, requests]: [u128; 2]) -> f64 {
        match self {
            Self::Bytes(rate) => rate.0 as f64 * requests as f64 / bytes as f64,
            Self::Requests(rate) => rate.0 as f64,
        }
    }
}

impl FromStr for Offered {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text.parse() {
            Ok(rate) => Ok(Self::Requests(rate)),
            Err(_) => text.parse().map(Self::Bytes),
        }
    }
}

/// On and off, in turn. It begins on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pulse {
    /// For how long requests come.
    #[serde(deserialize_with = "text")]
    pub on: Span,
    /// For how long none do.
    #[serde(deserialize_with = "text")]
    pub off: Span,
    /// Whether it is always so long.
    #[serde(default)]
    pub phases: Phases,
}

/// Whether times on and off are always as long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phases {
    /// They are.
    #[default]
    Fixed,
    /// On average; they have no memory.
    Random,
}

/// The mean time between two requests of this mean size, to the nearest picosecond; none if it
/// does not fit.
fn interval(rate: Offered, [bytes, requests]: [u128; 2]) -> Option<Picoseconds> {
    let second = u128::from(Picoseconds::SECOND.0);
    let (amount, count) = match rate {
        Offered::Bytes(_) => (bytes, requests),
        Offered::Requests(_) => (1, 1),
    };
    // A table of 2^32 rows of 1 GiB with weights of 2^32 has a sum of 2^94: this is the bound.
    let divisor = count.checked_mul(u128::from(rate.per_second()))?;
    let mean = amount.checked_mul(second)?.checked_add(divisor / 2)?.checked_div(divisor)?;
    u64::try_from(mean).ok().map(Picoseconds)
}

/// Requests that come by themselves.
#[derive(Clone, Debug)]
pub struct Arriving {
    start: Picoseconds,
    rate: Offered,
    pace: ArrivalPace,
    pulse: Option<Pulsing>,
}

#[derive(Clone, Debug)]
enum ArrivalPace {
    /// The demand so far.
    Even { passed: u128 },
    /// The last one's time on the clock that runs while it is on.
    Poisson { mean: Picoseconds, at: Picoseconds },
}

/// Times on and off.
#[derive(Clone, Debug)]
struct Pulsing {
    pulse: Pulse,
    /// Where this time on ends, on the clock that runs while it is on. Before the first: 0.
    phase_end: Picoseconds,
    /// All pauses before it.
    paused: Picoseconds,
}

impl Arriving {
    /// Arrivals from `start` on. `mean_size` is the mean request as a fraction: bytes, and among so
    /// many requests.
    ///
    /// # Panics
    /// If the plan was not checked.
    pub fn new(open: &Open, mean_size: [u128; 2], start: Picoseconds) -> Self {
        let pace = match open.arrivals {
            Arrivals::Constant => ArrivalPace::Even { passed: 0 },
            Arrivals::Poisson => {
                let mean = interval(open.rate, mean_size).expect("the plan was checked");
                ArrivalPace::Poisson { mean, at: Picoseconds::ZERO }
            }
        };
        let pulse = open.pulse.map(|pulse| Pulsing {
            pulse,
            phase_end: Picoseconds::ZERO,
            paused: Picoseconds::ZERO,
        });
        Self { start, rate: open.rate, pace, pulse }
    }

    /// When the next one comes; none after the end of time.
    pub fn next(&mut self, random: &mut Stream) -> Option<Picoseconds> {
        let on = match &mut self.pace {
            ArrivalPace::Even { passed } => {
                // 2^64 picoseconds at 2^64 a second are 2^88: the product fits.
                let time = *passed * u128::from(Picoseconds::SECOND.0);
                let time = time / u128::from(self.rate.per_second());
                Picoseconds(u64::try_from(time).ok()?)
            }
            ArrivalPace::Poisson { mean, at } => {
                *at = at.after(random.exponential(*mean));
                *at
            }
        };
        let paused = self.pulse.as_mut().map_or(Picoseconds::ZERO, |it| it.paused(on, random));
        let at = self.start.after(on).after(paused);
        (at < Picoseconds::MAX).then_some(at)
    }

    /// A request of so many bytes was made.
    pub const fn passes(&mut self, bytes: Bytes) {
        if let ArrivalPace::Even { passed } = &mut self.pace {
            *passed += match self.rate {
                Offered::Bytes(_) => bytes.0 as u128,
                Offered::Requests(_) => 1,
            };
        }
    }
}

impl Pulsing {
    /// The pauses before the time `on` of the clock that runs while it is on.
    fn paused(&mut self, on: Picoseconds, random: &mut Stream) -> Picoseconds {
        let long = Picoseconds::from(self.pulse.on);
        let pause = Picoseconds::from(self.pulse.off);
        match self.pulse.phases {
            Phases::Fixed => {
                let pauses = u128::from(on.0 / long.0) * u128::from(pause.0);
                Picoseconds(u64::try_from(pauses).unwrap_or(u64::MAX))
            }
            Phases::Random => {
                while self.phase_end <= on && self.phase_end < Picoseconds::MAX {
                    if self.phase_end > Picoseconds::ZERO {
                        self.paused = self.paused.after(random.exponential(pause));
                    }
                    self.phase_end = self.phase_end.after(random.exponential(long));
                }
                self.paused
            }
        }
    }
}
