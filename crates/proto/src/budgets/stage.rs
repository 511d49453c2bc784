//! The controller's record of one stage, and its update by a report.
//!
//! Everything here is bounded by the policy: a stage has one share for each tenant that it serves,
//! and all other channels of a report are added up in one counter. Counters are checked: one that
//! goes back has begun anew, and the first reading of one gives no rate.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_algo::shaping::demand::Calibration;
use tidegate_model::gate::Unit;
use tidegate_model::policy::{Account, Levels};
use tidegate_model::{Policy, Span, StageId, Time};

use super::background::BackgroundShare;
pub(super) use super::bucket::Bucket;
use super::capacity::StorageView;
use super::latency::Requester;
use super::leased;
use super::mix::Mix;
use super::name_index::NameIndex;
use super::recent_waits::{self, RecentWaits};
use super::rules::{UNITS, background_channel, bucket_named, has_bucket};
use super::window_stats::{Counter, Detail, TenantStats, TrafficCounters, per_second};
use crate::message::{ChannelReport, Coverage, GateReport, Held, Rule, StageInfo, StageReport};
use crate::session::Peer;
use crate::stats::delays::stages::StageGate;

/// The longest command line that is kept, in bytes; enough to tell programs apart.
const COMMAND_MAX: usize = 512;
/// The longest other text that is kept from a stage, in bytes.
const TEXT_MAX: usize = 255;
/// Reasons for bypasses that are kept; the shim knows about a dozen.
const REASONS_MAX: usize = 64;

/// All of them.
pub(super) type Stages = BTreeMap<StageId, Stage>;

/// One connected stage.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) peer: Peer,
    pub(super) info: StageInfo,
    pub(super) joined: Time,
    /// The revision that the stage reports, and why it does not have a later one.
    pub(super) revision: u64,
    pub(super) error: Option<String>,
    answers: Answers,
    /// Whether a report for the round under way is still due.
    pub(super) owes: bool,
    /// Rounds missed since the last report.
    pub(super) missed: u32,
    pub(super) silent_since: Option<Time>,
    /// When its last report arrived, or its hello, and the round of that.
    pub(super) received: (Time, u64),
    /// When the rates of a stage whose programs may go on without it have certainly ended, if none
    /// is confirmed anew.
    pub(super) leased_until: Time,
    /// Whether it has no connection, and may enforce its rates nevertheless.
    pub(super) is_lost: bool,
    /// Whether it stands for stages that have not returned since the controller started.
    pub(super) is_absent: bool,
    pub(super) processes: u32,
    pub(super) coverage: Coverage,
    pub(super) device_bytes: u64,
    /// The index of the tenant that the stage acts for.
    pub(super) home: Option<usize>,
    /// One for each tenant that the stage serves, by index in the policy.
    pub(super) shares: Vec<Share>,
    /// Traffic on channels that belong to none of its shares.
    pub(super) unmatched: Counter,
    pub(super) calibration: Calibration,
    /// The work of the storage behind it.
    pub(super) storage: StorageView,
    /// When the counters were last read, by the stage's clock.
    read_at_ns: Option<u64>,
    device_seen: Option<u64>,
    /// Whether its counters began at zero under this controller.
    pub(super) is_new: bool,
}

/// Matches answers with messages of rules. A stage answers in order. The answer that counts is that
/// to the last message that made it anew: a stage that refused this message may still accept later
/// rates, for gates of its earlier rules.
#[derive(Debug, Default)]
struct Answers {
    /// Messages with rules that were sent.
    sent: u64,
    /// Of which so many were answered.
    answered: u64,
    /// The number of the last that made the stage anew, counting from one, and its revision.
    whole: u64,
    revision: u64,
}

/// One tenant's part of a stage.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// The tenant's index in the policy.
    pub(super) tenant: usize,
    pub(super) buckets: [Option<Bucket>; 2],
    /// The traffic of the last interval, per second, by unit.
    pub(super) measured: [u64; 2],
    /// Time that requests waited in the last interval.
    pub(super) waited: Span,
    pub(super) waiting_now: u32,
    /// For how long gates held requests in the last minute.
    pub(super) recent: RecentWaits,
    /// One for each channel of the tenant, in the policy's order; the first is its own.
    channels: Vec<Counter>,
    /// The growth of its counters by the report at hand.
    fresh: TrafficCounters,
    /// Bytes and operations of its requests of late, of a tenant with both buckets.
    pub(super) mix: Mix,
    pub(super) background: BackgroundShare,
}

