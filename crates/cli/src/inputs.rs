//! All files of a command, read together: all their errors are reported at once.

use std::path::Path;

use tidegate_console::cluster_file::ClusterFile;
use tidegate_console::failure::Failure;
use tidegate_console::policy_file::PolicyFile;
use tidegate_console::text_file::Reader;
use tidegate_model::Span;

/// A cluster and the policies that are to hold on it.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) cluster: Option<ClusterFile>,
    pub(crate) policy: Option<PolicyFile>,
    /// The policy that the cluster names, where it is wanted.
    pub(crate) named: Option<PolicyFile>,
}

/// Whether the policy that a cluster names is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Wanted,
    /// Only if no other one was named.
    Otherwise,
    Unwanted,
}

impl Inputs {
    /// Reads and understands the files.
    ///
    /// # Errors
    /// All that is wrong with all of them.
    pub(crate) fn read(
        cluster: Option<&Path>,
        policy: Option<&Path>,
        wanted: Named,
        reader: Reader,
    ) -> Result<Self, Failure> {
        let is_wanted = match wanted {
            Named::Wanted => true,
            Named::Otherwise => policy.is_none(),
            Named::Unwanted => false,
        };
        let mut failures = Vec::new();
        let mut kept = |failure| failures.push(failure);
        let read = cluster.map(|path| ClusterFile::read(path, reader)).transpose();
        let named = match &read {
            Ok(read) => read.as_ref().and_then(ClusterFile::policy),
            // Faults of its policy are reported all the same.
            Err(_) => cluster.and_then(|path| ClusterFile::policy_in(path, reader)),
        };
        let cluster = read.map_err(&mut kept).ok().flatten();
        let policies = [policy, named.as_deref().filter(|_| is_wanted)];
        let [policy, named] = policies.map(|path| {
            let read = path.map(|path| PolicyFile::read(path, reader)).transpose();
            read.map_err(&mut kept).ok().flatten()
        });
        match Failure::all(failures) {
            Some(failure) => Err(failure),
            None => Ok(Self { cluster, policy, named }),
        }
    }
}

/// Reads the time of a flag: any but none.
pub(crate) fn duration(text: &str) -> Result<Span, String> {
    match text.parse::<Span>() {
        Ok(Span::ZERO) => Err("write more than no time, like 30s".into()),
        Ok(span) => Ok(span),
        Err(error) => Err(error.to_string()),
    }
}
