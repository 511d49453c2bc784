//! The schedule of a cluster's controller: periods, and the rounds of distribution within them.
//!
//! A round asks nodes for reports, waits for them, divides the tokens, sends grants, and after
//! confirmations sends a second grant with the tokens that were freed. Nodes that do not report are
//! counted here, and so are promises that were missed in the period before.

use alloc::vec::Vec;

use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::gate::Unit;
use tidegate_model::{Event, PeriodNumber, Portion, Span, Time};

use super::accounts::{Accounts, Headrooms};
use super::allocate::NodeCapacity;
use super::bounds::{NodeAccounts, When, promise};
use super::message::{Grant, NodeReport, RoundId, ToNode, UNITS};
use super::{Cluster, EARLIER, LAST_PART, LEASE, MISSED_MAX, SETTLE, SILENT, WAIT_PART};

/// A reported capacity counts as a rate while at least one part in so many of a period is left.
const MEASURED_PART: u64 = 8;

/// The capacity of a node in tokens of bytes that is not declared: no node moves 2 TiB in a period,
/// and sums over all tenants and nodes stay within 64 bits.
const UNBOUNDED: u64 = u32::MAX as u64 / 2;

/// Where a distribution stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing is due.
    #[default]
    Idle,
    /// Reports are due.
    Collecting,
    /// Confirmations are due, and then something is to be raised.
    Granting,
}

/// The distribution that is under way, or the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    pub(super) round_id: RoundId,
    pub(super) phase: Phase,
    started: Time,
    /// When the phase ends at the latest.
    pub(super) until: Time,
    /// Whether it also sends the counts of the next period.
    is_last: bool,
    /// Whether something is left to raise.
    is_short: bool,
    /// How long it took, or the one before if it is under way.
    pub(super) took: Span,
}

impl Cluster {
    /// Ends periods that are over.
    pub(super) fn advance_periods(&mut self, now: Time) {
        while self.period_end() <= now {
            if self.round.phase == Phase::Collecting {
                self.divide(now);
            }
            self.advance_period();
            // After a pause longer than any lease, nothing depends on the periods in between.
            let behind = now.since(self.period_start).0 / self.plan.period.0;
            let skipped = behind.saturating_sub(u64::from(LEASE) + 1);
            self.period_start = self.period_start.after(Span(skipped * self.plan.period.0));
            self.period = self.period.after(skipped);
        }
    }

    fn advance_period(&mut self) {
        self.period_start = self.period_end();
        self.period = self.period.after(1);
        self.rounds = 0;
        self.is_judged = false;
        self.round.phase = Phase::Idle;
        self.next_round_at = self.period_start;
        self.traffic_before = core::mem::take(&mut self.traffic);
        self.accounts.iter_mut().for_each(Accounts::begin_period);
        for node in 0..self.nodes.len() {
            let state = &mut self.nodes[node];
            if state.lease_until < self.period && !core::mem::replace(&mut state.is_void, true) {
                state.leased = 0;
                self.accounts.iter_mut().for_each(|accounts| accounts.void(node));
            }
        }
        let last_held = self.first_period.after(EARLIER);
        for node in &mut self.nodes {
            // The last lease may hold in its last period, but not after that.
            node.is_unknown[0] &= self.period <= last_held;
            node.is_unknown[1] &= self.period < last_held;
        }
        self.forget_unknown();
    }

    /// Begins a distribution, unless all nodes rest: then there is one in a period.
    pub(super) fn open_round(&mut self, now: Time) {
        let interval = self.interval();
        let ordinal = now.since(self.period_start).0 / interval.0;
        let is_last = ordinal + 1 >= u64::from(self.plan.rounds);
        let end = self.period_end();
        let once_more = Time(end.0.saturating_sub(interval.0 / LAST_PART));
        let is_once_more = is_last && once_more <= now;
        self.next_round_at = match (is_last, is_once_more) {
            (false, _) => self.period_start.after(Span((ordinal + 1) * interval.0)).min(end),
            (true, false) => once_more,
            (true, true) => end,
        };
        // Grants for the next period are sent once, and again to nodes that connected since.
        let is_renewing = is_last && (!is_once_more || self.nodes.iter().any(|node| node.is_stale));
        let is_for_all = is_last && !is_once_more;
        if self.is_resting() && !is_for_all {
            let rounds = u64::from(self.plan.rounds);
            let last = self.period_start.after(Span(rounds.saturating_sub(1) * interval.0));
            self.next_round_at = if now < last { last } else { end };
            return;
        }
        let round_id = RoundId { period: self.period, round: self.rounds };
        self.rounds += 1;
        self.round = Round {
            round_id,
            phase: Phase::Collecting,
            started: now,
            until: now.after(Span(interval.0 / WAIT_PART)).min(self.next_round_at),
            is_last: is_renewing,
            ..self.round
        };
        self.request_reports(now, is_for_all);
        self.divide_if_answered(now);
    }

