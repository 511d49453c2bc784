//! The discrete-time model of the end-to-end paper: the rates to which QTCP converges, computed in
//! time slots without packets.
//!
//! **Problem.** A simulation shows what a congestion control does in one case. A model with a
//! handful of equations shows why, and finds in a millisecond which parameters converge. The
//! paper's model (Gupta, Kant, Pal and Biswas, 2024, §3.1.2, Eqs. 7 to 17) is one; as printed it
//! does not converge to the shares that it is to explain, so what was changed is a parameter here.
//!
//! **Model.** Flows share a link of capacity `C` packets a second. Time goes in slots of one round
//! trip each. In a slot flow `i` sends a window of `W` packets into the link's queue, the link
//! serves some, and at the end of the slot every flow has the marked part of its packets. In the
//! order of a slot, of what is known from the slot before:
//!
//! | | Eq. | |
//! |---|---|---|
//! | marks | 7, 8 | `p = 1 - (K - 1) / B` of all if the queue `B` is `K` or more, else none |
//! | share | 9 | `C r / sum r`, what is promised |
//! | quality | 1, 10 | `Q` = promise / (`W' / R`), smoothed |
//! | | 2, 10 | or, if a latency is promised, `(d + q / C_i)` / promise, `C_i = W' / R` |
//! | congestion | 11 | `alpha += g (p - alpha)` |
//! | window | 12 | `W + 1` if `alpha <= epsilon`, else `W (1 - alpha / 2) min(Q, 1)`; 1 at least |
//! | round trip | 13 | `R = 2 d + B / C` |
//! | backlog | 15, 16 | `U += ` packets that came in the last slot, `- W'` |
//! | sent | 17 | `W' = min(W, U)` |
//! | queue | 14 | `q += W' - ` what is served |
//!
//! The cut and the quality are [`tidegate_algo::congestion::qtcp`]'s own: so the model's results
//! hold for the algorithm that simulated and real transports run.
//!
//! # What was changed, and why
//! - *Service.* Eq. 14 serves flow `i` at its own promise `C_i` even while others leave the link
//!   idle. Then the queue of the third of three flows, which is never served faster, marks the
//!   packets of all, and the first comes to 26 instead of 50. The switches of the paper
//!   serve first come, first served, and so does [`LinkService::Fcfs`]: `min(C R, q + W')` of all
//!   together, from each in proportion to what it has there. The printed one is
//!   [`LinkService::Paper`].
//! - *Epsilon* has no value in the paper. With 0 the windows freeze, for alpha comes near zero and
//!   never there; above 0.3 the shares are lost. 0.01 to 0.1 converge.
//! - *Round trip.* The text has `R = d` and Eq. 13 `2 d + B / C`; without the queue's part the
//!   model swings between an empty queue and a full one ([`RoundTrip`]).
//! - *Gamma*, *g*: the values are 0 (none is used in Eq. 10) and 0.5 (§3.1.1).
//!
//! *Example.* Three flows want 90, 60 and 30 of 100 Gbit/s, promised 3 : 2 : 1, over a round trip
//! of 25 us, with `K` = 140, `g` = 0.5 and `epsilon` = 0.01: after some hundred slots their shares
//! are 49.9, 33.3 and 16.8 and the queue stays between 137 and 143 packets.
//!
//! **Left out.** A delay for each flow: with slots of different lengths the equations do not define
//! one slot of the link. Losses: the buffer has no end.
//!
//! ```
//! use tidegate_netsim::dtm::{self, DtmPlan};
//! let plan = DtmPlan::parse(r#"
//!     name = "three classes"
//!     capacity = "100Gbps"
//!     delay = "12500ns"
//!     epsilon = 0.01
//!     slots = 4000
//!     [[flow]]
//!     name = "high"
//!     share = 3
//!     offered = { rate = "90Gbps" }
//!     [[flow]]
//!     name = "medium"
//!     share = 2
//!     offered = { rate = "60Gbps" }
//!     [[flow]]
//!     name = "low"
//!     share = 1
//!     offered = { rate = "30Gbps" }
//! "#)?;
//! let outcome = dtm::run(&plan)?;
//! let shares = outcome.shares(2_000..4_000);
//! assert!((shares[0] - 49.9).abs() < 0.3 && (shares[2] - 16.8).abs() < 0.3, "{shares:?}");
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

