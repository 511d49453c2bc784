//! Several data nodes in virtual time: promises that hold for all of them together.
//!
//! ```text
//!  tenant's client at a ──▶ data node a: monitor, share_agent ──┐ reports
//!  tenant's client at b ──▶ data node b: monitor, share_agent ──┼──────────▶ split (pShift)
//!  …                                                            │◀────────── shares
//! ```
//!
//! Each tenant has a client at each node, with a NIC of its own. At every node Haechi runs as it
//! does with one, and above them the controller's machine divides promises by what nodes report
//! ([`tidegate_proto::cluster::split`]). A message takes [`MESSAGE`].
//!
//! # Load
//! A tenant wants so much per second of all nodes together, at a constant rate, by Zipf's
//! distribution: most of its *hot* node, and less of those after it. Hot nodes move once.
//!
//! # What is measured
//! The reads of each tenant at all nodes in each period, and where its shares are.
//!
//! ```
//! use tidegate_sim::one_sided::nodes::{self, OneSidedClusterScenario};
//! let scenario = OneSidedClusterScenario::parse(r#"
//!     name = "what is promised at both is wanted at one"
//!     seed = 1
//!     control = "split"
//!     period = "100ms"
//!     skip = 6
//!     periods = 2
//!     nodes = 2
//!     cards = { client = "8k iops", node = "10k iops" }
//!     tenant = [
//!         { count = 1, reservation = "6k iops", demand = "7k iops", exponent = 4.0 },
//!         { count = 4 },
//!     ]
//! "#)?;
//! let outcome = nodes::run(&scenario)?;
//! assert!(outcome.missing_percent(0) < 5.0, "{}", outcome.table());
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

mod scenario;
mod world;

use tidegate_model::Span;

pub use scenario::{Move, NodesControl, OneSidedClusterScenario, Tenants};
pub(crate) use world::{OneSidedClusterSim, PolicyEvent};

use crate::scenario::ScenarioError;

/// The time of a message between a data node and the controller, and the step of the simulation.
pub const MESSAGE: Span = Span::MILLISECOND;

/// One period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Reads that each tenant has completed, at each node.
    pub completed: Vec<Vec<u64>>,
    /// Reservation of each tenant at each node at the end of the period, in operations per second.
    pub reserved: Vec<Vec<u64>>,
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct OneSidedClusterReport {
    /// The seed that everything followed from.
    pub seed: u64,
    /// How long a period is.
    pub period: Span,
    /// The lesser of each tenant's reservation and demand, in reads per period at all nodes.
    pub promised: Vec<u64>,
    /// The measured periods.
    pub samples: Vec<Sample>,
}

impl OneSidedClusterReport {
    /// Reads of a tenant in a period, at all nodes.
    fn of(sample: &Sample, tenant: usize) -> u64 {
        sample.completed[tenant].iter().sum()
    }

    /// Reads of a tenant per second, period by period.
    pub fn rates(&self, tenant: usize) -> impl Iterator<Item = f64> {
        let seconds = self.period.as_seconds();
        self.samples.iter().map(move |sample| Self::of(sample, tenant) as f64 / seconds)
    }

    /// Reads of all tenants per second, over the whole time.
    pub fn total(&self) -> f64 {
        let all = (0..self.promised.len()).flat_map(|tenant| self.rates(tenant)).sum::<f64>();
        all / self.samples.len().max(1) as f64
    }

    /// By how much of its promise a tenant was served too little in a period, in percent.
    pub fn missing(&self, tenant: usize, sample: &Sample) -> f64 {
        let promised = self.promised[tenant];
        let short = promised.saturating_sub(Self::of(sample, tenant));
        short as f64 * 100.0 / promised.max(1) as f64
    }

    /// The same in the worst period; 0 if it always had it.
    pub fn missing_percent(&self, tenant: usize) -> f64 {
        self.samples.iter().map(|sample| self.missing(tenant, sample)).fold(0.0, f64::max)
    }

    /// A table for people and golden files: reads of each tenant and of all, and where what is
    /// promised to the first is kept, a line per period.
    pub fn table(&self) -> String {
        let mut text = format!("{:>8}", "");
        (1..=self.promised.len()).for_each(|it| text += &format!(" {:>7}", format!("T{it}")));
        text += &format!(" {:>8}", "all");
        let nodes = self.samples.first().map_or(0, |sample| sample.reserved[0].len());
        (1..=nodes).for_each(|node| text += &format!(" {:>7}", format!("T1@{node}")));
        text.push('\n');
        for (number, sample) in (1u64..).zip(&self.samples) {
            text += &format!("{:>8}", Span(self.period.0 * number).to_string());
            let counts: Vec<u64> =
                (0..self.promised.len()).map(|tenant| Self::of(sample, tenant)).collect();
            counts.iter().for_each(|count| text += &format!(" {count:>7}"));
            text += &format!(" {:>8}", counts.iter().sum::<u64>());
            sample.reserved[0].iter().for_each(|share| text += &format!(" {share:>7}"));
            text.push('\n');
        }
        text
    }
}

/// Runs a scenario to its end.
///
/// # Errors
/// The errors of [`OneSidedClusterScenario::check`].
pub fn run(scenario: &OneSidedClusterScenario) -> Result<OneSidedClusterReport, ScenarioError> {
    scenario.check()?;
    let mut world = OneSidedClusterSim::steady(scenario)?;
    for _ in 0..scenario.skip {
        world.pass();
    }
    Ok(OneSidedClusterReport {
        seed: scenario.seed,
        period: scenario.period,
        promised: scenario.promised(),
        samples: (0..scenario.periods).map(|_| world.pass()).collect(),
    })
}
