//! Starts the nodes, gateways and data nodes of a cluster that run in this process, and tells the
//! addresses at which clients reach its volumes and pools.

use std::path::Path;
use std::thread;

use tidegate_fabric::headroom::headroom;
use tidegate_fabric::stream::Way;
use tidegate_fabric::stream::{Address, ListenerAccess};
use tidegate_fabric::tls::Guard;
use tidegate_fabric::trusted::{self, Access, Folder, Purpose, TrustError, TrustProblem};
use tidegate_gateway as gateway;
use tidegate_gateway::ketama::Server;
use tidegate_model::cluster::{self, DeviceModel, Store};
use tidegate_model::policy::Tenant;
use tidegate_model::{Cluster, NodeId, Policy};
use tidegate_node as node;
use tidegate_node::memory;

use crate::guards::{Guards, directory, way};
use crate::memory_demand::{MemoryDemand, volumes_at};
use tidegate_console::address::resolved;
use tidegate_console::failure::{Code, Failure};

/// Requests of a worker's gateway are short work; one thread serves some hundred thousand of them
/// per second, and a second lets a large one not hold up the small.
const WORKERS: usize = 2;

/// Which of a cluster's parts are meant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) nodes: bool,
    pub(crate) gateways: bool,
    pub(crate) data_nodes: bool,
    /// Only those with these names; all if there are none.
    pub(crate) names: Vec<String>,
}

impl Choice {
    /// Whether the node with this name is to run.
    pub(crate) fn has_node(&self, name: &str) -> bool {
        self.nodes && self.has(name)
    }

    /// The warning that the chosen components may use more memory than is left, if so. Data nodes
    /// take their memory at the start, so this is evaluated before it.
    pub(crate) fn memory_warning(&self, cluster: &Cluster) -> Option<String> {
        let has_data_node = |name: &str| self.data_nodes && self.has(name);
        MemoryDemand::of(cluster, |name| self.has_node(name), has_data_node).warning(headroom())
    }

    fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }
}

/// The parts that run. Dropping them ends them: first gateways, which finish requests under way,
/// and then the nodes behind them.
pub(crate) struct Components {
    gateways: Vec<(String, gateway::Running)>,
    nodes: Vec<(String, node::Running)>,
    data_nodes: Vec<(String, memory::Running)>,
}

/// Addresses and folders for the parts of a cluster that are to start.
pub(crate) struct StartContext<'a> {
    pub(crate) cluster: &'a Cluster,
    /// The folder of relative paths.
    pub(crate) base: &'a Path,
    pub(crate) controller: &'a Address,
    /// TLS guards that admit peers on other machines; none where there are no certificates.
    pub(crate) guards: Option<&'a Guards>,
}

impl StartContext<'_> {
    /// The guard of a component, if there are certificates.
    fn guard(&self, name: &str) -> Result<Option<Guard>, Failure> {
        self.guards.map(|guards| guards.of(name)).transpose()
    }

    /// The way to the controller.
    fn controller(&self, guard: Option<&Guard>) -> Option<Way> {
        Some(way(self.controller.clone(), guard, Cluster::CONTROLLER))
    }
}

