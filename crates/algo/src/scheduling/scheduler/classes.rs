//! Classes of requests in a scheduler: each tenant's queue for each class, and the weighted round
//! robin between classes.
//!
//! Urgent requests have a queue of their own. High, medium and low requests each have a flow if
//! classes have weights; without weights they share the medium flow. Most tenants use the medium
//! flow only, so it is part of the tenant's state. The other queues are in a separate record, which
//! is made for the tenant's first request of another class.

use alloc::sync::Arc;

use tidegate_model::{Class, ClassWeights, Discipline, Time};

use super::flow::{Flow, HIGH, LOW, MEDIUM};
use super::records::Records;
use super::requests::{QueuedRequest, Requests, SlotQueue};
use super::{Scheduler, Slot};
use crate::scheduling::phase::Phase;
use crate::scheduling::shards::{OtherShards, ShardHeads};
use crate::scheduling::turns::ClassTurns;
use crate::scheduling::wrr::{SHARING, Turn};

/// The queue of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassQueue {
    Urgent,
    /// The flow of this class.
    Shared(usize),
}

/// A tenant's queues besides its flow of medium requests.
#[derive(Debug)]
pub(super) struct OtherClasses {
    urgent: SlotQueue,
    /// The finish tag of its last request in the urgent phase.
    pub(super) urgent_tag: u128,
    high: Flow,
    low: Flow,
    /// The turn of its own classes, for its reservation tokens.
    turn: Turn,
}

impl Default for OtherClasses {
    fn default() -> Self {
        Self {
            urgent: SlotQueue::EMPTY,
            urgent_tag: 0,
            high: Flow::EMPTY,
            low: Flow::EMPTY,
            turn: Turn::LAST,
        }
    }
}

impl OtherClasses {
    pub(super) const fn restart(&mut self) {
        self.urgent_tag = 0;
        self.high.restart();
        self.low.restart();
    }
}

/// The class in whose turn urgent requests go beyond their reservation, and the queue of each
/// class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClassRules {
    is_urgent: bool,
    has_weights: bool,
}

impl ClassRules {
    /// The class in whose turn urgent requests go beyond their reservation.
    pub(super) const fn top(self) -> usize {
        if self.has_weights { HIGH } else { MEDIUM }
    }

    pub(super) const fn queue_of(self, class: Class) -> ClassQueue {
        match class {
            Class::Urgent if self.is_urgent => ClassQueue::Urgent,
            _ if !self.has_weights => ClassQueue::Shared(MEDIUM),
            Class::Urgent | Class::High => ClassQueue::Shared(HIGH),
            Class::Medium => ClassQueue::Shared(MEDIUM),
            Class::Low => ClassQueue::Shared(LOW),
        }
    }
}

impl<J> Scheduler<J> {
    /// The weights of the classes in the fair phase; none if all requests share one fair queue.
    pub const fn class_weights(&self) -> Option<ClassWeights> {
        self.class_weights
    }

    /// Sets the weights of the classes from the next dispatch on. All requests stay.
    pub fn set_class_weights(&mut self, now: Time, class_weights: Option<ClassWeights>) {
        if class_weights == self.class_weights {
            return;
        }
        let before = self.class_rules();
        self.class_weights = class_weights;
        self.publish_weights();
        if self.class_rules() != before {
            self.empty_heaps(now);
            self.requeue();
            (0..self.states.len()).for_each(|index| self.settle(now, index));
        }
    }

    /// Shares the turns of the classes with the other shards of `shard_heads`.
    pub fn share_turns(&mut self, shard_heads: &ShardHeads) {
        self.turns = shard_heads.turns();
    }

    /// The weights in force: first come, first served knows no classes.
    pub(super) fn publish_weights(&self) {
        self.turns.set_weights(self.class_weights.filter(|_| self.class_rules().has_weights));
    }

    pub(super) const fn class_rules(&self) -> ClassRules {
        ClassRules {
            is_urgent: self.discipline.observes_urgency(),
            has_weights: self.class_weights.is_some()
                && !matches!(self.discipline, Discipline::Fifo),
        }
    }

    /// Puts all waiting requests into the queues of the discipline and the weights in force, in
    /// their order of arrival. No slot may be in a heap.
    pub(super) fn requeue(&mut self) {
        for index in 0..self.states.len() {
            let mut left = self.queues(index);
            self.set_queues(index, [SlotQueue::EMPTY; SHARING + 1]);
            loop {
                let number =
                    |queue: &SlotQueue| self.requests.first(*queue).map(|first| first.number);
                let numbers = left.iter().zip(0..);
                let first = numbers
                    .filter_map(|(queue, class_queue)| Some((number(queue)?, class_queue)))
                    .min();
                let Some((_, class_queue)) = first else { break };
                let class_queue: usize = class_queue;
                if let Some(request) = self.requests.pop(&mut left[class_queue]) {
                    self.enqueue(index, request);
                }
            }
        }
    }

