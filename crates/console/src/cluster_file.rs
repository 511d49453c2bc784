//! A cluster file of an operator: reads it, and shows errors with their place in the text; if its
//! nodes cannot keep a policy, their capacities as well.

use std::ops::Range;
use std::path::{Path, PathBuf};

use miette::LabeledSpan;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tidegate_algo::allocation::admission::Shortage;
use tidegate_model::Cluster;
use tidegate_model::cluster::Node;
use tidegate_model::gate::{Throughput, Unit};
use toml::Spanned;

use crate::failure::{Code, Failure};
use crate::text_file::{self, FileKind, Reader};

/// A cluster that was read: its text and what it means.
#[derive(Debug)]
pub struct ClusterFile {
    /// The file's name as it was given, for messages.
    pub name: String,
    text: String,
    /// The cluster that the file describes.
    pub cluster: Cluster,
}

impl ClusterFile {
    /// Reads and understands the cluster in `path`.
    ///
    /// # Errors
    /// If it cannot be read, or does not make sense.
    pub fn read(path: &Path, reader: Reader) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = text_file::read("cluster", path, reader)?;
        let cluster = Cluster::parse_all(&text)
            .map_err(|errors| FileKind::Cluster.invalid(&name, &text, &errors))?;
        Ok(Self { name, text, cluster })
    }

    /// The file of the policy that a cluster's file names, which may be wrong otherwise.
    pub fn policy_in(path: &Path, reader: Reader) -> Option<PathBuf> {
        let text = text_file::read("cluster", path, reader).ok()?;
        let Named { policy } = toml::from_str(&text).ok()?;
        Some(path.parent().unwrap_or(Path::new("")).join(policy?))
    }

    /// Returns the statements of the file that contradict each other, a line each.
    pub fn doubts(&self) -> Vec<String> {
        let spans: ClusterSpans = toml::from_str(&self.text).unwrap_or_default();
        let doubt = |(entry, node): (&NodeSpans, &Node)| {
            let (capacity, model) = (node.capacity?, node.model?);
            let line = self.text[..entry.capacity.as_ref()?.span().start].matches('\n').count() + 1;
            (capacity > model.rate).then(|| {
                format!(
                    "{}: line {line}: capacity: {} cannot do {capacity} behind a model of {}; \
                     lower one, or raise the other",
                    self.name, node.name, model.rate
                )
            })
        };
        spans.node.iter().zip(&self.cluster.nodes).filter_map(doubt).collect()
    }

    /// The file of the policy that it names, relative to where the cluster's own file is.
    pub fn policy(&self) -> Option<PathBuf> {
        let folder = Path::new(&self.name).parent().unwrap_or(Path::new(""));
        self.cluster.policy.as_ref().map(|policy| folder.join(policy))
    }

    /// The failure for a policy that promises more than these nodes can do.
    pub fn infeasible(&self, shortage: &Shortage) -> Failure {
        let label = |text: String, span: Range<usize>| LabeledSpan::new_with_span(Some(text), span);
        let spans: ClusterSpans = toml::from_str(&self.text).unwrap_or_default();
        let mut labels = Vec::new();
        for (entry, node) in spans.node.iter().zip(&self.cluster.nodes) {
            let capacity = match shortage.capacity.unit() {
                Unit::Operations => node.capacity.map(Throughput::Operations),
                Unit::Bytes => node.bandwidth.map(Throughput::Bandwidth),
            };
            if let (Some(entry), Some(capacity)) = (&entry.capacity, capacity)
                && shortage.nodes.contains(&node.name)
            {
                labels.push(label(format!("{} can do {capacity}", node.name), entry.span()));
            }
        }
        Failure::quoted(Code::Infeasible, &shortage.to_string())
            .source(&self.name, &self.text, labels)
    }
}

/// The policy that the text names.
#[derive(Deserialize)]
struct Named {
    policy: Option<String>,
}

/// Positions in the text of the nodes' capacities.
#[derive(Default, Deserialize)]
struct ClusterSpans {
    #[serde(default)]
    node: Vec<NodeSpans>,
}

#[derive(Deserialize)]
struct NodeSpans {
    capacity: Option<Spanned<IgnoredAny>>,
}
