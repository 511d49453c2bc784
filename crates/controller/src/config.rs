//! Configuration of the controller daemon.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::identity::Members;
use crate::logging::Logging;
use tidegate_fabric::default_paths::{default_socket, default_state};
use tidegate_fabric::tls::Guard;
use tidegate_model::Cluster;

/// Configuration of a daemon. Started by root it serves the whole machine; otherwise it serves its
/// user.
#[derive(Clone, Debug)]
pub struct Config {
    /// The socket for stages and the command line. By default `/run/tidegate/controller.sock`
    /// for root, else `tidegate/controller.sock` in `$XDG_RUNTIME_DIR` or, without that, in the
    /// state directory.
    pub socket: PathBuf,
    /// The TCP listener for nodes, gateways and stages of other machines, with the certificate to
    /// show them; none where all are on this machine.
    pub remote: Option<(SocketAddr, Guard)>,
    /// The directory of policies, token and lock. By default `/var/lib/tidegate` for root, else
    /// `tidegate` in `$XDG_STATE_HOME` or in `~/.local/state`.
    pub state: PathBuf,
    /// Whether to begin without the policies of the last run: the store, which may be damaged, is
    /// put aside and not removed.
    pub forget_policy: bool,
    /// The address of the HTTP listener, on loopback; none without HTTP. By default port 7171.
    pub http: Option<SocketAddr>,
    /// Host names in HTTP requests that are accepted besides those of this machine, as behind a
    /// proxy. Requests for other hosts are refused.
    pub http_hosts: Vec<String>,
    /// The log on standard error.
    pub log: Logging,
    /// The time that a new connection may take to send its hello. By default five seconds: long for
    /// a program on this machine, short for a client that wants to hold many connections.
    pub hello_max: Duration,
    /// The nodes that keep promises in operations, and their volumes and pools; none where there
    /// are stages only.
    pub cluster: Option<Cluster>,
    /// The file that the cluster was read from, for the commands that `tidegate status` advises;
    /// empty if there is none.
    pub cluster_file: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: default_socket(),
            remote: None,
            state: default_state(),
            forget_policy: false,
            http: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7171))),
            http_hosts: Vec::new(),
            log: Logging::default(),
            hello_max: Duration::from_secs(5),
            cluster: None,
            cluster_file: PathBuf::new(),
        }
    }
}

impl Config {
    /// The names of the cluster's members.
    pub(crate) fn members(&self) -> Members {
        let Some(cluster) = &self.cluster else { return Members::default() };
        let gateways = Vec::from_iter(cluster.gateways.iter().map(|it| it.name.clone()));
        let mut all = Vec::from([Cluster::CONTROLLER, Cluster::AUTHORITY].map(String::from));
        all.extend(gateways.iter().cloned());
        all.extend(cluster.nodes.iter().map(|it| it.name.clone()));
        all.extend(cluster.data_nodes.iter().map(|it| it.name.clone()));
        Members { gateways, all }
    }
}