    /// Puts a request into its queue. Returns whether it is the first there.
    pub(super) fn enqueue(&mut self, index: usize, request: QueuedRequest<J>) -> bool {
        let class_queue = self.class_rules().queue_of(request.class);
        self.append(index, class_queue, |requests, queue| requests.push(queue, request))
    }

    /// Changes the queue of a queue, which gets requests. Returns whether it was empty.
    pub(super) fn append(
        &mut self,
        index: usize,
        class_queue: ClassQueue,
        change: impl FnOnce(&mut Requests<J>, &mut SlotQueue),
    ) -> bool {
        let state = &mut self.states[index];
        let queue = match class_queue {
            ClassQueue::Shared(MEDIUM) => &mut state.flow.queue,
            ClassQueue::Shared(HIGH) => &mut self.classes.make(index).high.queue,
            ClassQueue::Shared(_) => &mut self.classes.make(index).low.queue,
            ClassQueue::Urgent => {
                state.set_urgent(true);
                &mut self.classes.make(index).urgent
            }
        };
        let was_empty = queue.is_empty();
        change(&mut self.requests, queue);
        was_empty
    }

    pub(super) fn flow(&self, index: usize, class: usize) -> Flow {
        match (class, self.classes.get(index)) {
            (MEDIUM, _) => self.states[index].flow,
            (HIGH, Some(others)) => others.high,
            (_, Some(others)) => others.low,
            (_, None) => Flow::EMPTY,
        }
    }

    pub(super) fn set_flow(&mut self, index: usize, class: usize, flow: Flow) {
        match (class, self.classes.get_mut(index)) {
            (MEDIUM, _) => self.states[index].flow = flow,
            (HIGH, Some(others)) => others.high = flow,
            (_, Some(others)) => others.low = flow,
            (_, None) => {}
        }
    }

    /// The queues of a slot: urgent, then by class.
    pub(super) fn queues(&self, index: usize) -> [SlotQueue; SHARING + 1] {
        let medium = self.states[index].flow.queue;
        match self.classes.get(index) {
            None => [SlotQueue::EMPTY, SlotQueue::EMPTY, medium, SlotQueue::EMPTY],
            Some(others) => [others.urgent, others.high.queue, medium, others.low.queue],
        }
    }

    pub(super) fn set_queues(&mut self, index: usize, queues: [SlotQueue; SHARING + 1]) {
        let [urgent, high, medium, low] = queues;
        let state = &mut self.states[index];
        state.flow.queue = medium;
        state.set_urgent(!urgent.is_empty());
        if let Some(others) = self.classes.get_mut(index) {
            (others.urgent, others.high.queue, others.low.queue) = (urgent, high, low);
        }
    }

    /// The queue of the next request of a slot in the turn of `class`: urgent requests without a
    /// reservation token go first in the turn of their class.
    fn queue_in_turn(&self, index: usize, class: usize) -> SlotQueue {
        match self.classes.get(index) {
            Some(others) if class == self.class_rules().top() && !others.urgent.is_empty() => {
                others.urgent
            }
            _ => self.flow(index, class).queue,
        }
    }

    /// Any request of a slot that is the first of its queue.
    pub(super) fn any_first(&self, index: usize) -> Option<&QueuedRequest<J>> {
        let medium = self.requests.first(self.states[index].flow.queue);
        medium
            .or_else(|| self.queues(index).into_iter().find_map(|queue| self.requests.first(queue)))
    }

    /// Takes out the request that goes next from a slot in `phase`, and returns the class whose
    /// fair queue it counts in.
    pub(super) fn pop_in(
        &mut self,
        phase: Phase,
        index: usize,
    ) -> (usize, Option<QueuedRequest<J>>) {
        let class = match phase {
            Phase::Urgent => self.class_rules().top(),
            Phase::Reserved => self.own_turn(index),
            _ => phase.class(),
        };
        if phase != Phase::Reserved
            && class == self.class_rules().top()
            && let Some(others) = self.classes.get_mut(index)
            && let Some(request) = self.requests.pop(&mut others.urgent)
        {
            self.states[index].set_urgent(!others.urgent.is_empty());
            return (class, Some(request));
        }
        let mut flow = self.flow(index, class);
        let request = self.requests.pop(&mut flow.queue);
        self.set_flow(index, class, flow);
        (class, request)
    }

    /// The class whose turn it is among those of one tenant, for its reservation tokens.
    fn own_turn(&mut self, index: usize) -> usize {
        let weights = self.class_weights.filter(|_| self.class_rules().has_weights);
        let waits = core::array::from_fn(|class| !self.flow(index, class).queue.is_empty());
        match (weights, self.classes.get_mut(index)) {
            (Some(weights), Some(others)) => {
                others.turn = others.turn.next(weights.into(), waits).unwrap_or(others.turn);
                others.turn.class()
            }
            _ => MEDIUM,
        }
    }

