//! Scenario of a simulation: a TOML file with strict keys, so that a run is a file and a seed.
//!
//! Quantities are strings with units, as in a policy; unknown keys and impossible combinations are
//! refused with one sentence that says what to write instead.
//!
//! ```
//! use tidegate_sim::scenario::Scenario;
//! let scenario = Scenario::parse(r#"
//!     name = "two tenants on one node"
//!     seed = 7
//!     control = "tokens"
//!     period = "1s"
//!     redistribute = "200ms"
//!     periods = 2
//!     sample = "100ms"
//!     [nodes]
//!     count = 1
//!     rate = "1k iops"
//!     [tenants]
//!     count = 2
//!     reservation = "300 iops"
//!     [load]
//!     active = [1, 1]
//!     closed = { outstanding = 4 }
//! "#)?;
//! assert_eq!(scenario.tenants.count, 2);
//! assert!(Scenario::parse("nmae = 'typo'").unwrap_err().to_string().contains("nmae"));
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

mod error;

use core::fmt;
use core::str::FromStr;

use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use tidegate_algo::scheduling::shards::SHARDS_MAX;
use tidegate_model::{Iops, Span};

pub use error::ScenarioError;

/// One simulation, but for its seed's consequences.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Title of the scenario, for display.
    pub name: String,
    /// Seed of every random number of the run.
    pub seed: u64,
    /// QoS control of the nodes.
    pub control: Control,
    /// The time over which a promise is counted.
    #[serde(deserialize_with = "text")]
    pub period: Span,
    /// The time between two distributions of tokens.
    #[serde(deserialize_with = "text")]
    pub redistribute: Span,
    /// How many periods pass before one is measured.
    #[serde(default)]
    pub skip: u32,
    /// How many periods are measured.
    pub periods: u32,
    /// How finely what is served is counted. It divides the period.
    #[serde(deserialize_with = "text")]
    pub sample: Span,
    /// The storage nodes.
    pub nodes: Nodes,
    /// The tenants, and what each is promised.
    pub tenants: Tenants,
    /// The load of the tenants.
    pub load: Load,
    /// How messages between controller and nodes travel.
    #[serde(default)]
    pub messages: Messages,
}

/// QoS control of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// No control: each node serves its tenants in turn.
    None,
    /// A controller that distributes tokens by pShift.
    Tokens,
}

/// The storage nodes; all are alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// How many there are.
    pub count: u16,
    /// Mean rate of each node, in requests per second.
    #[serde(deserialize_with = "text")]
    pub rate: Iops,
    /// How far a service time may lie from the mean.
    #[serde(default)]
    pub spread_percent: u32,
    /// How many requests a node keeps at its device.
    #[serde(default = "Nodes::depth")]
    pub depth: u32,
    /// Over how many shards of its scheduler a node spreads the tenants: 1 to 16.
    #[serde(default = "one_shard")]
    pub shards: usize,
    /// How limited tenants use up their counts.
    #[serde(default)]
    pub pacing: Pacing,
}

impl Nodes {
    const fn depth() -> u32 {
        8
    }
}

/// Where nothing is said of shards.
pub(crate) const fn one_shard() -> usize {
    1
}

/// How limited tenants use up their counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// At each moment, the part that has passed of the rest of the period.
    #[default]
    Even,
    /// As fast as they ask, until it is gone.
    Paper,
}

/// The tenants, and what each is promised.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenants {
    /// How many there are.
    pub count: u16,
    /// Reservation of each tenant per second.
    #[serde(default, deserialize_with = "optional")]
    pub reservation: Option<Iops>,
    /// Reservations of all tenants together, in percent of the rate of all nodes; divided by
    /// `zipf`.
    #[serde(default)]
    pub reserved_percent: Option<u32>,
    /// The exponent of the distribution by which tenants draw their parts: a multiple of 0.5.
    #[serde(default)]
    pub zipf: Halves,
    /// Limit of each tenant per second.
    #[serde(default, deserialize_with = "optional")]
    pub limit: Option<Iops>,
    /// Limit of each tenant, in percent of its reservation.
    #[serde(default)]
    pub limit_percent: Option<u32>,
}