impl Share {
    /// A share without traffic. `wanted` is its assumed demand until the first report.
    fn new(policy: &Policy, index: usize, wanted: u64, is_new: bool) -> Self {
        let tenant = &policy.tenants[index];
        let bucket = |unit| has_bucket(policy, tenant, unit).then(|| Bucket::new(wanted, is_new));
        let id = super::rules::tenant_id(index);
        let extra = policy.channels.iter().filter(|channel| channel.tenant == id).count();
        let counter = Counter { detail: Detail::new(is_new), ..Counter::default() };
        Self {
            tenant: index,
            buckets: UNITS.map(bucket),
            measured: [0; 2],
            waited: Span::ZERO,
            waiting_now: 0,
            recent: RecentWaits::default(),
            channels: alloc::vec![counter; 1 + extra],
            fresh: TrafficCounters::default(),
            mix: Mix::default(),
            background: BackgroundShare::new(policy, index),
        }
    }

    /// Goes on from the share that the same tenant had under an earlier policy. The tenant's own
    /// channel keeps its name and counters; others are looked at anew.
    fn go_on_from(&mut self, earlier: &Self) {
        self.measured = earlier.measured;
        self.recent = earlier.recent.under_later_policy();
        self.mix = earlier.mix;
        self.channels[0] = earlier.channels[0].clone();
        for (bucket, earlier) in self.buckets.iter_mut().zip(&earlier.buckets) {
            if let (Some(bucket), Some(earlier)) = (bucket, earlier) {
                *bucket = Bucket::resumed(earlier);
            }
        }
    }

    pub(super) fn bucket(&self, unit: Unit) -> Option<&Bucket> {
        self.buckets[unit as usize].as_ref()
    }
}

impl Stage {
    pub(super) fn new(peer: Peer, info: StageInfo, now: Time) -> Self {
        let is_new = info.stage.0 == 0 && info.revision == 0;
        let mut stage = Self {
            peer,
            revision: info.revision,
            info: StageInfo::default(),
            joined: now,
            error: None,
            answers: Answers::default(),
            owes: false,
            missed: 0,
            silent_since: None,
            received: (now, 0),
            leased_until: now,
            is_lost: false,
            is_absent: false,
            processes: 0,
            coverage: Coverage::default(),
            device_bytes: 0,
            home: None,
            shares: Vec::new(),
            unmatched: Counter::default(),
            calibration: Calibration::default(),
            storage: StorageView::default(),
            read_at_ns: None,
            device_seen: None,
            is_new,
        };
        stage.set_info(info);
        stage
    }

    /// Whether a peer that describes itself like this is the supervisor of this stage. One that
    /// stays behind for what its program has left running is another process, with the same
    /// segment.
    pub(super) fn is_supervisor(&self, peer: &Peer, info: &StageInfo) -> bool {
        let here = (self.peer.uid, &self.peer.certificate, &self.info.host);
        let (own, segment) = (&self.info.held.segment, &info.held.segment);
        here == (peer.uid, &peer.certificate, &info.host)
            && (self.peer.pid == peer.pid || !own.is_empty() && own == segment)
    }

    /// Gives the stage a share for each tenant at `served`, in ascending order, under a policy that
    /// is new to it. `earlier` finds the index that a tenant had under the policy before.
    pub(super) fn serve(
        &mut self,
        policy: &Policy,
        home: Option<usize>,
        served: &[usize],
        earlier: impl Fn(&str) -> Option<usize>,
    ) {
        // A stage that names a tenant came to use it, and gets its share at once; if it does not
        // use it, that shows after an interval. A stage that names none may never use most of its
        // tenants.
        let wanted = if home.is_some() { u64::MAX } else { 0 };
        let share = |index: &usize| {
            let mut share = Share::new(policy, *index, wanted, self.is_new);
            let before = earlier(&policy.tenants[*index].name);
            if let Some(index) = before.and_then(|index| self.share_of(index)) {
                share.go_on_from(&self.shares[index]);
            }
            share
        };
        self.shares = served.iter().map(share).collect();
        self.home = home;
    }

