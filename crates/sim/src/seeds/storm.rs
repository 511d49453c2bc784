//! Fault injection, dense: three nodes under dozens of faults, on links that lose and delay more
//! than any network.
//!
//! In each millisecond *no token is created*: what is reserved and allowed at all processes in one
//! period, what dead ones have served included, never exceeds the promise. In the calm *every
//! reservation is met* but for a fiftieth. In one of four seeds the tenants rest between faults.

use tidegate_model::{Policy, Span};

use crate::cluster::{ClusterEvent, ClusterTestbed};
use crate::link::Conduct;
use crate::rng::Stream;
use crate::simulation::Fault;
use crate::time::Picoseconds;
use crate::trial::{Inspection, Phases, Trial};

/// Three nodes that serve 1,000 operations in a period each, of which 2,200 are promised.
const POLICY: &str = "period = \"250ms\"\nredistribute = \"50ms\"\n\
    tenant = [{ name = \"gold\", reservation = \"4k iops\" },\n\
              { name = \"silver\", reservation = \"3k iops\", limit = \"4k iops\" },\n\
              { name = \"bronze\", limit = \"2k iops\" },\n\
              { name = \"base\", reservation = \"1800 iops\", limit = \"1800 iops\" }]";
const TENANTS: u16 = 4;
const NODES: u16 = 3;
/// The demand of each tenant at each node in the end, in operations per second.
const DEMANDS: [u32; 4] = [2_000, 1_400, 3_000, 700];
/// The promised operations in a period of the tenants that have a reservation.
const PROMISED: [(&str, u64); 3] = [("gold", 1_000), ("silver", 750), ("base", 450)];
const MS: Picoseconds = Picoseconds(1_000_000_000);

/// The run of a seed.
pub(super) struct StormTrial {
    testbed: ClusterTestbed,
    random: Stream,
    /// When the next fault is drawn.
    at: Picoseconds,
    is_dead: [bool; 3],
    is_cut: [bool; 3],
    is_controller_dead: bool,
}

impl StormTrial {
    pub(super) fn new(seed: u64) -> Self {
        let policy = Policy::parse(POLICY).expect("it is a policy");
        let mut trial = Self {
            testbed: ClusterTestbed::of(seed, policy, 4_000, NODES),
            random: Stream::new(seed, "storm", 0),
            at: Picoseconds::ZERO,
            is_dead: [false; 3],
            is_cut: [false; 3],
            is_controller_dead: false,
        };
        let rests = seed % 4 == 3;
        (0..6).for_each(|_| trial.change_demand());
        for _ in 0..if rests { 30 } else { 60 } {
            trial.draw();
            trial.wait(1, 60);
            if rests && trial.random.below(2) == 0 {
                trial.demand(|_| 0);
                trial.wait(500, 1_500);
            }
        }
        trial.heal();
        trial
    }

    fn wait(&mut self, least: u64, most: u64) {
        self.at = self.at.after(Picoseconds(self.random.within(least, most) * MS.0));
    }

    fn plan(&mut self, fault: Fault) {
        self.testbed.simulation.plan_fault(self.at, fault);
    }

    /// From now on each tenant asks so often in a second of each node.
    fn demand(&mut self, rate: impl Fn(usize) -> u32) {
        for (tenant, node) in (0..TENANTS).flat_map(|it| (0..NODES).map(move |node| (it, node))) {
            let rate = rate(tenant.into());
            self.testbed.simulation.plan(self.at, ClusterEvent::Demand { tenant, node, rate });
        }
    }

    fn change_demand(&mut self) {
        let node = self.random.below(NODES.into()) as u16;
        let tenant = self.random.below(TENANTS.into()) as u16;
        let rate = self.random.below(4) as u32 * 1_000;
        self.testbed.simulation.plan(self.at, ClusterEvent::Demand { tenant, node, rate });
    }

    /// Draws what happens next.
    fn draw(&mut self) {
        let node = self.random.below(NODES.into()) as u16;
        let index = usize::from(node);
        match self.random.below(13) {
            0 if !self.is_dead[index] => {
                self.is_dead[index] = true;
                self.plan(Fault::Dies(node));
            }
            0 | 1 if self.is_dead[index] => {
                self.is_dead[index] = false;
                self.plan(Fault::Returns(node));
            }
            2 => self.plan(Fault::Hangs(node)),
            3 => {
                self.is_cut[index] ^= true;
                self.plan(Fault::Cut(node, self.is_cut[index]));
            }
            4 if !self.is_controller_dead => {
                self.is_controller_dead = true;
                self.plan(Fault::ControllerDies);
            }
            4 | 5 if self.is_controller_dead => {
                self.is_controller_dead = false;
                self.plan(Fault::ControllerReturns);
            }
            6..9 => {
                let (least, more) = (self.random.below(5), self.random.below(40));
                let [lost, doubled] = [0, 0].map(|_| self.random.below(4) as u32 * 100_000);
                let (least, most) = (least * MS.0, (least + more) * MS.0);
                let (least, most) = (Picoseconds(least), Picoseconds(most));
                let stray = 300_000;
                let conduct = Conduct { least, most, lost, doubled, stray, ..Conduct::default() };
                self.plan(Fault::Links(Box::new(conduct)));
            }
            12 => {
                let until = self.at.after(Picoseconds(self.random.within(1, 200) * MS.0));
                self.plan(Fault::Stops(node, until));
            }
            _ => self.change_demand(),
        }
    }

    /// Ends all faults, and asks for what is promised, at other nodes than before.
    fn heal(&mut self) {
        let conduct = Conduct { most: MS, ..Conduct::default() };
        self.plan(Fault::Links(Box::new(conduct)));
        self.plan(Fault::ControllerReturns);
        for node in 0..NODES {
            self.plan(Fault::Cut(node, false));
            self.plan(Fault::Returns(node));
        }
        self.demand(|tenant| DEMANDS[tenant]);
    }
}

impl Trial for StormTrial {
    fn phases(&self) -> Phases {
        let period = Span(250 * Span::MILLISECOND.0);
        let wild = self.at.0.div_ceil(Picoseconds::from(period).0);
        Phases { period, wild, heal: 6, calm: 3 }
    }

    fn now(&self) -> Picoseconds {
        self.testbed.simulation.now
    }

    fn run_until(&mut self, end: Picoseconds) -> Result<(), String> {
        self.testbed.run_until(end)
    }

    fn inspect(&mut self, inspection: Inspection) -> Result<(), String> {
        if !inspection.is_calm || inspection.part != 10 {
            return Ok(());
        }
        let last = self.testbed.status().period - 1;
        for (tenant, promised) in PROMISED {
            let served = self.testbed.served(last, tenant);
            if served < promised - promised / 50 {
                return Err(format!("{tenant} was served {served} of {promised} in {last}"));
            }
        }
        Ok(())
    }

    fn trace(&self) -> u64 {
        self.testbed.simulation.trace
    }
}
