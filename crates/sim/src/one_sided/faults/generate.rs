//! Generation of a data node, clients and faults from a seed.

use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::admission::{Capacity, admit};
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::{Iops, Span, Time};

use super::{ClientLoad, ClientSpec, Fault, FaultScenario, WILD};
use crate::rng::Stream;

impl FaultScenario {
    /// The data node, its clients and the faults of a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Stream::new(seed, "one-sided", 0);
        let node = Iops(random.within(6_000, 16_000));
        let rules = if random.below(3) == 0 { Rules::UNPACED } else { Rules::SOUND };
        let step = [0, 0, 1][random.below(3) as usize] * random.within(10, 30);
        let last = match random.below(2) {
            0 => node.0 * (100 - step) / 100,
            _ => node.0 * (100 + step) / 100,
        };
        let mut scenario = Self {
            seed,
            rules,
            period: Span([200, 250, 400][random.below(3) as usize] * Span::MILLISECOND.0),
            local: Iops(node.0 * random.within(25, 60) / 100),
            node,
            thought: 0,
            last: Iops(last),
            window: random.within(4, 8) as u32,
            specs: Vec::new(),
            faults: Vec::new(),
        };
        let error = if random.below(3) == 0 { random.within(85, 115) } else { 100 };
        scenario.thought = scenario.per_period(node) * error / 100;
        scenario.invite(&mut random);
        scenario.set_on(&mut random);
        scenario
    }

    /// Clients whose reservations can be kept, now and after what happens to the node. In one of
    /// five seeds nearly all is promised.
    fn invite(&mut self, random: &mut Stream) {
        let count = random.within(2, 5);
        let least = self.per_period(self.node.min(self.last)).min(self.thought);
        let loose = least * random.within(50, 95) / 100;
        let is_tight = self.seed % 5 == 4;
        let global = match is_tight {
            true => self.usable(least, count) * (95 + self.seed % 25 / 5) / 100,
            false => loose,
        };
        let capacity = Capacity { global, local: self.per_period(self.local) * 95 / 100 };
        let mut reservations: Vec<u64> = Vec::new();
        for number in 1..=count {
            let share = random.within(0, 2 * capacity.global / count);
            let rest = capacity.global - reservations.iter().sum::<u64>();
            let reservation = match is_tight {
                true if number == count => rest,
                true => share.max(capacity.global / count / 2).min(rest),
                false if random.below(5) == 0 => 0,
                false => share,
            };
            // Smaller until it can be promised.
            let fits = |reservation: &u64| {
                let reservations: Vec<u64> =
                    reservations.iter().copied().chain([*reservation]).collect();
                admit(capacity, &reservations, self.rules.paces).is_ok()
            };
            let tries = std::iter::successors(Some(reservation), |last| Some(last * 3 / 4));
            let most = Some(capacity.local).filter(|most| is_tight && *most < reservation);
            let reservation = most.into_iter().chain(tries.take(8)).find(fits).unwrap_or(0);
            reservations.push(reservation);
            let spec = self.spec(random, reservation);
            self.specs.push(spec);
        }
    }

    fn spec(&self, random: &mut Stream, reservation: u64) -> ClientSpec {
        let rate = reservation * Span::SECOND.0 / self.period.0;
        let load = match random.below(8) {
            0..=3 => ClientLoad::All,
            4 => ClientLoad::Even(rate * random.within(105, 150) / 100 + 50),
            5 => ClientLoad::Even(rate * random.within(5, 90) / 100),
            6 => ClientLoad::OnOff(Span(random.within(5, 600) * Span::MILLISECOND.0)),
            _ => ClientLoad::Nothing,
        };
        let limit = match random.below(5) {
            0 => reservation + random.within(0, reservation + 200),
            _ => u64::MAX,
        };
        ClientSpec { promise: Promise { reservation, limit }, load }
    }

    /// Draws the faults and their times.
    fn set_on(&mut self, random: &mut Stream) {
        let wild = self.period.0 * WILD;
        let moment = |random: &mut Stream| Time(random.within(self.period.0, wild));
        let mut faults = Vec::new();
        if self.last != self.node {
            faults.push((moment(random), Fault::Node(self.last)));
        }
        let mut is_dead = vec![false; self.specs.len()];
        for _ in 0..random.below(5) {
            let at = moment(random);
            let who = random.below(self.specs.len() as u64) as usize;
            let mut span = |most: u64| Span(random.within(1, most) * Span::MILLISECOND.0);
            let fault = match span(7).0 / Span::MILLISECOND.0 {
                1..=3 => Fault::Stop(who, span(300)),
                // Not for longer than it takes to be given up: it would be, again and again.
                4 => Fault::Late(who, span(12)),
                5 => Fault::Stall(span(80)),
                6 => Fault::Restart(span(300)),
                _ if is_dead[who] => continue,
                _ => Fault::Die(who),
            };
            faults.push((at, fault));
            let calm = Time(wild);
            match fault {
                Fault::Late(..) => faults.push((calm, Fault::Late(who, Span::ZERO))),
                Fault::Die(_) => {
                    is_dead[who] = true;
                    faults.push((calm, Fault::Join(self.specs[who])));
                }
                _ => {}
            }
        }
        faults.sort_by_key(|(at, _)| *at);
        self.faults = faults;
    }
}
