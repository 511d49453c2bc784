//! The parameters of a switch: its buffer, the order at its ports, its marks and its pauses.
//! [`super::network`] and [`super::buffer`] act on them.
//!
//! Everything is a parameter with a unit, read from TOML with strict keys. All switches of a
//! network are alike, and NICs of hosts serve their queues in the same order; they have
//! room for whatever their host gives them, and neither mark nor drop.
//!
//! ```
//! use tidegate_netsim::net::{Marking, NetworkPlan, PortService};
//! let plan = NetworkPlan::parse(r#"
//!     [topology.dumbbell]
//!     pairs = 3
//!     edge = { rate = "12.5GB/s", delay = "1250ns" }
//!     middle = { rate = "12.5GB/s", delay = "10us" }
//!     [switch]
//!     buffer = "6008kB"
//!     service = "urgent-first"
//!     reserve = "150kB"
//!     marking = { step = "140 packets" }
//! "#)?;
//! assert_eq!(plan.switch.service, PortService::UrgentFirst);
//! assert_eq!(plan.switch.marking, Marking::Step("140 packets".parse().unwrap()));
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

use core::fmt;
use core::str::FromStr;

use serde::de;
use serde::{Deserialize, Deserializer};
use tidegate_model::{Bytes, Class, Portion};

use tidegate_sim::rng::Stream;
use tidegate_sim::scenario::{ScenarioError, must, optional, text};

/// The parameters of all switches of a network.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// The memory for packets that wait or are being sent, shared among all ports.
    #[serde(deserialize_with = "text")]
    pub buffer: Bytes,
    /// How much of it one queue may take.
    #[serde(default)]
    pub share: BufferShare,
    /// How much of it is set aside at each port for urgent packets.
    #[serde(default, deserialize_with = "text")]
    pub reserve: Bytes,
    /// In which order a port sends.
    #[serde(default)]
    pub service: PortService,
    /// When a packet is marked.
    #[serde(default)]
    pub marking: Marking,
    /// When neighbours are paused; without it, never.
    #[serde(default)]
    pub pause: Option<Pause>,
    /// Whether ports have an event for each departure even where its time is known on arrival.
    /// Nothing but the work changes; this is here to show it.
    #[serde(skip)]
    pub departure_events: bool,
}

/// How much of a buffer one queue may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferShare {
    /// All of it.
    #[default]
    Whole,
    /// So many bytes, whatever others take.
    #[serde(deserialize_with = "text")]
    Limit(Bytes),
    /// So many times what is free (Choudhury and Hahne, 1998): busy queues keep some of the buffer
    /// free for those that become busy.
    Dynamic(Factor),
}

/// A factor in steps of 1/128, as switches have it: from 1/128 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor(pub u32);

impl Factor {
    /// The parts of one.
    pub const ONE: Self = Self(128);
}

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        let parts = value * 128.0;
        if (1.0..=8_192.0).contains(&parts) && parts.fract() == 0.0 {
            return Ok(Self(parts as u32));
        }
        Err(de::Error::custom(format_args!("{value} is no multiple of 1/128 from 1/128 to 64.0")))
    }
}

/// In which order a port sends what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortService {
    /// In the order of arrival, whatever the class.
    #[default]
    Fifo,
    /// Urgent packets first; the others in the order of arrival.
    UrgentFirst,
    /// Urgent packets first; the others in a queue for each class, served in turn so that high,
    /// medium and low have these shares of the bytes, from 1 to 1,000.
    Weighted([u16; 3]),
}

impl PortService {
    #[inline]
    pub(super) const fn queue(self, class: Class) -> usize {
        match (self, class) {
            (Self::Fifo, _) | (_, Class::Urgent) => 0,
            (Self::UrgentFirst, _) => 1,
            (Self::Weighted(_), class) => class as usize,
        }
    }

    pub(super) const fn queues(self) -> usize {
        match self {
            Self::Fifo => 1,
            Self::UrgentFirst => 2,
            Self::Weighted(_) => 4,
        }
    }
}

