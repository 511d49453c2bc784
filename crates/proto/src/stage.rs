//! A stage's side of the protocol: connect, say hello, follow rules, report, and outlive the
//! controller.
//!
//! The machine decides; its caller acts. [`Machine::poll_output`] returns the next action, and the
//! caller reports events with `on_…`. A stage without a controller keeps its rules, tries again
//! with growing pauses ([`PeerSession`]), and after the silence that the controller itself allowed
//! goes over to the policy's fallback. No message of a controller can stop the application.
//!
//! **Leases.** A stage of another host may be cut off while the controller gives its rates to
//! others. So its rates last for a lease, which the controller renews in every round
//! ([`ToStage::Lease`]). A lease counts from when the stage sent the report that the controller
//! names as received: the controller received it later, counts from then, and so counts longer,
//! however long messages take and whatever the clocks show. After the lease the stage has its safe
//! rates, which the controller goes on keeping for it.
//!
//! **The segment's lease.** A machine that is killed or stopped cannot go over to safe rates. So
//! the rates in the segment last for a while only, too ([`Machine::kept_until`]): while the caller
//! renews them. If it does not, the processes of the segment go over to the safe rates themselves.
//! A caller that comes back first reads what the controller has sent meanwhile; with the connection
//! the rates are gone ([`Machine::on_lapsed`]). A stage that waits for its turn knows the time of
//! its turn ([`Enforcement::Hold`]): its requests go then, whoever is gone.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};

use tidegate_model::policy::Fallback;
use tidegate_model::{GateSpec, Span, StageId, Time};

use crate::message::{
    Enforcement, FromStage, Held, HeldBucket, Hello, Rule, StageInfo, ToStage, VERSION,
};
use crate::session::version::VersionMismatch;
use crate::session::{FromController, PeerSession, Standing};

pub mod plan;

use plan::{Change, Plan};

/// The pause before the first new attempt to connect. A controller that restarts is back sooner
/// than a person notices.
const RETRY_FIRST: Span = Span(100 * Span::MILLISECOND.0);
/// The longest pause between attempts.
const RETRY_LAST: Span = Span(5 * Span::SECOND.0);
/// The longest pause between attempts on a machine where nobody listens: an attempt costs three
/// system calls there. A controller that starts gives out what it knows of nobody, so each program
/// has to be there soon.
const RETRY_ABSENT: Span = Span(250 * Span::MILLISECOND.0);
/// The silence allowed before a controller has set its own bound.
const SILENCE_FIRST: Span = Span(5 * Span::SECOND.0);

/// Reports whose times are kept: a controller answers one before it asks for the next but one.
const REPORTS_MAX: usize = 64;

/// An I/O action for the caller of [`Machine`] to perform.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Connect to the controller, then call [`Machine::on_connected`] or [`Machine::on_closed`].
    Connect,
    /// Close the connection. [`Machine::on_closed`] need not be called.
    Close,
    /// Send this first message.
    Hello(Hello),
    /// Send this message.
    Send(FromStage),
    /// Read the counters and send a [`FromStage::Report`] with this round.
    Report {
        /// The round that was asked for.
        round: u64,
        /// Whether histograms are wanted.
        detail: bool,
    },
    /// Change the gates, then, if there are words, publish them as the table in force.
    Install(Change),
    /// Tell the user, once for each change.
    Notice(String),
}

/// A stage as a state machine: its session with the controller, its rules, its rates and their
/// leases.
#[derive(Debug)]
pub struct Machine {
    info: StageInfo,
    plan: Plan,
    session: PeerSession,
    /// The caller is to connect, and has not reported how that went.
    is_connecting: bool,
    /// No further attempt: the stage was refused for good, or nothing uses it any more.
    has_ended: bool,
    /// When the last message from the controller came.
    last_received: Time,
    silence_max: Span,
    fallback: Fallback,
    /// When the hello and the reports on this connection were sent, by round, oldest first.
    sent: VecDeque<(u64, Time)>,
    /// Until when the rates last; [`Time::MAX`] without a lease.
    leased_until: Time,
    /// Until when buckets let no request pass, by the name of the gate.
    held_until: BTreeMap<String, Time>,
    /// Whether the fallback is in force.
    alone: bool,
    outputs: VecDeque<Output>,
    /// The last notice, so that a lasting fault is reported once.
    noticed: String,
    /// Whether the controller that answered last refused the stage.
    is_refused: bool,
}

impl Machine {
    /// A stage that connects at once. `layered` is whether it carries content, as the layered
    /// interface does; others refuse gates that transform it.
    pub fn new(now: Time, info: StageInfo, layered: bool) -> Self {
        Self {
            info,
            plan: Plan::new(layered),
            session: PeerSession::retrying(RETRY_FIRST, RETRY_LAST),
            is_connecting: false,
            has_ended: false,
            last_received: now,
            silence_max: SILENCE_FIRST,
            fallback: Fallback::Keep,
            sent: VecDeque::new(),
            leased_until: Time::MAX,
            held_until: BTreeMap::new(),
            alone: false,
            outputs: VecDeque::new(),
            noticed: String::new(),
            is_refused: false,
        }
    }