/// The load of the tenants.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// When tenants begin to ask.
    #[serde(default, deserialize_with = "text")]
    pub start: Span,
    /// On how many nodes a tenant is active at a time: at least, at most. Which ones is drawn.
    #[serde(default)]
    pub active: Option<[u16; 2]>,
    /// On which nodes each tenant is active, if that is not drawn.
    #[serde(default)]
    pub on: Option<Vec<Vec<u16>>>,
    /// How often a tenant moves to other nodes: at least, at most. When is drawn.
    #[serde(default)]
    pub changes: [u32; 2],
    /// Over which time that is counted.
    #[serde(default)]
    pub changes_per: Per,
    /// Requests come at a rate, whatever becomes of those before.
    #[serde(default)]
    pub open: Option<Open>,
    /// A request comes when one was answered.
    #[serde(default)]
    pub closed: Option<Closed>,
}

/// Over which time something is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// Each period.
    #[default]
    Period,
    /// All measured periods.
    Run,
}

/// Requests at a rate.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Requests of a tenant in a period, in percent of its reservation.
    pub demand_percent: u32,
    /// The exponent of the distribution of that over its active nodes: a multiple of 0.5.
    #[serde(default)]
    pub zipf: Halves,
    /// When requests come.
    #[serde(default)]
    pub arrivals: Arrivals,
}

/// When requests come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Evenly.
    #[default]
    Constant,
    /// Without memory of the last one.
    Poisson,
}

/// Requests upon answers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// How many requests of a tenant are outstanding at each of its active nodes.
    pub outstanding: u32,
    /// Whether that is how many are outstanding at all of them together, each at any: a client
    /// with a volume in stripes, which goes anywhere with the next request.
    #[serde(default)]
    pub striped: bool,
}

/// How messages between controller and nodes travel.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Messages {
    /// The shortest time that one takes.
    #[serde(deserialize_with = "text")]
    pub least: Span,
    /// The longest.
    #[serde(deserialize_with = "text")]
    pub most: Span,
}

impl Default for Messages {
    /// A network of a data centre: 50 to 200 us.
    fn default() -> Self {
        Self { least: Span(50_000), most: Span(200_000) }
    }
}

/// A number in steps of one half, as the exponent of a distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Halves(pub u32);

impl<'de> Deserialize<'de> for Halves {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        let halves = value * 2.0;
        if (0.0..=8.0).contains(&halves) && halves.fract() == 0.0 {
            return Ok(Self(halves as u32));
        }
        Err(de::Error::custom(format_args!("{value} is no multiple of 0.5 from 0.0 to 4.0")))
    }
}

/// A quantity that is written with its unit.
pub fn text<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(de::Error::custom)
}

/// The same, where there may be none.
pub fn optional<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    text(deserializer).map(Some)
}

/// Two of them: the least and the most.
pub fn texts<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<[T; 2], D::Error>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    let [least, most] = <[String; 2]>::deserialize(deserializer)?;
    let read = |text: String| text.parse().map_err(de::Error::custom);
    Ok([read(least)?, read(most)?])
}

/// Reads a scenario of any world, and checks it.
pub fn read<T: DeserializeOwned>(
    text: &str,
    check: impl FnOnce(&T) -> Result<(), ScenarioError>,
) -> Result<T, ScenarioError> {
    let read = toml::from_str(text).map_err(|error| ScenarioError::of_toml(&error, Some(text)))?;
    check(&read).map_err(|error| error.located(text))?;
    Ok(read)
}

/// The same of what was read already, and perhaps changed since.
pub fn read_table<T: DeserializeOwned>(
    table: toml::Table,
    check: impl FnOnce(&T) -> Result<(), ScenarioError>,
) -> Result<T, ScenarioError> {
    let read = table.try_into().map_err(|error| ScenarioError::of_toml(&error, None))?;
    check(&read)?;
    Ok(read)
}