mod link;
mod outcome;

use serde::Deserialize;
use tidegate_algo::congestion::quality::Objective;
use tidegate_model::{Bytes, Rate, Span};

pub use outcome::{DtmFlow, DtmReport, TimeSlot};

use link::SharedLink;
use tidegate_sim::scenario::{ScenarioError, must, optional, read, read_table, text};
use tidegate_sim::workload::Open;

/// Slots of all flows together, each of which takes 48 bytes: two gigabytes.
const KEPT_MAX: u64 = 40_000_000;

/// One run of the model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DtmPlan {
    /// The plan's name, for people.
    pub name: String,
    /// The seed of every random number of the run.
    #[serde(default)]
    pub seed: u64,
    /// The capacity of the link, in bytes per second.
    #[serde(deserialize_with = "text")]
    pub capacity: Rate,
    /// How large every packet is.
    #[serde(default = "DtmPlan::packet", deserialize_with = "text")]
    pub packet: Bytes,
    /// `d`: how long a packet takes one way without a queue.
    #[serde(deserialize_with = "text")]
    pub delay: Span,
    /// `K`: with so many packets in the queue, packets are marked.
    #[serde(default = "DtmPlan::threshold")]
    pub threshold: u32,
    /// `g`: the weight of the last slot's marks in alpha.
    #[serde(default = "DtmPlan::gain")]
    pub gain: f64,
    /// Up to this alpha a window grows.
    pub epsilon: f64,
    /// The weight of the old value in the measured rate or latency.
    #[serde(default)]
    pub gamma: f64,
    /// Alpha before the first slot.
    #[serde(default)]
    pub alpha: f64,
    /// Which packets the link serves.
    #[serde(default)]
    pub service: LinkService,
    /// How long a slot is.
    #[serde(default)]
    pub round_trip: RoundTrip,
    /// How deep a window is cut.
    #[serde(default, rename = "law")]
    pub cc: CongestionControl,
    /// How many slots there are.
    pub slots: u32,
    /// The senders.
    pub flow: Vec<Sender>,
}

/// Which packets the link serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkService {
    /// First come, first served, as long as there are any.
    #[default]
    Fcfs,
    /// Eq. 14: of each flow at most what it is promised, whatever the others leave.
    Paper,
}

/// How long a slot is, of the delay `d` one way and the time that the queue takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoundTrip {
    /// `2 d + B / C`, Eq. 13.
    #[default]
    Queued,
    /// `2 d`.
    Bare,
    /// `d + B / C`: a way back that takes no time.
    OneWay,
}

/// How deep a window is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CongestionControl {
    /// By marks and by the quality factor.
    #[default]
    Qtcp,
    /// By marks alone.
    Dctcp,
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sender {
    /// Its name.
    pub name: String,
    /// Its part of the link beside those of others. With a latency it is not used.
    #[serde(default = "Sender::share")]
    pub share: u32,
    /// The latency that it is promised, one way with its queue; otherwise its share is.
    #[serde(default, deserialize_with = "optional")]
    pub latency: Option<Span>,
    /// The packets that it is given to send; by default there are always enough.
    #[serde(default)]
    pub offered: Option<Open>,
    /// Its first window, in packets; by default its offered load in a bare round trip, or, without
    /// one, the packets that the link carries in one.
    #[serde(default)]
    pub window: Option<f64>,
}

impl Sender {
    const fn share() -> u32 {
        1
    }
}

