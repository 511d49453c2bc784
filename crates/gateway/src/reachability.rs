//! Reachability of nodes and volumes, over all workers of a gateway.
//!
//! Each worker has links of its own, and detects by itself that a node is unreachable. This module
//! joins these views to one state, one line of the log, and the reply to readiness probes. Workers
//! call it when a state changes, never for a request.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_model::NodeId;
use tidegate_proto::data::LinkKind;
use tidegate_proto::message::VolumeFault;

/// The state of nodes and volumes over all workers of a gateway.
#[derive(Debug)]
pub(crate) struct Reachability {
    nodes: Vec<NodeLabel>,
    state: Mutex<Reported>,
}

/// A node in messages: `b at unix:b.sock`. One of this process, which is always reachable, has
/// none.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeLabel {
    pub(crate) name: String,
    pub(crate) address: String,
}

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.address)
    }
}

#[derive(Debug, Default)]
struct Reported {
    workers: Vec<WorkerView>,
    /// By node, whether it was logged as unreachable.
    is_reported_away: Vec<bool>,
    /// Links of single classes that are down in some worker, and were logged so.
    reported_links: BTreeMap<(NodeId, LinkKind), BTreeSet<usize>>,
    /// By volume, the logged reason why it is not served.
    reported_faults: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct WorkerView {
    /// By node, of those behind sockets.
    links: BTreeMap<NodeId, KnownLink>,
    /// By volume, why it is not served.
    faults: BTreeMap<String, String>,
    /// By volume, how its parts differ.
    mismatches: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct KnownLink {
    state: LinkState,
    /// Parts of volumes or pools lie there.
    is_used: bool,
}

#[derive(Debug, Default)]
enum LinkState {
    #[default]
    Connecting,
    Up,
    Away(String),
}

impl Reachability {
    /// Before these nodes.
    pub(crate) fn new(nodes: Vec<NodeLabel>) -> Arc<Self> {
        let is_reported_away = vec![false; nodes.len()];
        let state = Mutex::new(Reported { is_reported_away, ..Reported::default() });
        Arc::new(Self { nodes, state })
    }

    /// One more worker of the gateway whose span is entered.
    pub(crate) fn join(self: &Arc<Self>) -> Reporter {
        let mut state = self.state();
        state.workers.push(WorkerView::default());
        let (worker, span) = (state.workers.len() - 1, tracing::Span::current());
        Reporter { shared: self.clone(), worker, span }
    }

    /// The reasons why some volumes and pools cannot be served, one sentence each.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let state = self.state();
        let mut reasons = Vec::new();
        for (node, label) in (0..).map(NodeId).zip(&self.nodes) {
            let links = state.workers.iter().filter_map(|worker| worker.links.get(&node));
            let states = links.filter(|link| link.is_used).map(|link| &link.state);
            reasons.extend(states.filter_map(|state| reason(label, state)).next());
        }
        let faults = state.reported_faults.iter();
        reasons.extend(
            faults.map(|(volume, fault)| format!("volume {volume} is not served: {fault}")),
        );
        reasons
    }

    /// Whether a volume is refused.
    pub(crate) fn is_refused(&self, volume: &str) -> bool {
        self.state().reported_faults.contains_key(volume)
    }

    /// Volumes whose parts do not belong together, each once, as the first worker sees it.
    pub(crate) fn mismatches(&self) -> Vec<VolumeFault> {
        let state = self.state();
        let mut found = BTreeMap::new();
        for (volume, reason) in state.workers.iter().flat_map(|worker| &worker.mismatches) {
            found.entry(volume.clone()).or_insert_with(|| reason.clone());
        }
        found.into_iter().map(|(volume, reason)| VolumeFault { volume, reason }).collect()
    }

    /// A panic with the state locked leaves it as it was before or after.
    fn state(&self) -> MutexGuard<'_, Reported> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reason(node: &NodeLabel, state: &LinkState) -> Option<String> {
    match state {
        LinkState::Up => None,
        LinkState::Connecting => Some(format!("node {node} is not connected yet")),
        LinkState::Away(reason) => Some(format!("node {node} is away: {reason}")),
    }
}

/// The view of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    shared: Arc<Reachability>,
    worker: usize,
    /// That of the gateway.
    span: tracing::Span,
}

