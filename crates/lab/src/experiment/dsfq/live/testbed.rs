//! A scenario's bricks as they are run: a controller, nodes with files behind a model of a device,
//! and gateways, each a process of its own.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use tidegate_model::{Bytes, Portion, Span};
use tidegate_proto::controller::status::Status;
use tidegate_proto::message::OperatorRequest;
use tidegate_sim::bricks::DsfqScenario;

use crate::experiment::child::Child;
use crate::experiment::controller::Controller;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::operator::Operator;

/// Bytes that the model of a device serves per second, as the paper's bricks do.
const RATE: Bytes = Bytes(6_000_000);
/// How far a service time may lie from its mean, in percent.
const VARIANCE: u32 = 20;

/// A volume, in MiB.
pub(super) const VOLUME_MIB: u64 = 16;

/// How long a cluster may take until all of it is there.
const PATIENCE: Span = Span(60 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(10 * Span::MILLISECOND.0);

/// The cluster. Fields are dropped, and so ended, in their order.
pub(super) struct DsfqTestbed {
    /// The size of all requests.
    pub(super) block: Bytes,
    /// Where each gateway's clients connect.
    pub(super) nbd_sockets: Vec<PathBuf>,
    gateways: Vec<Child>,
    nodes: Vec<Child>,
    controller: Controller,
    pub(super) scratch: Scratch,
}

pub(super) fn volume(stream: &str, node: usize) -> String {
    format!("{stream}-{node}")
}

impl DsfqTestbed {
    /// Starts so many nodes that schedule as the scenario says, with a volume for each of its
    /// streams on each, and a gateway for each of its coordinators. Requests are to be of `block`
    /// bytes.
    ///
    /// # Errors
    /// If something does not start, or the user ends the command. All that was started has ended
    /// then.
    pub(super) fn start(
        scenario: &DsfqScenario,
        nodes: usize,
        block: Bytes,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let file = scratch.join("cluster.toml");
        fs::write(&file, cluster(scenario, nodes, block, &scratch)).map_err(|error| {
            Failure::new(Code::Failure, "cannot write the experiment's cluster").cause(error)
        })?;
        let controller =
            Controller::lead("controller", &file, &policy(scenario), &scratch, interrupt)?;
        controller.create_volumes(&file, &scratch)?;
        let part = |role: &str, name: String| {
            let socket = socket(&scratch, &name);
            let start = controller.part(&file, role, &name, &scratch);
            let child = Child::start_listening(&start, &socket, scratch.path(), interrupt)?;
            Ok((socket, child))
        };
        let run = |role, names: Vec<String>| {
            names.into_iter().map(|name| part(role, name)).collect::<Result<Vec<_>, Failure>>()
        };
        let nodes = run("node", (0..nodes).map(node).collect())?;
        let gateways = run("gateway", gateways(scenario).collect())?;
        let (nbd_sockets, gateways) = gateways.into_iter().unzip();
        let nodes = nodes.into_iter().map(|(_, child)| child).collect();
        let testbed = Self { block, nbd_sockets, gateways, nodes, controller, scratch };
        testbed.wait(interrupt)?;
        Ok(testbed)
    }

    /// Waits until the controller leads all nodes.
    fn wait(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        let mut operator = Operator::connect(self.controller.socket())?;
        let clock = Clock::start();
        loop {
            let status: Status = operator.call_as(&OperatorRequest::Status)?;
            let led = status.cluster.as_ref().map_or(0, |cluster| {
                let here = cluster.nodes.iter().filter(|node| node.is_connected).count();
                if cluster.revision > 0 { here } else { 0 }
            });
            if led == self.nodes.len() {
                return Ok(());
            }
            if clock.now().0 > PATIENCE.0 {
                let what = format!("{led} of {} nodes found their controller", self.nodes.len());
                return Err(Failure::new(Code::Failure, what));
            }
            interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
    }

    /// Checks that no gateway or node has failed.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        for part in self.gateways.iter_mut().chain(&mut self.nodes) {
            part.has_ended()?;
        }
        Ok(())
    }
}

fn node(number: usize) -> String {
    format!("n{number}")
}

fn gateways(scenario: &DsfqScenario) -> impl Iterator<Item = String> {
    (0..scenario.coordinators).map(|number| format!("g{number}"))
}

/// Where a party listens.
fn socket(scratch: &Scratch, listener: &str) -> PathBuf {
    scratch.join(&format!("{listener}.sock"))
}

fn cluster(scenario: &DsfqScenario, nodes: usize, block: Bytes, scratch: &Scratch) -> String {
    let (depth, discipline) = (scenario.bricks.depth, scenario.discipline);
    let mut text = String::from("cost = \"requests\"\n");
    for name in (0..nodes).map(node) {
        let _ = writeln!(
            text,
            "[[node]]\nname = \"{name}\"\naddress = \"unix:{}\"\ndirectory = \"{}\"\n\
             depth = {depth}\nscheduler = \"{discipline}\"\n\
             model = {{ rate = \"{} iops\", variance = \"{VARIANCE}%\" }}",
            socket(scratch, &name).display(),
            scratch.join(&name).display(),
            RATE.0 / block.0,
        );
    }
    for name in gateways(scenario) {
        let nbd_socket = socket(scratch, &name);
        let _ = writeln!(
            text,
            "[[gateway]]\nname = \"{name}\"\nnbd = \"unix:{}\"",
            nbd_socket.display()
        );
    }
    for stream in &scenario.stream {
        for number in 0..nodes {
            let _ = writeln!(
                text,
                "[[volume]]\nname = \"{}\"\nsize = \"{VOLUME_MIB}MiB\"\ntenant = \"{}\"\n\
                 nodes = \"{}\"",
                volume(&stream.name, number),
                stream.name,
                node(number),
            );
        }
    }
    text
}

fn policy(scenario: &DsfqScenario) -> String {
    let mut text = String::new();
    for stream in &scenario.stream {
        let (name, weight) = (&stream.name, stream.weight);
        let _ = writeln!(text, "[[tenant]]\nname = \"{name}\"\nweight = {weight}");
        if let Some(ppm) = stream.minimum_ppm {
            let _ = writeln!(text, "minimum_share = \"{}\"", Portion(ppm));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::{Cluster, Policy};

    #[test]
    fn texts_are_read_by_those_they_are_for() {
        let scratch = Scratch::new().unwrap();
        let mut scenario = super::super::scenario(super::super::FIGURE_12).unwrap();
        scenario.coordinators = 2;
        let cluster = Cluster::parse(&cluster(&scenario, 3, Bytes(8 << 10), &scratch)).unwrap();
        assert_eq!((cluster.nodes.len(), cluster.gateways.len()), (3, 2));
        assert!(cluster.nodes.iter().all(|node| node.scheduler == scenario.discipline));
        assert_eq!(cluster.volumes.len(), 6);
        let policy = Policy::parse(&policy(&scenario)).unwrap();
        let minimum: Vec<_> = policy.tenants.iter().map(|tenant| tenant.minimum_share).collect();
        assert_eq!(minimum[0], None);
        assert_eq!(minimum[1], Some(Portion(83_333)));
    }
}