/// When a packet is marked: by the queue that it finds, without itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Marking {
    /// Never.
    #[default]
    None,
    /// If the queue is so long or longer (DCTCP, RFC 8257 section 3.1).
    #[serde(deserialize_with = "text")]
    Step(Depth),
    /// By chance, the more likely the longer the queue is (DCQCN, section 3 of its paper).
    Red(Red),
}

/// Marks by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Red {
    /// Up to this queue, nothing is marked (Kmin).
    #[serde(deserialize_with = "text")]
    pub from: Bytes,
    /// Above this queue, everything is (Kmax).
    #[serde(deserialize_with = "text")]
    pub to: Bytes,
    /// How likely a mark is at `to`; less in proportion below it (Pmax).
    #[serde(deserialize_with = "text")]
    pub most: Portion,
}

impl Red {
    /// Whether a packet that finds so many bytes is marked.
    pub(super) fn chooses(self, held: u64, random: &mut Stream) -> bool {
        if held <= self.from.0 || held > self.to.0 {
            return held > self.to.0;
        }
        // At most 2^40 bytes times 10^6: fits. Drawn only where chance decides.
        let whole = (self.to.0 - self.from.0) * u64::from(Portion::WHOLE.0);
        random.below(whole) < (held - self.from.0) * u64::from(self.most.0)
    }
}

/// The length of a queue: written as `"140 packets"` or `"200kB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// In packets of whatever size.
    Packets(u32),
    /// In bytes on the wire.
    Bytes(Bytes),
}

impl FromStr for Depth {
    type Err = String;

    fn from_str(input: &str) -> Result<Self, String> {
        if let Some(number) = input.trim().strip_suffix("packets") {
            let number = number.trim().parse().map(Self::Packets);
            return number.map_err(|_| {
                format!("{input:?} is no whole number of packets; write it like \"140 packets\"")
            });
        }
        let bytes = input.parse::<Bytes>().map(Self::Bytes);
        bytes.map_err(|error| format!("{error}, or like \"140 packets\""))
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(packets) => write!(f, "{packets} packets"),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// Priority flow control (IEEE 802.1Qbb): a switch pauses a neighbour's queue before its packets
/// would be dropped, and to resume it. A port counts what has come in over it and is still in the
/// switch, for each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// With so much or more, the neighbour is sent a pause.
    #[serde(deserialize_with = "text")]
    pub at: Bytes,
    /// With so much or less, to resume. Less than `at`.
    #[serde(deserialize_with = "text")]
    pub resume: Bytes,
    /// Room beyond `at` for what still comes until the neighbour has stopped; without it, what the
    /// line can bring in this time at worst.
    #[serde(default, deserialize_with = "optional")]
    pub headroom: Option<Bytes>,
}

impl Switch {
    /// A switch with a buffer of this size and nothing else.
    pub const fn plain(buffer: Bytes) -> Self {
        Self {
            buffer,
            share: BufferShare::Whole,
            reserve: Bytes::ZERO,
            service: PortService::Fifo,
            marking: Marking::None,
            pause: None,
            departure_events: false,
        }
    }

    /// Whether there can be such a switch.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let fits = (1..=1 << 40).contains(&self.buffer.0);
        must(fits, "switch.buffer: from \"1B\" to \"1TiB\"")?;
        must(self.reserve <= self.buffer, "switch.reserve: at most switch.buffer")?;
        if let BufferShare::Limit(limit) = self.share {
            must(limit.0 > 0, "switch.share.limit: at least \"1B\", or no packet is let in")?;
        }
        if let PortService::Weighted(weights) = self.service {
            let fit = weights.iter().all(|weight| (1..=1_000).contains(weight));
            must(fit, "switch.service.weighted: weights from 1 to 1000")?;
        }
        if let Marking::Red(red) = self.marking {
            let fits = red.from < red.to && red.to <= self.buffer;
            must(fits, "switch.marking.red: from below to, and to at most switch.buffer")?;
        }
        match self.pause {
            Some(Pause { at, resume, headroom }) => {
                must(resume < at, "switch.pause: resume is to lie below at")?;
                let fits = at.max(headroom.unwrap_or_default()) <= self.buffer;
                must(fits, "switch.pause: at and headroom are at most switch.buffer")
            }
            None => Ok(()),
        }
    }
}
