//! Scenario of a one-sided memory simulation: a TOML file with strict keys.

use serde::Deserialize;
use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::capacity::Profile;
use tidegate_model::{Iops, Span};

use super::nic::NicModel;
use crate::scenario::{ScenarioError, must, optional, read, text};

/// One simulation, but for its seed's consequences.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Title of the scenario, for display.
    pub name: String,
    /// Seed of every random number of the run.
    pub seed: u64,
    /// QoS control of the clients.
    #[serde(default)]
    pub control: Control,
    /// The time over which promises and demands are counted.
    #[serde(deserialize_with = "text")]
    pub period: Span,
    /// How many periods pass before one is measured.
    #[serde(default)]
    pub skip: u32,
    /// How many periods are measured.
    pub periods: u32,
    /// The NICs.
    #[serde(rename = "cards")]
    pub nics: NicModel,
    /// The clients that read.
    pub client: Vec<Clients>,
    /// Background jobs that read without tokens.
    #[serde(default)]
    pub background: Option<Background>,
    /// Changes of what the data node can do.
    #[serde(default)]
    pub change: Vec<Change>,
    /// How far what the data node does in a second strays, by its profile. Only the paper's rules
    /// use it.
    #[serde(default = "deviation", deserialize_with = "text")]
    pub deviation: Iops,
}

/// Chosen by hand: the paper does not report its profile.
const fn deviation() -> Iops {
    Iops(20_000)
}

/// QoS control of the clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// No control.
    #[default]
    None,
    /// Haechi as in the paper, without conversion.
    Basic,
    /// Haechi as in the paper.
    Paper,
    /// Haechi with sound rules, and all tokens at the beginning of a period.
    Unpaced,
    /// Haechi with sound rules, as it ships.
    Sound,
    /// Haechi with any rules, to see what each does. Not for files.
    #[serde(skip)]
    By(Rules),
}

impl Control {
    pub(super) const fn rules(self) -> Option<Rules> {
        match self {
            Self::None => None,
            Self::Basic => Some(Rules::BASIC),
            Self::Paper => Some(Rules::PAPER),
            Self::Unpaced => Some(Rules::UNPACED),
            Self::Sound => Some(Rules::SOUND),
            Self::By(rules) => Some(rules),
        }
    }
}

/// Clients that are alike. Each reads 4 KiB at a time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// How many there are.
    pub count: u16,
    /// Reservation of each client per second.
    #[serde(default, deserialize_with = "optional")]
    pub reservation: Option<Iops>,
    /// Limit of each client per second.
    #[serde(default, deserialize_with = "optional")]
    pub limit: Option<Iops>,
    /// Demand of each client per second, counted over a period; without it, as much as the client
    /// can get.
    #[serde(default, deserialize_with = "optional")]
    pub demand: Option<Iops>,
    /// When it requests that.
    #[serde(default)]
    pub pattern: Pattern,
    /// How many of its reads are under way at most.
    #[serde(default = "window")]
    pub window: u32,
}

const fn window() -> u32 {
    64
}

/// When a client requests the operations of a period.
///
/// A client drops the reads that it has not begun when the period ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// All of it at the beginning of the period.
    #[default]
    Burst,
    /// At equal distances.
    Constant,
}

/// A job beside each client that takes part of the link without tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// How many there are.
    pub count: u16,
    /// How many reads each keeps under way.
    pub window: u32,
    /// When they begin, from the start of the run.
    #[serde(default, deserialize_with = "text")]
    pub from: Span,
    /// When they end; without it, never.
    #[serde(default, deserialize_with = "optional")]
    pub until: Option<Span>,
}

/// A change of what the data node can do.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// When, from the start of the run.
    #[serde(deserialize_with = "text")]
    pub at: Span,
    /// Operations of 4 KiB in a second from then on.
    #[serde(deserialize_with = "text")]
    pub node: Iops,
}

impl Scenario {
    /// Reads a scenario from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line where there is one.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    /// Whether the scenario can be run. Code that builds or changes one calls this, too.
    ///
    /// # Errors
    /// The first thing that contradicts another, and what to write instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let Self { nics, client, background, change, .. } = self;
        must(self.period.0 > 0, "period: longer than nothing")?;
        must(self.periods > 0, "periods: measure at least 1")?;
        let known = |rate: Iops| (1..=1_000_000_000).contains(&rate.0);
        let mut rates = vec![nics.client, nics.node];
        rates.extend(change.iter().map(|change| change.node));
        must(rates.into_iter().all(known), "cards: from \"1 iops\" to \"1G iops\"")?;
        let count: u32 = client.iter().map(|clients| u32::from(clients.count)).sum();
        must((1..=256).contains(&count), "client: from 1 to 256")?;
        let mut windows: Vec<u32> = client.iter().map(|clients| clients.window).collect();
        windows.extend(background.iter().map(|background| background.window));
        let known = windows.iter().all(|window| (1..=1024).contains(window));
        must(known, "window: from 1 to 1024")?;
        let promised = |clients: &Clients| clients.reservation > clients.limit;
        let contradicts = client.iter().any(|one| one.limit.is_some() && promised(one));
        must(!contradicts, "client: a reservation above its limit")
    }

    /// The same at a part of its speed. Windows become smaller by as much, so that times stay what
    /// they are, but by no more than 8: clients would then wait for answers.
    #[must_use]
    pub fn slowed(&self, by: u32) -> Self {
        let slow = |rate: &mut Iops| rate.0 /= u64::from(by);
        let narrow = |window: &mut u32| *window = window.div_ceil(by.min(8));
        let mut slowed = self.clone();
        slow(&mut slowed.nics.client);
        slow(&mut slowed.nics.node);
        slow(&mut slowed.deviation);
        slowed.change.iter_mut().for_each(|change| slow(&mut change.node));
        for clients in &mut slowed.client {
            let rates = [&mut clients.reservation, &mut clients.limit, &mut clients.demand];
            rates.into_iter().flatten().for_each(slow);
            narrow(&mut clients.window);
        }
        slowed.background.iter_mut().for_each(|background| narrow(&mut background.window));
        slowed
    }

    /// Returns the lesser of each client's reservation and demand, in reads per period.
    pub(super) fn promised(&self) -> Vec<u64> {
        let each = self.client.iter().flat_map(|clients| {
            let reservation = self.in_a_period(clients.reservation.unwrap_or_default());
            let wanted = clients.demand.map_or(u64::MAX, |rate| self.in_a_period(rate));
            core::iter::repeat_n(reservation.min(wanted), clients.count.into())
        });
        each.collect()
    }

    /// Returns the known capacity of the data node, before any client comes.
    pub(super) fn profile(&self) -> Profile {
        let mean = self.in_a_period(self.nics.node);
        Profile {
            mean,
            deviation: self.in_a_period(self.deviation),
            local: self.in_a_period(self.nics.client),
            increment: (mean / 100).max(1),
            history: 5,
        }
    }

    /// Converts a rate per second to an amount per period, rounded down.
    pub(super) fn in_a_period(&self, rate: Iops) -> u64 {
        let whole = u128::from(rate.0) * u128::from(self.period.0);
        (whole / u128::from(Span::SECOND.0)) as u64
    }
}
