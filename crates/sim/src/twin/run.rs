//! Runs a trace replay, and returns its report.

use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate_algo::classify::owner::Owners;
use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::policy::GateKind;
use tidegate_model::{Cluster, Policy, Span, Waits};

use super::load::RecordedLoad;
use super::nodes::{SimulatedGateway, TwinConnection, TwinNodes, TwinSim, server, used};
use super::report::{Figures, TenantLog, TenantReport, TwinReport};
use super::{Service, ServiceTimes};
use crate::cluster::Promised;
use crate::large::LargeRequests;
use crate::link::Conduct;
use crate::rng::Stream;
use crate::time::Picoseconds;

/// Periods before the load begins, in which nodes get the policy.
const WARM_UP: u64 = 2;

/// How long the counters of nodes may be on their way when the load has ended: they are read once a
/// second.
const READING: Picoseconds = Picoseconds(2 * Picoseconds::SECOND.0);

/// Everything that a run follows from.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// The machines.
    pub cluster: &'a Cluster,
    /// The policy to try.
    pub policy: &'a Policy,
    /// The requests.
    pub load: &'a RecordedLoad,
    /// The devices.
    pub service: Service,
    /// The time that a request takes outside of the nodes' queues and devices.
    pub transit: Span,
    /// Decides the service times of devices that vary.
    pub seed: u64,
}

/// Why a plan cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The recording is of another cluster.
    #[error(
        "the recording has requests to volume {0:?}, which the cluster does not have; name the \
         cluster file that it was recorded with"
    )]
    Volume(String),
    /// Nothing says how fast a node is.
    #[error(
        "the speed of node {0} is not known; name the policy that was in force with \
         --recorded-under, so that it is found, or give the node a capacity, or use --service"
    )]
    Speed(String),
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The time of the recording that has been made again.
    pub now: Span,
    /// The length of the recording.
    pub length: Span,
    /// Which replay this is, counted from one.
    pub replay: u32,
}

/// Runs the load under the policy. In each period `goes_on` is told how far it is; none if it says
/// no.
///
/// # Errors
/// If the recording does not fit to the cluster, or nothing says how fast a node is.
pub fn run(
    plan: &Plan<'_>,
    goes_on: impl Fn(Progress) -> bool,
) -> Result<Option<TwinReport>, PlanError> {
    let nodes = nodes(plan)?;
    let (from, until, names) = (nodes.from, nodes.until, nodes.names.clone());
    let links = vec![Conduct::default(); plan.cluster.nodes.len()];
    let period = Picoseconds::from(plan.policy.period);
    let mut simulation = TwinSim::new(nodes, plan.seed, &links, Picoseconds(4 * period.0));
    simulation.start_connected(Picoseconds::ZERO);
    simulation.run_until(from);
    (0..simulation.peers.connections.len()).for_each(|it| simulation.plan_next(it as u32));
    let begin = |log: &mut TenantLog| log.begin(from);
    simulation.peers.logs.iter_mut().for_each(begin);
    let at_nodes = plan.policy.at(GateKind::Node);
    let promised: Vec<(u64, u64)> = Promised::of(&at_nodes)
        .iter()
        .zip(Promised::in_bytes(&at_nodes))
        .map(|(operations, tokens)| (operations.reserved, tokens.reserved * BYTES_PER_TOKEN))
        .collect();
    while simulation.now < until {
        let now = simulation.now.since(from).span();
        if !goes_on(Progress { now, length: plan.load.span, replay: 1 }) {
            return Ok(None);
        }
        let next = simulation.now.after(period);
        simulation.run_until(next.min(until));
        // A piece of a period at the end keeps nothing and breaks nothing.
        if next <= until {
            for (log, promised) in simulation.peers.logs.iter_mut().zip(&promised) {
                log.end_period(next, plan.policy.period, *promised);
            }
        }
    }
    simulation.run_until(until.after(READING));
    let waits = waits(&simulation);
    let logs = std::mem::take(&mut simulation.peers.logs);
    let reserved = promised.iter().map(|it| *it != (0, 0)).chain([false]);
    let reports = logs.into_iter().zip(names.iter()).zip(reserved);
    let tenants = reports.map(|((log, name), has_reservation)| {
        let report = log.report(name.clone(), has_reservation);
        TenantReport { waits: waits.get(name).copied().unwrap_or(Waits::ZERO), ..report }
    });
    let is_there =
        |it: &TenantReport| it.kept.is_some() || it.figures.requests > 0 || it.unanswered > 0;
    let tenants = tenants.filter(is_there).collect();
    Ok(Some(TwinReport { span: plan.load.span, tenants, events: simulation.passed }))
}