impl DtmPlan {
    const fn packet() -> Bytes {
        Bytes(1_500)
    }

    /// The paper's (§4.3.1).
    const fn threshold() -> u32 {
        140
    }

    /// The paper's (§3.1.1). DCTCP's is 1/16.
    const fn gain() -> f64 {
        0.5
    }

    /// Reads one from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line where there is one.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    /// The same of a text that was read already, and perhaps changed since: points of a sweep.
    ///
    /// # Errors
    /// As [`Self::parse`], without lines.
    pub fn of(table: toml::Table) -> Result<Self, ScenarioError> {
        read_table(table, Self::check)
    }

    /// Whether it can be run. Code that builds or changes a plan calls this, too.
    ///
    /// # Errors
    /// The first thing that contradicts another, and what to write instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let part = |value: f64| (0.0..=1.0).contains(&value);
        must(self.packet.0 > 0, "packet: at least 1 byte")?;
        let some = self.capacity.0 / self.packet.0.max(1) >= 1;
        must(some, "capacity: at least one packet in a second")?;
        let short = (Span(1)..=Span::SECOND).contains(&self.delay);
        must(short, "delay: more than 0 and at most 1s")?;
        must(self.threshold > 0, "threshold: at least 1 packet")?;
        must(self.gain > 0.0 && part(self.gain), "gain: more than 0.0 and at most 1.0")?;
        must(part(self.epsilon), "epsilon: from 0.0 to 1.0")?;
        must(part(self.gamma) && self.gamma < 1.0, "gamma: from 0.0 to less than 1.0")?;
        must(part(self.alpha), "alpha: from 0.0 to 1.0")?;
        must((1..=10_000_000).contains(&self.slots), "slots: from 1 to 10000000")?;
        must(!self.flow.is_empty(), "flow: at least 1")?;
        let kept = u64::from(self.slots) * self.flow.len() as u64;
        let most = format!("slots: at most {KEPT_MAX} of all flows together, for all are kept");
        must(kept <= KEPT_MAX, &most)?;
        self.flow.iter().enumerate().try_for_each(|(number, flow)| {
            self.check_flow(flow).map_err(|error| error.within(&format!("flow.{number}")))
        })
    }

    fn check_flow(&self, flow: &Sender) -> Result<(), ScenarioError> {
        must(flow.share > 0, "share: at least 1")?;
        must(flow.latency != Some(Span::ZERO), "latency: more than 0")?;
        let window = flow.window.is_none_or(|window| (1.0..=1e9).contains(&window));
        must(window, "window: from 1.0 to 1e9 packets")?;
        let offered = flow.offered.as_ref();
        offered.map_or(Ok(()), |open| open.check([u128::from(self.packet.0), 1], "offered"))
    }

    /// The promise to a flow: its latency if it has one, else its share of the capacity.
    fn objective(&self, flow: &Sender) -> Objective {
        if let Some(latency) = flow.latency {
            return Objective::Latency(latency);
        }
        let shares: u64 = self.flow.iter().map(|flow| u64::from(flow.share)).sum();
        let promised = u128::from(self.capacity.0) * u128::from(flow.share) / u128::from(shares);
        Objective::Rate(Rate(promised as u64))
    }
}

/// Runs the model.
///
/// # Errors
/// Those of [`DtmPlan::check`].
pub fn run(plan: &DtmPlan) -> Result<DtmReport, ScenarioError> {
    run_while(plan, |_| true)
}

/// The same, until `goes_on` returns false: it is called after each slot, with the number of slots
/// so far. The outcome is of these.
///
/// # Errors
/// As [`run`].
pub fn run_while(
    plan: &DtmPlan,
    goes_on: impl FnMut(u32) -> bool,
) -> Result<DtmReport, ScenarioError> {
    plan.check()?;
    Ok(SharedLink::new(plan).run(goes_on))
}

#[cfg(test)]
#[path = "dtm/dtm_tests.rs"]
mod tests;
