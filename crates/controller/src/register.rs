//! The policy in force and its history. A new policy is parsed, checked against the cluster,
//! stored, and handed to the state machine; so are schedulers that an operator chooses for nodes.
//! Operators' questions to the state machine pass through here, too.

use std::sync::{Arc, Mutex, PoisonError};

use tidegate_algo::allocation::admission::{self, AdmissionRefusal};
use tidegate_fabric::clock::unix_ms;
use tidegate_model::{Cluster, Discipline, NodeId, Policy, PolicyError};
use tidegate_proto::cluster::status::NodeStatus;
use tidegate_proto::controller::status::{Applied, PolicyText};
use tidegate_proto::recording::collector::RecordingPart;
use tidegate_proto::stats::delays::Delays;
use tokio::sync::{mpsc, oneshot};

use crate::difference::difference;
use crate::input::{DelaysError, Input, RecordError, Stopping, Survey};
use crate::nodes::{self, TenantNodes};
use crate::store::{Draft, PolicyStore, PutError, StoreError};

/// A policy to be applied.
#[derive(Clone, Debug)]
pub(crate) struct ApplyOrder {
    pub(crate) text: String,
    /// The origin of the text.
    pub(crate) source: String,
    pub(crate) dry_run: bool,
    /// The revision that must be in force; zero for any.
    pub(crate) expect: u64,
}

/// Why a policy was not applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// No operator means to take every tenant's promise away with a file that was cut short.
    #[error("{from}: the policy is empty; a policy without tenants has at least a comment")]
    Empty { from: String },
    #[error("{from}: {error}")]
    Invalid { from: String, error: PolicyError },
    #[error("{from}: {error}")]
    Refused { from: String, error: AdmissionRefusal },
    #[error(transparent)]
    Put(#[from] PutError),
    #[error(transparent)]
    Stopping(#[from] Stopping),
}

impl ApplyError {
    /// The answer to a request for the policy while none is in force.
    pub(crate) const NONE_YET: &str = "no policy is in force; apply one with `tidegate apply`";

    /// Its exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Empty { .. } | Self::Invalid { .. } => 3,
            Self::Refused { .. } => 4,
            Self::Put(_) | Self::Stopping(_) => 1,
        }
    }
}

/// Why a scheduler was not chosen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChooseError {
    #[error("this controller has no cluster; start it with `tidegate up CLUSTER`")]
    NoCluster,
    #[error("the cluster has no node {name:?}; there are {known}")]
    Unknown { name: String, known: String },
    #[error(transparent)]
    Put(#[from] PutError),
    #[error(transparent)]
    Stopping(#[from] Stopping),
}

/// The policies and the machine, for operators and HTTP clients.
pub(crate) struct Register {
    inputs: mpsc::Sender<Input>,
    /// Written on a thread of its own, because a disk may be slow.
    store: Arc<Mutex<Box<dyn PolicyStore>>>,
    /// The policy in force. Held from the first check to the last step of an apply, so that
    /// policies reach the machine in the order of their revisions.
    current: Arc<tokio::sync::Mutex<Option<Current>>>,
    /// The nodes that keep a policy's promises.
    cluster: Option<Cluster>,
}

impl std::fmt::Debug for Register {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Register").finish_non_exhaustive()
    }
}

/// The policy in force, in both forms.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) stored: PolicyText,
    pub(crate) policy: Policy,
}

impl Current {
    /// Its revision, and the policy.
    pub(crate) fn in_force(&self) -> (u64, &Policy) {
        (self.stored.revision, &self.policy)
    }
}

