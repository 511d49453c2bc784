//! Who enters service next: a queue with a depth, ordered by arrival, by fairness or by priority.
//!
//! # Problem
//! A device serves a few requests at a time well, and many at a time badly. So a gate lets at most
//! `depth` requests into service and makes the others wait. As soon as requests wait, somebody
//! decides who is next: the one that came first, the one whose flow had the least for its weight,
//! or the one with the highest priority. These are one structure with three orders.
//!
//! The requests come from several processes. The queue therefore lives in memory that they share,
//! under a lock that somebody else provides, and it is made for that place:
//!
//! - plain integers in arrays: no pointer, no allocation, no padding;
//! - memory full of zeros is a valid, empty queue of depth one, and *any* other content is safe: no
//!   method panics or runs long on it, for every index is checked and every loop is over `N` slots;
//! - hardly any field is derived from another. How many requests wait or are in service is counted
//!   when somebody asks. What a process leaves behind that died in the middle of an update,
//!   [`Queue::repair`] puts in order.
//!
//! # Fair order
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996) with a depth (Jin, Chase and Kaur, 2004).
//! Every flow runs a race in which a request of cost *c* and weight *w* is *c / w* long. A flow's
//! *start tag* is how far it has come: its next request starts there. The waiting request with the
//! smallest start tag enters service, and its flow moves on by *c / w*. *Virtual time* is the start
//! tag of the request that entered last. A flow that comes back after a pause starts at virtual
//! time, not where it stopped, so waiting at home earns no credit. When nobody is left, virtual
//! time moves up to the leader, so that nobody brings a debt into the next busy time.
//!
//! The papers give each request its tags when it arrives. Here a tag belongs to a flow and moves
//! when a request is dispatched. The order is the same: a request that arrives behind another one
//! of its flow starts where that one ends, because virtual time cannot pass a request that waits.
//! What is gained: a request that stops waiting was never charged, and a new weight holds from the
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

use core::sync::atomic::{Ordering, compiler_fence};

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
/// slots leaves room for the others. In a queue of 512 slots these are sixteen for each, and one
/// flow alone can have 272.
const SLOTS_PER_OWN: usize = 2 * FLOWS;

/// States of a slot. Any other number is a slot that is not in use.
const WAITING: u8 = 1;
const IN_SERVICE: u8 = 2;

/// Who is next.
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

/// A place in a queue that was given to one request. A later request in the same place has another
/// one, so an id that is used too late is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    index: u32,
    generation: u32,
}

impl SlotId {
    /// Which of the queue's slots it is, for a world that keeps something beside each slot.
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Slot {
    /// Its number in the order of arrivals.
    arrival: u64,
    cost: u64,
    owner: u32,
    generation: u32,
    flow: u8,
    /// Written last when a request arrives and alone when it moves on, so that a request is never
    /// half in one state and half in another.
    state: u8,
    reserved: [u8; 6],
}

impl Slot {
    const EMPTY: Self =
        Self { arrival: 0, cost: 0, owner: 0, generation: 0, flow: 0, state: 0, reserved: [0; 6] };

    fn is_used(&self) -> bool {
        self.state == WAITING || self.state == IN_SERVICE
    }

    /// Its flow, whatever the memory says.
    fn flow(&self) -> usize {
        usize::from(self.flow).min(FLOWS - 1)
    }
}

/// A queue of at most `N` requests, waiting and in service together.
///
/// ```
/// use tidegate_algo::queue::{Order, Queue};
/// let mut queue = Queue::<8>::new();
/// queue.configure(Order::Priority, 1, &[]);
/// let me = 4711; // a process, as far as the world can tell whether it lives
/// let flush = queue.arrive(1, 65_536, me).unwrap();
/// let read = queue.arrive(0, 4_096, me).unwrap();
/// assert_eq!(queue.dispatch(), Some(read));
/// assert_eq!(queue.dispatch(), None); // one at a time
/// queue.finish(read);
/// assert_eq!(queue.dispatch(), Some(flush));
/// ```
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Queue<const N: usize> {
    /// The start tag of the request that was dispatched last.
    virtual_time: u128,
    /// Where each flow's next request starts.
    start_tags: [u128; FLOWS],
    /// How many requests have arrived.
    arrivals: u64,
    /// All slots from here on are free. Slots are taken from the front, so this is about the
    /// number of requests, and what loops over slots need not look at empty ones.
    reach: u32,
    depth: u32,
    weights: [u32; FLOWS],
    order: u32,
    reserved: [u32; 3],
    slots: [Slot; N],
}

const _: () = assert!(size_of::<Slot>() == 32);
const _: () = assert!(size_of::<Queue<256>>() == 17 * 16 + 8 + 2 * 4 + 16 * 4 + 4 * 4 + 256 * 32);

impl<const N: usize> Default for Queue<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Queue<N> {
    /// An empty queue: by arrival, one at a time. All its bytes are zero.
    pub const fn new() -> Self {
        Self {
            virtual_time: 0,
            start_tags: [0; FLOWS],
            arrivals: 0,
            reach: 0,
            depth: 0,
            weights: [0; FLOWS],
            order: 0,
            reserved: [0; 3],
            slots: [Slot::EMPTY; N],
        }
    }

