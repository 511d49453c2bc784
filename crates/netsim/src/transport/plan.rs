//! The transport parameters of a flow: its congestion control, packets and acknowledgements, read
//! from TOML with strict keys.
//!
//! ```
//! use tidegate_netsim::transport::{CongestionControl, FlowPlan};
//! let plan = FlowPlan::parse(r#"
//!     law = "qtcp"
//!     gamma = 0.25
//!     timeout = "5ms"
//!     [window]
//!     alpha = 0.0
//! "#)?;
//! assert_eq!((plan.cc, plan.packet().payload), (CongestionControl::Qtcp, 1448));
//! let error = FlowPlan::parse("law = 'dctcp'\nrate = {}").unwrap_err().to_string();
//! assert!(error.contains("dcqcn or qrdma"));
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

use core::str::FromStr;

use serde::Deserialize;
use tidegate_algo::congestion::{dcqcn, dctcp, qrdma, quality};
use tidegate_model::{Bytes, Rate, Span};

use super::inbox::AnswerPolicy;
use tidegate_sim::scenario::{ScenarioError, must, optional, read, text};

/// The longest first timeout, from which doublings stay within what a [`Span`] can hold. RFC 6298,
/// section 2.5, lets none be capped below it.
const TIMEOUT_MAX: Span = Span(60 * Span::SECOND.0);

/// The congestion control of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionControl {
    /// A window, cut by how much was marked.
    Dctcp,
    /// The same, by deadlines.
    D2tcp,
    /// The same, by promises.
    Qtcp,
    /// A rate, cut by notifications.
    Dcqcn,
    /// The same, by promises.
    Qrdma,
}

impl CongestionControl {
    /// Whether it keeps a window; otherwise, a rate.
    pub const fn is_window(self) -> bool {
        matches!(self, Self::Dctcp | Self::D2tcp | Self::Qtcp)
    }

    /// Whether it goes by what its flow is promised.
    pub const fn is_promised(self) -> bool {
        matches!(self, Self::Qtcp | Self::Qrdma)
    }

    /// The name of the congestion control in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dctcp => "dctcp",
            Self::D2tcp => "d2tcp",
            Self::Qtcp => "qtcp",
            Self::Dcqcn => "dcqcn",
            Self::Qrdma => "qrdma",
        }
    }
}

impl FromStr for CongestionControl {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::Dctcp, Self::D2tcp, Self::Qtcp, Self::Dcqcn, Self::Qrdma];
        let known = all.map(Self::name).join(", ");
        let found = all.into_iter().find(|cc| cc.name() == name);
        found.ok_or_else(|| format!("there is no law {name:?}; use one of {known}"))
    }
}

/// How a flow is run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowPlan {
    /// How it reacts to congestion.
    #[serde(rename = "law")]
    pub cc: CongestionControl,
    /// Its packets. Without it, those of a flow with a window carry 1448 bytes and 54 of headers
    /// (IPv4, TCP with time stamps, and 2 for the link, as in ns-3); those of a flow with a rate,
    /// 1024 and 62 (Ethernet with its check, IPv4, UDP, and RoCE's transport header and check).
    #[serde(default)]
    pub packet: Option<Sizes>,
    /// When it is answered.
    #[serde(default)]
    pub answer: Option<Answers>,
    /// The least time without an answer after which everything is taken for lost, and the first,
    /// before a round trip was seen; at most 60 s. 10 ms: a data centre's, as in the DCTCP paper,
    /// section 4.
    #[serde(default = "FlowPlan::timeout", deserialize_with = "text")]
    pub timeout: Span,
    /// The weight of the old value in a flow's quality factor. Half: see the paper's law.
    #[serde(default = "FlowPlan::gamma")]
    pub gamma: f64,
    /// For a flow with a window.
    #[serde(default)]
    pub window: Option<Beginning>,
    /// For a flow with a rate.
    #[serde(default)]
    pub rate: Option<RateParameters>,
    /// For QTCP: by how much its quality factor may differ from one until a flow scales its promise
    /// by itself. Without it, it does not.
    #[serde(default)]
    pub interference: Option<f64>,
}