impl Register {
    pub(crate) fn new(
        inputs: mpsc::Sender<Input>,
        store: Box<dyn PolicyStore>,
        current: Option<Current>,
        cluster: Option<Cluster>,
    ) -> Self {
        let store = Arc::new(Mutex::new(store));
        Self { inputs, store, current: Arc::new(tokio::sync::Mutex::new(current)), cluster }
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// Puts a policy in force, or reports the changes that this would make. It is in the store
    /// before any stage receives it.
    pub(crate) async fn apply(&self, order: ApplyOrder) -> Result<Applied, ApplyError> {
        let from = order.source.clone();
        if order.text.trim().is_empty() {
            return Err(ApplyError::Empty { from });
        }
        let policy = Policy::parse(&order.text)
            .map_err(|error| ApplyError::Invalid { from: from.clone(), error })?;
        if let Err(refusals) = admission::admit(&policy, self.cluster.as_ref())
            && let Some(error) = refusals.into_iter().next()
        {
            return Err(ApplyError::Refused { from, error });
        }
        let current = self.current.clone().lock_owned().await;
        let found = current.as_ref().map_or(0, |current| current.stored.revision);
        if order.expect != 0 && order.expect != found {
            return Err(PutError::Conflict { expected: order.expect, found }.into());
        }
        let before = current.as_ref().map(|current| &current.policy);
        let is_same = |current: &Current| current.stored.text == order.text;
        let applied = Applied {
            revision: found,
            dry_run: order.dry_run,
            is_changed: !current.as_ref().is_some_and(is_same),
            changes: difference(before, &policy),
            warnings: self.warnings(&policy),
        };
        if order.dry_run || !applied.is_changed {
            return Ok(applied);
        }
        // On a task of its own, so that it completes even if the client disconnects: a policy that
        // is stored must also reach the machine.
        let tenant_nodes =
            self.cluster.as_ref().map(|cluster| nodes::tenant_nodes(&policy, cluster));
        let tenant_nodes = tenant_nodes.unwrap_or_default();
        let change =
            commit(current, self.store.clone(), self.inputs.clone(), order, (policy, tenant_nodes));
        let revision = tokio::spawn(change).await.map_err(|_| Stopping)??;
        Ok(Applied { revision, ..applied })
    }

    /// The warnings of `check`. A controller without a cluster leads stages alone.
    fn warnings(&self, policy: &Policy) -> Vec<String> {
        let cluster = self.cluster.as_ref();
        let mut warnings = admission::all_warnings(policy, cluster);
        if cluster.is_none() {
            warnings.extend(admission::resource_warnings(policy, None));
        }
        warnings
    }

    /// Chooses a scheduler for a node, or for all of them; none for the choice in the cluster file.
    /// It is in the store before any node receives it.
    pub(crate) async fn choose(
        &self,
        node: Option<String>,
        chosen: Option<Discipline>,
    ) -> Result<Vec<NodeStatus>, ChooseError> {
        let nodes = self.cluster.as_ref().map(|cluster| &cluster.nodes[..]);
        let nodes = nodes.ok_or(ChooseError::NoCluster)?;
        let is_meant = |name: &String| node.as_ref().is_none_or(|node| node == name);
        let meant = (0..).map(NodeId).zip(nodes).filter(|(_, node)| is_meant(&node.name));
        let (ids, names): (Vec<_>, Vec<_>) = meant.map(|(id, it)| (id, it.name.clone())).unzip();
        if let Some(name) = node.filter(|_| ids.is_empty()) {
            let known = nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(ChooseError::Unknown { name, known });
        }
        // Choices and policies reach the machine in the order in which they are stored.
        let guard = self.current.clone().lock_owned().await;
        let (store, inputs) = (self.store.clone(), self.inputs.clone());
        let change = async move {
            let _guard = guard;
            let write =
                move || store.lock().unwrap_or_else(PoisonError::into_inner).choose(&names, chosen);
            tokio::task::spawn_blocking(write).await.map_err(|_| Stopping)??;
            let (done, in_force) = oneshot::channel();
            let input = Input::Choose { nodes: ids, chosen, done };
            inputs.send(input).await.map_err(|_| Stopping)?;
            in_force.await.map_err(|_| Stopping)?;
            Ok::<_, ChooseError>(())
        };
        tokio::spawn(change).await.map_err(|_| Stopping)??;
        Ok(self.survey().await?.status.cluster.map(|cluster| cluster.nodes).unwrap_or_default())
    }

    pub(crate) async fn policy(&self) -> Option<PolicyText> {
        self.current.lock().await.as_ref().map(|current| current.stored.clone())
    }

    /// At most `count` policies, the latest first.
    pub(crate) async fn history(&self, count: usize) -> Result<Vec<PolicyText>, StoreError> {
        let store = self.store.clone();
        let read = move || store.lock().unwrap_or_else(PoisonError::into_inner).history(count);
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| Ok(Vec::new()))
    }

    /// Requests the current status and health from the machine.
    pub(crate) async fn survey(&self) -> Result<Survey, Stopping> {
        let (reply, answer) = oneshot::channel();
        self.inputs.send(Input::Survey { reply }).await.map_err(|_| Stopping)?;
        answer.await.map_err(|_| Stopping)
    }

    /// The requests that gateways recorded since the last call; zero begins a recording.
    pub(crate) async fn record(
        &self,
        session: u64,
        is_last: bool,
    ) -> Result<RecordingPart, RecordError> {
        let (reply, answer) = oneshot::channel();
        let input = Input::Record { session, is_last, reply };
        self.inputs.send(input).await.map_err(|_| Stopping)?;
        Ok(answer.await.map_err(|_| Stopping)??)
    }

    /// Why requests of a tenant were delayed in the last minute.
    pub(crate) async fn delays(&self, tenant: String) -> Result<Delays, DelaysError> {
        let (reply, answer) = oneshot::channel();
        self.inputs.send(Input::Delays { tenant, reply }).await.map_err(|_| Stopping)?;
        answer.await.map_err(|_| Stopping)?
    }
}

/// Stores a policy and puts it in force.
async fn commit(
    mut current: tokio::sync::OwnedMutexGuard<Option<Current>>,
    store: Arc<Mutex<Box<dyn PolicyStore>>>,
    inputs: mpsc::Sender<Input>,
    order: ApplyOrder,
    (policy, tenant_nodes): (Policy, TenantNodes),
) -> Result<u64, ApplyError> {
    let ApplyOrder { text, source, expect, .. } = order;
    let draft = Draft { text, source, applied_at_ms: unix_ms() };
    let copy = draft.clone();
    let write = move || store.lock().unwrap_or_else(PoisonError::into_inner).put(expect, copy);
    let revision = tokio::task::spawn_blocking(write).await.map_err(|_| Stopping)??;
    let Draft { text, source, applied_at_ms } = draft;
    let stored = PolicyText { revision, text, source, applied_at_ms };
    *current = Some(Current { stored, policy: policy.clone() });
    let (done, applied) = oneshot::channel();
    let input = Input::Apply { revision, policy: Box::new(policy), tenant_nodes, done };
    inputs.send(input).await.map_err(|_| Stopping)?;
    applied.await.map_err(|_| Stopping)?;
    Ok(revision)
}