    /// Sets who is next, how many may be in service (at least one), and the weight of each flow
    /// (at least one; one for each flow that is not given). Who waits goes on waiting, and more
    /// than `depth` requests that are in service stay there.
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

    /// A request of `flow` starts to wait; flows beyond the last are the last. None if all slots
    /// are taken that the flow may have. `owner` is whoever has to be alive for the request to mean
    /// anything.
    pub fn arrive(&mut self, flow: u8, cost: u64, owner: u32) -> Option<SlotId> {
        if !self.has_room_for(usize::from(flow).min(FLOWS - 1)) {
            return None;
        }
        let index = self.slots.iter().position(|slot| !slot.is_used())?;
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.arrival = self.arrivals;
        slot.cost = cost;
        slot.owner = owner;
        slot.flow = flow;
        // Whoever dies in this method leaves a free slot or a whole request, never one whose owner
        // is the last occupant. A dying process completes its stores in program order.
        compiler_fence(Ordering::Release);
        slot.state = WAITING;
        let (flow, id) = (slot.flow(), SlotId { index: index as u32, generation: slot.generation });
        self.arrivals = self.arrivals.wrapping_add(1);
        self.reach = self.reach.max(id.index + 1);
        // No effect on a flow that has another request waiting, for virtual time has not passed it.
        self.start_tags[flow] = self.start_tags[flow].max(self.virtual_time);
        Some(id)
    }

    /// Moves the next request into service. None if nobody waits or `depth` requests are there.
    pub fn dispatch(&mut self) -> Option<SlotId> {
        let mut room = self.depth.max(1);
        // The first request of each flow: arrival and index.
        let mut heads = [(u64::MAX, usize::MAX); FLOWS];
        for (index, slot) in self.used().iter().enumerate() {
            match slot.state {
                IN_SERVICE if room == 1 => return None,
                IN_SERVICE => room -= 1,
                WAITING => {
                    let head = &mut heads[slot.flow()];
                    *head = (slot.arrival, index).min(*head);
                }
                _ => {}
            }
        }
        let heads = heads.iter().enumerate().filter(|(_, (_, index))| *index < N);
        let ranked = heads.map(|(flow, (arrival, index))| (self.rank(flow), *arrival, *index));
        let (_, _, index) = ranked.min()?;
        if self.order() == Order::Fair {
            self.charge(index);
        }
        let slot = &mut self.slots[index];
        slot.state = IN_SERVICE;
        Some(SlotId { index: index as u32, generation: slot.generation })
    }

    /// Whether a flow may have another slot: of those that are its own, or of those that are
    /// nobody's.
    fn has_room_for(&self, flow: usize) -> bool {
        let own = N / SLOTS_PER_OWN;
        let mut taken = [0; FLOWS];
        self.used().iter().filter(|slot| slot.is_used()).for_each(|slot| taken[slot.flow()] += 1);
        let others = taken.iter().enumerate().filter(|(other, _)| *other != flow);
        let kept: usize = others.map(|(_, taken)| own.saturating_sub(*taken)).sum();
        taken.iter().sum::<usize>() + kept < N
    }

    /// A request leaves service. False if it was not there.
    pub fn finish(&mut self, slot: SlotId) -> bool {
        self.remove(slot, IN_SERVICE)
    }