impl Reporter {
    /// The span of the lines about a link to this node, at level debug: it is entered at each
    /// event.
    pub(crate) fn span(&self, node: NodeId) -> tracing::Span {
        let NodeLabel { name, address } = &self.shared.nodes[node.index()];
        // The link may be made for the request of a client, whose span is entered.
        tracing::debug_span!(parent: &self.span, "link", node = name, address)
    }

    /// It has a link to this node.
    pub(crate) fn add_link(&self, node: NodeId) {
        self.shared.state().workers[self.worker].links.insert(node, KnownLink::default());
    }

    /// Parts lie at this node.
    pub(crate) fn uses(&self, node: NodeId) {
        if let Some(link) = self.shared.state().workers[self.worker].links.get_mut(&node) {
            link.is_used = true;
        }
    }

    /// Its link of this kind to this node is up.
    pub(crate) fn on_up(&self, node: NodeId, kind: LinkKind) {
        let mut state = self.shared.state();
        let NodeLabel { name, address } = &self.shared.nodes[node.index()];
        if kind != LinkKind::MAIN {
            if state.on_class_up(self.worker, (node, kind)) {
                tracing::warn!(node = name, address, link = %kind, "connection to a node is back");
            }
            return;
        }
        state.set(self.worker, node, LinkState::Up);
        let mut links = state.workers.iter().filter_map(|worker| worker.links.get(&node));
        let is_away = links.any(|link| matches!(link.state, LinkState::Away(_)));
        if !is_away && std::mem::take(&mut state.is_reported_away[node.index()]) {
            // The line that ends a warning has its level, so that an operator sees both.
            tracing::warn!(node = name, address, "node is back");
        }
    }

    /// Its link of this kind to this node broke, or could not be made.
    pub(crate) fn on_away(&self, node: NodeId, kind: LinkKind, reason: String) {
        let mut state = self.shared.state();
        let NodeLabel { name, address } = &self.shared.nodes[node.index()];
        if kind != LinkKind::MAIN {
            if state.on_class_down(self.worker, (node, kind)) {
                tracing::warn!(
                    node = name,
                    address,
                    link = %kind,
                    %reason,
                    "connection to a node is down, and others serve its requests"
                );
            }
            return;
        }
        if !std::mem::replace(&mut state.is_reported_away[node.index()], true) {
            tracing::warn!(node = name, address, %reason, "node is away");
        }
        state.set(self.worker, node, LinkState::Away(reason));
    }

    /// Why it does not serve a volume, or that it does; and how the volume's parts differ.
    pub(crate) fn on_volume(&self, volume: &str, fault: Option<&str>, mismatch: Option<&str>) {
        let mut state = self.shared.state();
        let worker = &mut state.workers[self.worker];
        set(&mut worker.faults, volume, fault);
        set(&mut worker.mismatches, volume, mismatch);
        let now = state.workers.iter().find_map(|worker| worker.faults.get(volume)).cloned();
        let before = match now.clone() {
            Some(fault) => state.reported_faults.insert(volume.into(), fault),
            None => state.reported_faults.remove(volume),
        };
        match (before, now) {
            (before, Some(now)) if before.as_ref() != Some(&now) => {
                tracing::error!(volume, reason = %now, "volume is not served");
            }
            (Some(_), None) => tracing::warn!(volume, "volume is served again"),
            _ => {}
        }
    }
}

fn set(reasons: &mut BTreeMap<String, String>, volume: &str, reason: Option<&str>) {
    match reason {
        Some(reason) => drop(reasons.insert(volume.into(), reason.into())),
        None => drop(reasons.remove(volume)),
    }
}

impl Reported {
    /// A worker's link of one class is up. Returns whether to say so: it was logged as down, and
    /// the other workers' are up.
    fn on_class_up(&mut self, worker: usize, link: (NodeId, LinkKind)) -> bool {
        let Some(workers) = self.reported_links.get_mut(&link) else { return false };
        workers.remove(&worker);
        workers.is_empty() && self.reported_links.remove(&link).is_some()
    }

