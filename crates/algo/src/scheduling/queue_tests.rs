//! Tests of the queue.

use super::*;
use alloc::string::String;
use alloc::vec::Vec;
use proptest::prelude::*;

#[path = "queue_tests_alone.rs"]
mod alone;

use alone::{Queue, SlotId};

/// Fair queueing as the papers print it: each request gets its tags when it arrives. Tags are
/// in parts of 720,720, which all weights of these tests divide, so they are exact.
struct Textbook {
    order: Order,
    depth: usize,
    weights: Vec<u32>,
    requests: Vec<Printed>,
    finish_tags: [u128; FLOWS],
    virtual_time: u128,
}

struct Printed {
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
        self.requests.push(Printed { flow, arrival, start, in_service: false });
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
enum QueueEvent {
    Arrive { flow: u8, cost: u64, owner: u32 },
    Dispatch,
    Finish(prop::sample::Index),
    Withdraw(prop::sample::Index),
    Abandon { owner: u32 },
    Words,
}

fn arrive() -> impl Strategy<Value = QueueEvent> {
    let cost = prop_oneof![1u64..10, 1u64..100_000];
    (0u8..4, cost, 0u32..3).prop_map(|(flow, cost, owner)| QueueEvent::Arrive { flow, cost, owner })
}

fn finish() -> impl Strategy<Value = QueueEvent> {
    any::<prop::sample::Index>().prop_map(QueueEvent::Finish)
}

fn plain_event() -> impl Strategy<Value = QueueEvent> {
    prop_oneof![4 => arrive(), 3 => Just(QueueEvent::Dispatch), 3 => finish()]
}

fn any_event() -> impl Strategy<Value = QueueEvent> {
    prop_oneof![
        9 => plain_event(),
        1 => any::<prop::sample::Index>().prop_map(QueueEvent::Withdraw),
        1 => (0u32..3).prop_map(|owner| QueueEvent::Abandon { owner }),
        1 => Just(QueueEvent::Words),
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
    assert_eq!(first.index, second.index);
    assert!(!queue.withdraw(first));
    assert_eq!(queue.dispatch(), Some(second));
    assert!(!queue.finish(first) && !queue.withdraw(second));
    assert!(queue.is_in_service(second) && queue.finish(second));
    assert_eq!((queue.waiting(), queue.in_service()), (0, 0));
}

#[test]
fn a_flow_leaves_slots_for_other_flows() {
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
    let costly = queue.arrive(0, 1_000_000, 0).unwrap();
    let other = queue.dispatch().unwrap();
    queue.finish(other);
    assert_eq!(queue.dispatch(), Some(costly));
    let second = queue.arrive(1, 100, 0).unwrap();
    let next = queue.arrive(0, 100, 0).unwrap();
    assert!(queue.finish_having_used(costly, 50));
    assert_eq!(queue.dispatch(), Some(next), "it starts at 50, the other at 100");
    assert!(queue.finish_having_used(next, u64::MAX), "not more than was asked for");
    assert_eq!(queue.dispatch(), Some(second));
    assert!(!queue.finish_having_used(next, 1), "it is gone");
}

#[test]
fn slots_of_dead_owners_are_reused() {
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
            let flow = queue.slots[id.index].request.flow;
            order.push(char::from(b'a' + flow));
            if refill.contains(&flow) {
                queue.arrive(flow, 100, 0);
            }
            queue.finish(id);
        }
        order.push(' ');
    };
    // While b pauses, a is served six times; then they alternate, b has no six to catch up.
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
        if queue.slots[id.index].request.flow == 0 {
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
            let flow = queue.slots[id.index].request.flow;
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
    fn dispatch_order_is_that_of_the_papers(
        order in order(),
        depth in 1u32..6,
        weights in prop::collection::vec(1u32..=16, 4),
        events in prop::collection::vec(plain_event(), 0..300),
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
        for event in events {
            match event {
                QueueEvent::Arrive { flow, cost, owner } => {
                    let id = queue.arrive(flow, cost, owner);
                    prop_assert_eq!(id.is_none(), textbook.requests.len() == 16);
                    if let Some(id) = id {
                        textbook.arrive(usize::from(flow), cost, arrivals);
                        known.push((id, arrivals));
                        arrivals += 1;
                    }
                }
                QueueEvent::Finish(which) if !running.is_empty() => {
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

    /// Every state that steps can reach is work conserving and counts right, and is the same
    /// when it is read back from its words.
    #[test]
    fn no_request_waits_beside_an_empty_slot(
        order in order(),
        depth in 1u32..4,
        events in prop::collection::vec(any_event(), 0..200),
    ) {
        let mut queue = configured::<8>(order, depth, &[3, 1, 2]);
        let mut waiting: Vec<(SlotId, u32)> = Vec::new();
        let mut running: Vec<(SlotId, u32)> = Vec::new();
        for event in events {
            match event {
                QueueEvent::Arrive { flow, cost, owner } => {
                    let id = queue.arrive(flow, cost, owner);
                    waiting.extend(id.map(|id| (id, owner)));
                }
                QueueEvent::Dispatch => {
                    let must = !waiting.is_empty() && running.len() < depth as usize;
                    let id = queue.dispatch();
                    prop_assert_eq!(id.is_some(), must);
                    if let Some(id) = id {
                        let index = waiting.iter().position(|(known, _)| *known == id);
                        running.push(waiting.swap_remove(index.unwrap()));
                    }
                }
                QueueEvent::Finish(which) if !running.is_empty() => {
                    let (id, _) = running.swap_remove(which.index(running.len()));
                    prop_assert!(queue.is_in_service(id) && queue.finish(id));
                }
                QueueEvent::Withdraw(which) if !waiting.is_empty() => {
                    let (id, _) = waiting.swap_remove(which.index(waiting.len()));
                    prop_assert!(!queue.is_in_service(id) && queue.withdraw(id));
                }
                QueueEvent::Abandon { owner: dead } => {
                    let before = waiting.len() + running.len();
                    waiting.retain(|(_, owner)| *owner != dead);
                    running.retain(|(_, owner)| *owner != dead);
                    let gone = before - waiting.len() - running.len();
                    prop_assert_eq!(queue.abandon(|owner| owner == dead), gone);
                }
                QueueEvent::Words => {
                    let mut words = [u64::MAX; state_words(1)];
                    queue.state.to_words(&mut words);
                    let read = QueueState::<1>::from_words(&words);
                    prop_assert_eq!(&read, &queue.state);
                    queue.state = read;
                }
                _ => {}
            }
            prop_assert_eq!(queue.waiting() as usize, waiting.len());
            prop_assert_eq!(queue.in_service() as usize, running.len());
        }
    }

    /// The bound of the head comment, over every interval of a run: the difference of two flows'
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
        for (event, pick) in picks.iter().enumerate() {
            while let Some(id) = queue.dispatch() {
                let QueueRequest { flow, cost, .. } = queue.slots[id.index].request;
                dispatched.count(flow, cost);
                running.push(id);
                if flow < 2 {
                    arrive(&mut queue, flow);
                }
            }
            // The third flow comes and goes.
            if event % 7 == 0 {
                arrive(&mut queue, 2);
            }
            let id = running.swap_remove(pick.index(running.len()));
            let QueueRequest { flow, cost, .. } = queue.slots[id.index].request;
            finished.count(flow, cost);
            queue.finish(id);
        }
        prop_assert!(dispatched.width() <= dispatched.bound());
        prop_assert!(finished.width() <= finished.bound() * i128::from(depth + 1));
    }

    #[test]
    fn any_words_are_safe(
        words in prop::collection::vec(word(), state_words(1)),
        events in prop::collection::vec(any_event(), 0..30),
        ids in prop::collection::vec((0usize..80, any::<u32>()), 1..30),
        request in (any::<u64>(), any::<u64>(), any::<u8>()),
    ) {
        let (arrival, cost, flow) = request;
        let request = QueueRequest { arrival, cost, flow };
        let mut state = QueueState::<1>::from_words(&words);
        for (event, (slot, number)) in events.into_iter().zip(ids) {
            match event {
                QueueEvent::Arrive { flow, .. } => {
                    state.joins(flow);
                    _ = state.has_headroom(flow, |_| request);
                    _ = state.arrive(slot);
                }
                QueueEvent::Dispatch => _ = state.dispatch(|_| request),
                QueueEvent::Finish(_) => _ = state.finish_having_used(slot, number.into(), request),
                QueueEvent::Withdraw(_) => _ = state.withdraw(slot),
                QueueEvent::Abandon { .. } => _ = (state.pass_on(slot), state.drop_request(slot)),
                QueueEvent::Words => state.configure(Order::Fair, number, &[number; 20]),
            }
        }
        // Whatever is in it, it can be emptied and is a queue then.
        (0..64).for_each(|slot| while state.drop_request(slot) {});
        state.configure(Order::Arrival, 1, &[]);
        prop_assert!(state.arrive(7).is_some());
        prop_assert_eq!(state.dispatch(|_| request), Some(7));
        prop_assert_eq!(state.dispatch(|_| request), None);
        prop_assert!(!state.exceeds_depth());
    }
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0u64..10, any::<u64>()]
}

#[test]
fn a_permit_that_is_passed_on_is_counted_until_its_holder_finishes() {
    let mut queue = configured::<8>(Order::Arrival, 1, &[]);
    let stopped = queue.arrive(0, 1, 0).unwrap();
    let next = queue.arrive(0, 1, 0).unwrap();
    let last = queue.arrive(0, 1, 0).unwrap();
    assert_eq!(queue.dispatch(), Some(stopped));
    assert!(!queue.state.pass_on(next.index), "it only waits");
    assert!(queue.state.pass_on(stopped.index) && !queue.state.pass_on(stopped.index));
    assert!(!queue.state.exceeds_depth(), "its permit is free, and not taken yet");
    assert_eq!(queue.dispatch(), Some(next));
    assert!(queue.state.exceeds_depth());
    assert_eq!(queue.dispatch(), None, "one permit was passed on, and one only");
    assert!(queue.finish(stopped) && !queue.finish(stopped));
    assert!(!queue.state.exceeds_depth());
    assert_eq!(queue.dispatch(), None);
    assert!(queue.finish(next));
    assert_eq!(queue.dispatch(), Some(last));
}

#[test]
fn a_depth_that_was_lowered_is_not_exceeded_by_those_in_service() {
    let mut queue = configured::<8>(Order::Arrival, 2, &[]);
    let both = [(); 2].map(|()| queue.arrive(0, 1, 0).unwrap());
    assert!(both.iter().all(|request| queue.dispatch() == Some(*request)));
    queue.state.configure(Order::Arrival, 1, &[]);
    assert!(!queue.state.exceeds_depth(), "no permit was passed on");
    assert!(queue.state.pass_on(both[0].index) && queue.state.exceeds_depth());
}

#[test]
fn a_set_gives_its_slots_in_order() {
    let mut slots = Slots::<2>::NONE;
    for slot in [127, 0, 64, 63, 128, 5] {
        slots.insert(slot);
    }
    assert_eq!(slots.iter().collect::<Vec<_>>(), [0, 5, 63, 64, 127]);
    assert!(slots.remove(64) && !slots.remove(64) && !slots.has(128));
    assert_eq!(slots.count(), 4);
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

    /// The bound, and what rounding adds: less than one unit per request, of which
    /// there are more in a token than in two largest weights multiplied.
    fn bound(&self) -> i128 {
        let bound = self.cost_max[0] * self.weights[1] + self.cost_max[1] * self.weights[0];
        bound + self.counted
    }
}
