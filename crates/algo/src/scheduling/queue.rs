//! Dispatch order of a gate: a queue with a depth, ordered by arrival, by fairness or by priority.
//!
//! # Problem
//! A device serves a few requests at a time well, and many at a time badly. So a gate lets at most
//! `depth` requests into service and makes the others wait. As soon as requests wait, the gate
//! decides which one is next: the one that came first, the one whose flow had the least for its
//! weight, or the one with the highest priority. These are one structure with three orders.
//!
//! The requests come from several processes, any of which may be stopped or killed at any
//! instruction. So the decision is split from the memory in which it is kept:
//!
//! - [`QueueState`] is the decision: plain integers and three sets of slots, 68 words for 512
//!   slots. A change is made to a private copy, which then replaces the shared one as a whole
//!   (`versioned`), so that no process ever sees, or leaves, half a change;
//! - what each request is (its flow, cost and arrival) lies outside, one cell per slot, and is read
//!   through a function. It does not change while the slot is in one of the sets;
//! - words full of zeros are a valid, empty queue of depth one, and *any* other content is safe: no
//!   method panics or runs long on it, for every index is checked and every loop is over the slots.
//!
//! # Fair order
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996) with a depth (Jin, Chase and Kaur, 2004).
//! A request of cost *c* and weight *w* is *c / w* long. A flow's *start tag* is the sum of its
//! requests' lengths so far: its next request starts there. The waiting request with the smallest
//! start tag enters service, and its flow moves on by *c / w*. *Virtual time* is the start tag of
//! the request that entered last. A flow that comes back after a pause starts at virtual time, not
//! where it stopped, so a pause earns no credit. When no request is left, virtual time moves up to
//! the leader, so that no flow brings a debt into the next busy time.
//!
//! The papers give each request its tags when it arrives. Here a tag belongs to a flow and moves
//! when a request is dispatched. The order is the same: a request that arrives behind another one
//! of its flow starts at that one's finish tag, because virtual time cannot pass a request that
//! waits. The gain: a request that stops waiting was never charged, and a new weight holds from the
//! next dispatch.
//!
//! Example, depth 1, all costs equal, weights 2 for *a* and 1 for *b*, arrivals a0 b0 a1 b1 a2 b2:
//!
//! | dispatched | a0 | b0 | a1 | b1 | a2 | b2 |
//! |---|---|---|---|---|---|---|
//! | start tag | 0 | 0 | 1/2 | 1 | 1 | 2 |
//!
//! Of a1 and b0, b0 has the smaller tag; of b1 and a2, equal at 1, b1 arrived first.
//!
//! # What it promises
//! While two flows *f* and *g* both have requests waiting, the costs *W* of what is dispatched for
//! each differ, per weight, by at most one request of each: |W_f / w_f - W_g / w_g| is at most
//! c_f / w_f + c_g / w_g, with *c* the largest cost. Counted when requests finish, it is
//! `depth + 1` times that, because those in service have not counted yet.
//!
//! # Overdue requests
//! A permit whose holder cannot give it back (it is stopped) is passed on: the request leaves the
//! `depth` that may be in service and is *overdue*, until its holder finishes it or is found dead.
//! While requests are overdue, more than `depth` may be in service, as
//! [`QueueState::exceeds_depth`] reports.

/// Flows of a queue; in priority order, also the number of levels.
pub const FLOWS: usize = 16;

/// The largest weight. Larger ones count as this.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// A tag's unit: one token at weight one is this long.
///
/// It is 720,720 (the least number that 1 to 16 divide) times 1,600,000, so that the weights that
/// people write (3, 7, 12, 300, 25,000, 1,000,000) divide it, and ties between such flows are real
/// ties. Another weight makes every request shorter by less than one unit. The shortest request,
/// one token at the largest weight, is 1,153,152 units long, so a flow gains less than one part in
/// a million.
///
/// A device of 1 TB/s that serves one flow of weight one adds 10^12 * 1.2 * 10^12 units per second:
/// 128 bits, which hold 3.4 * 10^38, last for 2.9 * 10^14 s, nine million years.
const TOKEN: u128 = 720_720 * 1_600_000;
const _: () = assert!(TOKEN >= WEIGHT_MAX as u128 * 1_000_000);

/// Of so many slots each flow has one to itself, so that a flow with more requests than there are
/// slots leaves some for the others. In a queue of 512 slots these are sixteen for each, and one
/// flow alone can have 272.
const SLOTS_PER_OWN: usize = 2 * FLOWS;