/// Refuses a scenario in which something does not hold, with what to write instead.
pub fn must(holds: bool, what: &str) -> Result<(), ScenarioError> {
    if holds { Ok(()) } else { Err(ScenarioError::new(what)) }
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
        let Self { nodes, tenants, load, .. } = self;
        let divides = |part: Span| part.0 > 0 && self.period.0.is_multiple_of(part.0);
        must(self.periods > 0, "periods: measure at least 1")?;
        must(divides(self.redistribute), "redistribute: choose one that divides the period")?;
        must(divides(self.sample), "sample: choose one that divides the period")?;
        must(nodes.count > 0 && tenants.count > 0, "count: at least 1 node and 1 tenant")?;
        let rates = 1..=1_000_000_000;
        must(rates.contains(&nodes.rate.0), "nodes.rate: from \"1 iops\" to \"1G iops\"")?;
        must(nodes.spread_percent <= 100, "nodes.spread_percent: at most 100")?;
        must(nodes.depth > 0, "nodes.depth: at least 1")?;
        must((1..=SHARDS_MAX).contains(&nodes.shards), "nodes.shards: 1 to 16")?;
        let promise = (tenants.reservation, tenants.reserved_percent);
        let two = promise.0.is_some() && promise.1.is_some();
        must(!two, "tenants: either reservation or reserved_percent")?;
        let two = tenants.limit.is_some() && tenants.limit_percent.is_some();
        must(!two, "tenants: either limit or limit_percent")?;
        let exactly = load.active.is_some() != load.on.is_some();
        must(exactly, "load: either active or on")?;
        let exactly = load.open.is_some() != load.closed.is_some();
        must(exactly, "load: either open or closed")?;
        let ordered = load.changes[0] <= load.changes[1];
        must(ordered, "load.changes: [least, most], the least first")?;
        let still = load.changes[1] == 0 || load.active.is_some();
        must(still, "load.changes: needs active, so that there are other nodes to move to")?;
        if let Some([least, most]) = load.active {
            let fits = 0 < least && least <= most && most <= nodes.count;
            must(fits, "load.active: [least, most], from 1 to nodes.count")?;
        }
        if let Some(on) = &load.on {
            let count = on.len() == usize::from(tenants.count);
            must(count, "load.on: one list of nodes for each tenant")?;
            let known = on.iter().flatten().all(|node| *node < nodes.count);
            must(known, "load.on: nodes count from 0 to nodes.count - 1")?;
        }
        must(self.messages.least <= self.messages.most, "messages: least is above most")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        name = "x"
        seed = 1
        control = "none"
        period = "1s"
        redistribute = "200ms"
        periods = 1
        sample = "20ms"
        [nodes]
        count = 2
        rate = "50k iops"
        [tenants]
        count = 2
        zipf = 0.5
        reserved_percent = 50
        [load]
        active = [1, 2]
        open = { demand_percent = 150, arrivals = "poisson" }
    "#;

    #[track_caller]
    fn refused(from: &str, to: &str, expected: &str) {
        assert!(GOOD.contains(from));
        let error = Scenario::parse(&GOOD.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn what_is_refused() {
        Scenario::parse(GOOD).unwrap();
        refused("seed = 1", "sede = 1", "sede");
        refused("count = 2\n        rate", "depht = 2\n        rate", "depht");
        refused("\"1s\"", "\"1\"", "has no unit");
        refused("\"200ms\"", "\"300ms\"", "divides the period");
        refused("\"20ms\"", "\"0s\"", "divides the period");
        refused("zipf = 0.5", "zipf = 0.3", "multiple of 0.5");
        refused("[1, 2]", "[1, 3]", "from 1 to nodes.count");
        refused("[1, 2]", "[2, 1]", "from 1 to nodes.count");
        refused("active = [1, 2]", "on = [[0]]", "one list of nodes");
        refused("active = [1, 2]", "on = [[0], [2]]", "count from 0");
        refused("active = [1, 2]", "", "either active or on");
        refused("reserved_percent = 50", "limit = \"1 iops\"\nlimit_percent = 5", "either limit");
        refused("[load]", "[load]\n closed = { outstanding = 1 }", "either open or closed");
    }
}