    /// Takes in the description that the stage sent, with its texts shortened.
    pub(super) fn set_info(&mut self, mut info: StageInfo) {
        shorten(&mut info.command, COMMAND_MAX);
        let Held { segment, .. } = &mut info.held;
        for text in [&mut info.tenant, &mut info.host, &mut info.release, segment] {
            shorten(text, TEXT_MAX);
        }
        self.info = info;
    }

    /// Notes that rules are on their way to the stage.
    pub(super) fn on_sent(&mut self, revision: u64, rules: &[Rule]) {
        let answers = &mut self.answers;
        answers.sent = answers.sent.saturating_add(1);
        if rules.first() == Some(&Rule::CLEAR) {
            (answers.whole, answers.revision) = (answers.sent, revision);
        }
        let number = answers.sent;
        for bucket in self.shares.iter_mut().flat_map(|share| share.buckets.iter_mut().flatten()) {
            if core::mem::take(&mut bucket.is_unsent) {
                bucket.changed_in = number;
            }
        }
    }

    /// A stage was cut off for longer than its lease: its safe rates may be in force there, and no
    /// more than before.
    pub(super) fn resign(&mut self) {
        for bucket in self.shares.iter_mut().flat_map(|share| share.buckets.iter_mut().flatten()) {
            bucket.bound = bucket.bound.min(bucket.safe_bound);
            bucket.goal = bucket.bound;
        }
    }

    /// Takes over what the same process may still enforce of the rules on its last connection.
    pub(super) fn inherit(&mut self, earlier: &Self) {
        self.leased_until = earlier.leased_until;
        for share in &mut self.shares {
            let Some(index) = earlier.share_of(share.tenant) else { continue };
            for (bucket, earlier) in share.buckets.iter_mut().zip(&earlier.shares[index].buckets) {
                if let (Some(bucket), Some(earlier)) = (bucket, earlier) {
                    (bucket.bound, bucket.safe_bound) = (earlier.bound, earlier.safe_bound);
                }
            }
        }
    }

    /// A lease of this length is confirmed for its last report.
    pub(super) fn extend_lease(&mut self, length: Span) {
        self.leased_until = self.leased_until.max(self.received.0.after(leased(length)));
    }

    /// Whether it has more than it is to have, until it answers.
    pub(super) fn is_awaited(&self) -> bool {
        let mut buckets = self.shares.iter().flat_map(|share| share.buckets.iter().flatten());
        buckets.any(|bucket| bucket.bound > bucket.goal || bucket.safe_bound > bucket.safe)
    }

    /// Takes in the answer to rules, and returns whether it is a new refusal. A refusal is kept
    /// until the stage has answered rules that make it anew.
    pub(super) fn on_applied(&mut self, error: Option<String>) -> bool {
        let answers = &mut self.answers;
        if answers.answered == answers.sent {
            // The stage has already answered every message of rules.
            return false;
        }
        answers.answered += 1;
        let (answered, whole, revision) = (answers.answered, answers.whole, answers.revision);
        if error.is_none() {
            for share in &mut self.shares {
                share.buckets.iter_mut().flatten().for_each(|bucket| bucket.on_answered(answered));
            }
        }
        if answered < whole {
            // Newer rules are on their way to it.
            return false;
        }
        if answered == whole {
            self.error = None;
            if error.is_none() {
                self.revision = revision;
            }
        }
        let is_news = self.error.is_none() && error.is_some();
        if is_news {
            self.error = error.map(|reason| self.explained(reason));
        }
        is_news
    }

    /// The stage's reason to refuse its rules, with the context that only the controller has.
    fn explained(&self, mut reason: String) -> String {
        shorten(&mut reason, TEXT_MAX);
        let tenants = self.shares.len();
        if self.home.is_none() && tenants > 1 {
            reason += &format!(
                "; it was sent the rules of {tenants} tenants because it names none: start it with \
                 `tidegate run --tenant NAME`"
            );
        }
        if self.revision == 0 {
            reason += "; there were none before, so nothing holds it back";
        }
        reason
    }