    /// Returns the next action to perform. The caller calls it after every other call, until it
    /// returns none.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to call [`Self::on_deadline`], if nothing happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        let is_idle = !self.is_connecting && !self.has_ended && !self.is_live();
        let attempt = is_idle.then(|| self.session.next_attempt());
        // The silence counts on a live connection, to notice a controller that hangs, and without
        // one until the fallback is in force.
        let silence =
            (self.is_live() || !self.alone).then(|| self.last_received.after(self.silence_max));
        let lease = (!self.alone && self.leased_until < Time::MAX).then_some(self.leased_until);
        [attempt, silence, lease].into_iter().flatten().min()
    }

    /// Channels, gates and rules as they are.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The description of the stage, as it would send it now.
    pub fn info(&self) -> &StageInfo {
        &self.info
    }

    /// The first message of a connection that opens now.
    pub fn hello(&self, now: Time) -> Hello {
        let bucket = |(gate, spec): (&str, &plan::Gate)| {
            let GateSpec::TokenBucket { rate: safe, .. } = spec.spec else { return None };
            let held = self.held_until.get(gate).map_or(Span::ZERO, |until| until.since(now));
            Some(HeldBucket { gate: gate.into(), rate: spec.rate.unwrap_or(safe), safe, held })
        };
        let lease = match self.leased_until {
            Time::MAX => Span::ZERO,
            until => until.since(now),
        };
        let (buckets, segment) = (self.plan.gates().filter_map(bucket), &self.info.held.segment);
        let held = Held { buckets: buckets.collect(), lease, segment: segment.clone() };
        Hello::Stage { version: VERSION, info: StageInfo { held, ..self.info.clone() } }
    }

    /// Whether a controller has welcomed the stage and not gone since.
    pub fn is_connected(&self) -> bool {
        !self.has_ended && self.session.standing() == Standing::Joined
    }

    /// The last notice; none before the first, and none once a controller has welcomed the stage.
    pub fn last_notice(&self) -> Option<&str> {
        (!self.noticed.is_empty()).then_some(&self.noticed)
    }

    /// Whether the controller that answered last refused the stage.
    pub const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Whether there is a connection.
    fn is_live(&self) -> bool {
        let standing = self.session.standing();
        !self.has_ended && matches!(standing, Standing::Greeting | Standing::Joined)
    }

    /// Until when the rates in the segment are to hold if the caller does not ask again:
    /// [`Time::MAX`] for ever. A controller that does not hear of this stage any more waits for so
    /// long before it gives them to others. Under a policy without limits for stages that are cut
    /// off, and before a controller has given any, rates need no end.
    pub fn kept_until(&self, now: Time) -> Time {
        let is_welcomed = self.info.stage != StageId::default();
        if self.has_ended || !is_welcomed || self.fallback == Fallback::Unlimited {
            return Time::MAX;
        }
        self.leased_until.min(now.after(self.silence_max))
    }

    /// The rates in the segment were not renewed in time, and all that the controller has sent is
    /// taken in. If it has closed the connection, others may have them by now: the safe rates are
    /// in force until it sends new ones.
    pub fn on_lapsed(&mut self) {
        if !self.is_live() && !self.alone {
            self.alone = true;
            self.outputs.extend(self.plan.resign().map(Output::Install));
        }
    }

    /// Time has come.
    pub fn on_deadline(&mut self, now: Time) {
        let may_connect = !self.is_connecting && !self.has_ended;
        if may_connect && self.session.next_attempt() <= now {
            self.is_connecting = true;
            self.outputs.push_back(Output::Connect);
        }
        let is_silent = self.last_received.after(self.silence_max) <= now;
        let is_over = !self.alone && self.leased_until <= now;
        if self.is_live() && is_silent {
            self.outputs.push_back(Output::Close);
            self.lose(now, format!("the controller has been silent for {}", self.silence_max));
        } else if self.is_connected() && is_over {
            // The controller does not know that the rates are other ones now; a hello tells it.
            self.outputs.push_back(Output::Close);
            self.lose(now, "the controller has received no report for a whole lease".into());
        }
        if !self.alone && (is_silent || is_over) {
            self.alone = true;
            // With a lease the last rates are no choice: they may be others' by now.
            let change = match self.leased_until {
                Time::MAX => self.plan.fall_back(self.fallback),
                _ => self.plan.resign(),
            };
            self.outputs.extend(change.map(Output::Install));
        }
    }

    /// The connection is there.
    pub fn on_connected(&mut self, now: Time) {
        self.is_connecting = false;
        self.session.on_connected();
        self.last_received = now;
        self.sent = [(0, now)].into();
        self.outputs.push_back(Output::Hello(self.hello(now)));
    }

    /// There is no connection (any more), and why.
    pub fn on_closed(&mut self, now: Time, reason: &str) {
        if !self.has_ended {
            self.lose(now, format!("no controller: {reason}"));
        }
    }

    /// No controller listens on this machine, and why.
    pub fn on_absent(&mut self, now: Time, reason: &str) {
        if !self.has_ended {
            (self.is_connecting, self.is_refused) = (false, false);
            self.session.on_absent(now, RETRY_ABSENT);
            self.notice(format!("no controller: {reason}"));
        }
    }

    fn lose(&mut self, now: Time, reason: String) {
        (self.is_connecting, self.is_refused) = (false, false);
        self.session.on_closed(now);
        self.notice(reason);
    }

    fn notice(&mut self, text: String) {
        if self.noticed != text {
            self.noticed.clone_from(&text);
            self.outputs.push_back(Output::Notice(text));
        }
    }

    /// The controller has sent a message.
    pub fn on_message(&mut self, now: Time, message: ToStage) {
        self.last_received = now;
        if let Some((reason, may_help)) = message.refusal() {
            let reason = String::from(reason);
            self.session.on_message(now, &message);
            return self.refused(&message, reason, may_help);
        }
        match message {
            ToStage::Welcome { stage, silence_max, fallback, .. } => {
                self.session.on_message(now, &message);
                self.info.stage = stage;
                // Less than ten of the shortest cycles would mistake a busy machine for a dead one.
                self.silence_max = silence_max.max(RETRY_FIRST);
                self.fallback = fallback;
                if fallback == Fallback::Unlimited {
                    self.leased_until = Time::MAX;
                }
                self.noticed.clear();
                self.is_refused = false;
            }
            ToStage::Refused { .. } => {}
            ToStage::Lease { round, length } => self.renew(round, length),
            ToStage::Apply { revision, rules } => self.apply(now, revision, &rules),
            ToStage::Collect { round, detail } => {
                // It is sent later than now: a lease from now on is the shorter one.
                self.sent.truncate(REPORTS_MAX);
                self.sent.push_back((round, now));
                self.outputs.push_back(Output::Report { round, detail });
            }
        }
    }

    /// The controller has received the report of this round.
    fn renew(&mut self, round: u64, length: Span) {
        while let Some((sent, at)) = self.sent.pop_front() {
            if sent == round {
                let before =
                    if self.leased_until == Time::MAX { Time::ZERO } else { self.leased_until };
                self.leased_until = before.max(at.after(length));
                // It may be named once more.
                self.sent.push_front((sent, at));
                return;
            }
        }
    }

    /// The controller refuses the stage. Unless another attempt may help, this is its last one.
    fn refused(&mut self, message: &ToStage, reason: String, may_help: bool) {
        self.outputs.push_back(Output::Close);
        self.is_refused = true;
        self.has_ended |= !may_help;
        let version = match message {
            ToStage::Welcome { version, .. } | ToStage::Refused { version, .. } => *version,
            _ => VERSION,
        };
        let reason = match VersionMismatch::check(("controller", version), ("stage", VERSION)) {
            Ok(()) => format!("the controller refuses this stage: {reason}"),
            Err(mismatch) => mismatch.to_string(),
        };
        self.notice(reason);
    }

    fn apply(&mut self, now: Time, revision: u64, rules: &[Rule]) {
        let error = match self.plan.apply(rules) {
            Ok(change) => {
                // New rates for rules that were refused do not make them the ones in force.
                if rules.contains(&Rule::CLEAR) {
                    self.info.revision = revision;
                }
                self.alone = false;
                self.note_holds(now, rules);
                if let Some(change) = change {
                    self.outputs.push_back(Output::Install(change));
                }
                None
            }
            Err(error) => {
                let reason = &error.reason;
                self.notice(format!("this stage cannot hold the policy's rules: {reason}"));
                Some(error)
            }
        };
        self.outputs.push_back(Output::Send(FromStage::Applied { revision, error }));
    }

    /// Keeps the ends of holds: the next controller finds them in the hello.
    fn note_holds(&mut self, now: Time, rules: &[Rule]) {
        for rule in rules {
            if let Rule::Enforcement(Enforcement::Hold { gate, span }) = rule {
                self.held_until.insert(gate.clone(), now.after(*span));
            }
        }
        self.held_until.retain(|gate, until| *until > now && self.plan.has_gate(gate));
    }

    /// Nothing uses the stage any more.
    pub fn on_end(&mut self) {
        if self.is_live() {
            // Traffic since the last round still counts.
            let round = 0;
            self.outputs.push_back(Output::Report { round, detail: true });
            self.outputs.push_back(Output::Send(FromStage::Disconnect));
        }
        self.outputs.push_back(Output::Close);
        self.has_ended = true;
    }

    /// Whether the stage has said good-bye.
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Applies rules that come from the program itself rather than from a controller.
    ///
    /// # Errors
    /// Why none of them took effect.
    pub fn apply_own(&mut self, rules: &[Rule]) -> Result<(), crate::message::RuleError> {
        if let Some(change) = self.plan.apply(rules)? {
            self.outputs.push_back(Output::Install(change));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
