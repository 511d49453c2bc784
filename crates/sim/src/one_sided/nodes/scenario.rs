//! Scenario of a simulation with several data nodes: a TOML file with strict keys.

use serde::Deserialize;
use tidegate_model::{Iops, Span};

use super::super::nic::NicModel;
use crate::scenario::{ScenarioError, must, optional, read, text};

/// One simulation, but for its seed's consequences.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneSidedClusterScenario {
    /// Title of the scenario, for display.
    pub name: String,
    /// Seed of every random number of the run.
    pub seed: u64,
    /// QoS control of the clients.
    pub control: NodesControl,
    /// The time over which promises and demands are counted.
    #[serde(deserialize_with = "text")]
    pub period: Span,
    /// The time between two divisions of promises over nodes.
    #[serde(default = "redistribute", deserialize_with = "text")]
    pub redistribute: Span,
    /// How many periods pass before one is measured.
    #[serde(default)]
    pub skip: u32,
    /// How many periods are measured.
    pub periods: u32,
    /// How many data nodes there are.
    pub nodes: u16,
    /// The NICs: a client's at each node, and each node's.
    #[serde(rename = "cards")]
    pub nics: NicModel,
    /// The tenants that read.
    pub tenant: Vec<Tenants>,
    /// How many reads each client keeps under way at most, at each node.
    #[serde(default = "window")]
    pub window: u32,
    /// When hot nodes move.
    #[serde(default, rename = "move")]
    pub relocation: Option<Move>,
}

const fn redistribute() -> Span {
    Span(200 * Span::MILLISECOND.0)
}

const fn window() -> u32 {
    64
}

/// QoS control of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodesControl {
    /// No control.
    None,
    /// Haechi at each node, which keeps an equal part of each promise.
    Equal,
    /// Haechi at each node, and pShift above them.
    Split,
}

/// Tenants that are alike, but for their hot nodes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenants {
    /// How many there are. The first one's hot node is the first, the second one's the second, and
    /// so on, in turn.
    pub count: u16,
    /// Reservation of each tenant per second, at all nodes together.
    #[serde(default, deserialize_with = "optional")]
    pub reservation: Option<Iops>,
    /// Demand of each tenant per second at all nodes together; without it, all that the tenant can
    /// get at each.
    #[serde(default, deserialize_with = "optional")]
    pub demand: Option<Iops>,
    /// Of its hot node it wants this power of two times as much as of the next, of which it wants
    /// that power of 3/2 times as much as of the one after, and so on.
    #[serde(default)]
    pub exponent: f64,
}

/// Hot nodes move, each by some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// With the first period that begins so long after the beginning, or later.
    #[serde(deserialize_with = "text")]
    pub at: Span,
    /// How many nodes further.
    pub by: u16,
}

impl OneSidedClusterScenario {
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
        let Self { period, redistribute, nodes, nics, tenant, .. } = self;
        let is_long = |span: &Span| *span >= Span(10 * Span::MILLISECOND.0);
        must(is_long(period) && is_long(redistribute), "period, redistribute: from \"10ms\" on")?;
        must(self.periods > 0, "periods: measure at least 1")?;
        must((1..=1024).contains(&self.window), "window: from 1 to 1024")?;
        must((1..=16).contains(nodes), "nodes: from 1 to 16")?;
        let known = |rate: Iops| (1..=1_000_000_000).contains(&rate.0);
        must([nics.client, nics.node].into_iter().all(known), "cards: from \"1 iops\" on")?;
        let count: u32 = tenant.iter().map(|tenants| u32::from(tenants.count)).sum();
        must((1..=64).contains(&count), "tenant: from 1 to 64")?;
        let known = |tenants: &Tenants| (0.0..=4.0).contains(&tenants.exponent);
        must(tenant.iter().all(known), "exponent: from 0.0 to 4.0")
    }

    /// The same at a part of its speed. Windows become smaller by as much, but by no more than 8.
    #[must_use]
    pub fn slowed(&self, by: u32) -> Self {
        let slow = |rate: &mut Iops| rate.0 /= u64::from(by);
        let mut slowed = self.clone();
        slowed.window = slowed.window.div_ceil(by.min(8));
        slow(&mut slowed.nics.client);
        slow(&mut slowed.nics.node);
        for tenants in &mut slowed.tenant {
            let rates = [&mut tenants.reservation, &mut tenants.demand];
            rates.into_iter().flatten().for_each(slow);
        }
        slowed
    }

    /// Each tenant, with its number among those that are alike.
    pub fn each(&self) -> impl Iterator<Item = (u16, &Tenants)> {
        self.tenant.iter().flat_map(|tenants| (0..tenants.count).map(move |it| (it, tenants)))
    }

    /// Returns the lesser of each tenant's reservation and demand, in reads per period at all
    /// nodes.
    pub fn promised(&self) -> Vec<u64> {
        let promised = |(_, tenants): (u16, &Tenants)| {
            let reservation = tenants.reservation.unwrap_or_default();
            self.in_a_period(tenants.demand.map_or(reservation, |demand| demand.min(reservation)))
        };
        self.each().map(promised).collect()
    }

    /// Returns the reads that a tenant wants of each node in a period, after hot nodes have moved
    /// by `moved` nodes.
    pub fn wanted(&self, number: u16, tenants: &Tenants, moved: u16) -> Vec<Option<u64>> {
        let weight = |rank: u16| libm::pow(f64::from(rank) + 1.0, -tenants.exponent);
        let weights: f64 = (0..self.nodes).map(weight).sum();
        let wanted = |node: u16| {
            let hot = (number + moved) % self.nodes;
            let rank = (node + self.nodes - hot) % self.nodes;
            let all = self.in_a_period(tenants.demand?) as f64;
            Some((all * weight(rank) / weights) as u64)
        };
        (0..self.nodes).map(wanted).collect()
    }

    /// The policy with the tenants' promises, as a file. They are t0, t1 and so on.
    pub fn policy(&self) -> String {
        let interval = self.redistribute;
        let mut text = format!("period = \"{interval}\"\nredistribute = \"{interval}\"\n");
        for (number, (_, tenants)) in self.each().enumerate() {
            text += &format!("[[tenant]]\nname = \"t{number}\"\n");
            if let Some(rate) = tenants.reservation {
                text += &format!("reservation = \"{} iops\"\n", rate.0);
            }
        }
        text
    }

    fn in_a_period(&self, rate: Iops) -> u64 {
        let whole = u128::from(rate.0) * u128::from(self.period.0);
        (whole / u128::from(Span::SECOND.0)) as u64
    }

    /// Returns the known capacity of a node and of a client there, in operations per period.
    pub(super) fn capacities(&self) -> (u64, u64) {
        (self.in_a_period(self.nics.node), self.in_a_period(self.nics.client))
    }
}