impl Components {
    /// Starts what is chosen of a cluster.
    ///
    /// # Errors
    /// If a part cannot start. Those that had started have ended then.
    pub(crate) fn start(context: &StartContext<'_>, choice: &Choice) -> Result<Self, Failure> {
        let cluster = context.cluster;
        known(cluster, choice)?;
        let mut parts = Self { gateways: Vec::new(), nodes: Vec::new(), data_nodes: Vec::new() };
        for (id, node) in cluster.nodes.iter().enumerate() {
            if choice.nodes && choice.has(&node.name) {
                let config = node_config(context, id)?;
                trusted(&config.store).map_err(|error| failed(&node.name, &error))?;
                let running = node::start(config).map_err(|error| failed(&node.name, &error))?;
                parts.nodes.push((node.name.clone(), running));
            }
        }
        let chosen = |gateway: &&cluster::Gateway| choice.gateways && choice.has(&gateway.name);
        for gateway in cluster.gateways.iter().filter(chosen) {
            let guard = context.guard(&gateway.name)?;
            let services = parts.services(context, guard.as_ref())?;
            let config = gateway_config(context, gateway, guard)?;
            let running = gateway::start(config, &services);
            let running = running.map_err(|error| failed(&gateway.name, &error))?;
            parts.gateways.push((gateway.name.clone(), running));
        }
        for node in &cluster.data_nodes {
            if choice.data_nodes && choice.has(&node.name) {
                let config = data_node_config(context, node)?;
                let running = memory::start(config).map_err(|error| failed(&node.name, &error))?;
                parts.data_nodes.push((node.name.clone(), running));
            }
        }
        Ok(parts)
    }

    /// How a gateway with this guard reaches each node, in the order of the cluster.
    fn services(
        &self,
        context: &StartContext<'_>,
        guard: Option<&Guard>,
    ) -> Result<Vec<gateway::NodeLocation>, Failure> {
        let service = |node: &cluster::Node| {
            if let Some((_, running)) = self.nodes.iter().find(|(name, _)| *name == node.name) {
                return Ok(gateway::NodeLocation::Here(running.service()));
            }
            let Some(address) = &node.address else {
                let what = format!("node {} is not in this process and has no address", node.name);
                let help = format!("give it one, like address = \"unix:{}.sock\"", node.name);
                return Err(Failure::new(Code::Invalid, what).help(help));
            };
            let way = way(resolved(address, context.base)?, guard, &node.name);
            Ok(gateway::NodeLocation::There { name: node.name.clone(), way })
        };
        context.cluster.nodes.iter().map(service).collect()
    }

    /// Why not all that these parts serve can be served now, a sentence each; nothing if all can.
    pub(crate) fn unready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for (name, node) in &self.nodes {
            let status = node.status();
            reasons.extend(status.store_fault.map(|fault| format!("node {name}: {fault}")));
            reasons.extend(status.faults.iter().map(|(volume, part, reason)| {
                format!("part {part} of volume {volume} at node {name}: {reason}")
            }));
        }
        reasons.extend(self.gateways.iter().flat_map(|(_, gateway)| gateway.unready()));
        reasons
    }

    /// The addresses of volumes and pools as a user types them: a line for each volume and
    /// listener, and one for each listener of a pool. Volumes that are refused, or that no client
    /// may open there by the policy, are left out.
    pub(crate) fn endpoints(
        &self,
        cluster: &Cluster,
        base: &Path,
        policy: Option<&Policy>,
    ) -> Vec<String> {
        let mut endpoints = Vec::new();
        for (name, running) in &self.gateways {
            let is_required = cluster
                .gateways
                .iter()
                .any(|gateway| gateway.name == *name && gateway.is_tls_required);
            let directory = directory(cluster, base);
            let served = cluster.volumes.iter().filter(|volume| !running.is_refused(&volume.name));
            let served: Vec<_> = served.collect();
            for address in running.addresses() {
                let export = |volume: &&cluster::Volume| {
                    let tenant = policy.and_then(|policy| policy.tenant_named(&volume.tenant));
                    let folder = way_in(address, tenant.map(|(_, tenant)| tenant), is_required)?;
                    let certificates = match folder {
                        false => Certificates::Unused,
                        // They come in with their own certificates only.
                        true if tenant.is_some_and(|(_, it)| !it.users.is_empty()) => {
                            Certificates::Own
                        }
                        true => Certificates::Of(directory.as_deref()?),
                    };
                    Some(uri(address, &volume.name, certificates))
                };
                endpoints.extend(served.iter().filter_map(export));
            }
        }
        let pools = self.gateways.iter().flat_map(|(_, gateway)| gateway.pools()).map(server);
        endpoints.into_iter().chain(pools).collect()
    }

    /// The sockets where clients of data nodes come for memory.
    pub(crate) fn memories(&self) -> impl Iterator<Item = String> {
        self.data_nodes.iter().map(|(_, node)| match node.address() {
            Address::Unix(path) => path.display().to_string(),
            Address::Tcp(address) => address.to_string(),
        })
    }

    /// The names of what runs, nodes first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let nodes = self.nodes.iter().map(|(name, _)| name.as_str());
        let nodes = nodes.chain(self.gateways.iter().map(|(name, _)| name.as_str()));
        nodes.chain(self.data_nodes.iter().map(|(name, _)| name.as_str()))
    }
}