    /// Whether all connected nodes rest, and no count is left to raise.
    fn is_resting(&self) -> bool {
        let mut connected = self.nodes.iter().filter(|node| node.is_connected);
        !self.round.is_short && connected.all(super::NodeState::may_rest)
    }

    /// Asks all nodes, or all that do not rest.
    fn request_reports(&mut self, now: Time, is_for_all: bool) {
        let (round_id, period) = (self.round.round_id, self.plan.period);
        let (into, left) = (now.since(self.period_start), self.period_end().since(now));
        for node in 0..self.nodes.len() {
            let state = &mut self.nodes[node];
            if !state.is_connected {
                continue;
            }
            if state.may_rest() && !is_for_all {
                state.capacity_left =
                    state.capacity.map(|capacity| super::scaled(capacity, left, period));
                continue;
            }
            let is_first = state.requested_in.replace(round_id.period) != Some(round_id.period);
            state.is_complete = !core::mem::replace(&mut state.is_answered, false) || is_first;
            let complete = state.is_complete;
            self.send(node, ToNode::Collect { round_id, into, complete });
        }
    }

    /// A node has reported, perhaps that it rests.
    pub(super) fn on_report(
        &mut self,
        now: Time,
        node: usize,
        report: &NodeReport,
        is_resting: bool,
    ) {
        let revision = self.plan.revision;
        let state = &mut self.nodes[node];
        // A node that answers late is slow, and not silent.
        state.missed_since = None;
        if core::mem::take(&mut state.is_silent) {
            let event = Event::NodeSilent { node: state.name.clone(), is_silent: false };
            self.outbox.publish(event);
        }
        if report.round_id != self.round.round_id || state.is_answered || revision == 0 {
            return;
        }
        if report.revision == revision {
            state.is_answered = true;
            state.missed = 0;
            state.reported = Some(now);
            // An earlier run of this controller may have counted further.
            state.serial = state.serial.max(report.serial);
            state.is_resting = is_resting;
            // One that rests has nothing that a complete report would name.
            state.is_complete |= is_resting;
            if core::mem::take(&mut state.is_passed_over) {
                (state.is_stale, state.leased) = (true, 0);
            }
            self.take_in(node, report);
        } else {
            self.send_plan(node);
        }
        self.divide_if_answered(now);
    }

    /// A node's lease is not the one that the controller has recorded. The node is sent all counts
    /// in the next round: there is one more before the period ends.
    pub(super) fn on_unrenewed(&mut self, node: usize, serial: u64) {
        self.each_awake(node, |entry| entry.refuse(serial));
        let state = &mut self.nodes[node];
        state.awaited = state.awaited.filter(|awaited| *awaited > serial);
        if state.leased == serial {
            (state.leased, state.is_stale) = (0, true);
        }
    }

    /// A request has come to a node that rested.
    pub(super) fn on_awake(&mut self, now: Time, node: usize) {
        // Once for each time that it rests, however often it says so.
        if core::mem::take(&mut self.nodes[node].is_resting) && self.plan.revision != 0 {
            self.next_round_at = self.next_round_at.min(now.after(SETTLE));
        }
    }

