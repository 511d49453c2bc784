//! Topologies: hosts, switches and the links between them.
//!
//! Four shapes: a dumbbell (senders, a link that all share, receivers), one switch with hosts
//! around it, a fat tree, and any list of nodes and links. All become a [`Graph`]: hosts, then
//! switches, by number, and links between them. A host has one link.
//!
//! ```
//! use tidegate_netsim::net::NetworkPlan;
//! let plan = NetworkPlan::parse(r#"
//!     [topology.list]
//!     hosts = ["reader", "writer", "store"]
//!     switches = ["rack"]
//!     links = [
//!         { between = ["reader", "rack"], rate = "3.125GB/s", delay = "500ns" },
//!         { between = ["writer", "rack"], rate = "3.125GB/s", delay = "500ns" },
//!         { between = ["rack", "store"], rate = "12.5GB/s", delay = "500ns" },
//!     ]
//!     [switch]
//!     buffer = "4MB"
//! "#)?;
//! assert_eq!(plan.graph()?.host("store"), Some(tidegate_netsim::net::Host(2)));
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```
//!
//! # The fat tree
//! Switches with *k* ports each (Al-Fares, Loukissas and Vahdat, 2008): *k* pods of *k*/2 edge and
//! *k*/2 aggregation switches, (*k*/2)² core switches, k³/4 hosts. No layer is narrower than the
//! one below it. With k = 4: 16 hosts, 20 switches, 48 links, and 4 shortest paths between hosts of
//! different pods, each of 6 links.

use core::fmt;
use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_model::{Rate, Span};

use super::line::Line;
use super::switch::Switch;
use tidegate_sim::scenario::{ScenarioError, must, read, text};

/// A network: its shape and its switches.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkPlan {
    /// The hosts and switches, and the links between them.
    pub topology: Topology,
    /// The parameters of all switches.
    pub switch: Switch,
}

impl NetworkPlan {
    /// Reads a plan from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line where there is one.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    /// Whether there can be such a network. Code that builds or changes a plan calls this, too.
    ///
    /// # Errors
    /// The first thing that cannot be, and what to write instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        self.switch.check()?;
        self.graph().map(drop)
    }

    /// Its hosts, switches and links.
    ///
    /// # Errors
    /// The first thing that cannot be, and what to write instead.
    pub fn graph(&self) -> Result<Graph, ScenarioError> {
        self.topology.graph()
    }
}

/// The shape of a network.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Senders and receivers on the two ends of one link.
    Dumbbell(Dumbbell),
    /// Hosts around one switch.
    Star(Star),
    /// A fat tree.
    FatTree(FatTree),
    /// Any nodes and links.
    List(ListedTopology),
}

/// Senders (hosts from 0) and receivers (as many, after them) on the two ends of one link.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dumbbell {
    /// How many of each there are, from 1 to 10,000.
    pub pairs: u32,
    /// Between each host and its switch.
    pub edge: Line,
    /// Between the switches.
    pub middle: Line,
}

/// Hosts around one switch.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Star {
    /// How many there are, from 2 to 10,000.
    pub hosts: u32,
    /// Between each and the switch.
    pub line: Line,
}

/// A fat tree.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FatTree {
    /// The ports of each switch: even, from 2 to 32.
    pub ports: u32,
    /// Every link.
    pub line: Line,
}

/// Any nodes and links.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedTopology {
    /// The names of hosts.
    pub hosts: Vec<String>,
    /// The names of switches.
    pub switches: Vec<String>,
    /// The links between them.
    pub links: Vec<Cable>,
}

/// A link of a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cable {
    /// The names of its ends.
    pub between: [String; 2],
    /// Bytes per second, as in [`Line`].
    #[serde(deserialize_with = "text")]
    pub rate: Rate,
    /// How long a bit travels.
    #[serde(deserialize_with = "text")]
    pub delay: Span,
}

/// The number of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(pub u32);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}", self.0)
    }
}

/// Hosts, then switches, by number; and the links between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    names: Vec<String>,
    hosts: usize,
    links: Vec<DuplexLine>,
}

/// A link between two nodes. Link *l* has port 2*l* at its first end and 2*l* + 1 at the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DuplexLine {
    pub ends: [u32; 2],
    pub line: Line,
}

impl Topology {
    /// Its hosts, switches and links.
    ///
    /// # Errors
    /// The first thing that cannot be, and what to write instead.
    pub fn graph(&self) -> Result<Graph, ScenarioError> {
        let graph = match self {
            Self::Dumbbell(dumbbell) => dumbbell.graph()?,
            Self::Star(star) => star.graph()?,
            Self::FatTree(tree) => tree.graph()?,
            Self::List(list) => list.graph()?,
        };
        graph.check()?;
        Ok(graph)
    }
}

impl Dumbbell {
    fn graph(&self) -> Result<Graph, ScenarioError> {
        let fits = (1..=10_000).contains(&self.pairs);
        must(fits, "topology.dumbbell.pairs: from 1 to 10000")?;
        self.edge.check("topology.dumbbell.edge")?;
        self.middle.check("topology.dumbbell.middle")?;
        let mut graph = Graph::numbered(2 * self.pairs, 2);
        let (left, right) = (2 * self.pairs, 2 * self.pairs + 1);
        for host in 0..self.pairs {
            graph.link(host, left, self.edge);
        }
        for host in self.pairs..left {
            graph.link(right, host, self.edge);
        }
        graph.link(left, right, self.middle);
        Ok(graph)
    }
}

impl Star {
    fn graph(&self) -> Result<Graph, ScenarioError> {
        must((2..=10_000).contains(&self.hosts), "topology.star.hosts: from 2 to 10000")?;
        self.line.check("topology.star.line")?;
        let mut graph = Graph::numbered(self.hosts, 1);
        (0..self.hosts).for_each(|host| graph.link(host, self.hosts, self.line));
        Ok(graph)
    }
}

impl FatTree {
    fn graph(&self) -> Result<Graph, ScenarioError> {
        let ports = self.ports;
        let fits = (2..=32).contains(&ports) && ports.is_multiple_of(2);
        must(fits, "topology.fat_tree.ports: an even number from 2 to 32")?;
        self.line.check("topology.fat_tree.line")?;
        let half = ports / 2;
        let hosts = ports * half * half;
        // Hosts, the edge switches of all pods, their aggregation switches, the core.
        let edges = hosts;
        let aggregations = edges + ports * half;
        let cores = aggregations + ports * half;
        let mut graph = Graph::numbered(hosts, 2 * ports * half + half * half);
        for edge in 0..ports * half {
            let pod = edge / half;
            for nth in 0..half {
                graph.link(edge * half + nth, edges + edge, self.line);
                graph.link(edges + edge, aggregations + pod * half + nth, self.line);
            }
        }
        for aggregation in 0..ports * half {
            // The nth of each pod reaches the nth group of the core.
            let group = aggregation % half;
            for nth in 0..half {
                graph.link(aggregations + aggregation, cores + group * half + nth, self.line);
            }
        }
        Ok(graph)
    }
}

impl ListedTopology {
    fn graph(&self) -> Result<Graph, ScenarioError> {
        let mut numbers = BTreeMap::new();
        for (number, name) in (0..).zip(self.hosts.iter().chain(&self.switches)) {
            let new = numbers.insert(name.as_str(), number).is_none();
            must(new, &format!("topology.list: {name:?} is there twice; choose another name"))?;
        }
        let names = self.hosts.iter().chain(&self.switches).cloned().collect();
        let mut graph = Graph { names, hosts: self.hosts.len(), links: Vec::new() };
        for (index, cable) in self.links.iter().enumerate() {
            let key = format!("topology.list.links.{index}");
            let line = Line { rate: cable.rate, delay: cable.delay };
            line.check(&key)?;
            let end = |name: &String| {
                let unknown = format!("{key}.between: no host or switch is called {name:?}");
                numbers.get(name.as_str()).copied().ok_or(ScenarioError::new(unknown))
            };
            let [one, other] = &cable.between;
            let differ = format!("{key}.between: two ends of {one:?}; name two nodes");
            must(one != other, &differ)?;
            graph.link(end(one)?, end(other)?, line);
        }
        Ok(graph)
    }
}

impl Graph {
    fn numbered(hosts: u32, switches: u32) -> Self {
        let names = (0..hosts).map(|number| Host(number).to_string());
        let names = names.chain((0..switches).map(|number| format!("switch {number}")));
        Self { names: names.collect(), hosts: hosts as usize, links: Vec::new() }
    }

    fn link(&mut self, one: u32, other: u32, line: Line) {
        self.links.push(DuplexLine { ends: [one, other], line });
    }

    /// How many hosts there are.
    pub const fn hosts(&self) -> usize {
        self.hosts
    }

    /// How many switches there are.
    pub const fn switches(&self) -> usize {
        self.names.len() - self.hosts
    }

    /// The host of this name.
    pub fn host(&self, name: &str) -> Option<Host> {
        let index = self.names[..self.hosts].iter().position(|known| known == name)?;
        Some(Host(index as u32))
    }

    /// The name of a host.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn name(&self, host: Host) -> &str {
        &self.names[..self.hosts][host.0 as usize]
    }

    pub(super) fn node_name(&self, node: u32) -> &str {
        &self.names[node as usize]
    }

    pub(super) fn links(&self) -> &[DuplexLine] {
        &self.links
    }

    pub(super) const fn nodes(&self) -> usize {
        self.names.len()
    }

    /// The ports of each node, in the order of links.
    pub(super) fn ports(&self) -> Vec<Vec<u32>> {
        let mut ports = vec![Vec::new(); self.names.len()];
        for (link, DuplexLine { ends, .. }) in (0..).zip(&self.links) {
            ports[ends[0] as usize].push(2 * link);
            ports[ends[1] as usize].push(2 * link + 1);
        }
        ports
    }

    /// The node at the far end of a port.
    pub(super) fn far(&self, port: u32) -> u32 {
        let ends = self.links[port as usize / 2].ends;
        ends[1 - port as usize % 2]
    }

    /// Whether each host has its link, and reaches all others.
    fn check(&self) -> Result<(), ScenarioError> {
        must(self.hosts >= 2, "topology.list.hosts: at least 2")?;
        let ports = self.ports();
        for (host, ports) in ports[..self.hosts].iter().enumerate() {
            let name = &self.names[host];
            let twice = format!(
                "topology.list.links: host {name:?} has {} links and one port; put a switch \
                 before it",
                ports.len()
            );
            must(ports.len() <= 1, &twice)?;
        }
        let mut seen = vec![false; self.names.len()];
        let mut ahead = vec![0];
        while let Some(node) = ahead.pop() {
            if !core::mem::replace(&mut seen[node as usize], true) {
                ahead.extend(ports[node as usize].iter().map(|port| self.far(*port)));
            }
        }
        match seen[..self.hosts].iter().position(|seen| !seen) {
            None => Ok(()),
            Some(apart) => {
                let (one, other) = (&self.names[0], &self.names[apart]);
                let links = "topology.list.links: no path";
                Err(ScenarioError::new(format!("{links} from {one:?} to {other:?}; add a link")))
            }
        }
    }
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