impl Drop for Components {
    /// Nodes end together: gateways of other processes hold requests for five seconds from when a
    /// node ends, and it cannot be started again before the last one of this process has ended.
    fn drop(&mut self) {
        self.gateways.clear();
        let nodes: Vec<node::Running> = self.nodes.drain(..).map(|(_, node)| node).collect();
        thread::scope(|scope| nodes.iter().for_each(|node| drop(scope.spawn(|| node.sync()))));
        thread::scope(|scope| nodes.into_iter().for_each(|node| drop(scope.spawn(|| node.stop()))));
    }
}

/// Refuses names that no component has.
fn known(cluster: &Cluster, choice: &Choice) -> Result<(), Failure> {
    let nodes = cluster.nodes.iter().map(|node| &node.name).filter(|_| choice.nodes);
    let gateways = cluster.gateways.iter().map(|gateway| &gateway.name);
    let data_nodes = cluster.data_nodes.iter().map(|node| &node.name);
    let data_nodes = data_nodes.filter(|_| choice.data_nodes);
    let names: Vec<_> =
        nodes.chain(gateways.filter(|_| choice.gateways)).chain(data_nodes).collect();
    match choice.names.iter().find(|name| !names.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let names = names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let failure = Failure::new(Code::Usage, format!("the cluster has no {name:?} to run"));
            Err(failure.help(format!("there are {names}")))
        }
    }
}

/// Whether other users could put something else in the place of a store. A store that does not
/// exist yet is reported by the code that opens it; the folders on the way are checked by then.
fn trusted(store: &node::StoreConfig) -> Result<(), TrustError> {
    let found = match store {
        node::StoreConfig::Directory { path, .. } => Folder::open(path, Purpose::Private).map(drop),
        node::StoreConfig::Device { path, .. } => trusted::open(path, Access::Read).map(drop),
        _ => Ok(()),
    };
    match found {
        Err(error) if matches!(error.problem, TrustProblem::Io(_)) => Ok(()),
        found => found,
    }
}

fn failed(name: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::quoted(Code::Failure, &format!("{name}: {error}"))
}

fn node_config(context: &StartContext<'_>, number: usize) -> Result<node::Config, Failure> {
    let StartContext { cluster, base, .. } = *context;
    let node = &cluster.nodes[number];
    let id = NodeId(u16::try_from(number).unwrap_or(u16::MAX));
    let store = match &node.store {
        Store::Directory(path) => node::StoreConfig::Directory { path: base.join(path) },
        Store::Device { path, size } => {
            node::StoreConfig::Device { path: base.join(path), size: *size }
        }
        Store::Memory => node::StoreConfig::Memory { capacity: volumes_at(cluster, id) },
        Store::Memcached(address) => {
            node::StoreConfig::Memcached { address: resolved(address, base)? }
        }
    };
    let listen = node.address.as_ref().map(|address| resolved(address, base)).transpose()?;
    let speed = node.model.map(|DeviceModel { rate, variance_permille }| {
        // Nodes differ, and each is the same in every run.
        node::Speed { rate, variance: variance_permille / 10, seed: number as u64 }
    });
    // A node that does not use TCP needs no certificate.
    let is_far = [listen.as_ref(), Some(context.controller)];
    let is_far = is_far.iter().any(|address| matches!(address, Some(Address::Tcp(_))));
    let guard = if is_far { context.guard(&node.name)? } else { None };
    Ok(node::Config {
        listen,
        controller: context.controller(guard.as_ref()),
        guard: guard.map(|guard| guard.admitting(gateways(cluster))),
        depth: node.depth,
        discipline: node.scheduler,
        cost: cluster.cost,
        busy_poll: cluster.busy_poll,
        io_priority: node.io_priority,
        dscp: cluster.dscp,
        capacity: node.capacity,
        latency: node.latency,
        speed,
        fallback: Some(base.join(crate::volumes::FALLBACK)),
        ..node::Config::new(node.name.clone(), store)
    })
}

