//! The data nodes of a scenario as it is run: a controller, and data nodes behind the model of a
//! RNIC, a process each.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate_model::Span;
use tidegate_sim::one_sided::{Control, NicModel, Scenario};

use crate::experiment::child::Child;
use crate::experiment::controller::Controller;
use crate::experiment::scratch::Scratch;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// The data nodes. Fields are dropped, and so ended, in their order.
pub(super) struct HaechiTestbed {
    nodes: Vec<Child>,
    controller: Controller,
    sockets: Vec<PathBuf>,
    scratch: Scratch,
}

/// Settings that all data nodes of a scenario share.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeSettings<'a> {
    pub(super) nics: &'a NicModel,
    pub(super) period: Span,
    pub(super) window: u32,
    /// The rules, as a line of the cluster's file.
    pub(super) rules: &'a str,
}

pub(super) fn tenant(client: u64) -> String {
    format!("c{}", client + 1)
}

/// The tenant of background jobs, which has no reservation.
pub(super) const BACKGROUND_TENANT: &str = "besides";

impl HaechiTestbed {
    /// Starts a data node that is as fast as the scenario's RNICs, with its tenants.
    ///
    /// # Errors
    /// If something does not start, or the user ends the command. All that was started has ended
    /// then.
    pub(super) fn start(
        scenario: &Scenario,
        window: u32,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        Self::of(1, &kind(scenario, window), &policy(scenario), interrupt)
    }

    /// Starts so many data nodes of a kind, with a policy for all of them together.
    pub(super) fn of(
        nodes: u16,
        kind: &NodeSettings<'_>,
        policy: &str,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let file = scratch.join("cluster.toml");
        let names: Vec<String> = (0..nodes).map(|node| format!("m{node}")).collect();
        let sockets: Vec<PathBuf> =
            names.iter().map(|name| scratch.join(&format!("{name}.sock"))).collect();
        let text: String =
            names.iter().zip(&sockets).map(|(name, socket)| kind.text(name, socket)).collect();
        fs::write(&file, text).map_err(|error| {
            Failure::new(Code::Failure, "cannot write the experiment's cluster").cause(error)
        })?;
        let controller = Controller::lead("controller", &file, policy, &scratch, interrupt)?;
        let mut testbed = Self { nodes: Vec::new(), controller, sockets, scratch };
        for (name, socket) in names.iter().zip(&testbed.sockets) {
            let start = testbed.controller.part(&file, "data-node", name, &testbed.scratch);
            let path = testbed.scratch.path();
            testbed.nodes.push(Child::start_listening(&start, socket, path, interrupt)?);
        }
        Ok(testbed)
    }

    /// Where each data node listens.
    pub(super) fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Processor time of all data nodes so far, in microseconds.
    pub(super) fn cpu_us(&self) -> f64 {
        self.nodes.iter().map(Child::cpu_us).sum()
    }

    pub(super) fn controller_us(&self) -> f64 {
        self.controller.cpu_us()
    }

    /// Whether all still run.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        for node in &mut self.nodes {
            if node.has_ended()? {
                let what = "a data node has ended before its time";
                return Err(Failure::new(Code::Failure, what));
            }
        }
        Ok(())
    }
}

impl NodeSettings<'_> {
    /// A data node in the cluster's file.
    fn text(&self, name: &str, socket: &Path) -> String {
        let Self { nics, period, window, rules } = self;
        format!(
            "[[data-node]]\nname = \"{name}\"\nlisten = \"unix:{}\"\nmemory = \"16MiB\"\n\
             capacity = \"{} iops\"\nclient = \"{} iops\"\nperiod = \"{period}\"\n\
             window = {window}\nfabric = \"model\"\n{rules}\n",
            socket.display(),
            nics.node.0,
            nics.client.0,
        )
    }
}

fn kind(scenario: &Scenario, window: u32) -> NodeSettings<'_> {
    let rules = match scenario.control {
        Control::Basic => "mode = \"basic\"",
        Control::Paper => "mode = \"paper\"",
        Control::Unpaced => "paced = false",
        // Other rules than the file knows are for the simulation.
        Control::None | Control::Sound | Control::By(_) => SOUND,
    };
    NodeSettings { nics: &scenario.nics, period: scenario.period, window, rules }
}

/// The shipped rules.
pub(super) const SOUND: &str = "mode = \"sound\"";

fn policy(scenario: &Scenario) -> String {
    let mut text = format!("[[tenant]]\nname = \"{BACKGROUND_TENANT}\"\n");
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
    use tidegate_model::cluster::{MemoryTransport, TokenRules};
    use tidegate_model::{Cluster, Iops, Policy};

    #[test]
    fn texts_are_read_by_those_they_are_for() {
        let expected = [TokenRules::Sound, TokenRules::Basic, TokenRules::Paper, TokenRules::Sound];
        let base = scenario(FIGURE_9B).unwrap().slowed(20);
        for ((control, _), rules) in MODES.into_iter().zip(expected) {
            let scenario = Scenario { control, ..base.clone() };
            let text = kind(&scenario, 16).text("m", Path::new("/tmp/m.sock"));
            let node = Cluster::parse(&text).unwrap().data_nodes.remove(0);
            assert_eq!(
                (node.rules, node.transport, node.window),
                (rules, MemoryTransport::Model, 16)
            );
            assert_eq!((node.capacity, node.client), (Iops(78_500), Iops(20_000)));
        }
        let policy = Policy::parse(&policy(&base)).unwrap();
        let promised: Vec<_> =
            policy.tenants.iter().map(|tenant| tenant.reservation.operations.is_some()).collect();
        assert_eq!(promised, [&[false][..], &[true; 10]].concat());
        assert_eq!(policy.tenants[1].name, tenant(0));
    }
}