/// The packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// Payload of a full packet, in bytes: 64 to 9,000.
    pub payload: u16,
    /// Headers of each packet: all of an answer. 1 to 200.
    pub headers: u16,
}

/// When packets are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    /// Every so many of them: 1 to 64.
    pub every: u32,
    /// After so long without more of them.
    #[serde(default = "Answers::within", deserialize_with = "text")]
    pub within: Span,
}

impl Answers {
    /// By hand: some round trips, and less than the least timeout.
    const fn within() -> Span {
        Span(500_000)
    }
}

/// The start of a window, and the memory of alpha: as in `tidegate_algo::congestion::dctcp::Start`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Beginning {
    /// The first window, in packets.
    pub first: u32,
    /// Alpha before the first round: 0 to 1.
    pub alpha: f64,
    /// The weight of the newest round in alpha: more than 0, at most 1.
    pub gain: f64,
}

impl Default for Beginning {
    fn default() -> Self {
        let dctcp::Start { window, alpha, gain, .. } = dctcp::Start::USUAL;
        Self { first: window, alpha, gain }
    }
}

/// Parameters of a rate; defaults are those of
/// `tidegate_algo::congestion::dcqcn::DcqcnParameters::for_line`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateParameters {
    /// The least rate.
    #[serde(default, deserialize_with = "optional")]
    pub least: Option<Rate>,
    /// The weight of the newest observation in alpha: more than 0, at most 1.
    #[serde(default)]
    pub gain: Option<f64>,
    /// Time without notifications after which alpha fades.
    #[serde(default, deserialize_with = "optional")]
    pub quiet: Option<Span>,
    /// Time after which the rate is raised.
    #[serde(default, deserialize_with = "optional")]
    pub period: Option<Span>,
    /// Payload after which the rate is raised.
    #[serde(default, deserialize_with = "optional")]
    pub volume: Option<Bytes>,
    /// How many of them until the target is raised.
    #[serde(default)]
    pub recoveries: Option<u32>,
    /// By how much.
    #[serde(default, deserialize_with = "optional")]
    pub additive: Option<Rate>,
    /// And by how much more later.
    #[serde(default, deserialize_with = "optional")]
    pub hyper: Option<Rate>,
    /// The least time between two notifications.
    #[serde(default, deserialize_with = "optional")]
    pub notify: Option<Span>,
    /// The rate to which a flow of QRDMA returns after a squeeze.
    #[serde(default)]
    pub aim: Aim,
    /// The packets that are sent again after a loss.
    #[serde(default)]
    pub repeat: Repeat,
}

/// The rate to which a flow returns after a squeeze.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aim {
    /// The rate before.
    Before,
    /// The rate that the squeeze leaves.
    #[default]
    After,
}

/// The packets that a flow with a rate sends again after a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repeat {
    /// The lost packet, and everything after it: the receiver keeps nothing that is out of order.
    #[default]
    All,
    /// The lost packets.
    Lost,
}

impl FlowPlan {
    /// A plan in which only the congestion control is chosen.
    pub const fn of(cc: CongestionControl) -> Self {
        Self {
            cc,
            packet: None,
            answer: None,
            timeout: Self::timeout(),
            gamma: quality::GAMMA,
            window: None,
            rate: None,
            interference: None,
        }
    }