/// The order in which requests enter service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The request that came first.
    #[default]
    Arrival,
    /// The flow that had the least for its weight; within a flow, the request that came first.
    Fair,
    /// The flow with the smallest number; within a flow, the request that came first.
    Priority,
}

/// The request in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRequest {
    /// The number that [`QueueState::arrive`] gave it.
    pub arrival: u64,
    /// Tokens.
    pub cost: u64,
    /// Flows beyond the last count as the last.
    pub flow: u8,
}

impl QueueRequest {
    /// Its flow, whatever the memory holds.
    fn flow(&self) -> usize {
        usize::from(self.flow).min(FLOWS - 1)
    }
}

/// A set of slots, 64 to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots<const L: usize>([u64; L]);

impl<const L: usize> Slots<L> {
    const NONE: Self = Self([0; L]);

    /// Whether the slot is in the set.
    pub fn has(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Takes the slot out, and returns whether it was in.
    fn remove(&mut self, slot: usize) -> bool {
        let had = self.has(slot);
        if had {
            self.0[slot / 64] &= !(1 << (slot % 64));
        }
        had
    }

    fn insert(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The slots, from the first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<L> {
        let mut words = self.0;
        (0..L).flat_map(move |index| {
            let mut word = core::mem::take(&mut words[index]);
            core::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.wrapping_sub(1);
                (bit < 64).then_some(index * 64 + bit)
            })
        })
    }
}

/// A queue of at most `64 * L` requests, waiting, in service and overdue together.
///
/// ```
/// use tidegate_algo::scheduling::queue::{Order, QueueRequest, QueueState};
/// let mut requests = [QueueRequest { cost: 65_536, flow: 1, ..QueueRequest::default() }; 64];
/// requests[5] = QueueRequest { cost: 4_096, flow: 0, ..QueueRequest::default() };
/// let mut queue = QueueState::<1>::new();
/// queue.configure(Order::Priority, 1, &[]);
/// for slot in [3, 5] {
///     requests[slot].arrival = queue.arrive(slot).unwrap();
/// }
/// assert_eq!(queue.dispatch(|slot| requests[slot]), Some(5));
/// assert_eq!(queue.dispatch(|slot| requests[slot]), None); // one at a time
/// queue.finish(5);
/// assert_eq!(queue.dispatch(|slot| requests[slot]), Some(3));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState<const L: usize> {
    /// The start tag of the request that was dispatched last.
    virtual_time: u128,
    /// Where each flow's next request starts.
    start_tags: [u128; FLOWS],
    /// How many requests have arrived.
    arrivals: u64,
    depth: u32,
    order: u32,
    weights: [u32; FLOWS],
    waiting: Slots<L>,
    in_service: Slots<L>,
    overdue: Slots<L>,
}

/// Words of a state but for its sets.
const HEAD_WORDS: usize = 2 + 2 * FLOWS + 2 + FLOWS / 2;

/// Words of a state with sets of `l` words.
pub const fn state_words(l: usize) -> usize {
    HEAD_WORDS + 3 * l
}

impl<const L: usize> Default for QueueState<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const L: usize> QueueState<L> {
    /// How many slots there are.
    pub const SLOTS: usize = 64 * L;

    /// An empty queue: by arrival, one at a time. All its words are zero.
    pub const fn new() -> Self {
        Self {
            virtual_time: 0,
            start_tags: [0; FLOWS],
            arrivals: 0,
            depth: 0,
            order: 0,
            weights: [0; FLOWS],
            waiting: Slots::NONE,
            in_service: Slots::NONE,
            overdue: Slots::NONE,
        }
    }

    /// The state in these words; words that are missing are zero.
    pub fn from_words(words: &[u64]) -> Self {
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        let wide = |index| u128::from(word(index)) | u128::from(word(index + 1)) << 64;
        let halves = |index| (word(index) as u32, (word(index) >> 32) as u32);
        let numbers = 2 + 2 * FLOWS;
        let (depth, order) = halves(numbers + 1);
        let set = |set: usize| Slots(core::array::from_fn(|i| word(HEAD_WORDS + set * L + i)));
        Self {
            virtual_time: wide(0),
            start_tags: core::array::from_fn(|flow| wide(2 + 2 * flow)),
            arrivals: word(numbers),
            depth,
            order,
            weights: core::array::from_fn(|flow| {
                let (even, odd) = halves(numbers + 2 + flow / 2);
                if flow % 2 == 0 { even } else { odd }
            }),
            waiting: set(0),
            in_service: set(1),
            overdue: set(2),
        }
    }