    /// A request leaves service that turned out to cost only `used`: its flow gets the rest back,
    /// as far as it is still ahead. False if it was not there.
    pub fn finish_having_used(&mut self, slot: SlotId, used: u64) -> bool {
        // Most requests use all, and dividing 128 bits takes longer than everything else here.
        if self.order() == Order::Fair
            && self.holds(slot, IN_SERVICE)
            && used < self.slots[slot.index()].cost
        {
            let Slot { cost, .. } = self.slots[slot.index()];
            let flow = self.slots[slot.index()].flow();
            let unused = self.length(flow, cost) - self.length(flow, used);
            let tag = self.start_tags[flow].saturating_sub(unused);
            self.start_tags[flow] = tag.max(self.virtual_time.min(self.start_tags[flow]));
        }
        self.finish(slot)
    }

    /// A request stops waiting, and its flow is charged nothing. False if it does not wait, perhaps
    /// because it has entered service meanwhile and must be finished.
    pub fn withdraw(&mut self, slot: SlotId) -> bool {
        self.remove(slot, WAITING)
    }

    /// Drops all requests of dead owners, waiting or in service, and returns how many.
    pub fn abandon(&mut self, mut is_dead: impl FnMut(u32) -> bool) -> usize {
        let mut dropped = 0;
        for index in 0..self.used().len() {
            if self.slots[index].is_used() && is_dead(self.slots[index].owner) {
                self.free(index);
                dropped += 1;
            }
        }
        dropped
    }

    /// Whether this request waits.
    pub fn is_waiting(&self, slot: SlotId) -> bool {
        self.holds(slot, WAITING)
    }

    /// Whether this request is in service.
    pub fn is_in_service(&self, slot: SlotId) -> bool {
        self.holds(slot, IN_SERVICE)
    }

    /// How many requests wait.
    pub fn waiting(&self) -> u32 {
        self.count(WAITING)
    }

    /// How many requests are in service.
    pub fn in_service(&self) -> u32 {
        self.count(IN_SERVICE)
    }

    /// Makes the queue consistent, whatever its bytes are. To be called when somebody died while
    /// holding the lock.
    ///
    /// Requests keep their places, their states and their order. The race starts anew, because a
    /// half-written tag cannot be told from a good one: each flow is forgiven at most the one
    /// request that it was ahead.
    pub fn repair(&mut self) {
        let mut by_arrival = [0u32; N];
        let mut used = 0;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.is_used() {
                slot.flow = slot.flow() as u8;
                by_arrival[used] = index as u32;
                used += 1;
                self.reach = index as u32 + 1;
            } else {
                slot.state = 0;
            }
        }
        if used == 0 {
            self.reach = 0;
        }
        let slots = &mut self.slots;
        by_arrival[..used].sort_unstable_by_key(|index| (slots[*index as usize].arrival, *index));
        for (arrival, index) in by_arrival[..used].iter().enumerate() {
            slots[*index as usize].arrival = arrival as u64;
        }
        self.arrivals = used as u64;
        self.virtual_time = 0;
        self.start_tags = [0; FLOWS];
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
    /// would stop time for everybody else.
    fn length(&self, flow: usize, cost: u64) -> u128 {
        // 2^64 tokens of 2^41 units each fit 128 bits.
        u128::from(cost.max(1)) * TOKEN / u128::from(self.weight(flow))
    }

    /// Moves virtual time to the start of a request and its flow to the end.
    fn charge(&mut self, index: usize) {
        let flow = self.slots[index].flow();
        let length = self.length(flow, self.slots[index].cost);
        self.virtual_time = self.start_tags[flow];
        self.start_tags[flow] = self.virtual_time.saturating_add(length);
    }

    /// The slots that may be in use.
    fn used(&self) -> &[Slot] {
        &self.slots[..N.min(self.reach as usize)]
    }

    fn count(&self, state: u8) -> u32 {
        self.used().iter().filter(|slot| slot.state == state).count() as u32
    }

    fn holds(&self, id: SlotId, state: u8) -> bool {
        let slot = self.slots.get(id.index());
        slot.is_some_and(|slot| slot.state == state && slot.generation == id.generation)
    }

    fn remove(&mut self, id: SlotId, state: u8) -> bool {
        let found = self.holds(id, state);
        if found {
            self.free(id.index());
        }
        found
    }