    /// Reads a plan from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line where there is one.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    const fn timeout() -> Span {
        Span(10_000_000)
    }

    const fn gamma() -> f64 {
        quality::GAMMA
    }

    /// Whether a flow can be run by it. Code that builds or changes a plan calls this, too.
    ///
    /// # Errors
    /// The first thing that is out of range or for another congestion control, and what to write
    /// instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let Sizes { payload, headers } = self.packet();
        must((64..=9_000).contains(&payload), "packet.payload: from 64 to 9000")?;
        must((1..=200).contains(&headers), "packet.headers: from 1 to 200")?;
        let Answers { every, within } = self.answer();
        must((1..=64).contains(&every), "answer.every: from 1 to 64")?;
        must(within < self.timeout, "answer.within: less than timeout")?;
        must(self.timeout <= TIMEOUT_MAX, "timeout: at most \"60s\"")?;
        must((0.0..1.0).contains(&self.gamma), "gamma: from 0.0 to less than 1.0")?;
        let start = self.window.unwrap_or_default();
        must((1..=1 << 20).contains(&start.first), "window.first: from 1 to 1048576")?;
        must((0.0..=1.0).contains(&start.alpha), "window.alpha: from 0.0 to 1.0")?;
        must(start.gain > 0.0 && start.gain <= 1.0, "window.gain: above 0.0, at most 1.0")?;
        let fits = self.window.is_none() || self.cc.is_window();
        must(fits, "window: only for dctcp, d2tcp or qtcp; write rate instead")?;
        let fits = self.rate.is_none() || !self.cc.is_window();
        must(fits, "rate: only for dcqcn or qrdma; write window instead")?;
        if let Some(sigma) = self.interference {
            must(self.cc == CongestionControl::Qtcp, "interference: only for qtcp")?;
            must(sigma > 0.0 && sigma < 1.0, "interference: above 0.0 and below 1.0")?;
        }
        self.rate.as_ref().map_or(Ok(()), RateParameters::check)
    }

    /// The packets that its flow has.
    pub fn packet(&self) -> Sizes {
        let window = Sizes { payload: 1448, headers: 54 };
        let rate = Sizes { payload: 1024, headers: 62 };
        self.packet.unwrap_or(if self.cc.is_window() { window } else { rate })
    }

    /// When its flow is answered: by default each packet of a window, and every 16th of a rate
    /// beside the ends of messages (by hand; NICs differ).
    pub fn answer(&self) -> Answers {
        let every = if self.cc.is_window() { 1 } else { 16 };
        self.answer.unwrap_or(Answers { every, within: Answers::within() })
    }

    pub(super) fn answer_policy(&self) -> AnswerPolicy {
        let Answers { every, within } = self.answer();
        let at_ends = !self.cc.is_window();
        AnswerPolicy { every, within, at_ends, keeps: self.repeats() == Repeat::Lost }
    }

    pub(super) fn repeats(&self) -> Repeat {
        if self.cc.is_window() {
            return Repeat::Lost;
        }
        self.rate.as_ref().map_or(Repeat::default(), |rate| rate.repeat)
    }
}

impl RateParameters {
    fn check(&self) -> Result<(), ScenarioError> {
        let positive = |span: Option<Span>| span.is_none_or(|span| span > Span::ZERO);
        must(positive(self.quiet), "rate.quiet: more than \"0s\"")?;
        must(positive(self.period), "rate.period: more than \"0s\"")?;
        must(self.volume.is_none_or(|volume| volume.0 > 0), "rate.volume: more than \"0B\"")?;
        must(self.least.is_none_or(|least| least.0 > 0), "rate.least: more than \"0B/s\"")?;
        must(self.additive.is_none_or(|step| step.0 > 0), "rate.additive: more than \"0B/s\"")?;
        let fits = self.gain.is_none_or(|gain| gain > 0.0 && gain <= 1.0);
        must(fits, "rate.gain: above 0.0, at most 1.0")
    }

    pub(super) fn parameters(&self, line: Rate) -> dcqcn::DcqcnParameters {
        let usual = dcqcn::DcqcnParameters::for_line(line);
        dcqcn::DcqcnParameters {
            line,
            least: self.least.unwrap_or(usual.least).min(line),
            gain: self.gain.unwrap_or(usual.gain),
            quiet: self.quiet.unwrap_or(usual.quiet),
            period: self.period.unwrap_or(usual.period),
            volume: self.volume.map_or(usual.volume, |volume| volume.0),
            recoveries: self.recoveries.unwrap_or(usual.recoveries),
            additive: self.additive.unwrap_or(usual.additive),
            hyper: self.hyper.unwrap_or(usual.hyper),
        }
    }

    /// The least time between two notifications.
    pub(super) fn notify(&self) -> Span {
        self.notify.unwrap_or(dcqcn::NOTIFICATION)
    }
}

impl From<Aim> for qrdma::Aim {
    fn from(aim: Aim) -> Self {
        match aim {
            Aim::Before => Self::Before,
            Aim::After => Self::After,
        }
    }
}
