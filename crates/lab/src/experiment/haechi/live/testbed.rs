//! The data nodes of a scenario as it is run: a controller, and data nodes behind the model of a
//! RNIC, a process each. `tidegate up` runs those with the shipped rules, `tidegate-lab data-node`
//! those with the paper's.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate_model::Span;
use tidegate_sim::one_sided::{Control, NicModel, Scenario};

use crate::experiment::child::{Child, Start, cannot_start};
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
    pub(super) rules: NodeRules,
}

/// The rules by which data nodes give tokens out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeRules {
    /// Those that ship, with tokens spread over the period or not.
    Shipped { is_paced: bool },
    /// The paper's, by their name for `tidegate-lab data-node`.
    Paper(&'static str),
}

impl NodeRules {
    pub(super) const SOUND: Self = Self::Shipped { is_paced: true };
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
            let start = match kind.rules {
                NodeRules::Shipped { .. } => {
                    testbed.controller.part(&file, "data-node", name, &testbed.scratch)
                }
                NodeRules::Paper(rules) => of_paper(&testbed.controller, &file, name, rules)?,
            };
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
        let is_paced = *rules != NodeRules::Shipped { is_paced: false };
        format!(
            "[[data-node]]\nname = \"{name}\"\nlisten = \"unix:{}\"\nmemory = \"16MiB\"\n\
             capacity = \"{} iops\"\nclient = \"{} iops\"\nperiod = \"{period}\"\n\
             window = {window}\nfabric = \"model\"\npaced = {is_paced}\n",
            socket.display(),
            nics.node.0,
            nics.client.0,
        )
    }
}

fn kind(scenario: &Scenario, window: u32) -> NodeSettings<'_> {
    let rules = match scenario.control {
        Control::Basic => NodeRules::Paper("basic"),
        Control::Paper => NodeRules::Paper("paper"),
        Control::Unpaced => NodeRules::Shipped { is_paced: false },
        // Other rules are for the simulation.
        Control::None | Control::Sound | Control::By(_) => NodeRules::SOUND,
    };
    NodeSettings { nics: &scenario.nics, period: scenario.period, window, rules }
}

/// A data node that runs by the paper's rules.
fn of_paper(
    controller: &Controller,
    cluster: &Path,
    name: &str,
    rules: &str,
) -> Result<Start, Failure> {
    let program =
        env::current_exe().map_err(|error| cannot_start(&"tidegate-lab".into(), error))?;
    let mut arguments = vec!["--socket".into(), controller.socket().into(), "data-node".into()];
    arguments.extend([cluster.into(), name.into(), "--rules".into(), rules.into()]);
    Ok(Start { name: name.into(), program: program.into(), arguments, ..Start::default() })
}

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
    use tidegate_model::cluster::MemoryTransport;
    use tidegate_model::{Cluster, Iops, Policy};

    #[test]
    fn texts_are_read_by_those_they_are_for() {
        let [basic, paper] = ["basic", "paper"].map(NodeRules::Paper);
        let expected = [NodeRules::SOUND, basic, paper, NodeRules::SOUND];
        let base = scenario(FIGURE_9B).unwrap().slowed(20);
        for ((control, _), rules) in MODES.into_iter().zip(expected) {
            let scenario = Scenario { control, ..base.clone() };
            let settings = kind(&scenario, 16);
            assert_eq!(settings.rules, rules);
            let text = settings.text("m", Path::new("/tmp/m.sock"));
            let node = Cluster::parse(&text).unwrap().data_nodes.remove(0);
            assert_eq!(
                (node.is_paced, node.transport, node.window),
                (true, MemoryTransport::Model, 16)
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
