//! Scheduled departures: the packets that leave each port of a simulated network at known times.
//!
//! **Problem.** A port of a large network is used after thousands of others, so its fields come
//! from far memory each time. A list of its own would be a third line of cache and a fourth, behind
//! a slot that has to be fetched first.
//!
//! **Mechanism.** The first packet of a port lies in the port. Those behind it are links of one
//! list in a memory for all ports, in which the slot that became free last is taken next: it is
//! still near. The port has the numbers of the first of them and of the last. Slot 0 holds no
//! packet, so that the slot of a number can be read without asking whether there is one.

use tidegate_model::Class;

use tidegate_sim::time::Picoseconds;

/// A packet whose departure is certain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    pub at: Picoseconds,
    /// The port by which it came into the switch; `u32::MAX` if that is not counted.
    pub ingress: u32,
    pub wire: u16,
    pub class: Class,
}

impl Leaving {
    pub(super) const NONE: Self =
        Self { at: Picoseconds::MAX, ingress: u32::MAX, wire: 0, class: Class::Medium };
}

/// The list of a port, without its first: the numbers of the next and of the last; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortList {
    next: u32,
    last: u32,
}

#[derive(Debug)]
pub(super) struct Lists {
    links: Vec<ListNode>,
    /// The first of a list of slots that are free.
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct ListNode {
    left: Leaving,
    next: u32,
}

impl Lists {
    pub(super) fn new() -> Self {
        Self { links: vec![ListNode { left: Leaving::NONE, next: 0 }], free: 0 }
    }

    /// Puts one at the end of a list.
    #[inline]
    pub(super) fn push(&mut self, list: &mut PortList, left: Leaving) {
        let link = ListNode { left, next: 0 };
        let number = match self.free {
            0 => {
                self.links.push(link);
                self.links.len() as u32 - 1
            }
            free => {
                let slot = &mut self.links[free as usize];
                self.free = slot.next;
                *slot = link;
                free
            }
        };
        match list.next {
            0 => list.next = number,
            _ => self.links[list.last as usize].next = number,
        }
        list.last = number;
    }

    /// Takes the first of a list.
    #[inline]
    pub(super) fn pop(&mut self, list: &mut PortList) -> Option<Leaving> {
        let number = list.next;
        if number == 0 {
            return None;
        }
        let link = &mut self.links[number as usize];
        list.next = link.next;
        (link.next, self.free) = (self.free, number);
        Some(link.left)
    }

    /// Has the ends of a list brought near. Of no meaning otherwise.
    #[inline]
    pub(super) fn prefetch(&self, list: PortList) -> u64 {
        [list.next, list.last].iter().fold(0, |sum, at| sum ^ self.links[*at as usize].left.at.0)
    }

    pub(super) fn iter(&self, list: PortList) -> impl Iterator<Item = &Leaving> {
        let mut number = list.next;
        core::iter::from_fn(move || {
            let link = self.links.get(number as usize).filter(|_| number != 0)?;
            number = link.next;
            Some(&link.left)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// The oracle is a queue for each list.
        #[test]
        fn they_are_queues(acts in prop::collection::vec((0usize..3, any::<bool>()), 0..200)) {
            let mut lists = Lists::new();
            let mut ours = [PortList::default(); 3];
            let mut oracle: [VecDeque<u64>; 3] = Default::default();
            for (number, (which, is_push)) in (0..).zip(acts) {
                if is_push {
                    let left = Leaving { at: Picoseconds(number), ..Leaving::NONE };
                    lists.push(&mut ours[which], left);
                    oracle[which].push_back(number);
                } else {
                    let popped = lists.pop(&mut ours[which]).map(|left| left.at.0);
                    prop_assert_eq!(popped, oracle[which].pop_front());
                }
                for (list, oracle) in ours.iter().zip(&oracle) {
                    let all: Vec<u64> = lists.iter(*list).map(|left| left.at.0).collect();
                    prop_assert!(all.iter().eq(oracle));
                }
            }
        }
    }

    /// A slot that became free is taken again.
    #[test]
    fn they_take_as_much_memory_as_is_ever_used_at_a_time() {
        let (mut lists, mut list) = (Lists::new(), PortList::default());
        for number in 0..1_000 {
            lists.push(&mut list, Leaving { at: Picoseconds(number), ..Leaving::NONE });
            if number % 10 == 9 {
                while lists.pop(&mut list).is_some() {}
            }
        }
        assert_eq!(lists.links.len(), 11);
    }
}
