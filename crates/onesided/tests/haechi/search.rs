//! All that can happen to two clients and a monitor in a few periods, in small numbers.
//!
//! The peers here take the steps that engine and monitor take, one at a time and in every order,
//! with the real words, books and token balances. Time passes in halves of a period, each as long
//! as it takes to be missed, whether a peer has taken its steps or not: so every client also stops
//! for any number of halves and comes back, at every point of what the others do.
//!
//! In every state that can be reached:
//! - no more pool tokens are granted than were made;
//! - no more operations are issued than Ω with tokens of one period: what was given up is not used
//!   twice;
//! - no client uses a token of an old period once it has looked at the clock after the grants of
//!   the next were written, though it began its own late;
//! - the pool is of the monitor's period, or of the one before while it is about to change it, and
//!   is not overdrawn by more than two batches.
//!
//! And from every state at the end of time, if all go on, both clients have their reservations: so
//! no client waits for ever.
#![expect(clippy::disallowed_types, reason = "the set of seen states is not iterated")]

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write};
use std::hash::Hasher;

use tidegate_algo::onesided::engine::{Promise, TokenBalance};
use tidegate_algo::onesided::monitor::{ClientReport, SUSPECT, TokenAccount};
use tidegate_algo::onesided::{Period, Rules};
use tidegate_model::{Span, Time};
use tidegate_onesided::haechi::port::GUARD;
use tidegate_onesided::haechi::words::{self, GRANT, Grant, PoolWord, REPORT};

const HALF: Span = SUSPECT;
const PERIOD: Span = Span(2 * HALF.0);
/// How often all go on once they do.
const STEP_LENGTH: Span = Span::MILLISECOND;
const CAPACITY: u64 = 5;
const RESERVED: [u64; 2] = [2, 1];
const BATCH: u16 = 2;

#[derive(Clone, Debug)]
struct Client {
    balance: TokenBalance,
    /// The time that it knows of.
    seen: Time,
    is_sure: bool,
    /// The pool's value when the client took from it, until the client learns it.
    answer: Option<u64>,
    beat: u16,
}

/// The monitor's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    ReadGrant,
    /// Writes grants, then adds to the pool; whether that begins a period.
    Write(u64, bool),
    Add(u64, bool),
}

#[derive(Clone, Debug)]
struct State {
    now: Time,
    pool: u64,
    grants: [[u64; GRANT]; 2],
    reports: [[u64; REPORT]; 2],
    clients: [Client; 2],
    account: TokenAccount,
    next: Next,
    last_read: Option<Time>,
    seen_beats: [u16; 2],
    void: [bool; 2],
    /// When the grants of this period were written.
    written: Option<Time>,
    /// Operations issued with tokens of each period.
    used: [[u64; 8]; 2],
}

#[derive(Clone, Copy, Debug)]
enum SearchStep {
    Pass,
    Wake(usize),
    ReadGrant(usize),
    Issue(usize),
    TakePool(usize),
    LearnPool(usize),
    Monitor,
}

impl SearchStep {
    /// The client that takes this step, if any.
    const fn who(self) -> Option<usize> {
        match self {
            Self::Pass | Self::Monitor => None,
            Self::Wake(who) | Self::ReadGrant(who) | Self::Issue(who) | Self::TakePool(who) => {
                Some(who)
            }
            Self::LearnPool(who) => Some(who),
        }
    }
}

const STEPS: [SearchStep; 12] = [
    SearchStep::Wake(0),
    SearchStep::Wake(1),
    SearchStep::ReadGrant(0),
    SearchStep::ReadGrant(1),
    SearchStep::Issue(0),
    SearchStep::Issue(1),
    SearchStep::TakePool(0),
    SearchStep::TakePool(1),
    SearchStep::LearnPool(0),
    SearchStep::LearnPool(1),
    SearchStep::Monitor,
    SearchStep::Pass,
];

impl State {
    fn new(rules: Rules) -> Self {
        let client = Client {
            balance: TokenBalance::new(rules, 1_000),
            seen: Time::ZERO,
            is_sure: false,
            answer: None,
            beat: 0,
        };
        Self {
            now: Time::ZERO,
            pool: 0,
            grants: [[0; GRANT]; 2],
            reports: [[0; REPORT]; 2],
            clients: [client.clone(), client],
            account: TokenAccount::new(rules, PERIOD),
            next: Next::ReadGrant,
            last_read: None,
            seen_beats: [0; 2],
            void: [false; 2],
            written: None,
            used: [[0; 8]; 2],
        }
    }

