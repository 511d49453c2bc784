//! A policy file of an operator: reads it, and shows errors, doubtful entries and promises that
//! cannot be kept with their place in the text.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use miette::LabeledSpan;
use nix::unistd::{Uid, User};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use tidegate_algo::allocation::admission::AdmissionRefusal;
use tidegate_model::gate::Throughput;
use tidegate_model::policy::{Infeasible, Whole};
use tidegate_model::{Policy, Rate};
use toml::Spanned;

use crate::cluster_file::ClusterFile;
use crate::failure::{Code, Failure};
use crate::policy_paths;
use crate::text_file::{self, FileKind, Reader};

/// A policy that was read: its text and what it means.
#[derive(Debug)]
pub struct PolicyFile {
    /// The file's name as it was given, for messages; `<stdin>` for standard input.
    pub name: String,
    /// Where the text came from, for a history: an absolute path, so that it can be found again.
    pub origin: String,
    /// The text as it was read.
    pub text: String,
    /// The policy that the text describes.
    pub policy: Policy,
}

impl PolicyFile {
    /// Reads and understands the policy in `path`, or on standard input if that is `-`.
    ///
    /// # Errors
    /// If it cannot be read, or does not make sense.
    pub fn read(path: &Path, reader: Reader) -> Result<Self, Failure> {
        let is_stdin = path == "-";
        let name = if is_stdin { "<stdin>".into() } else { path.display().to_string() };
        let text = match is_stdin {
            true => io::read_to_string(io::stdin())
                .map_err(|error| text_file::unreadable("policy", &name, &error)),
            false => text_file::read("policy", path, reader),
        }?;
        // No operator means to take every tenant's promise away with a file that was cut short.
        if text.trim().is_empty() {
            return Err(Failure::new(Code::Invalid, format!("the policy {name} is empty"))
                .help("check the file; a policy without tenants has at least a comment"));
        }
        let absolute = || std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        let origin = if is_stdin { name.clone() } else { absolute().display().to_string() };
        Ok(Self { origin, ..Self::new(name, text)? })
    }

    /// A policy with this text, which comes from no file.
    ///
    /// # Errors
    /// If it does not make sense.
    pub fn new(name: String, text: String) -> Result<Self, Failure> {
        let policy = Policy::parse_all(&text)
            .map_err(|errors| FileKind::Policy.invalid(&name, &text, &errors))?;
        Ok(Self { origin: name.clone(), name, text, policy })
    }

    /// Whether every reservation fits what the policy says that it is a part of.
    ///
    /// # Errors
    /// If one does not.
    pub fn check_feasible(&self) -> Result<(), Failure> {
        self.policy.feasible().map_err(|error| self.infeasible(&error))
    }

    /// The failure for a policy that was not admitted, beside a cluster if there is one.
    pub fn refused(&self, cluster: Option<&ClusterFile>, refusal: &AdmissionRefusal) -> Failure {
        match (refusal, cluster) {
            (AdmissionRefusal::Infeasible(error), _) => self.infeasible(error),
            (AdmissionRefusal::Shortage(shortage), Some(cluster)) => cluster.infeasible(shortage),
            (refusal, _) => Failure::quoted(Code::Infeasible, &refusal.to_string()),
        }
    }

    /// Returns the statements of the file that cannot mean anything, a line each.
    pub fn doubts(&self) -> Vec<String> {
        let is_user = |name: &str| match name.parse() {
            Ok(uid) => User::from_uid(Uid::from_raw(uid)).is_ok_and(|user| user.is_some()),
            Err(_) => User::from_name(name).is_ok_and(|user| user.is_some()),
        };
        let doubts = Policy::doubts(&self.text, is_user);
        let doubts = doubts.iter().map(ToString::to_string);
        let doubts = doubts.chain(policy_paths::warnings(&self.policy));
        doubts.map(|doubt| format!("{}: {doubt}", self.name)).collect()
    }

    fn infeasible(&self, error: &Infeasible) -> Failure {
        let Infeasible { whole, resource, unit, available, parts, .. } = error;
        let level = |per_second| Throughput::new(*unit, per_second);
        let spans: PolicySpans = toml::from_str(&self.text).unwrap_or_default();
        let whole = match whole {
            Whole::Budget => spans.budget.clone(),
            Whole::Capacity => spans.capacity(resource.as_deref()),
            Whole::Reservation(group) => spans.promise(group, resource.as_deref(), true),
            Whole::Limit(group) => spans.promise(group, resource.as_deref(), false),
        };
        let mut labels = Vec::new();
        let mut label = |text: String, span: Option<Range<usize>>| {
            labels.extend(span.map(|span| LabeledSpan::new_with_span(Some(text), span)));
        };
        label(format!("there is {}", level(*available)), whole);
        for (name, promised) in parts {
            let span = spans.promise(name, resource.as_deref(), true);
            label(format!("{} is promised", level(*promised)), span);
        }
        Failure::new(Code::Infeasible, error.message())
            .help(error.fix())
            .source(&self.name, &self.text, labels)
    }
}

