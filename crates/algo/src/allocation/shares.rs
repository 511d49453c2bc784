//! Bandwidth promised to each flow of a network link: the classes that have an active flow share
//! the link by weight, and the active flows of a class share its part evenly.
//!
//! # Problem
//! A class is to have a part of a link: High 3, Medium 2 and Low 1 of every 6. But congestion
//! control sees one flow. If each flow of a class went by the share of the class, the class would
//! have as many shares as flows (two flows of Low, each promised all of it, took 33 Gbit/s instead
//! of 17); if shares of flows that send nothing were kept for them, no flow would be promised
//! these.
//!
//! # Mechanism
//! A registry for each link ("C x r_i / sum of r", section 3.1.2 of Gupta, Kant, Pal and Biswas,
//! "Configuring and Coordinating End-to-End QoS for Emerging Storage Infrastructure", 2024; that a
//! class's share is divided among its flows is section 4.3.4). A flow is *active* from when it has
//! sent something until it has sent nothing for a while. A class with an active flow has its part
//! of the capacity among such classes, and each of its active flows an equal part of that, rounded
//! down to a byte per second. The capacity is that for payload.
//!
//! Example: 96 Gbit/s, weights 3, 2, 1. With a flow in each class they are promised 48, 32 and 16.
//! A second flow of Low comes: 8 and 8. High falls silent: 64 for Medium, 16 and 16.
//!
//! Three classes are few. A [`Group`] is some flows with a weight of their own, beside the classes:
//! 96 Gbit/s among four groups of 2, 3, 4 and 6 are 12.8, 19.2, 25.6 and 38.4.
//!
//! A class without a weight is promised nothing. Urgent should be one: it goes first, and what it
//! takes is little.
//!
//! Flows that are not in the registry take a part of the link, too. From the sum of what its own
//! flows get, against the sum of what they are promised, the registry finds out how much of its
//! promises can be kept ([`Interference`]), and scales all of them alike: shares stay what they
//! are.
//!
//! Left out: finding the capacity, and which link is the narrow one for a flow. A flow on its way
//! through two such links should go by the lesser promise.

use alloc::vec::Vec;

use tidegate_model::{Class, Rate, Span, Time};

use crate::congestion::qtcp::Interference;

const CLASSES: usize = 4;

/// A flow's handle in a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowHandle(u32);

/// Flows that share a part of a link: those of a class, or others that were given a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u32);

impl From<Class> for Group {
    fn from(class: Class) -> Self {
        Self(class as u32)
    }
}

#[derive(Clone, Copy, Debug)]
struct GroupShare {
    weight: u32,
    /// How many of its flows are active.
    active: u32,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    group: Group,
    /// When it last sent something; none if it is idle.
    seen: Option<Time>,
}

/// The flows of one link, and what they are promised.
///
/// ```
/// use tidegate_algo::allocation::shares::Shares;
/// use tidegate_model::{Class, Rate, Span, Time};
/// let mut shares = Shares::new(Rate(96), [0, 3, 2, 1], Span::MILLISECOND);
/// let flows = [Class::High, Class::Medium, Class::Low, Class::Low].map(|class| shares.add(class));
/// flows[..3].iter().for_each(|flow| shares.touch(*flow, Time::ZERO));
/// let promised = |shares: &Shares| flows.map(|flow| shares.promised(flow).0);
/// assert_eq!(promised(&shares), [48, 32, 16, 8]); // 8 if it began now
/// flows[1..].iter().for_each(|flow| shares.touch(*flow, Time(900_000)));
/// assert_eq!(promised(&shares), [48, 32, 8, 8]);
/// shares.sweep(Time(1_000_000));
/// assert_eq!(promised(&shares)[1..], [64, 16, 16]);
/// ```
#[derive(Clone, Debug)]
pub struct Shares {
    capacity: Rate,
    /// By group.
    parts: Vec<GroupShare>,
    idle: Span,
    flows: Vec<Flow>,
    /// The indices of those that are active.
    awake: Vec<u32>,
    others: Option<Interference>,
}

impl Shares {
    /// A link that can carry `capacity` of payload for classes with these weights, urgent first. A
    /// flow that sent nothing for `idle` is not active.
    ///
    /// # Panics
    /// If no class has a weight.
    pub fn new(capacity: Rate, weights: [u32; CLASSES], idle: Span) -> Self {
        assert!(weights.iter().any(|weight| *weight > 0), "a link without a share");
        let parts = weights.map(|weight| GroupShare { weight, active: 0 }).to_vec();
        let (flows, awake) = (Vec::new(), Vec::new());
        Self { capacity, parts, idle, flows, awake, others: None }
    }

    /// The same, which also finds out what others leave of the link.
    #[must_use]
    pub const fn with_interference(mut self, others: Interference) -> Self {
        self.others = Some(others);
        self
    }

    /// A group of flows beside the classes, with a weight of its own.
    pub fn group(&mut self, weight: u32) -> Group {
        self.parts.push(GroupShare { weight, active: 0 });
        Group(self.parts.len() as u32 - 1)
    }

    /// Adds a flow of a class or a group of this link, idle so far.
    pub fn add(&mut self, group: impl Into<Group>) -> FlowHandle {
        self.flows.push(Flow { group: group.into(), seen: None });
        FlowHandle(self.flows.len() as u32 - 1)
    }

    /// A flow sends something.
    pub fn touch(&mut self, handle: FlowHandle, now: Time) {
        let flow = &mut self.flows[handle.0 as usize];
        if flow.seen.replace(now).is_none() {
            self.parts[flow.group.0 as usize].active += 1;
            self.awake.push(handle.0);
        }
    }