    /// Writes the state into [`state_words`] words.
    pub fn to_words(&self, words: &mut [u64]) {
        let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let tags = core::iter::once(&self.virtual_time).chain(&self.start_tags);
        let tags = tags.flat_map(|tag| [*tag as u64, (*tag >> 64) as u64]);
        let numbers = [self.arrivals, halves(self.depth, self.order)];
        let weights = self.weights.chunks_exact(2).map(|pair| halves(pair[0], pair[1]));
        let sets = [self.waiting.0, self.in_service.0, self.overdue.0];
        let all = tags.chain(numbers).chain(weights).chain(sets.into_iter().flatten());
        words.iter_mut().zip(all).for_each(|(word, value)| *word = value);
    }

    /// Whether the slot of these words is in one of the sets, without reading the rest: waiting,
    /// and in service.
    pub fn membership(word: impl Fn(usize) -> u64, slot: usize) -> (bool, bool) {
        let has = |set| {
            slot < Self::SLOTS && word(HEAD_WORDS + set * L + slot / 64) >> (slot % 64) & 1 == 1
        };
        (has(0), has(1))
    }

    /// How many requests wait, by words of which the rest is not read.
    pub fn waiting_count(word: impl Fn(usize) -> u64) -> u32 {
        (0..L).map(|index| word(HEAD_WORDS + index).count_ones()).sum()
    }

    /// Sets the order, how many requests may be in service (at least one), and the weight of each
    /// flow (at least one; one for each flow that is not given). Waiting requests go on waiting,
    /// and more than `depth` requests that are in service stay there.
    ///
    /// A flow that is ahead keeps its debt in tokens, not in tags: when its weight grows tenfold,
    /// it has to wait for a tenth.
    pub fn configure(&mut self, order: Order, depth: u32, weights: &[u32]) {
        self.order = match order {
            Order::Arrival => 0,
            Order::Fair => 1,
            Order::Priority => 2,
        };
        self.depth = depth;
        for flow in 0..FLOWS {
            let old = u128::from(self.weight(flow));
            self.weights[flow] = weights.get(flow).copied().unwrap_or(1);
            let new = u128::from(self.weight(flow));
            let ahead = self.start_tags[flow].saturating_sub(self.virtual_time);
            let ahead = if old == new { ahead } else { ahead.saturating_mul(old) / new };
            self.start_tags[flow] = self.virtual_time.saturating_add(ahead);
        }
    }

    /// Whether a flow may have another slot: of those that are its own, or of those that are
    /// free for all.
    pub fn has_headroom(&self, flow: u8, requests: impl Fn(usize) -> QueueRequest) -> bool {
        let flow = usize::from(flow).min(FLOWS - 1);
        let own = Self::SLOTS / SLOTS_PER_OWN;
        let used = self.waiting.count() + self.in_service.count() + self.overdue.count();
        if used as usize + FLOWS * own < Self::SLOTS {
            return true;
        }
        let mut taken = [0; FLOWS];
        let used = self.waiting.iter().chain(self.in_service.iter()).chain(self.overdue.iter());
        used.for_each(|slot| taken[requests(slot).flow()] += 1);
        let others = taken.iter().enumerate().filter(|(other, _)| *other != flow);
        let kept: usize = others.map(|(_, taken)| own.saturating_sub(*taken)).sum();
        taken.iter().sum::<usize>() + kept < Self::SLOTS
    }

    /// The request in this slot starts to wait. Gives its number in the order of arrivals, for its
    /// cell; none if the slot is in use or does not exist.
    pub fn arrive(&mut self, slot: usize) -> Option<u64> {
        let used = slot >= Self::SLOTS
            || self.waiting.has(slot)
            || self.in_service.has(slot)
            || self.overdue.has(slot);
        if used {
            return None;
        }
        let arrival = self.arrivals;
        self.arrivals = arrival.wrapping_add(1);
        self.waiting.insert(slot);
        Some(arrival)
    }

    /// Moves a flow to virtual time. To be called when one of its requests has arrived; has no
    /// effect on a flow that has another request waiting, for virtual time has not passed it.
    pub fn joins(&mut self, flow: u8) {
        let flow = usize::from(flow).min(FLOWS - 1);
        self.start_tags[flow] = self.start_tags[flow].max(self.virtual_time);
    }