    fn take_in(&mut self, node: usize, report: &NodeReport) {
        let left = self.period_end().since(self.round.started);
        let state = &mut self.nodes[node];
        // Near the end of a period a count is too coarse for a rate.
        if state.measured == 0 || left.0 >= self.plan.period.0 / MEASURED_PART {
            state.measured = super::scaled(report.capacity_left, Span::SECOND, left);
        }
        for (index, unit) in UNITS.into_iter().enumerate() {
            let declared = state.declared[index]
                .map_or(u64::MAX, |rate| promise(unit, (None, Some(rate)), left).allowed);
            let reported = match unit {
                Unit::Operations => report.capacity_left,
                Unit::Bytes => UNBOUNDED,
            };
            state.capacity_left[index] = declared.min(reported);
            state.capacity[index] =
                super::scaled(state.capacity_left[index], self.plan.period, left);
        }
        if state.is_complete {
            let nothing = |entry: &mut NodeAccounts| {
                (entry.demand, entry.expected, entry.waiting) = (0, 0, 0);
            };
            self.each_awake(node, nothing);
        }
        let (id, capacity_left) = (self.nodes[node].id, self.nodes[node].capacity_left);
        let reports = [(&report.tenants, &report.before), (&report.bytes, &report.bytes_before)];
        for (index, (tenants, before)) in reports.into_iter().enumerate() {
            let accounts = &mut self.accounts[index];
            for tenant_report in tenants {
                let Some(entry) = accounts.entry_mut(tenant_report.tenant, id) else { continue };
                let elastic = if tenant_report.is_elastic { capacity_left[index] } else { 0 };
                let numbers = NodeAccounts {
                    served: entry.served.max(tenant_report.served),
                    demand: tenant_report.expected.max(elastic),
                    expected: tenant_report.expected,
                    waiting: tenant_report.waiting,
                    ..*entry
                };
                if core::mem::replace(entry, numbers) != numbers {
                    accounts.wake(tenant_report.tenant);
                }
            }
            for &(tenant, served) in before {
                let Some(entry) = accounts.entry_mut(tenant, id) else { continue };
                let before = entry.before.max(served);
                if core::mem::replace(&mut entry.before, before) != before {
                    accounts.wake(tenant);
                }
            }
        }
    }

    /// Goes on if all reports are there that can come.
    pub(super) fn divide_if_answered(&mut self, now: Time) {
        let is_due = |node: &super::NodeState| node.is_connected && !node.is_answered;
        if self.round.phase == Phase::Collecting && !self.nodes.iter().any(is_due) {
            self.divide(now);
        }
    }

    /// Divides tokens by the last reports, and sends the nodes their counts.
    pub(super) fn divide(&mut self, now: Time) {
        self.count_missed(now);
        self.judge();
        self.send_grants(now, true);
    }

    /// Counts this round as missed at each node that has not answered.
    fn count_missed(&mut self, now: Time) {
        // A round that a new one or the period's end cut short proves nothing: there was no time to
        // answer.
        if now < self.round.started.after(Span(self.interval().0 / WAIT_PART)) {
            return;
        }
        for state in &mut self.nodes {
            if state.is_connected && !state.is_answered {
                state.is_resting = false;
                state.missed = state.missed.saturating_add(1);
                state.is_passed_over |= state.missed >= MISSED_MAX;
                let since = *state.missed_since.get_or_insert(self.round.started);
                if state.is_passed_over && now.since(since) >= SILENT && !state.is_silent {
                    state.is_silent = true;
                    let event = Event::NodeSilent { node: state.name.clone(), is_silent: true };
                    self.outbox.publish(event);
                }
            }
        }
    }

    /// Reports the promises that were missed in the period before, once its end was reported.
    fn judge(&mut self) {
        if core::mem::replace(&mut self.is_judged, true) {
            return;
        }
        let period = PeriodNumber(self.period.0.saturating_sub(1));
        for accounts in &self.accounts {
            // Tenants that rest asked for nothing.
            let awake = accounts.awake.all().into_iter().map(|tenant| &accounts.tenants[tenant]);
            for tenant in awake.filter(|tenant| !tenant.is_met()) {
                let name = tenant.name.clone();
                let (served, reserved) = (tenant.served_before(), tenant.promise.reserved);
                self.outbox.publish(match accounts.unit {
                    Unit::Operations => Event::ReservationMissed {
                        tenant: name,
                        period,
                        served_operations: served,
                        reserved_operations: reserved,
                    },
                    Unit::Bytes => Event::BytesMissed {
                        tenant: name,
                        period,
                        served_bytes: served.saturating_mul(BYTES_PER_TOKEN),
                        reserved_bytes: reserved.saturating_mul(BYTES_PER_TOKEN),
                    },
                });
            }
        }
    }

