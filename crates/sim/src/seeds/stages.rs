//! Fault injection, stages: programs on several hosts, whose files are on one storage.
//!
//! - *Nothing is given out twice*: at every instant the rates in force at all hosts add up to the
//!   capacity, and a hundredth for stages that start, or less; while links are slow and cut, hosts
//!   die and return, demands change and policies are applied.
//! - *A cut-off host keeps its safe share*: each running program has a rate above zero.
//! - *Promises are met* in the calm: a tenant that wants its reservation has it, but for a fiftieth
//!   and for what is kept for hosts that died without a word.
//! - *Shares follow demand* in the calm: two and a half intervals after demands have changed, all
//!   that is there is used, but for a twentieth.
//!
//! The controller dies in half of the runs, also while hosts are cut off, and starts again. A stage
//! does not stand still: one that does lowers no rate.

use tidegate_model::{Policy, Span};

use super::nodes;
use crate::link::Conduct;
use crate::rng::Stream;
use crate::simulation::Fault;
use crate::stages::{Programs, StageEvent, StageSim};
use crate::time::Picoseconds;
use crate::trial::{INSPECTIONS, Inspection, Phases, Trial};

const PERIOD: Span = Span::SECOND;
const INTERVAL: Span = Span(100 * Span::MILLISECOND.0);
const MIB: u64 = 1 << 20;
/// A lease, its margin, and the longest pause between two attempts to connect.
const HEAL: u64 = 4;

/// Looks until shares have followed demands that change in the first interval of a calm: that one
/// and two more. The next inspection, half an interval later, is the first that counts.
const SETTLED: u64 = (1 + 2) * (INTERVAL.0 * INSPECTIONS / PERIOD.0);

/// The run of a seed.
pub(super) struct StageTrial {
    simulation: StageSim,
    capacity: u64,
    /// The reservation of each tenant under the last policy.
    reserved: Vec<u64>,
}

impl StageTrial {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Stream::new(seed, "stages", 0);
        let capacity = random.within(100, 1_000) * MIB;
        let tenants = random.within(1, 4) as usize;
        let count = random.within(2, 8) as u16;
        let mut wants = |_| match random.below(3) {
            0 => random.within(1, capacity / MIB) * MIB / 4,
            1 => capacity * 2,
            _ => 0,
        };
        let demands: Vec<u64> = (0..count).map(&mut wants).collect();
        let later: Vec<u64> = (0..count).map(&mut wants).collect();
        let hosts = demands.iter().map(|wants| (random.below(tenants as u64) as usize, *wants));
        let hosts: Vec<(usize, u64)> = hosts.collect();
        let (policies, reserved) = policies(&mut random, capacity, tenants);
        // A connection loses no message, and may end where its link is cut.
        let weather = nodes::weather(&mut random, PERIOD);
        let weather = Conduct { lost: 0, doubled: 0, stray: 0, ..weather };
        let mut links = vec![weather; usize::from(count)];
        let faults = faults(&mut random, &mut links);
        let programs = Programs { policies, hosts, ..Programs::default() };
        let silence = Picoseconds(1_000 * Picoseconds::from(PERIOD).0);
        let mut simulation = StageSim::new(programs, seed, &links, silence);
        for host in 0..count {
            for _ in 0..random.below(4) {
                let wants = random.below(3) * capacity / 2;
                let at = nodes::moment(&mut random, PERIOD);
                simulation.plan(at, StageEvent::Demand { host, wants });
            }
        }
        for number in 1..simulation.peers.policies.len() as u16 {
            // In this order, for the last is the one that the calm is about.
            let at = Picoseconds(u64::from(number + 1) * Picoseconds::from(PERIOD).0);
            simulation.plan(at, StageEvent::Apply(number));
        }
        let calm = Phases { heal: HEAL, ..nodes::phases(PERIOD) }.calm_from();
        for (host, wants) in (0..).zip(later) {
            let at = Picoseconds(calm.0 + random.below(Picoseconds::from(INTERVAL).0));
            simulation.plan(at, StageEvent::Demand { host, wants });
        }
        simulation.start();
        faults.into_iter().for_each(|(at, fault)| simulation.plan_fault(at, fault));
        Self { simulation, capacity, reserved }
    }

    /// Rates kept for hosts of each tenant that may be there.
    fn kept(&self) -> Vec<u64> {
        let mut kept = vec![0; self.reserved.len()];
        let status = self.simulation.controller.as_ref();
        let status = status.map(|controller| controller.status(self.simulation.now.time()));
        for stage in status.iter().flat_map(|status| &status.stages).filter(|it| it.is_silent) {
            let index = (0..kept.len()).find(|index| tenant(*index) == stage.tenant);
            if let (Some(index), Some(rate)) = (index, stage.allocated_bytes_per_second) {
                kept[index] += rate;
            }
        }
        kept
    }

    /// Checks that promises are met, and that no part of the capacity is idle that is wanted.
    fn met(&self) -> Result<(), String> {
        let kept = self.kept();
        let programs = self.simulation.hosts.iter().filter_map(|host| host.process.as_ref());
        let (mut used, mut wanted) = (vec![0; kept.len()], vec![0; kept.len()]);
        for program in programs {
            used[program.tenant] += program.used();
            wanted[program.tenant] += program.wants;
        }
        for (index, reserved) in self.reserved.iter().enumerate() {
            let promised = wanted[index].min(reserved.saturating_sub(kept[index]));
            if used[index] < promised - promised / 50 {
                let rates = self.simulation.rates();
                return Err(format!(
                    "t{index} is promised {reserved}, wants {}, uses {}; rates {rates:?}",
                    wanted[index], used[index]
                ));
            }
        }
        let (used, wanted) = (used.iter().sum::<u64>(), wanted.iter().sum::<u64>());
        let there = wanted.min(self.capacity.saturating_sub(kept.iter().sum()));
        if used < there - there / 20 {
            let (capacity, rates) = (self.capacity, self.simulation.rates());
            return Err(format!("{used} of {wanted} are used of {capacity}; rates {rates:?}"));
        }
        Ok(())
    }
}