    /// Drops the shares of flows that have sent nothing for too long. To be called about as often
    /// as that is; it checks all that are active.
    pub fn sweep(&mut self, now: Time) {
        let Self { flows, awake, parts, idle, .. } = self;
        awake.retain(|handle| {
            let flow = &mut flows[*handle as usize];
            let is_idle = flow.seen.is_none_or(|seen| now.since(seen) >= *idle);
            if is_idle {
                flow.seen = None;
                parts[flow.group.0 as usize].active -= 1;
            }
            !is_idle
        });
    }

    /// Returns a flow's promise; for an idle flow, its promise if it were active.
    pub fn promised(&self, handle: FlowHandle) -> Rate {
        let Flow { group, seen } = self.flows[handle.0 as usize];
        let active = self.parts[group.0 as usize].active + u32::from(seen.is_none());
        Rate(self.of_group(group) / u64::from(active))
    }

    /// The share of a group, in bytes per second, while it has an active flow.
    fn of_group(&self, Group(number): Group) -> u64 {
        let parts = (0..).zip(&self.parts);
        let present = parts.filter(|(other, part)| *other == number || part.active > 0);
        let sum: u128 = present.map(|(_, part)| u128::from(part.weight)).sum();
        let weight = u128::from(self.parts[number as usize].weight);
        let capacity = self
            .others
            .map_or(self.capacity.0, |others| (self.capacity.0 as f64 * others.scale()) as u64);
        (u128::from(capacity) * weight).checked_div(sum).unwrap_or(0) as u64
    }

    /// Takes in the rate that the active flows with a weight got together, over a time that all of
    /// them have answered since the last call. Does nothing without interference.
    pub fn on_delivered(&mut self, total: Rate) {
        let is_shared = self.parts.iter().any(|part| part.weight > 0 && part.active > 0);
        if let (true, Some(others)) = (is_shared, &mut self.others) {
            let promised = self.capacity.0 as f64 * others.scale();
            others.observe(promised / (total.0 as f64).max(1.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::qtcp::SIGMA;
    use proptest::prelude::*;
    use tidegate_model::tag::CLASSES as NAMED;

    proptest! {
        /// The active flows are promised the whole link, but for what is rounded down: less than a
        /// byte per second for each flow and class. Classes are in proportion to their weights.
        #[test]
        fn promises_are_the_whole(
            capacity in 0u64..1 << 40,
            weights in prop::array::uniform4(1u32..1000),
            flows in prop::collection::vec((0usize..4, 0u64..2_000), 1..40),
        ) {
            let mut shares = Shares::new(Rate(capacity), weights, Span(1_000));
            let mut active = [0u64; 4];
            let mut handles = Vec::new();
            for (class, seen) in flows {
                let handle = shares.add(NAMED[class].0);
                shares.touch(handle, Time(seen));
                if seen > 1_000 {
                    active[class] += 1;
                    handles.push((handle, class));
                }
            }
            shares.sweep(Time(2_000));
            let present = (0..4).filter(|at| active[*at] > 0);
            let sum: u64 = present.map(|at| u64::from(weights[at])).sum();
            let mut total = 0;
            for (handle, class) in &handles {
                let Rate(promised) = shares.promised(*handle);
                let exact = capacity as f64 * f64::from(weights[*class]) / sum as f64;
                prop_assert!((promised as f64 - exact / active[*class] as f64).abs() < 2.0);
                total += promised;
            }
            if !handles.is_empty() {
                prop_assert!(total <= capacity && total + handles.len() as u64 + 4 > capacity);
            }
        }
    }

    #[test]
    fn flows_outside_take_from_all_alike() {
        let others = Interference::new(SIGMA);
        let shares = Shares::new(Rate(96_000), [0, 3, 2, 1], Span::SECOND);
        let mut shares = shares.with_interference(others);
        let flows = [Class::High, Class::Medium, Class::Low].map(|class| shares.add(class));
        flows.iter().for_each(|flow| shares.touch(*flow, Time::ZERO));
        (0..80).for_each(|_| shares.on_delivered(Rate(48_000)));
        let [high, medium, low] = flows.map(|flow| shares.promised(flow).0);
        assert!((25_190..=25_210).contains(&high), "a half and a twentieth of it, not {high}");
        assert!(high.abs_diff(3 * low) <= 3 && medium.abs_diff(2 * low) <= 2);
    }

    #[test]
    fn a_group_has_a_part_beside_the_classes() {
        let mut shares = Shares::new(Rate(96), [0, 3, 2, 1], Span::SECOND);
        let group = shares.group(6);
        let first = shares.add(Class::High);
        let of_group = [(); 2].map(|()| shares.add(group));
        shares.touch(first, Time::ZERO);
        assert_eq!((shares.promised(first), shares.promised(of_group[0])), (Rate(96), Rate(64)));
        of_group.iter().for_each(|flow| shares.touch(*flow, Time::ZERO));
        assert_eq!((shares.promised(first), shares.promised(of_group[0])), (Rate(32), Rate(32)));
    }

    #[test]
    fn a_class_without_a_weight_is_promised_nothing_and_takes_nothing() {
        let mut shares = Shares::new(Rate(90), [0, 3, 2, 1], Span::SECOND);
        let [urgent, high] = [Class::Urgent, Class::High].map(|class| shares.add(class));
        shares.touch(urgent, Time::ZERO);
        assert_eq!(shares.promised(urgent), Rate::ZERO);
        shares.touch(high, Time::ZERO);
        assert_eq!((shares.promised(urgent), shares.promised(high)), (Rate::ZERO, Rate(90)));
    }
}