/// The text of the policy `name`, with this budget at stages: in the place of its budget, or of the
/// capacity of its resource of files. A policy with neither gets one. A text that is no TOML stays,
/// and is refused by [`PolicyFile::new`].
///
/// # Errors
/// If the policy has resources and none of files has a capacity.
pub fn with_budget(name: &str, mut text: String, budget: Rate) -> Result<String, Failure> {
    let Ok(spans) = toml::from_str::<PolicySpans>(&text) else { return Ok(text) };
    let files = spans.resource.iter().find(|resource| resource.path.is_some());
    let field = match files {
        Some(files) => files.capacity.clone(),
        None => spans.budget.clone(),
    };
    match field {
        Some(span) => text.replace_range(span, &format!("\"{budget}\"")),
        None if spans.resource.is_empty() => {
            text.insert_str(0, &format!("budget = \"{budget}\"\n"));
        }
        None => {
            let message = format!("{name} has no capacity of files to replace");
            let help = "add capacity = \"measured\" to a [[resource]] with path = \"/**\"";
            return Err(Failure::new(Code::Invalid, message).help(help));
        }
    }
    Ok(text)
}

/// Positions in the text of capacities and promises.
#[derive(Default, Deserialize)]
struct PolicySpans {
    #[serde(default, deserialize_with = "span")]
    budget: Option<Range<usize>>,
    #[serde(default)]
    resource: Vec<ResourceSpans>,
    #[serde(default)]
    group: Vec<OwnerSpans>,
    #[serde(default)]
    tenant: Vec<OwnerSpans>,
}

#[derive(Deserialize)]
struct ResourceSpans {
    name: String,
    #[serde(default, deserialize_with = "span")]
    path: Option<Range<usize>>,
    #[serde(default, deserialize_with = "span")]
    capacity: Option<Range<usize>>,
}

/// A tenant or a group.
#[derive(Deserialize)]
struct OwnerSpans {
    name: String,
    #[serde(default, deserialize_with = "span")]
    reservation: Option<Range<usize>>,
    #[serde(default, deserialize_with = "span")]
    limit: Option<Range<usize>>,
    #[serde(default)]
    on: BTreeMap<String, PromiseSpans>,
}

#[derive(Default, Deserialize)]
struct PromiseSpans {
    #[serde(default, deserialize_with = "span")]
    reservation: Option<Range<usize>>,
    #[serde(default, deserialize_with = "span")]
    limit: Option<Range<usize>>,
}

/// Reads the position of a value, whatever it is.
fn span<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Range<usize>>, D::Error> {
    Ok(Some(Spanned::<IgnoredAny>::deserialize(value)?.span()))
}

impl PolicySpans {
    fn capacity(&self, resource: Option<&str>) -> Option<Range<usize>> {
        let mut resources = self.resource.iter();
        resources.find(|entry| Some(&*entry.name) == resource)?.capacity.clone()
    }

    /// The position of the reservation, or of the limit, of the group or the tenant of this name.
    /// Where both have the name, the one with such a promise is meant.
    fn promise(
        &self,
        owner: &str,
        resource: Option<&str>,
        is_reservation: bool,
    ) -> Option<Range<usize>> {
        let owners = self.group.iter().chain(&self.tenant).filter(|entry| entry.name == owner);
        let promises = owners.filter_map(|entry| match resource {
            Some(resource) => entry.on.get(resource).map(|on| [&on.reservation, &on.limit]),
            None => Some([&entry.reservation, &entry.limit]),
        });
        let field = |[reservation, limit]: [&Option<Range<usize>>; 2]| {
            if is_reservation { reservation.clone() } else { limit.clone() }
        };
        promises.filter_map(field).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: &str = "[[tenant]]\nname = \"a\"\n";

    fn with(text: &str) -> Result<String, String> {
        let text = with_budget("p", format!("{text}{TENANT}"), Rate(200 << 20));
        let file = text.and_then(|text| PolicyFile::new("p".into(), text));
        file.map(|file| file.text).map_err(|failure| failure.to_line())
    }

    #[test]
    fn a_budget_takes_the_place_of_the_policys() {
        let files = |fields: &str| {
            format!("[[resource]]\nname = \"cluster\"\n[[resource]]\nname = \"files\"\n{fields}\n")
        };
        for (text, wanted) in [
            ("", "budget = \"200MiB/s\"\n".to_owned()),
            ("budget = \"1GiB/s\" # one\n", "budget = \"200MiB/s\" # one\n".into()),
            ("budget = [\"1GiB/s\", \"9 iops\"]\n", "budget = \"200MiB/s\"\n".into()),
            (
                &files("path = \"/**\"\ncapacity = \"measured\""),
                files("path = \"/**\"\ncapacity = \"200MiB/s\""),
            ),
        ] {
            assert_eq!(with(text), Ok(wanted + TENANT), "{text}");
        }
        let bounded = files("path = \"/**\"\ncapacity = \"measured\"\nlatency = \"p99 < 5ms\"");
        assert!(with(&bounded).unwrap_err().contains("it bounds the search"));
        let missing = with("[[resource]]\nname = \"cluster\"\n").unwrap_err();
        assert!(missing.contains("p has no capacity of files to replace"), "{missing}");
        // A background channel needs the budget that it gets.
        let background = "[[channel]]\nname = \"c\"\ntenant = \"a\"\nbackground = \"low\"\n";
        assert!(with(background).is_ok());
        assert!(with("budget = ").unwrap_err().starts_with("p:1:"));
    }
}