/// The name of the tenant of this number.
fn tenant(number: usize) -> String {
    format!("t{number}")
}

/// The policies of a run, and the reservations of the last one.
fn policies(random: &mut Stream, capacity: u64, tenants: usize) -> (Vec<Policy>, Vec<u64>) {
    let mut reserved = vec![0; tenants];
    let policies = (0..random.within(1, 4)).map(|_| {
        let mut text = format!("budget = \"{}MiB/s\"\n", capacity / MIB);
        for (index, reserved) in reserved.iter_mut().enumerate() {
            *reserved = random.below(capacity / MIB / tenants as u64) * MIB;
            let weight = random.within(1, 4);
            text += &format!("[[tenant]]\nname = {:?}\nweight = {weight}\n", tenant(index));
            if *reserved > 0 {
                text += &format!("reservation = \"{}MiB/s\"\n", *reserved / MIB);
            }
        }
        Policy::parse(&text).expect("the policy can be read")
    });
    let policies: Vec<Policy> = policies.collect();
    (policies, reserved)
}

/// Cuts of links, connections that end, programs that die and return, and such controllers.
fn faults(random: &mut Stream, links: &mut [Conduct]) -> Vec<(Picoseconds, Fault)> {
    let (period, mut faults) = (Picoseconds::from(PERIOD).0, Vec::new());
    let end = Picoseconds::from(Span(PERIOD.0 * nodes::phases(PERIOD).wild));
    for _ in 0..random.within(1, 6) {
        let from = nodes::moment(random, PERIOD);
        let to = from.after(Picoseconds(random.within(period / 20, 6 * period))).min(end);
        let host = random.below(links.len() as u64) as u16;
        match random.below(8) {
            0..2 => faults.extend([(from, Fault::Dies(host)), (to, Fault::Returns(host))]),
            2 => faults.push((from, Fault::Hangs(host))),
            _ => {
                // Messages sent meanwhile do not come later: the connection is over by then.
                links[usize::from(host)].cuts.push((from, to));
                faults.push((Picoseconds(to.0 - 1), Fault::Hangs(host)));
            }
        }
    }
    let at = Picoseconds(random.within(period / 2, end.0 - period));
    let mut outages = Vec::new();
    if random.below(2) == 0 {
        outages.push((at, random.within(period / 100, 3 * period)));
    }
    // The next controller has learned little when it dies, too.
    if random.below(4) == 0 {
        outages.push((at.after(Picoseconds(period)), random.within(period / 100, period)));
    }
    for (from, length) in outages {
        let to = from.after(Picoseconds(length)).min(end);
        faults.extend([(from, Fault::ControllerDies), (to, Fault::ControllerReturns)]);
    }
    faults
}

impl Trial for StageTrial {
    fn phases(&self) -> Phases {
        Phases { heal: HEAL, ..nodes::phases(PERIOD) }
    }

    fn now(&self) -> Picoseconds {
        self.simulation.now
    }

    fn run_until(&mut self, end: Picoseconds) -> Result<(), String> {
        self.simulation.run_until(end);
        Ok(())
    }

    fn inspect(&mut self, inspection: Inspection) -> Result<(), String> {
        let (most, at, rates) = &self.simulation.peers.most;
        // Each stage begins with at least a byte per second.
        if *most > self.capacity + self.capacity / 100 + rates.len() as u64 {
            let capacity = self.capacity;
            return Err(format!("{most} of {capacity} were in force at {at}: {rates:?}"));
        }
        for (host, program) in self.simulation.hosts.iter().enumerate() {
            if program.process.as_ref().and_then(|program| program.rate()) == Some(0) {
                return Err(format!("the program at host {host} stands still"));
            }
        }
        let is_first = self.simulation.now < self.phases().calm_from().after(PERIOD.into());
        match inspection.is_calm && (!is_first || inspection.part > SETTLED) {
            true => self.met(),
            false => Ok(()),
        }
    }

    fn trace(&self) -> u64 {
        self.simulation.trace
    }
}