    fn free(&mut self, index: usize) {
        self.slots[index].state = 0;
        let last = self.used().iter().rposition(Slot::is_used);
        self.reach = last.map_or(0, |last| last as u32 + 1);
        if last.is_none() {
            let leader = self.start_tags.iter().copied().max().unwrap_or(0);
            self.virtual_time = self.virtual_time.max(leader);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Fair queueing as the papers print it: each request gets its tags when it arrives. Tags are
    /// in parts of 720,720, which all weights of these tests divide, so they are exact.
    struct Textbook {
        order: Order,
        depth: usize,
        weights: Vec<u32>,
        requests: Vec<Request>,
        finish_tags: [u128; FLOWS],
        virtual_time: u128,
    }

    struct Request {
        flow: usize,
        arrival: u64,
        start: u128,
        in_service: bool,
    }

    impl Textbook {
        fn arrive(&mut self, flow: usize, cost: u64, arrival: u64) {
            let start = self.virtual_time.max(self.finish_tags[flow]);
            let length = u128::from(cost) * 720_720 / u128::from(self.weights[flow]);
            self.finish_tags[flow] = start + length;
            self.requests.push(Request { flow, arrival, start, in_service: false });
        }

        fn dispatch(&mut self) -> Option<u64> {
            if self.requests.iter().filter(|request| request.in_service).count() >= self.depth {
                return None;
            }
            let waiting = self.requests.iter_mut().filter(|request| !request.in_service);
            let best = waiting.min_by_key(|request| match self.order {
                Order::Arrival => (0, request.arrival),
                Order::Fair => (request.start, request.arrival),
                Order::Priority => (request.flow as u128, request.arrival),
            })?;
            best.in_service = true;
            self.virtual_time = best.start;
            Some(best.arrival)
        }

        fn finish(&mut self, arrival: u64) {
            self.requests.retain(|request| request.arrival != arrival);
            if self.requests.is_empty() {
                self.virtual_time = self.finish_tags.into_iter().max().unwrap();
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive { flow: u8, cost: u64, owner: u32 },
        Dispatch,
        Finish(prop::sample::Index),
        Withdraw(prop::sample::Index),
        Abandon { owner: u32 },
        Repair,
    }

    fn arrive() -> impl Strategy<Value = Step> {
        let cost = prop_oneof![1u64..10, 1u64..100_000];
        (0u8..4, cost, 0u32..3).prop_map(|(flow, cost, owner)| Step::Arrive { flow, cost, owner })
    }

    fn finish() -> impl Strategy<Value = Step> {
        any::<prop::sample::Index>().prop_map(Step::Finish)
    }

    fn plain_step() -> impl Strategy<Value = Step> {
        prop_oneof![4 => arrive(), 3 => Just(Step::Dispatch), 3 => finish()]
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            9 => plain_step(),
            1 => any::<prop::sample::Index>().prop_map(Step::Withdraw),
            1 => (0u32..3).prop_map(|owner| Step::Abandon { owner }),
            1 => Just(Step::Repair),
        ]
    }

    fn order() -> impl Strategy<Value = Order> {
        prop_oneof![Just(Order::Arrival), Just(Order::Fair), Just(Order::Priority)]
    }

    fn configured<const N: usize>(order: Order, depth: u32, weights: &[u32]) -> Queue<N> {
        let mut queue = Queue::new();
        queue.configure(order, depth, weights);
        queue
    }

    /// Arrivals such as `a0 b0 a1`, dispatched and finished one by one.
    fn served(order: Order, weights: &[u32], arrivals: &str) -> String {
        let mut queue = configured::<64>(order, 1, weights);
        let mut names = Vec::new();
        for name in arrivals.split_whitespace() {
            let id = queue.arrive(name.as_bytes()[0] - b'a', 100, 0).unwrap();
            names.push((id, name));
        }
        let mut order = Vec::new();
        while let Some(id) = queue.dispatch() {
            order.push(names.iter().find(|(known, _)| *known == id).unwrap().1);
            assert!(queue.finish(id));
        }
        order.join(" ")
    }

    #[test]
    fn golden_orders() {
        let arrivals = "a0 b0 a1 b1 a2 b2 a3 b3 a4 a5 a6 a7";
        let fair = "a0 b0 a1 b1 a2 a3 b2 a4 a5 b3 a6 a7";
        assert_eq!(served(Order::Fair, &[2, 1], arrivals), fair);
        // Thirds are exact: at each whole number b is on a level with a, and who came first goes.
        let thirds = "a0 b0 a1 a2 b1 a3 a4 a5 b2 a6 a7 b3";
        assert_eq!(served(Order::Fair, &[3, 1], arrivals), thirds);
        assert_eq!(served(Order::Arrival, &[2, 1], arrivals), arrivals);
        let strict = "a0 a1 b0 b1 c0 c1";
        assert_eq!(served(Order::Priority, &[], "c0 b0 a0 c1 a1 b1"), strict);
    }

    #[test]
    fn zeros_are_a_queue() {
        let mut queue = Queue::<2>::new();
        assert_eq!((queue.waiting(), queue.in_service(), queue.dispatch()), (0, 0, None));
        let first = queue.arrive(3, 1, 0).unwrap();
        let second = queue.arrive(0, 1, 0).unwrap();
        assert_eq!(queue.arrive(0, 1, 0), None);
        assert_eq!(queue.dispatch(), Some(first));
        assert_eq!(queue.dispatch(), None);
        assert!(queue.finish(first));
        assert_eq!(queue.dispatch(), Some(second));
    }

    #[test]
    fn a_stale_id_is_refused() {
        let mut queue = Queue::<1>::new();
        let first = queue.arrive(0, 1, 0).unwrap();
        assert!(!queue.finish(first) && !queue.is_in_service(first));
        assert!(queue.withdraw(first) && !queue.withdraw(first));
        let second = queue.arrive(0, 1, 0).unwrap();
        assert_eq!(first.index(), second.index());
        assert!(!queue.withdraw(first));
        assert_eq!(queue.dispatch(), Some(second));
        assert!(!queue.finish(first) && !queue.withdraw(second));
        assert!(queue.is_in_service(second) && queue.finish(second));
        assert_eq!((queue.waiting(), queue.in_service()), (0, 0));
    }

    #[test]
    fn a_flow_leaves_room_for_others() {
        let mut queue = Queue::<64>::new();
        let mut come = |flow| (0..64).take_while(|_| queue.arrive(flow, 1, 0).is_some()).count();
        // Of 64 slots each of the fifteen others has two.
        assert_eq!(come(0), 34);
        assert_eq!(come(1), 2);
        assert_eq!((come(0), come(15)), (0, 2));
    }

    #[test]
    fn what_is_not_used_is_not_charged() {
        let mut queue = configured::<8>(Order::Fair, 1, &[]);
        queue.arrive(1, 100, 0);
        let asked_for_much = queue.arrive(0, 1_000_000, 0).unwrap();
        let other = queue.dispatch().unwrap();
        queue.finish(other);
        assert_eq!(queue.dispatch(), Some(asked_for_much));
        let second = queue.arrive(1, 100, 0).unwrap();
        let next = queue.arrive(0, 100, 0).unwrap();
        assert!(queue.finish_having_used(asked_for_much, 50));
        assert_eq!(queue.dispatch(), Some(next), "it starts at 50, the other at 100");
        assert!(queue.finish_having_used(next, u64::MAX), "not more than was asked for");
        assert_eq!(queue.dispatch(), Some(second));
        assert!(!queue.finish_having_used(next, 1), "it is gone");
    }

    #[test]
    fn the_dead_make_room() {
        let mut queue = configured::<8>(Order::Arrival, 2, &[]);
        for owner in [1, 2, 1, 2, 1] {
            queue.arrive(0, 1, owner);
        }
        queue.dispatch();
        queue.dispatch();
        assert_eq!(queue.abandon(|owner| owner == 1), 3);
        assert_eq!((queue.waiting(), queue.in_service()), (1, 1));
        assert!(queue.dispatch().is_some());
    }

    #[test]
    fn what_is_withdrawn_is_not_charged() {
        let mut queue = configured::<8>(Order::Fair, 1, &[]);
        let running = queue.arrive(1, 100, 0).unwrap();
        queue.dispatch();
        for _ in 0..1_000 {
            let id = queue.arrive(0, 100, 0).unwrap();
            assert!(queue.withdraw(id));
        }
        let second = queue.arrive(1, 100, 0).unwrap();
        let patient = queue.arrive(0, 100, 0).unwrap();
        queue.finish(running);
        assert_eq!(queue.dispatch(), Some(patient));
        queue.finish(patient);
        assert_eq!(queue.dispatch(), Some(second));
    }

    #[test]
    fn a_pause_earns_no_credit_and_a_busy_time_leaves_no_debt() {
        let mut queue = configured::<8>(Order::Fair, 1, &[]);
        let mut order = String::new();
        let mut serve = |queue: &mut Queue<8>, refill: &[u8], count: usize| {
            for _ in 0..count {
                let Some(id) = queue.dispatch() else { break };
                let flow = queue.slots[id.index()].flow;
                order.push(char::from(b'a' + flow));
                if refill.contains(&flow) {
                    queue.arrive(flow, 100, 0);
                }
                queue.finish(id);
            }
            order.push(' ');
        };
        // While b pauses, a is served six times; then they take turns, b has no six to catch up.
        queue.arrive(0, 100, 0);
        serve(&mut queue, &[0], 6);
        queue.arrive(1, 100, 0);
        serve(&mut queue, &[0, 1], 6);
        serve(&mut queue, &[], 9);
        // One large request of a, alone. When b and a come back, they are level again.
        queue.arrive(0, 1_000_000, 0);
        serve(&mut queue, &[], 1);
        queue.arrive(0, 100, 0);
        queue.arrive(1, 100, 0);
        serve(&mut queue, &[0, 1], 6);
        assert_eq!(order, "aaaaaa bababa ba a ababab ");
    }

    #[test]
    fn a_new_weight_holds_at_once() {
        let mut queue = configured::<8>(Order::Fair, 1, &[1, 1_000]);
        let large = queue.arrive(0, 1_000_000, 0).unwrap();
        queue.dispatch();
        queue.arrive(0, 1_000, 0);
        queue.arrive(1, 1_000, 0);
        queue.finish(large);
        // Flow 0 is a million ahead: flow 1 would be served a million requests first. At equal
        // weights it is a thousand.
        queue.configure(Order::Fair, 1, &[1_000, 1_000]);
        let mut others = 0;
        for _ in 0..2_000 {
            let Some(id) = queue.dispatch() else { break };
            if queue.slots[id.index()].flow == 0 {
                break;
            }
            others += 1;
            queue.arrive(1, 1_000, 0);
            queue.finish(id);
        }
        assert_eq!(others, 1_000);
    }

    #[test]
    fn small_requests_do_not_starve_large_ones() {
        for small in [0, 1, 7] {
            let mut queue = configured::<16>(Order::Fair, 2, &[]);
            for flow in [0, 0, 0, 0, 1] {
                queue.arrive(flow, [small, 1_000][usize::from(flow)], 0);
            }
            let (mut cost, mut larges) = (0u64, 0u64);
            for _ in 0..20_000 {
                let Some(id) = queue.dispatch() else { break };
                let flow = queue.slots[id.index()].flow;
                if flow == 0 {
                    cost += small.max(1)
                } else {
                    larges += 1
                }
                queue.arrive(flow, [small, 1_000][usize::from(flow)], 0);
                queue.finish(id);
            }
            assert!(cost.abs_diff(larges * 1_000) <= 1_000 + 7, "{small}: {cost} {larges}");
        }
    }

    proptest! {
        #[test]
        fn dispatches_as_the_papers_say(
            order in order(),
            depth in 1u32..6,
            weights in prop::collection::vec(1u32..=16, 4),
            steps in prop::collection::vec(plain_step(), 0..300),
        ) {
            let mut queue = configured::<16>(order, depth, &weights);
            let mut textbook = Textbook {
                order,
                depth: depth as usize,
                weights,
                requests: Vec::new(),
                finish_tags: [0; FLOWS],
                virtual_time: 0,
            };
            let mut arrivals = 0;
            let mut known = Vec::new();
            let mut running: Vec<(SlotId, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Arrive { flow, cost, owner } => {
                        let id = queue.arrive(flow, cost, owner);
                        prop_assert_eq!(id.is_none(), textbook.requests.len() == 16);
                        if let Some(id) = id {
                            textbook.arrive(usize::from(flow), cost, arrivals);
                            known.push((id, arrivals));
                            arrivals += 1;
                        }
                    }
                    Step::Finish(which) if !running.is_empty() => {
                        let (id, arrival) = running.swap_remove(which.index(running.len()));
                        prop_assert!(queue.finish(id));
                        textbook.finish(arrival);
                    }
                    _ => {
                        let id = queue.dispatch();
                        let find = |id| known.iter().find(|(known, _)| *known == id).copied();
                        let found = id.and_then(find);
                        prop_assert_eq!(found.map(|(_, arrival)| arrival), textbook.dispatch());
                        running.extend(found);
                    }
                }
            }
        }

        /// Every state that steps can reach is work conserving and counts right, and repairing it
        /// in the middle changes nothing but the race.
        #[test]
        fn nobody_waits_beside_an_empty_place(
            order in order(),
            depth in 1u32..4,
            steps in prop::collection::vec(any_step(), 0..200),
        ) {
            let mut queue = configured::<8>(order, depth, &[3, 1, 2]);
            let mut waiting: Vec<(SlotId, u32)> = Vec::new();
            let mut running: Vec<(SlotId, u32)> = Vec::new();
            for step in steps {
                match step {
                    Step::Arrive { flow, cost, owner } => {
                        let id = queue.arrive(flow, cost, owner);
                        waiting.extend(id.map(|id| (id, owner)));
                    }
                    Step::Dispatch => {
                        let must = !waiting.is_empty() && running.len() < depth as usize;
                        let id = queue.dispatch();
                        prop_assert_eq!(id.is_some(), must);
                        if let Some(id) = id {
                            let place = waiting.iter().position(|(known, _)| *known == id);
                            running.push(waiting.swap_remove(place.unwrap()));
                        }
                    }
                    Step::Finish(which) if !running.is_empty() => {
                        let (id, _) = running.swap_remove(which.index(running.len()));
                        prop_assert!(queue.is_in_service(id) && queue.finish(id));
                    }
                    Step::Withdraw(which) if !waiting.is_empty() => {
                        let (id, _) = waiting.swap_remove(which.index(waiting.len()));
                        prop_assert!(!queue.is_in_service(id) && queue.withdraw(id));
                    }
                    Step::Abandon { owner: dead } => {
                        let before = waiting.len() + running.len();
                        waiting.retain(|(_, owner)| *owner != dead);
                        running.retain(|(_, owner)| *owner != dead);
                        let gone = before - waiting.len() - running.len();
                        prop_assert_eq!(queue.abandon(|owner| owner == dead), gone);
                    }
                    Step::Repair => queue.repair(),
                    _ => {}
                }
                prop_assert_eq!(queue.waiting() as usize, waiting.len());
                prop_assert_eq!(queue.in_service() as usize, running.len());
            }
        }

        /// The law of the head comment, over every interval of a run: the difference of two flows'
        /// work per weight moves within a band as wide as the bound.
        #[test]
        fn two_busy_flows_stay_together(
            depth in 1u32..8,
            weights in (weight(), weight(), weight()),
            costs in prop::collection::vec(1u64..=65_536, 1..50),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 300),
        ) {
            let weights = [weights.0, weights.1, weights.2];
            let mut queue = configured::<64>(Order::Fair, depth, &weights);
            let mut costs = costs.iter().copied().cycle();
            let mut arrive = |queue: &mut Queue<64>, flow| {
                queue.arrive(flow, costs.next().unwrap_or(1), 0);
            };
            (0..3).for_each(|flow| (0..2).for_each(|_| arrive(&mut queue, flow)));
            let mut running: Vec<SlotId> = Vec::new();
            let (mut dispatched, mut finished) = (Band::new(&weights), Band::new(&weights));
            for (step, pick) in picks.iter().enumerate() {
                while let Some(id) = queue.dispatch() {
                    let Slot { flow, cost, .. } = queue.slots[id.index()];
                    dispatched.count(flow, cost);
                    running.push(id);
                    if flow < 2 {
                        arrive(&mut queue, flow);
                    }
                }
                // The third flow comes and goes.
                if step % 7 == 0 {
                    arrive(&mut queue, 2);
                }
                let id = running.swap_remove(pick.index(running.len()));
                let Slot { flow, cost, .. } = queue.slots[id.index()];
                finished.count(flow, cost);
                queue.finish(id);
            }
            prop_assert!(dispatched.width() <= dispatched.bound());
            prop_assert!(finished.width() <= finished.bound() * i128::from(depth + 1));
        }

        #[test]
        fn any_bytes_are_safe_and_can_be_repaired(
            bytes in corrupt(),
            steps in prop::collection::vec(any_step(), 0..30),
            ids in prop::collection::vec((0u32..9, any::<u32>()), 1..30),
        ) {
            let mut queue = bytes.clone();
            for (step, (index, generation)) in steps.into_iter().zip(ids) {
                let id = SlotId { index, generation };
                match step {
                    Step::Arrive { flow, cost, owner } => _ = queue.arrive(flow, cost, owner),
                    Step::Dispatch => _ = queue.dispatch(),
                    Step::Finish(_) => _ = queue.finish(id),
                    Step::Withdraw(_) => _ = queue.withdraw(id),
                    Step::Abandon { owner } => _ = queue.abandon(|o| o % 3 == owner),
                    Step::Repair => queue.configure(Order::Fair, index, &[generation; 20]),
                }
            }
            let mut queue = bytes.clone();
            queue.repair();
            let states = |state| bytes.slots.iter().filter(|slot| slot.state == state).count();
            prop_assert_eq!(queue.waiting() as usize, states(WAITING));
            prop_assert_eq!(queue.in_service() as usize, states(IN_SERVICE));
            prop_assert_eq!((queue.virtual_time, queue.start_tags), (0, [0; FLOWS]));
            let late = queue.arrive(0, 1, 0);
            queue.configure(Order::Arrival, u32::MAX, &[]);
            let drained: Vec<SlotId> = core::iter::from_fn(|| queue.dispatch()).collect();
            let mut expected: Vec<usize> =
                (0..8).filter(|index| bytes.slots[*index].state == WAITING).collect();
            expected.sort_by_key(|index| bytes.slots[*index].arrival);
            expected.extend(late.map(SlotId::index));
            let drained: Vec<usize> = drained.iter().map(|id| id.index()).collect();
            prop_assert_eq!(drained, expected);
            let used = states(WAITING) + states(IN_SERVICE) + usize::from(late.is_some());
            prop_assert_eq!(queue.abandon(|_| true), used);
        }
    }

    fn weight() -> impl Strategy<Value = u32> {
        prop_oneof![1u32..=16, 1u32..=WEIGHT_MAX, Just(WEIGHT_MAX)]
    }

    /// Where the first two flows' difference of work per weight has been. All amounts are
    /// multiplied by both weights, so they are whole numbers.
    struct Band {
        weights: [i128; 2],
        cost_max: [i128; 2],
        work: [i128; 2],
        low: i128,
        high: i128,
        counted: i128,
    }

    impl Band {
        fn new(weights: &[u32; 3]) -> Self {
            let weights = [i128::from(weights[0]), i128::from(weights[1])];
            Self { weights, cost_max: [0; 2], work: [0; 2], low: 0, high: 0, counted: 0 }
        }

        fn count(&mut self, flow: u8, cost: u64) {
            self.counted += 1;
            if flow < 2 {
                let (flow, cost) = (usize::from(flow), i128::from(cost));
                self.work[flow] += cost;
                self.cost_max[flow] = self.cost_max[flow].max(cost);
                let difference = self.work[0] * self.weights[1] - self.work[1] * self.weights[0];
                self.low = self.low.min(difference);
                self.high = self.high.max(difference);
            }
        }

        fn width(&self) -> i128 {
            self.high - self.low
        }

        /// The law's bound, and what rounding adds: less than one unit per request, of which
        /// there are more in a token than in two largest weights multiplied.
        fn bound(&self) -> i128 {
            let law = self.cost_max[0] * self.weights[1] + self.cost_max[1] * self.weights[0];
            law + self.counted
        }
    }

    /// A queue of random bytes, of which enough look like requests to matter.
    fn corrupt() -> impl Strategy<Value = Queue<8>> {
        let state = prop_oneof![Just(0u8), Just(WAITING), Just(IN_SERVICE), any::<u8>()];
        let tag = || prop_oneof![Just(0), Just(u128::MAX), any::<u128>()];
        let slot = (any::<(u64, u64, u32, u32, u8)>(), state).prop_map(|(fields, state)| {
            let (arrival, cost, owner, generation, flow) = fields;
            Slot { arrival, cost, owner, generation, flow, state, reserved: [0xff; 6] }
        });
        let small = || prop_oneof![0u32..10, any::<u32>()];
        let arrivals = prop_oneof![Just(0), any::<u64>()];
        let tags = (tag(), prop::array::uniform16(tag()), arrivals);
        let numbers = (small(), small(), small(), any::<[u32; FLOWS]>());
        (tags, numbers, prop::array::uniform8(slot)).prop_map(|(tags, numbers, slots)| Queue {
            virtual_time: tags.0,
            start_tags: tags.1,
            arrivals: tags.2,
            reach: numbers.0,
            depth: numbers.1,
            order: numbers.2,
            weights: numbers.3,
            reserved: [u32::MAX; 3],
            slots,
        })
    }
}