    /// The class whose turn it is in the fair phase, here or in other shards.
    pub(super) fn fair_turn(&self, others: &OtherShards) -> Option<usize> {
        if !self.class_rules().has_weights {
            return Some(MEDIUM);
        }
        self.turns.next(self.fair_waits(others))
    }

    /// Notes that a request of this class goes, of those that wait.
    pub(super) fn take_turn(&self, class: usize, waits: [bool; SHARING]) {
        if self.class_rules().has_weights {
            self.turns.take(class, waits);
        }
    }

    /// The classes with requests in the fair phase, here or in other shards.
    pub(super) fn fair_waits(&self, others: &OtherShards) -> [bool; SHARING] {
        core::array::from_fn(|class| {
            let heap = &self.fair_queues[Phase::fair(class) as usize].heap;
            heap.first().is_some() || others.waits(class)
        })
    }

    /// Puts the flows of a slot that wait and are not there yet into the fair queues.
    pub(super) fn enter_fair(&mut self, index: usize) {
        self.enter_class(index, MEDIUM);
        if self.classes.get(index).is_some() {
            self.enter_class(index, HIGH);
            self.enter_class(index, LOW);
        }
    }

    fn enter_class(&mut self, index: usize, class: usize) {
        if self.states[index].is_in(class) {
            return;
        }
        let Some(start_tag) = self.fair_start(class, index) else { return };
        self.states[index].set_in(class, true);
        let at = &mut self.at[class];
        if at.len() < self.states.len() {
            at.resize(self.states.len(), 0);
        }
        self.fair_queues[Phase::fair(class) as usize].heap.push(start_tag, index as u32, at);
    }

    /// The start tag of the next request of a slot in the turn of `class`; none if none waits.
    pub(super) fn fair_start(&self, class: usize, index: usize) -> Option<u128> {
        let first = self.requests.first(self.queue_in_turn(index, class))?;
        let virtual_time = self.fair_queues[Phase::fair(class) as usize].virtual_time;
        let (flow, share) = (self.flow(index, class), self.states[index].share());
        Some(flow.start_tag(share, self.discipline, virtual_time, first))
    }

    /// The start tag of the next request of a slot in a phase of those with reservation tokens. A
    /// slot has one for all its classes but the urgent one.
    pub(super) fn reserved_start(&self, phase: Phase, index: usize) -> u128 {
        let tag = match phase {
            Phase::Urgent => self.classes.get(index).map_or(0, |others| others.urgent_tag),
            _ => self.states[index].reserved_tag,
        };
        self.fair_queues[phase as usize].virtual_time.max(tag)
    }

    /// Sets the finish tag of a slot in such a phase.
    pub(super) fn set_reserved_tag(&mut self, index: usize, phase: Phase, tag: u128) {
        match (phase, self.classes.get_mut(index)) {
            (Phase::Urgent, Some(others)) => others.urgent_tag = tag,
            _ => self.states[index].reserved_tag = tag,
        }
    }

    /// Forgives the lead over virtual time that reserved requests gave a slot, and with it the rest
    /// of a fair request before them.
    pub(super) fn forgive(&mut self, index: usize) {
        for class in 0..SHARING {
            if self.states[index].is_ahead(class) {
                self.states[index].set_ahead(class, false);
                let mut flow = self.flow(index, class);
                flow.forgive(self.fair_queues[Phase::fair(class) as usize].virtual_time);
                self.set_flow(index, class, flow);
            }
        }
    }

    /// Takes the flows of a slot out of the fair queues.
    pub(super) fn leave_fair(&mut self, index: usize) {
        for class in 0..SHARING {
            if self.states[index].is_in(class) {
                self.states[index].set_in(class, false);
                let at = &mut self.at[class];
                let place = at[index] as usize;
                self.fair_queues[Phase::fair(class) as usize].heap.remove(place, at);
            }
        }
    }

    /// Moves the requests of a slot that is removed to the slot of unattributed requests.
    pub(super) fn give_up(&mut self, now: Time, queues: [SlotQueue; SHARING + 1]) {
        let all = [
            ClassQueue::Urgent,
            ClassQueue::Shared(HIGH),
            ClassQueue::Shared(MEDIUM),
            ClassQueue::Shared(LOW),
        ];
        let index = Slot::UNATTRIBUTED.index();
        let mut is_first = false;
        for (class_queue, queue) in
            all.into_iter().zip(queues).filter(|(_, queue)| !queue.is_empty())
        {
            let append =
                |requests: &mut Requests<J>, own: &mut SlotQueue| requests.append(own, queue);
            is_first |= self.append(index, class_queue, append);
        }
        if is_first {
            self.leave(now, index);
            self.settle(now, index);
        }
    }
}

/// The records of tenants with other classes than one.
pub(super) type ClassRecords = Records<OtherClasses>;

/// New turns, for a scheduler that is alone.
pub(super) fn turns() -> Arc<ClassTurns> {
    Arc::new(ClassTurns::new(1))
}
