//! The cost of an idle cluster: a controller and eight nodes, each in a process of its own, with
//! 2,000 tenants that all have a reservation, and half of them a limit.

use std::fmt::Write as _;
use std::fs;

use tidegate_model::{Span, Time};
use tidegate_proto::controller::status::Status;
use tidegate_proto::message::OperatorRequest;

use super::Row;
use super::sample::Median;
use super::window::WindowPlan;
use crate::experiment::child::Child;
use crate::experiment::controller::Controller;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::operator::Operator;

const BENCH: &str = "idle";
const TENANTS: usize = 2_000;
const NODES: usize = 8;
/// The bound of all processes together, in hundredths of a processor.
const PROCESSOR_PERCENT: f64 = 1.0;
/// How long nodes may take until they are there.
const PATIENCE: Span = Span(20 * Span::SECOND.0);
/// How long they are left alone before anything is measured: the least of two periods, in which a
/// node finds that it rests, and more.
const SETTLED: Span = Span(5 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(100 * Span::MILLISECOND.0);
/// The time in which processor time is counted: its clock ticks a hundred times in a second.
const WINDOW: Span = Span(4 * Span::SECOND.0);

fn policy() -> String {
    (0..TENANTS).fold(String::new(), |mut text, at| {
        let limit = if at % 2 == 0 { "" } else { "limit = \"500 iops\"\n" };
        let _ = writeln!(
            text,
            "[[tenant]]\nname = \"tenant-{at}\"\nreservation = \"50 iops\"\n{limit}"
        );
        text
    })
}

fn cluster(scratch: &Scratch) -> String {
    (0..NODES).fold(String::new(), |mut text, at| {
        let address = scratch.join(&format!("n{at}.sock"));
        let _ = writeln!(
            text,
            "[[node]]\nname = \"n{at}\"\naddress = \"unix:{}\"\nmemory = true\n\
             capacity = \"100k iops\"",
            address.display()
        );
        text
    })
}

/// The cluster. Dropping it ends it.
struct Idle {
    nodes: Vec<Child>,
    controller: Controller,
    clock: Clock,
    _scratch: Scratch,
}

impl Idle {
    fn start(interrupt: &Interrupt) -> Result<Self, Failure> {
        let scratch = Scratch::new()?;
        let file = scratch.join("cluster.toml");
        fs::write(&file, cluster(&scratch)).map_err(|error| {
            Failure::new(Code::Failure, "cannot write the bench's cluster").cause(error)
        })?;
        let controller = Controller::lead("controller", &file, &policy(), &scratch, interrupt)?;
        let start = |at| {
            let start = controller.part(&file, "node", &format!("n{at}"), &scratch);
            Child::start(&start, scratch.path())
        };
        let nodes = (0..NODES).map(start).collect::<Result<_, _>>()?;
        let idle = Self { nodes, controller, clock: Clock::start(), _scratch: scratch };
        while !idle.is_complete()? {
            if idle.clock.now().0 > PATIENCE.0 {
                return Err(Failure::new(Code::Failure, "the nodes did not come"));
            }
            idle.pass(POLL_INTERVAL, interrupt)?;
        }
        idle.pass(SETTLED, interrupt)?;
        Ok(idle)
    }

    fn status(&self) -> Result<Status, Failure> {
        Operator::connect(self.controller.socket())?.call_as(&OperatorRequest::Status)
    }

    fn is_complete(&self) -> Result<bool, Failure> {
        let cluster = self.status()?.cluster;
        Ok(cluster.is_some_and(|cluster| cluster.nodes.iter().all(|node| node.is_connected)))
    }

    fn pass(&self, span: Span, interrupt: &Interrupt) -> Result<Time, Failure> {
        interrupt.sleep_until(self.clock, self.clock.now().after(span))?;
        Ok(self.clock.now())
    }

    /// Processor time of the controller, and of all nodes, in microseconds.
    fn cpu_us(&self) -> [f64; 2] {
        [self.controller.cpu_us(), self.nodes.iter().map(Child::cpu_us).sum()]
    }
}

/// Measures everything.
pub(super) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let case = "2,000 tenants on 8 nodes at rest: controller and nodes, of a processor";
    let idle = match Idle::start(interrupt) {
        Ok(idle) => idle,
        Err(failure) => {
            interrupt.check()?;
            let row = Row::less(BENCH, case, "%", None).promised(PROCESSOR_PERCENT);
            report(row.because(failure.to_string()));
            return Ok(());
        }
    };
    let (mut parts, mut all) = ([0.0; 2], Vec::new());
    let windows = if plan.is_full() { 5 } else { 1 };
    for _ in 0..windows {
        let (begun, before) = (idle.clock.now(), idle.cpu_us());
        let took = idle.pass(WINDOW, interrupt)?.since(begun).as_seconds() * 1e6;
        let after = idle.cpu_us();
        let percent = [0, 1].map(|part| 100.0 * (after[part] - before[part]) / took);
        parts = [parts[0] + percent[0], parts[1] + percent[1]];
        all.push(percent[0] + percent[1]);
    }
    let [controller, nodes] = parts.map(|part| part / f64::from(windows));
    let (least, most) = all
        .iter()
        .fold((f64::MAX, f64::MIN), |(least, most), value| (value.min(least), value.max(most)));
    let note = format!("the controller {controller:.2} %, the nodes {nodes:.2} %");
    let median = Median::of(all).map(|median| median.value);
    let row = Row::less(BENCH, case, "%", median).between(least, most);
    report(row.promised(PROCESSOR_PERCENT).noted(note));
    let traffic = idle.status()?.cluster.map(|cluster| cluster.traffic.bytes as f64);
    report(Row::less(BENCH, "the same: messages about tokens in a period", "B", traffic));
    Ok(())
}