impl RecordedLoad {
    /// The service of the tenants in the recording, in the order of their first requests.
    pub fn report(&self) -> TwinReport {
        let mut logs = vec![(Vec::new(), 0); self.tenants.len()];
        for request in self.connections.iter().flat_map(|connection| &connection.requests) {
            let (latencies, bytes) = &mut logs[request.tenant.index()];
            latencies.push(request.latency.0);
            *bytes += u64::from(request.bytes);
        }
        let tenants = self.tenants.iter().zip(logs).map(|(name, (mut latencies, bytes))| {
            let figures = Figures::of(&mut latencies, bytes);
            TenantReport { name: name.clone(), figures, ..TenantReport::default() }
        });
        TwinReport { span: self.span, tenants: tenants.collect(), events: 0 }
    }
}

fn nodes(plan: &Plan<'_>) -> Result<TwinNodes, PlanError> {
    let Plan { cluster, policy, load, service, transit, seed } = *plan;
    let period = Picoseconds::from(policy.period);
    let from = Picoseconds(WARM_UP * period.0);
    let mut names: Vec<String> = policy.tenants.iter().map(|it| it.name.clone()).collect();
    names.push(String::new());
    let (mut gateways, mut connections) = (BTreeMap::new(), Vec::new());
    let mut volumes_used = Vec::new();
    for own in &load.connections {
        let name = &own.connection;
        let volume = cluster.volumes.iter().position(|volume| volume.name == name.volume);
        let volume = volume.ok_or_else(|| PlanError::Volume(name.volume.clone()))?;
        let count = gateways.len() as u32;
        let gateway = *gateways.entry(&name.gateway).or_insert(count);
        // Connections without a request make none.
        if !own.requests.is_empty() {
            volumes_used.push(&cluster.volumes[volume]);
            let owners = Rc::new(Owners::new(policy, &name.volume, &name.tenant));
            connections.push(TwinConnection::new(Rc::new(own.clone()), (gateway, volume), owners));
        }
    }
    let used = used(volumes_used.into_iter());
    let device = |(number, node): (usize, &tidegate_model::cluster::Node)| {
        let is_used = used.iter().any(|id| id.index() == number);
        let random = Stream::new(seed, "device", number as u64);
        // One that serves nothing may be as fast as it likes.
        let any = Service::Timed(ServiceTimes::fixed(Span(1), 1));
        let service = if is_used { service } else { any };
        server(node, service, random).ok_or_else(|| PlanError::Speed(node.name.clone()))
    };
    let devices = cluster.nodes.iter().enumerate().map(device).collect::<Result<_, _>>()?;
    let gateway = |_| SimulatedGateway::new(names.len(), cluster.nodes.len());
    let volumes = cluster.volumes.iter().map(|volume| (volume.clone(), volume.layout()));
    Ok(TwinNodes {
        cluster: cluster.clone(),
        policy: policy.clone(),
        volumes: volumes.collect(),
        devices,
        gateways: (0..gateways.len()).map(gateway).collect(),
        connections,
        larges: LargeRequests::default(),
        transit,
        counts_requests: policy.resource_at(GateKind::Node).is_some(),
        seed,
        from,
        until: from.after(load.span.into()),
        logs: vec![TenantLog::default(); names.len()],
        names: names.into(),
    })
}

/// The waiting time of each tenant's requests by cause, at all nodes together.
fn waits(simulation: &TwinSim) -> BTreeMap<String, Waits> {
    let status = simulation.controller.as_ref().map(|it| it.status(simulation.now.time()));
    let cluster = status.and_then(|status| status.cluster).unwrap_or_default();
    let sum = |nodes: &[tidegate_proto::cluster::status::TenantAtNode]| {
        nodes.iter().fold(Waits::ZERO, |sum, node| sum + node.waits)
    };
    cluster.tenants.iter().map(|tenant| (tenant.name.clone(), sum(&tenant.nodes))).collect()
}