fn data_node_config(
    context: &StartContext<'_>,
    node: &cluster::DataNode,
) -> Result<memory::Config, Failure> {
    let StartContext { cluster, base, .. } = *context;
    let listen = resolved(&node.listen, base)?;
    let is_far = [&listen, context.controller].iter().any(|it| matches!(it, Address::Tcp(_)));
    let guard = if is_far { context.guard(&node.name)? } else { None };
    Ok(memory::Config {
        listen,
        rules: memory::TokenRules::shipped(node.is_paced),
        node: node.clone(),
        controller: context.controller(guard.as_ref()),
        guard: guard.map(|guard| guard.refusing(all_peer_names(cluster))),
    })
}

/// The names of a cluster's gateways, which nodes let in.
fn gateways(cluster: &Cluster) -> Vec<String> {
    cluster.gateways.iter().map(|gateway| gateway.name.clone()).collect()
}

/// The names of all components that its controller admits.
fn peer_names(cluster: &Cluster) -> Vec<String> {
    let nodes = cluster.nodes.iter().map(|node| node.name.clone());
    let data_nodes = cluster.data_nodes.iter().map(|node| node.name.clone());
    nodes.chain(gateways(cluster)).chain(data_nodes).collect()
}

/// The names of all components, which their certificates bear; none of them is a client's.
pub(crate) fn all_peer_names(cluster: &Cluster) -> Vec<String> {
    let mut names = peer_names(cluster);
    names.extend([Cluster::CONTROLLER, Cluster::AUTHORITY].map(String::from));
    names
}

/// The users who may connect to a gateway's Unix socket: all if root runs the gateway. The policy
/// states their rights there: none, unless it names them.
fn clients() -> ListenerAccess {
    match rustix::process::geteuid().is_root() {
        true => ListenerAccess::EVERYBODY,
        false => ListenerAccess::PRIVATE,
    }
}

fn gateway_config(
    context: &StartContext<'_>,
    gateway: &cluster::Gateway,
    guard: Option<Guard>,
) -> Result<gateway::Config, Failure> {
    let StartContext { cluster, base, .. } = *context;
    let is_required = gateway.is_tls_required;
    let permissions = ListenerAccess { is_public: is_required && guard.is_some(), ..clients() };
    let binds = gateway.nbd.iter().map(|address| Ok((resolved(address, base)?, permissions)));
    let pools = gateway.memcached.iter().map(|endpoint| pool(cluster, endpoint, base));
    Ok(gateway::Config {
        name: gateway.name.clone(),
        controller: context.controller(guard.as_ref()),
        tls: guard.map(|guard| gateway::ListenerTls { guard, is_required }),
        parties: all_peer_names(cluster).into(),
        binds: binds.collect::<Result<_, Failure>>()?,
        volumes: cluster.volumes.clone(),
        pools: pools.collect::<Result<_, Failure>>()?,
        workers: WORKERS,
        limits: gateway::Limits { busy_poll: cluster.busy_poll, ..gateway::Limits::default() },
        cost: cluster.cost,
        dscp: cluster.dscp,
    })
}

