//! Scheduling disciplines: the rule by which a storage node chooses the next request.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// The rule by which a storage node chooses the next request.
///
/// | | reservations, limits | weights | service at other nodes |
/// |---|---|---|---|
/// | [`Self::Fifo`] | | | |
/// | [`Self::RoundRobin`] | | | |
/// | [`Self::Token`] | yes | between those of a step | |
/// | [`Self::Sfq`] | | yes | |
/// | [`Self::DsfqTotal`] | | yes | counts whole |
/// | [`Self::DsfqHybrid`] | | yes | counts, but a minimum share is kept |
/// | [`Self::Unified`] | yes | yes | counts, also later, and a minimum share is kept |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Discipline {
    /// In the order of arrival.
    Fifo = 0,
    /// One request of each tenant in turn.
    RoundRobin = 1,
    /// Tenants with reservation tokens first, then tenants with any tokens (pShift, Algorithm 1).
    #[default]
    Token = 2,
    /// Start-time fair queueing with a depth, SFQ(D): each node for itself.
    Sfq = 3,
    /// TOTAL-DSFQ: service at other nodes delays a tenant at this node (Eq. 7 of the paper).
    DsfqTotal = 4,
    /// HYBRID-DSFQ: that delay is cut so that a minimum share is left (Eq. 12 of the paper).
    DsfqHybrid = 5,
    /// Reservations first, those of urgent tenants before all; then, among those below their
    /// limit, the order of HYBRID-DSFQ, with what was cut from a delay carried on as a debt.
    Unified = 6,
}

/// Every discipline with its name in cluster files.
pub const DISCIPLINES: [(Discipline, &str); 7] = [
    (Discipline::Fifo, "fifo"),
    (Discipline::RoundRobin, "round-robin"),
    (Discipline::Token, "token"),
    (Discipline::Sfq, "sfq"),
    (Discipline::DsfqTotal, "dsfq-total"),
    (Discipline::DsfqHybrid, "dsfq-hybrid"),
    (Discipline::Unified, "unified"),
];

impl Discipline {
    /// The name of the discipline in cluster files and reports.
    pub const fn name(self) -> &'static str {
        DISCIPLINES[self as usize].1
    }

    /// Whether reservations and limits decide anything.
    pub const fn observes_promises(self) -> bool {
        matches!(self, Self::Token | Self::Unified)
    }

    /// Whether weights decide anything.
    pub const fn observes_weights(self) -> bool {
        !matches!(self, Self::Fifo | Self::RoundRobin)
    }

    /// Whether urgent requests within a reservation go before all others.
    pub const fn observes_urgency(self) -> bool {
        matches!(self, Self::Unified)
    }

    /// Whether classes of requests take turns, where the policy weighs them.
    pub const fn observes_class_weights(self) -> bool {
        !matches!(self, Self::Fifo)
    }

    /// Whether the service that a tenant got at other nodes decides anything.
    pub const fn observes_delays(self) -> bool {
        matches!(self, Self::DsfqTotal | Self::DsfqHybrid | Self::Unified)
    }

    /// Whether a tenant's minimum share is kept whatever it was served at other nodes.
    pub const fn observes_minimum(self) -> bool {
        matches!(self, Self::DsfqHybrid | Self::Unified)
    }
}

impl fmt::Display for Discipline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a scheduler; known are {}", DISCIPLINES.map(|(_, name)| name).join(", "))]
pub struct UnknownDiscipline;

impl FromStr for Discipline {
    type Err = UnknownDiscipline;
    fn from_str(name: &str) -> Result<Self, UnknownDiscipline> {
        let found = DISCIPLINES.iter().find(|(_, known)| *known == name);
        found.map(|(discipline, _)| *discipline).ok_or(UnknownDiscipline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_and_numbers_agree() {
        for (index, (discipline, name)) in DISCIPLINES.into_iter().enumerate() {
            assert_eq!(discipline as usize, index);
            assert_eq!(name.parse(), Ok(discipline));
            assert_eq!(discipline.to_string(), name);
        }
        assert_eq!("mclock".parse::<Discipline>(), Err(UnknownDiscipline));
        assert!(UnknownDiscipline.to_string().ends_with(
            "fifo, round-robin, token, sfq, \
            dsfq-total, dsfq-hybrid, unified"
        ));
    }
}