    /// Moves the next request into service. None if no request waits or `depth` requests are there.
    pub fn dispatch(&mut self, requests: impl Fn(usize) -> QueueRequest) -> Option<usize> {
        if self.in_service.count() >= self.depth() {
            return None;
        }
        // The first request of each flow: arrival and slot.
        let mut heads = [(u64::MAX, usize::MAX); FLOWS];
        for slot in self.waiting.iter() {
            let request = requests(slot);
            let head = &mut heads[request.flow()];
            *head = (request.arrival, slot).min(*head);
        }
        let heads = heads.iter().enumerate().filter(|(_, (_, slot))| *slot < Self::SLOTS);
        let ranked = heads.map(|(flow, (arrival, slot))| (self.rank(flow), *arrival, *slot));
        let (_, _, slot) = ranked.min()?;
        if self.order() == Order::Fair {
            self.charge(requests(slot));
        }
        self.waiting.remove(slot);
        self.in_service.insert(slot);
        Some(slot)
    }

    /// A request leaves service, or is overdue no more. False if it was not there.
    pub fn finish(&mut self, slot: usize) -> bool {
        let found = self.in_service.remove(slot) || self.overdue.remove(slot);
        self.level();
        found
    }

    /// A request leaves service that turned out to cost only `used`: its flow gets the rest back,
    /// as far as it is still ahead. False if it was not there.
    pub fn finish_having_used(&mut self, slot: usize, used: u64, request: QueueRequest) -> bool {
        // Most requests use all, and dividing 128 bits takes longer than everything else here.
        if self.order() == Order::Fair
            && (self.in_service.has(slot) || self.overdue.has(slot))
            && used < request.cost
        {
            let flow = request.flow();
            let unused = self.length(flow, request.cost) - self.length(flow, used);
            let tag = self.start_tags[flow].saturating_sub(unused);
            self.start_tags[flow] = tag.max(self.virtual_time.min(self.start_tags[flow]));
        }
        self.finish(slot)
    }

    /// A request stops waiting, and its flow is charged nothing. False if it does not wait, perhaps
    /// because it has entered service meanwhile and must be finished.
    pub fn withdraw(&mut self, slot: usize) -> bool {
        let found = self.waiting.remove(slot);
        self.level();
        found
    }

    /// A request in service no longer counts against the depth: its permit is passed on. False if
    /// it was not in service.
    pub fn pass_on(&mut self, slot: usize) -> bool {
        let found = self.in_service.remove(slot);
        if found {
            self.overdue.insert(slot);
        }
        found
    }

    /// A request that waits or is in service or overdue is no more. False if there was none.
    pub fn drop_request(&mut self, slot: usize) -> bool {
        self.withdraw(slot) || self.finish(slot)
    }

    /// The requests that wait.
    pub fn waiting(&self) -> &Slots<L> {
        &self.waiting
    }

    /// The requests that are in service, but for those that are overdue.
    pub fn in_service(&self) -> &Slots<L> {
        &self.in_service
    }

    /// The requests whose permits were passed on.
    pub fn overdue(&self) -> &Slots<L> {
        &self.overdue
    }

    /// How many may be in service.
    pub fn depth(&self) -> u32 {
        self.depth.max(1)
    }

    /// Whether more are in service than may be, because permits were passed on.
    pub fn exceeds_depth(&self) -> bool {
        let overdue = self.overdue.count();
        overdue > 0 && self.in_service.count() + overdue > self.depth()
    }

    fn order(&self) -> Order {
        match self.order {
            1 => Order::Fair,
            2 => Order::Priority,
            _ => Order::Arrival,
        }
    }

    fn weight(&self, flow: usize) -> u32 {
        self.weights[flow].clamp(1, WEIGHT_MAX)
    }

    /// The smaller, the sooner; equals go by arrival.
    fn rank(&self, flow: usize) -> u128 {
        match self.order() {
            Order::Arrival => 0,
            Order::Fair => self.start_tags[flow],
            Order::Priority => flow as u128,
        }
    }

    /// How long a request is. One that costs nothing counts as one token, or an endless row of them
    /// would stop time for every other flow.
    fn length(&self, flow: usize, cost: u64) -> u128 {
        // 2^64 tokens of 2^41 units each fit 128 bits.
        u128::from(cost.max(1)) * TOKEN / u128::from(self.weight(flow))
    }

    /// Moves virtual time to the start of a request and its flow to the end.
    fn charge(&mut self, request: QueueRequest) {
        let flow = request.flow();
        let length = self.length(flow, request.cost);
        self.virtual_time = self.start_tags[flow];
        self.start_tags[flow] = self.virtual_time.saturating_add(length);
    }

    /// When no request is left, moves virtual time up to the leader.
    fn level(&mut self) {
        if self.waiting == Slots::NONE && self.in_service == Slots::NONE {
            let leader = self.start_tags.iter().copied().max().unwrap_or(0);
            self.virtual_time = self.virtual_time.max(leader);
        }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "queue_words_tests.rs"]
mod words_tests;
