//! The data node of a scenario as it is run: a controller and a data node behind the model of a
//! network card, a process each.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate_sim::one_sided::{Control, Scenario};

use crate::experiment::child::Child;
use crate::experiment::controller::Controller;
use crate::experiment::interrupt::Interrupt;
use crate::experiment::scratch::Scratch;
use crate::failure::{Code, Failure};

/// The data node. Fields are dropped, and so ended, in their order.
pub(super) struct Stand {
    node: Child,
    _controller: Controller,
    socket: PathBuf,
    _scratch: Scratch,
}

/// The tenant of a client.
pub(super) fn tenant(client: u64) -> String {
    format!("c{}", client + 1)
}

/// Who a background job acts for: nobody is promised anything.
pub(super) const NOBODY: &str = "besides";

impl Stand {
    /// Starts a data node that does what the scenario's cards do, with its tenants.
    ///
    /// # Errors
    /// If something does not start, or somebody ends the command. All that was started has ended
    /// then.
    pub(super) fn start(
        scenario: &Scenario,
        window: u32,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let (file, socket) = (scratch.join("cluster.toml"), scratch.join("m.sock"));
        fs::write(&file, cluster(scenario, window, &socket)).map_err(|error| {
            Failure::new(Code::Failure, "cannot write the experiment's cluster").cause(error)
        })?;
        let controller =
            Controller::lead("controller", &file, &policy(scenario), &scratch, interrupt)?;
        let start = controller.part(&file, "data-node", "m", &scratch);
        let node = Child::start_listening(&start, &socket, scratch.path(), interrupt)?;
        Ok(Self { node, _controller: controller, socket, _scratch: scratch })
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Processor time of the data node so far, in microseconds.
    pub(super) fn cpu_us(&self) -> f64 {
        self.node.cpu_us()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// If it has ended, and why.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        match self.node.has_ended()? {
            false => Ok(()),
            true => Err(Failure::new(Code::Failure, "the data node has ended before its time")),
        }
    }
}

fn cluster(scenario: &Scenario, window: u32, socket: &Path) -> String {
    let mode = match scenario.control {
        Control::Basic => "mode = \"basic\"",
        Control::Paper => "mode = \"paper\"",
        Control::Unpaced => "paced = false",
        // Other rules than the file knows are for the simulated world.
        Control::None | Control::Sound | Control::By(_) => "mode = \"sound\"",
    };
    let cards = &scenario.cards;
    format!(
        "[[data-node]]\nname = \"m\"\nlisten = \"unix:{}\"\nmemory = \"16MiB\"\n\
         capacity = \"{} iops\"\nclient = \"{} iops\"\nperiod = \"{}\"\nwindow = {window}\n\
         fabric = \"model\"\n{mode}\n",
        socket.display(),
        cards.node.0,
        cards.client.0,
        scenario.period,
    )
}

fn policy(scenario: &Scenario) -> String {
    let mut text = format!("[[tenant]]\nname = \"{NOBODY}\"\n");
    let clients = scenario.client.iter();
    let each = clients.flat_map(|group| (0..group.count).map(move |_| group));
    for (group, client) in each.zip(0..) {
        let _ = writeln!(text, "[[tenant]]\nname = \"{}\"", tenant(client));
        for (promise, rate) in [("reservation", group.reservation), ("limit", group.limit)] {
            if let Some(rate) = rate {
                let _ = writeln!(text, "{promise} = \"{} iops\"", rate.0);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::{FIGURE_9B, MODES, scenario};
    use super::*;
    use tidegate_model::cluster::{Fabric, TokenRules};
    use tidegate_model::{Cluster, Iops, Policy};

    #[test]
    fn texts_are_read_by_those_they_are_for() {
        let expected = [TokenRules::Sound, TokenRules::Basic, TokenRules::Paper, TokenRules::Sound];
        let base = scenario(FIGURE_9B).unwrap().slowed(20);
        for ((control, _), rules) in MODES.into_iter().zip(expected) {
            let scenario = Scenario { control, ..base.clone() };
            let text = cluster(&scenario, 16, Path::new("/tmp/m.sock"));
            let node = Cluster::parse(&text).unwrap().data_nodes.remove(0);
            assert_eq!((node.rules, node.fabric, node.window), (rules, Fabric::Model, 16));
            assert_eq!((node.capacity, node.client), (Iops(78_500), Iops(20_000)));
        }
        let policy = Policy::parse(&policy(&base)).unwrap();
        let promised: Vec<_> =
            policy.tenants.iter().map(|tenant| tenant.reservation.operations.is_some()).collect();
        assert_eq!(promised, [&[false][..], &[true; 10]].concat());
        assert_eq!(policy.tenants[1].name, tenant(0));
    }
}