    /// Takes in a report, and adds its traffic to the tenants' totals; also its waiting times, if
    /// the report `is_detailed`.
    pub(super) fn on_report(
        &mut self,
        policy: Option<(&Policy, &NameIndex)>,
        tenants: &mut [TenantStats],
        report: StageReport,
        is_detailed: bool,
    ) {
        let at = report.at_ns;
        let cycle = match self.read_at_ns.replace(at) {
            Some(before) => Span(at.saturating_sub(before)),
            None => Span::ZERO,
        };
        let interval = policy.map_or(cycle, |(policy, _)| policy.redistribute);
        self.processes = report.processes;
        self.device_bytes = report.device_bytes;
        self.coverage = report.coverage;
        self.coverage.bypasses.truncate(REASONS_MAX);
        self.coverage.bypasses.shrink_to_fit();
        self.coverage.bypasses.iter_mut().for_each(|bypass| shorten(&mut bypass.reason, TEXT_MAX));
        for gate in report.gates {
            self.on_gate(policy, tenants, gate);
        }
        let detailed = is_detailed.then_some(&mut *tenants);
        let moved = self.on_channels(policy, detailed, report.channels);
        let device = report.device_bytes;
        let device_before = self.device_seen.replace(device).unwrap_or(device);
        self.calibration.observe(moved.bytes, device.saturating_sub(device_before));
        let is_alive = self.processes > 0;
        self.storage.on_report(cycle, self.is_new, is_alive);
        self.is_new = false;
        let is_device = policy.is_some_and(|(policy, _)| policy.account == Account::Device);
        for share in &mut self.shares {
            let tenant = &mut tenants[share.tenant];
            let fresh = core::mem::take(&mut share.fresh);
            tenant.total.add(fresh);
            tenant.stage_waits += share.recent.on_channels(fresh);
            let calibration = is_device.then_some(&self.calibration);
            tenant.on_served(fresh, calibration, &mut share.buckets);
            let reserved = policy.map(|(policy, _)| policy.tenants[share.tenant].reservation);
            let promised = (calibration, reserved.unwrap_or_default());
            self.storage.on_held(share.settle(fresh, (cycle, interval), promised));
            if let (Some((policy, _)), None) = (policy, calibration) {
                share.join_demands(fresh, policy.budget);
            }
            if self.processes == 0 {
                // No process is left that could want anything, whatever the last interval showed.
                share.buckets.iter_mut().flatten().for_each(|bucket| bucket.wanted = 0);
            }
        }
    }

    /// Takes in the counters of all channels and, in a detailed report, the waiting times, which go
    /// to the tenants in `detailed`. Channels that belong to no share are added up. Returns the
    /// traffic of all channels.
    fn on_channels(
        &mut self,
        policy: Option<(&Policy, &NameIndex)>,
        mut detailed: Option<&mut [TenantStats]>,
        channels: Vec<ChannelReport>,
    ) -> TrafficCounters {
        let (mut moved, mut unmatched) = (TrafficCounters::default(), TrafficCounters::default());
        for channel in channels {
            let now = TrafficCounters {
                bytes: channel.bytes,
                operations: channel.operations,
                waited_ns: channel.waited_ns,
            };
            let owner = policy.and_then(|(_, name_index)| name_index.channel(&channel.name));
            let share = owner.and_then(|(tenant, slot)| Some((self.share_of(tenant)?, slot)));
            match share {
                Some((index, slot)) => {
                    let share = &mut self.shares[index];
                    let counter = &mut share.channels[slot];
                    let added = counter.advance(now, self.is_new);
                    if let Some(tenants) = &mut detailed {
                        let wait_interval = &mut tenants[share.tenant].open;
                        wait_interval.add(&mut counter.detail, channel.operations, channel.waiting);
                    }
                    share.background.on_channel(slot, added);
                    share.fresh.add(added);
                    moved.add(added);
                }
                None => unmatched.add(now),
            }
        }
        moved.add(self.unmatched.advance(unmatched, self.is_new));
        moved
    }

    fn on_gate(
        &mut self,
        policy: Option<(&Policy, &NameIndex)>,
        tenants: &mut [TenantStats],
        gate: GateReport,
    ) {
        let Some((policy, name_index)) = policy else { return };
        if let Some(channel) = background_channel(&gate.name) {
            let share = name_index.channel(channel);
            let share = share.and_then(|(tenant, slot)| Some((self.share_of(tenant)?, slot)));
            if let Some((index, slot)) = share {
                self.shares[index].background.on_bucket(slot, &gate, self.is_new);
            }
            return;
        }
        let Some((name, unit)) = bucket_named(&gate.name) else { return };
        let Some((tenant, 0)) = name_index.channel(name) else { return };
        let Some(index) = self.share_of(tenant) else { return };
        let share = &mut self.shares[index];
        let Some(bucket) = &mut share.buckets[unit as usize] else { return };
        bucket.on_report(&gate, self.is_new);
        let in_force = tenants[tenant].announced[unit as usize];
        let is_limit = recent_waits::is_limit(policy, tenant, unit, in_force);
        share.recent.on_bucket(StageGate::bucket(unit, is_limit), bucket.waited().0);
        bucket.is_limit = is_limit;
        let waits = &mut tenants[tenant].waits[unit as usize];
        waits.waited_ns = waits.waited_ns.saturating_add(bucket.waited().0);
        if !gate.waiting.is_empty() {
            waits.add(&mut bucket.histogram, gate.waiting);
        }
    }