    /// The state after a step, if it can be taken.
    fn after(&self, step: SearchStep) -> Option<Self> {
        let mut state = self.clone();
        let is_taken = match step {
            SearchStep::Pass => {
                state.now = state.now.after(HALF);
                true
            }
            SearchStep::Monitor => state.monitor(),
            SearchStep::Wake(who) => state.wake(who),
            SearchStep::ReadGrant(who) => state.read_grant(who),
            SearchStep::Issue(who) => state.issue(who),
            SearchStep::TakePool(who) => state.take_pool(who),
            SearchStep::LearnPool(who) => state.learn_pool(who),
        };
        is_taken.then_some(state)
    }

    /// Looks at the clock, and reports; what it may still do it does not know then.
    fn wake(&mut self, who: usize) -> bool {
        let (now, client) = (self.now, &mut self.clients[who]);
        if client.seen == now && client.balance.is_busy() {
            return false;
        }
        client.balance.note(client.seen, true);
        if now >= client.balance.period().end().after(GUARD) {
            client.balance.void();
        }
        client.balance.settle(now);
        (client.seen, client.is_sure) = (now, false);
        let usage = client.balance.usage();
        let report = ClientReport {
            residual: client.balance.reserved(),
            completed: usage.issued(),
            in_hand: client.balance.pool(),
            obtained: usage.obtained,
            yielded: usage.yielded,
            is_busy: true,
            is_starved: client.balance.ready() == 0,
            ..ClientReport::default()
        };
        // It reports once at a time.
        client.beat = (now.0 / STEP_LENGTH.0) as u16 + 1;
        self.reports[who] = words::report(client.balance.period().epoch, client.beat, &report);
        true
    }

    fn read_grant(&mut self, who: usize) -> bool {
        let (now, client) = (self.now, &mut self.clients[who]);
        if client.seen != now || client.is_sure {
            return false;
        }
        let period = client.balance.period();
        let Some(grant) = Grant::read(self.grants[who], period.epoch) else { return false };
        if grant.epoch > period.epoch {
            let period = Period { epoch: grant.epoch, begun: now, length: PERIOD };
            client.balance.begin(period, grant.promise);
        } else if now >= period.end() {
            return false;
        }
        if grant.is_void {
            client.balance.void();
        }
        client.is_sure = true;
        true
    }

    /// Uses all that it has.
    fn issue(&mut self, who: usize) -> bool {
        let (now, client) = (self.now, &mut self.clients[who]);
        if client.seen != now || !client.is_sure || !client.balance.take(now) {
            return false;
        }
        while client.balance.take(now) {}
        let (epoch, issued) = (client.balance.period().epoch, client.balance.usage().issued());
        self.used[who][epoch as usize] = issued;
        let is_old = epoch < self.account.period().epoch;
        assert!(!is_old || self.written.is_none_or(|at| at == now), "{self:#?}");
        true
    }

    fn take_pool(&mut self, who: usize) -> bool {
        let (now, client) = (self.now, &mut self.clients[who]);
        let wants = client.seen == now
            && client.is_sure
            && client.answer.is_none()
            && client.balance.ready() == 0
            && now < client.balance.period().end()
            // After a failure it waits for a while; the word says whether it is worth it.
            && PoolWord::read(self.pool).tokens > 0;
        if wants {
            client.answer = Some(self.pool);
            self.pool = self.pool.wrapping_sub(BATCH.into());
        }
        wants
    }

    fn learn_pool(&mut self, who: usize) -> bool {
        let (now, client) = (self.now, &mut self.clients[who]);
        let Some(word) = client.answer.filter(|_| client.seen == now) else { return false };
        client.answer = None;
        let (pool, period) = (PoolWord::read(word), client.balance.period());
        if !pool.is_of(period.epoch) {
            client.is_sure = false;
        } else if now < period.end().after(GUARD) {
            client.balance.put(u64::try_from(pool.tokens).unwrap_or(0).min(BATCH.into()));
        }
        true
    }

    fn monitor(&mut self) -> bool {
        match self.next {
            // Once in a half is enough, and once more to give away what is doubted.
            Next::ReadGrant if self.last_read == Some(self.now) => return false,
            Next::ReadGrant => self.decide(),
            Next::Write(add, begins) => {
                self.write();
                self.written = self.written.or(Some(self.now));
                self.next = Next::Add(add, begins);
            }
            Next::Add(add, begins) => {
                let before = self.pool;
                self.pool = before.wrapping_add(add);
                let [before, after] = [before, self.pool].map(|word| PoolWord::read(word).tokens);
                match begins {
                    true => self.account.opened(after),
                    false => self.account.changed(before, after),
                }
                self.next = Next::ReadGrant;
            }
        }
        true
    }