    /// Sets new targets if `is_first`, and sends the counts for which there is headroom.
    fn send_grants(&mut self, now: Time, is_first: bool) {
        self.round.is_short = false;
        let whens = if self.round.is_last { &[When::Now, When::Next][..] } else { &[When::Now] };
        for &when in whens {
            if is_first {
                let left = match when {
                    When::Now => self.period_end().since(now),
                    When::Next => self.plan.period,
                };
                let whole = u64::from(Portion::WHOLE.0);
                let left = Portion(super::scaled(whole, left, self.plan.period) as u32);
                for index in 0..UNITS.len() {
                    let node_capacities = self.node_capacities(index, when);
                    self.accounts[index].aim(&node_capacities, (when, left));
                }
            }
            self.push(now, when, is_first);
        }
        let is_awaited = self.nodes.iter().any(|node| node.awaited.is_some());
        if self.round.is_short && is_awaited && is_first {
            self.round.phase = Phase::Granting;
            let wait = Span(self.interval().0 / WAIT_PART);
            self.round.until = now.after(wait).min(self.next_round_at);
        } else {
            self.round.phase = Phase::Idle;
            self.round.took = now.since(self.round.started);
        }
    }

    /// Raises the counts for which there is headroom, once confirmations have come or are late.
    pub(super) fn raise(&mut self, now: Time) {
        if self.round.is_short && self.round.phase != Phase::Collecting {
            self.send_grants(now, false);
        }
    }

    /// The capacities of all nodes in the unit with this index.
    fn node_capacities(&self, unit: usize, when: When) -> Vec<NodeCapacity> {
        let node_capacity = |state: &super::NodeState| NodeCapacity {
            is_open: state.is_open(when),
            capacity: match when {
                When::Now => state.capacity_left[unit],
                When::Next => state.capacity[unit],
            },
        };
        self.nodes.iter().map(node_capacity).collect()
    }

    /// Sends each node the counts that differ from the last ones, as far as there is headroom.
    fn push(&mut self, now: Time, when: When, is_first: bool) {
        let mut headrooms = [Headrooms::default(), Headrooms::default()];
        for node in 0..self.nodes.len() {
            let state = &self.nodes[node];
            if !state.is_open(when) {
                continue;
            }
            let serial = state.serial.saturating_add(1);
            self.nodes[node].is_void = false;
            let state = &self.nodes[node];
            // A lease that builds on one that may not have been taken would not be taken either.
            let can_build = state.leased != 0 && state.is_lease_answered;
            let is_whole = is_first && if when == When::Now { state.is_stale } else { !can_build };
            let base = if is_whole { 0 } else { state.leased };
            if when == When::Next && !is_whole && base == 0 {
                // The node has connected since, and is sent all counts in the next round.
                continue;
            }
            let [shares, bytes] = core::array::from_fn(|unit| {
                let question = ((node, when), (is_first, is_whole), serial);
                let (shares, is_short) = self.accounts[unit].shares(question, &mut headrooms[unit]);
                self.round.is_short |= is_short;
                shares
            });
            let state = &mut self.nodes[node];
            if when == When::Now && is_first {
                state.is_stale = false;
            }
            if shares.is_empty() && bytes.is_empty() && !(is_first && when == When::Next) {
                continue;
            }
            (state.serial, state.awaited) = (serial, Some(serial));
            let (period, into, lease) = match when {
                When::Now => (self.period, now.since(self.period_start), 0),
                When::Next => (self.period.after(1), Span::ZERO, LEASE),
            };
            if when == When::Next {
                state.lease_until = period.after(u64::from(LEASE));
                (state.leased, state.is_lease_answered) = (serial, false);
            }
            let round_id = RoundId { period, round: self.round.round_id.round };
            let revision = self.plan.revision;
            let grant = Grant { revision, round_id, serial, into, lease, shares, bytes };
            let is_grant = base == 0 || when == When::Now;
            self.send(
                node,
                if is_grant { ToNode::Grant(grant) } else { ToNode::Renew { base, grant } },
            );
        }
    }

    pub(super) fn period_end(&self) -> Time {
        match self.plan.period {
            Span::ZERO => Time::MAX,
            period => self.period_start.after(period),
        }
    }

    /// The time between two distributions.
    fn interval(&self) -> Span {
        Span((self.plan.period.0 / u64::from(self.plan.rounds.max(1))).max(1))
    }
}