    /// The work of the storage behind it, and whose requests these are.
    pub(super) fn storage_view(&mut self, policy: &Policy) -> (Requester, &mut StorageView) {
        let tenants = self.shares.iter().map(|share| share.tenant);
        (Requester::of(policy, tenants), &mut self.storage)
    }

    /// The index of the share of the tenant at `index`.
    pub(super) fn share_of(&self, index: usize) -> Option<usize> {
        self.shares.binary_search_by_key(&index, |share| share.tenant).ok()
    }
}

impl Share {
    /// Turns the growth by the report at hand, which is about a `cycle`, into rates and demands.
    /// `interval` is the policy's pause between decisions. A tenant that was held back demands what
    /// is `reserved` for it at least. Returns how long requests waited for more of the budget.
    fn settle(
        &mut self,
        fresh: TrafficCounters,
        (cycle, interval): (Span, Span),
        (calibration, reserved): (Option<&Calibration>, Levels),
    ) -> Span {
        let own = self
            .bucket(Unit::Bytes)
            .map_or((u64::MAX, Span::ZERO), |bucket| (bucket.rate, bucket.waited()));
        let background = self.background.settle(fresh, (cycle, interval), own);
        if cycle == Span::ZERO {
            return Span::ZERO;
        }
        if let Some(bucket) = &mut self.buckets[Unit::Bytes as usize] {
            bucket.on_background(&background);
        }
        let mut held = Span::ZERO;
        let served = [fresh.bytes, fresh.operations];
        self.measured = served.map(|served| per_second(served, cycle));
        self.waited = Span(fresh.waited_ns);
        self.waiting_now = 0;
        for unit in UNITS {
            let Some(bucket) = &mut self.buckets[unit as usize] else { continue };
            self.waiting_now = self.waiting_now.saturating_add(bucket.waiting_now);
            let requests = (served[unit as usize], fresh.operations);
            let (wanted, waited) = bucket.settle(requests, (cycle, interval));
            if !bucket.is_limit {
                held = held.saturating_add(waited);
            }
            bucket.wanted = match (unit, calibration) {
                (Unit::Bytes, Some(calibration)) => calibration.device_rate(wanted),
                _ => wanted,
            };
            if bucket.is_unmet {
                bucket.wanted = bucket.wanted.max(reserved.get(unit).unwrap_or(0));
            }
        }
        held
    }

    /// Raises the demand in one unit to that in the other. Requests that wait for bytes cannot show
    /// how many operations they want, and the other way round: without this, the unit in which a
    /// tenant waits changes from cycle to cycle, and others get what it wants. Nobody wants more
    /// than the budget.
    fn join_demands(&mut self, fresh: TrafficCounters, budget: Levels) {
        let [Some(of_bytes), Some(of_operations)] = &mut self.buckets else { return };
        self.mix.observe(fresh.bytes, fresh.operations);
        let wanted = |bucket: &Bucket, unit| match budget.get(unit) {
            Some(budget) => bucket.wanted.min(budget),
            None => bucket.wanted,
        };
        let by_bytes = self.mix.with(Unit::Operations, wanted(of_bytes, Unit::Bytes));
        let by_operations = self.mix.with(Unit::Bytes, wanted(of_operations, Unit::Operations));
        of_operations.wanted = of_operations.wanted.max(by_bytes.unwrap_or(0));
        of_bytes.wanted = of_bytes.wanted.max(by_operations.unwrap_or(0));
    }
}

/// Cuts `text` to at most `max` bytes, between characters, and frees the rest.
fn shorten(text: &mut String, max: usize) {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
        text.shrink_to_fit();
    }
}