fn pool(
    cluster: &Cluster,
    endpoint: &cluster::MemcachedEndpoint,
    base: &Path,
) -> Result<gateway::memcached::Pool, Failure> {
    let pool = &cluster.pools[endpoint.pool];
    let nodes = pool.nodes.iter().filter_map(|id| Some((*id, key_location(cluster.node(*id)?))));
    Ok(gateway::memcached::Pool {
        address: resolved(&endpoint.address, base)?,
        access: clients(),
        name: pool.name.clone(),
        nodes: nodes.collect(),
        tenant: pool.tenant.clone(),
        value_max: gateway::memcached::VALUE_MAX_DEFAULT,
        flush_all: pool.flush_all,
    })
}

/// Where keys find a node: its server's address as clients of libmemcached would write it, so that
/// they find what they stored before there was a gateway.
fn key_location(node: &cluster::Node) -> Server {
    let (host, port) = match &node.store {
        Store::Memcached(cluster::Address::Tcp { host, port }) => (host.clone(), *port),
        Store::Memcached(cluster::Address::Unix(path)) => (path.to_string(), 0),
        _ => (node.name.clone(), 0),
    };
    Server { host, port, weight: 1 }
}

/// A server as clients of memcached write it.
fn server(address: &Address) -> String {
    match address {
        Address::Unix(path) => format!("memcached+unix://{}", path.display()),
        Address::Tcp(address) => format!("memcached://{address}"),
    }
}

/// How clients of a tenant come in there: whether with a certificate, or none if no client can.
fn way_in(address: &Address, tenant: Option<&Tenant>, is_required: bool) -> Option<bool> {
    let Some(tenant) = tenant.filter(|tenant| !tenant.users.is_empty()) else {
        return Some(is_required);
    };
    match address {
        // Over a Unix socket, root and the gateway's own user may always.
        Address::Unix(_) => Some(is_required),
        Address::Tcp(_) => tenant.admits_certificates().then_some(true),
    }
}

/// The certificates by which a client opens an export.
enum Certificates<'a> {
    /// It needs none.
    Unused,
    /// Those of a user of the tenant, which are where that user put them.
    Own,
    /// Those in a folder, which every client may use.
    Of(&'a Path),
}

/// An export as clients of NBD write it, with the folder of certificates if everybody may use it.
fn uri(address: &Address, export: &str, certificates: Certificates<'_>) -> String {
    let (scheme, folder) = match certificates {
        Certificates::Unused => ("nbd", None),
        Certificates::Own => ("nbds", None),
        Certificates::Of(folder) => {
            ("nbds", Some(format!("tls-certificates={}", folder.display())))
        }
    };
    match address {
        Address::Unix(path) => {
            let folder = folder.map(|folder| format!("&{folder}")).unwrap_or_default();
            format!("{scheme}+unix:///{export}?socket={}{folder}", path.display())
        }
        Address::Tcp(address) => {
            let folder = folder.map(|folder| format!("?{folder}")).unwrap_or_default();
            format!("{scheme}://{address}/{export}{folder}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_admitted_tenants_are_shown_an_address() {
        let policy = r#"tenant = [
            { name = "any" },
            { name = "user", users = ["alice"] },
            { name = "certificate", users = ["cert:alice"] },
        ]"#;
        let policy = Policy::parse(policy).unwrap();
        let ways = |address: &Address, is_required| {
            let way = |tenant| way_in(address, Some(tenant), is_required);
            policy.tenants.iter().map(way).collect::<Vec<_>>()
        };
        let (unix, tcp) = (Address::Unix("x".into()), Address::Tcp(([127, 0, 0, 1], 1).into()));
        assert_eq!(ways(&tcp, false), [Some(false), None, Some(true)]);
        assert_eq!(ways(&tcp, true), [Some(true), None, Some(true)]);
        assert_eq!(ways(&unix, false), [Some(false); 3]);
    }
}