    fn decide(&mut self) {
        let now = self.now;
        let tokens = PoolWord::read(self.pool).tokens;
        self.account.changed(tokens, tokens);
        let epoch = self.account.period().epoch;
        for (who, report) in self.reports.iter().enumerate() {
            if self.seen_beats[who] != words::beat(*report) {
                self.seen_beats[who] = words::beat(*report);
                self.account.on_report(now, who, words::read_report(*report, epoch));
            }
        }
        if epoch == 0 || now >= self.account.period().end() {
            let epoch = words::next(epoch);
            let period = Period { epoch, begun: now, length: PERIOD };
            let promise = |reservation| Some(Promise { reservation, limit: u64::MAX });
            let first = self.account.begin(period, CAPACITY, RESERVED.map(promise));
            (self.void, self.written) = ([false; 2], None);
            self.doubt();
            let add = PoolWord::word(epoch, first as i64).wrapping_sub(self.pool);
            self.next = Next::Write(add, true);
            return;
        }
        self.account.suspects(now);
        let is_new = self.doubt();
        let add = (self.account.target(now) - tokens) as u64;
        self.next = if is_new { Next::Write(add, false) } else { Next::Add(add, false) };
        // Clients that are doubted are looked at again.
        self.last_read = (!is_new).then_some(now);
    }

    fn doubt(&mut self) -> bool {
        let doubted = self.account.doubts(self.now);
        doubted.iter().for_each(|who| self.void[*who] = true);
        !doubted.is_empty()
    }

    fn write(&mut self) {
        for (who, reservation) in RESERVED.into_iter().enumerate() {
            let promise = Promise { reservation, limit: u64::MAX };
            let (epoch, is_void) = (self.account.period().epoch, self.void[who]);
            let grant =
                Grant { epoch, is_void, is_late: false, has_left: false, batch: BATCH, promise };
            self.grants[who] = grant.words();
        }
    }

    fn check(&self) {
        assert!(self.account.granted() <= self.account.minted(), "{self:#?}");
        for epoch in 0..8 {
            assert!(self.used[0][epoch] + self.used[1][epoch] <= CAPACITY, "{self:#?}");
        }
        let pool = PoolWord::read(self.pool);
        let epoch = self.account.period().epoch;
        let before = matches!(self.next, Next::Write(_, true) | Next::Add(_, true));
        assert!(pool.is_of(epoch - u64::from(before)), "{self:#?}");
        assert!(before || pool.tokens >= -2 * i64::from(BATCH), "{self:#?}");
    }

    /// All go on as they should: in the second period from now, both have what they were promised.
    fn check_end(mut self) {
        let order = STEPS.iter().rev();
        let epoch = self.account.period().epoch;
        let mut done = [0; 2];
        while self.account.period().epoch < epoch + 3 {
            while let Some(next) = order.clone().skip(1).find_map(|step| self.after(*step)) {
                self = next;
            }
            if self.account.period().epoch == epoch + 2 {
                done = [0, 1].map(|who| self.clients[who].balance.usage().issued());
            }
            self.now = self.now.after(STEP_LENGTH);
        }
        assert!(done[0] >= RESERVED[0] && done[1] >= RESERVED[1], "{done:?}: {self:#?}");
    }

    /// A hash that tells this state from others.
    fn digest(&self) -> u64 {
        struct Digest(DefaultHasher);
        impl Write for Digest {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.write(text.as_bytes());
                Ok(())
            }
        }
        let mut digest = Digest(DefaultHasher::new());
        write!(digest, "{self:?}").unwrap();
        digest.0.finish()
    }
}

/// All states that can be reached in so many halves of a period, if only the first so many clients
/// take any steps in them.
fn search(rules: Rules, halves: u64, clients: usize) {
    let mut first = State::new(rules);
    while first.next != Next::ReadGrant || first.last_read.is_none() {
        assert!(first.monitor());
    }
    // All are there when it begins.
    for step in [
        SearchStep::Wake(0),
        SearchStep::ReadGrant(0),
        SearchStep::Wake(1),
        SearchStep::ReadGrant(1),
        SearchStep::Pass,
    ] {
        first = first.after(step).unwrap();
    }
    let (mut seen, mut todo, mut ends) = (HashSet::new(), vec![first], 0);
    let is_in = |step: &SearchStep| step.who().is_none_or(|who| who < clients);
    let steps: Vec<_> = STEPS.into_iter().filter(is_in).collect();
    while let Some(state) = todo.pop() {
        if !seen.insert(state.digest()) {
            continue;
        }
        state.check();
        if state.now.0 >= halves * HALF.0 {
            ends += 1;
            if ends % 64 == 1 {
                state.check_end();
            }
            continue;
        }
        todo.extend(steps.iter().filter_map(|step| state.after(*step)));
    }
    println!("{rules:?}, {clients} clients: {} states, {ends} of them at the end", seen.len());
    assert!(ends > 100);
}

#[test]
fn two_clients_from_within_a_period_into_the_next() {
    search(Rules::UNPACED, 3, 2);
    search(Rules::SOUND, 3, 2);
}

#[test]
fn one_client_in_two_periods_while_the_other_sleeps() {
    search(Rules::UNPACED, 4, 1);
    search(Rules::SOUND, 4, 1);
}