    /// A worker's link of one class is down. Returns whether to say so: it was not logged yet, and
    /// neither was the whole node.
    fn on_class_down(&mut self, worker: usize, link: (NodeId, LinkKind)) -> bool {
        if self.is_reported_away[link.0.index()] {
            return false;
        }
        let workers = self.reported_links.entry(link).or_default();
        workers.insert(worker) && workers.len() == 1
    }

    fn set(&mut self, worker: usize, node: NodeId, state: LinkState) {
        if let Some(link) = self.workers[worker].links.get_mut(&node) {
            link.state = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::Class;

    use super::*;

    #[test]
    fn a_node_is_needed_by_all_workers_that_have_parts_there() {
        let label = |name: &str, at: &str| NodeLabel { name: name.into(), address: at.into() };
        let shared = Reachability::new(vec![label("a", "x"), label("b", "y")]);
        let workers = [shared.join(), shared.join()];
        let [first, second] = [0, 1].map(NodeId);
        for worker in &workers {
            worker.add_link(first);
            worker.add_link(second);
            worker.uses(second);
        }
        assert_eq!(shared.reasons(), ["node b at y is not connected yet"]);
        workers[0].on_up(second, LinkKind::MAIN);
        assert_eq!(shared.reasons(), ["node b at y is not connected yet"]);
        workers[1].on_up(second, LinkKind::MAIN);
        assert_eq!(shared.reasons(), [""; 0], "nothing lies at the other one");
        workers[1].on_away(second, LinkKind::MAIN, "gone".into());
        assert_eq!(shared.reasons(), ["node b at y is away: gone"]);
        workers[0].on_away(second, LinkKind::MAIN, "gone".into());
        workers[0].on_up(second, LinkKind::MAIN);
        assert_eq!(shared.reasons(), ["node b at y is away: gone"]);
        workers[1].on_up(second, LinkKind::MAIN);
        assert_eq!(shared.reasons(), [""; 0]);
    }

    #[test]
    fn a_link_of_one_class_is_logged_once_when_it_goes_and_comes_in_all_workers() {
        let mut state = Reported { is_reported_away: vec![false; 2], ..Reported::default() };
        let [urgent, other] =
            [0, 1].map(|node| (NodeId(node), LinkKind { class: Class::Urgent, ..LinkKind::MAIN }));
        assert!(!state.on_class_up(0, urgent), "it was never down");
        assert_eq!(
            [0, 1, 1].map(|worker| state.on_class_down(worker, urgent)),
            [true, false, false]
        );
        assert_eq!([0, 1, 1].map(|worker| state.on_class_up(worker, urgent)), [false, true, false]);
        assert!(state.on_class_down(1, urgent));
        state.is_reported_away[1] = true;
        assert!(!state.on_class_down(0, other), "the whole node is away");
        assert!(!state.on_class_up(0, other));
        assert_eq!(urgent.1.to_string(), "urgent requests");
    }

    #[test]
    fn a_volume_is_served_again_once_all_workers_serve_it() {
        let shared = Reachability::new(Vec::new());
        let workers = [shared.join(), shared.join()];
        workers.iter().for_each(|worker| worker.on_volume("db", Some("part 0: missing"), None));
        assert_eq!(shared.reasons(), ["volume db is not served: part 0: missing"]);
        workers[0].on_volume("db", None, None);
        assert_eq!(shared.reasons(), ["volume db is not served: part 0: missing"]);
        workers[1].on_volume("db", None, None);
        assert_eq!(shared.reasons(), [""; 0]);
    }

    #[test]
    fn parts_do_not_belong_together_while_one_worker_sees_it() {
        let shared = Reachability::new(Vec::new());
        let workers = [shared.join(), shared.join()];
        assert_eq!(shared.mismatches(), []);
        for worker in &workers {
            worker.on_volume("db", Some("part 0: missing"), Some("two UUIDs"));
        }
        let fault = VolumeFault { volume: "db".into(), reason: "two UUIDs".into() };
        assert_eq!(shared.mismatches(), std::slice::from_ref(&fault), "each volume once");
        workers[0].on_volume("db", Some("part 0: missing"), None);
        assert_eq!(shared.mismatches(), [fault], "one worker still sees it");
        workers[1].on_volume("db", None, None);
        assert_eq!(shared.mismatches(), []);
    }
}
