//! Fault injection, DSFQ: storage nodes with coordinators, a reservation, a limit, and classes in
//! turn.
//!
//! Besides what must hold of all storage nodes:
//! - *The unfairness of the first two streams, which have one class, stays within the bound* of
//!   theorem 2 in the calm.
//! - *No stream starves*: in each period of the calm each stream is served at each brick that it
//!   asks.

use tidegate_model::tag::CLASSES;
use tidegate_model::{Class, ClassWeights, Discipline, Iops, Span};

use super::nodes::{self, NodeInvariants};
use crate::bricks::{Bricks, ClientStream, DsfqScenario, DsfqSim, Threads, promised};
use crate::rng::Stream as Random;
use crate::simulation::Fault;
use crate::time::Picoseconds;
use crate::trial::{Inspection, Phases, Trial};

/// The run of a seed.
pub(super) struct BrickTrial {
    scenario: DsfqScenario,
    simulation: DsfqSim,
    invariants: NodeInvariants,
    /// Requests of each stream in this period.
    served: Vec<u64>,
    was_calm: bool,
}

impl BrickTrial {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, "bricks", 0);
        let scenario = scenario(seed, &mut random);
        let policy = promised(&scenario);
        let (count, period) = (scenario.bricks.count, policy.period);
        let mut links = vec![nodes::weather(&mut random, period); usize::from(count)];
        let mut faults = nodes::faults(&mut random, period, &mut links);
        faults.extend(nodes::stops(seed, period, count));
        let mut simulation = DsfqSim::of(&scenario, policy.clone(), &links);
        simulation.start();
        simulation.begin();
        faults.into_iter().for_each(|(at, fault): (_, Fault)| simulation.plan_fault(at, fault));
        let depth = u64::from(count) * u64::from(scenario.bricks.depth);
        let invariants = NodeInvariants::new(&policy, depth);
        let served = vec![0; scenario.stream.len()];
        Self { scenario, simulation, invariants, served, was_calm: false }
    }

    /// Checks a period of the calm.
    fn fairness(&mut self, requests: impl Fn(usize, usize) -> u64) -> Result<(), String> {
        for (index, stream) in self.scenario.stream.iter().enumerate() {
            for brick in stream.threads.iter().flat_map(|threads| &threads.on) {
                if requests(index, usize::from(*brick)) == 0 {
                    return Err(format!("{} was not served at brick {brick}", stream.name));
                }
            }
        }
        let unfairness = &self.simulation.peers.unfairness;
        let (measured, bound) = (unfairness.measured(), unfairness.bound());
        if measured > bound {
            return Err(format!("an unfairness of {measured} bytes is above {bound}"));
        }
        Ok(())
    }
}

/// Two streams that share bricks, one with a reservation and one with a limit.
fn scenario(seed: u64, random: &mut Random) -> DsfqScenario {
    let count = random.within(1, 4) as u16;
    let (class_weights, [shared, reserved, limited]) = classes(seed);
    let mut stream = |(name, class): (&str, Class), reservation, limit| {
        let on = (0..random.within(1, count.into())).map(|_| random.below(count.into()) as u16);
        let mut on: Vec<u16> = on.collect();
        on.sort_unstable();
        on.dedup();
        let text = format!("on = {on:?}\ncount = {}", random.within(20, 30));
        let threads: Threads = toml::from_str(&text).expect("threads can be read");
        ClientStream {
            name: name.into(),
            weight: random.within(1, 4) as u32,
            class,
            threads: vec![threads],
            minimum_ppm: None,
            reservation,
            limit,
        }
    };
    let stream = vec![
        stream(("f", shared), None, None),
        stream(("g", shared), None, None),
        stream(("reserved", reserved), Some(Iops(60)), None),
        stream(("limited", limited), None, Some(Iops(40))),
    ];
    let shards = random.within(1, 4);
    let bricks = format!("count = {count}\ndepth = {}\nshards = {shards}", random.within(4, 18));
    let bricks: Bricks = toml::from_str(&bricks).expect("bricks can be read");
    DsfqScenario {
        name: String::new(),
        seed,
        discipline: Discipline::Unified,
        class_weights,
        coordinators: random.within(1, 3) as u16,
        exchange: random.below(2) == 0,
        skip: Span::ZERO,
        length: Span::SECOND,
        sample: Span::SECOND,
        bricks,
        stream,
    }
}

/// Draws the weights of classes, in half of the seeds none, and the classes of streams: of f and g,
/// of the reserved one, and of the limited one.
fn classes(seed: u64) -> (Option<ClassWeights>, [Class; 3]) {
    let mut random = Random::new(seed, "classes", 0);
    let [high, medium, low] = [0; 3].map(|_| random.within(1, 4) as u8);
    let class_weights = ClassWeights::new(high, medium, low).filter(|_| random.below(2) == 0);
    let classes = [0; 3].map(|_| CLASSES[random.below(CLASSES.len() as u64) as usize].0);
    (class_weights, classes)
}

impl Trial for BrickTrial {
    fn phases(&self) -> Phases {
        nodes::phases(Span::SECOND)
    }

    fn now(&self) -> Picoseconds {
        self.simulation.now
    }

    fn run_until(&mut self, end: Picoseconds) -> Result<(), String> {
        self.simulation.run_until(end);
        Ok(())
    }

    fn inspect(&mut self, inspection: Inspection) -> Result<(), String> {
        let nodes = self.simulation.statuses();
        self.invariants.inspect(inspection, &nodes, &self.simulation.peers.requests)?;
        if inspection.is_calm && !self.was_calm {
            self.was_calm = true;
            self.simulation.peers.unfairness.restart();
        }
        if inspection.part > 0 {
            return Ok(());
        }
        let (cells, bricks) = (self.simulation.take_sample(), nodes.len());
        for (served, cells) in self.served.iter_mut().zip(cells.chunks(bricks)) {
            *served = cells.iter().map(|cell| cell.requests).sum();
        }
        self.invariants.end_period(&self.served)?;
        match inspection.is_calm {
            true => self.fairness(|stream, brick| cells[stream * bricks + brick].requests),
            false => Ok(()),
        }
    }

    fn trace(&self) -> u64 {
        self.simulation.trace
    }
}
