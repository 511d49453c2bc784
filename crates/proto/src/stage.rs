//! A stage's side of the protocol: connect, say hello, follow rules, report, and outlive the
//! controller.
//!
//! The machine decides; its caller acts. [`Machine::poll_output`] returns the next action, and the
//! caller reports events with `on_…`. A stage without a controller keeps its rules, tries again
//! with growing pauses, and after the silence that the controller itself allowed goes over to the
//! policy's fallback. No message of a controller can stop the application.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;

use tidegate_model::policy::Fallback;
use tidegate_model::{Span, Time};

use crate::message::{FromStage, Hello, Rule, StageInfo, ToStage, VERSION};
use crate::retry::Retry;

pub mod plan;

use plan::{Change, Plan};

/// The pause before the first new attempt to connect. A controller that restarts is back sooner
/// than a person notices.
const RETRY_FIRST: Span = Span(100 * Span::MILLISECOND.0);
/// The longest pause between attempts: a stage comes back within this time of its controller.
const RETRY_LAST: Span = Span(5 * Span::SECOND.0);
/// The silence allowed before a controller has set its own bound.
const SILENCE_FIRST: Span = Span(5 * Span::SECOND.0);

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// Waiting for the next attempt.
    Down,
    /// Asked the caller to connect.
    Connecting,
    /// Said hello.
    Greeted,
    /// Was welcomed.
    Up,
    /// Was turned away for good.
    Refused,
}

/// A stage.
#[derive(Debug)]
pub struct Machine {
    info: StageInfo,
    plan: Plan,
    connection: Connection,
    retry: Retry,
    /// When the last message from the controller came.
    last_received: Time,
    silence_max: Span,
    fallback: Fallback,
    /// Whether the fallback is in force.
    alone: bool,
    outputs: VecDeque<Output>,
    /// The last notice, so that a lasting fault is reported once.
    noticed: String,
}

impl Machine {
    /// A stage that connects at once. `layered` is whether it carries content, as the layered
    /// interface does; others refuse gates that transform it.
    pub fn new(now: Time, info: StageInfo, layered: bool) -> Self {
        Self {
            info,
            plan: Plan::new(layered),
            connection: Connection::Down,
            retry: Retry::new(RETRY_FIRST, RETRY_LAST),
            last_received: now,
            silence_max: SILENCE_FIRST,
            fallback: Fallback::Keep,
            alone: false,
            outputs: VecDeque::new(),
            noticed: String::new(),
        }
    }

    /// Returns the next action to perform. The caller calls it after every other call, until it
    /// returns none.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to call [`Self::on_deadline`], if nothing happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        let retry = (self.connection == Connection::Down).then(|| self.retry.at());
        // The silence counts on a live connection, to notice a controller that hangs, and without
        // one until the fallback is in force.
        let live = matches!(self.connection, Connection::Greeted | Connection::Up);
        let silence = (live || !self.alone).then(|| self.last_received.after(self.silence_max));
        [retry, silence].into_iter().flatten().min()
    }

    /// Channels, gates and rules as they are.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The description of the stage, as it would send it now.
    pub fn info(&self) -> &StageInfo {
        &self.info
    }

    /// Whether a controller has welcomed the stage and not gone since.
    pub fn is_connected(&self) -> bool {
        self.connection == Connection::Up
    }

    /// Time has come.
    pub fn on_deadline(&mut self, now: Time) {
        if self.connection == Connection::Down && self.retry.is_due(now) {
            self.connection = Connection::Connecting;
            self.outputs.push_back(Output::Connect);
        }
        if self.last_received.after(self.silence_max) > now {
            return;
        }
        if matches!(self.connection, Connection::Greeted | Connection::Up) {
            self.outputs.push_back(Output::Close);
            self.lose(now, format!("the controller has been silent for {}", self.silence_max));
        }
        if !self.alone {
            self.alone = true;
            if let Some(change) = self.plan.fall_back(self.fallback) {
                self.outputs.push_back(Output::Install(change));
            }
        }
    }

    /// The connection is there.
    pub fn on_connected(&mut self, now: Time) {
        self.connection = Connection::Greeted;
        self.last_received = now;
        let hello = Hello::Stage { version: VERSION, info: self.info.clone() };
        self.outputs.push_back(Output::Hello(hello));
    }

    /// There is no connection (any more), and why.
    pub fn on_closed(&mut self, now: Time, reason: &str) {
        if self.connection != Connection::Refused {
            self.lose(now, format!("no controller: {reason}"));
        }
    }

    fn lose(&mut self, now: Time, reason: String) {
        self.connection = Connection::Down;
        self.retry.later(now);
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
        match message {
            ToStage::Welcome { version, stage, silence_max, fallback } => {
                if version != VERSION {
                    self.refused(now, version, String::from("its version differs"), false);
                    return;
                }
                self.connection = Connection::Up;
                self.info.stage = stage;
                self.retry.succeed();
                // Less than ten of the shortest cycles would mistake a busy machine for a dead one.
                self.silence_max = silence_max.max(RETRY_FIRST);
                self.fallback = fallback;
                self.noticed.clear();
            }
            ToStage::Refused { version, reason, retry } => {
                self.refused(now, version, reason, retry);
            }
            ToStage::Unused => {}
            ToStage::Apply { revision, rules } => self.apply(revision, &rules),
            ToStage::Collect { round, detail } => {
                self.outputs.push_back(Output::Report { round, detail });
            }
        }
    }

    fn refused(&mut self, now: Time, version: u16, reason: String, retry: bool) {
        self.outputs.push_back(Output::Close);
        let reason = match version {
            VERSION => format!("the controller refuses this stage: {reason}"),
            _ => format!(
                "the controller speaks version {version} and this stage version {VERSION}: {reason}"
            ),
        };
        if retry {
            self.lose(now, reason);
        } else {
            self.connection = Connection::Refused;
            self.notice(reason);
        }
    }

    fn apply(&mut self, revision: u64, rules: &[Rule]) {
        let error = match self.plan.apply(rules) {
            Ok(change) => {
                // New rates for rules that were refused do not make them the ones in force.
                if rules.contains(&Rule::CLEAR) {
                    self.info.revision = revision;
                }
                self.alone = false;
                if let Some(change) = change {
                    self.outputs.push_back(Output::Install(change));
                }
                None
            }
            Err(error) => Some(error),
        };
        self.outputs.push_back(Output::Send(FromStage::Applied { revision, error }));
    }

    /// Nothing uses the stage any more.
    pub fn on_end(&mut self) {
        if matches!(self.connection, Connection::Greeted | Connection::Up) {
            // Traffic since the last round still counts.
            let round = 0;
            self.outputs.push_back(Output::Report { round, detail: true });
            self.outputs.push_back(Output::Send(FromStage::Disconnect));
        }
        self.outputs.push_back(Output::Close);
        self.connection = Connection::Refused;
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
