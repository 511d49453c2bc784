//! Time series of each traffic class at each switch port.
//!
//! A tree of 1,024 hosts has thousands of ports, of which a scenario uses some. So a series begins
//! when a class comes to a port for the first time, with zeros for the moments before; unused ports
//! and classes have none. One moment is 40 bytes: 100 of them of 100 ports and three classes are
//! 1.2 MB.

use std::collections::BTreeMap;

use tidegate_model::Class;
use tidegate_model::tag::CLASSES;

use crate::net::{Counters, Network, PortId};
use tidegate_sim::time::Picoseconds;

/// A class at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The nodes that the port links: its own, and the one behind it.
    pub between: [String; 2],
    /// The class.
    pub class: Class,
    /// Every moment of the run.
    pub series: Vec<HopMoment>,
}

/// Activity of a class at a port since the moment before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopMoment {
    /// Bytes of it that wait or are being sent, at the end.
    pub queue_bytes: u64,
    /// Bytes of it that were sent, on the wire.
    pub sent_bytes: u64,
    /// Packets that were marked here.
    pub marked: u64,
    /// Packets that were dropped here.
    pub dropped: u64,
}

/// All of them, as the run goes on.
#[derive(Debug, Default)]
pub(super) struct Hops {
    /// By port and index of the class.
    used: BTreeMap<(PortId, usize), Used>,
    /// Moments so far.
    count: usize,
}

#[derive(Debug, Default)]
struct Used {
    last: Counters,
    series: Vec<HopMoment>,
}

impl Hops {
    /// A moment is over.
    pub(super) fn sample(&mut self, now: Picoseconds, network: &mut Network) {
        for port in network.ports() {
            for (index, (class, _)) in CLASSES.iter().enumerate() {
                let counters = network.counters(now, port, *class);
                let Counters { bytes, marked, dropped, held_bytes, .. } = counters;
                if bytes + marked + dropped + held_bytes == 0 {
                    continue;
                }
                let used = self.used.entry((port, index)).or_default();
                used.series.resize(self.count, HopMoment::default());
                used.series.push(HopMoment {
                    queue_bytes: held_bytes,
                    sent_bytes: bytes - used.last.bytes,
                    marked: marked - used.last.marked,
                    dropped: dropped - used.last.dropped,
                });
                used.last = counters;
            }
        }
        self.count += 1;
    }

    /// The series, in the order of ports and classes.
    pub(super) fn series(self, network: &Network) -> Vec<Hop> {
        let hop = |((port, index), used): ((PortId, usize), Used)| Hop {
            between: network.ends(port).map(String::from),
            class: CLASSES[index].0,
            series: used.series,
        };
        self.used.into_iter().map(hop).collect()
    }
}
