//! A policy as an operator hands it over: read, understood, and if it is wrong, shown with the
//! place that is wrong.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use miette::LabeledSpan;
use nix::unistd::{Uid, User};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tidegate_model::Policy;
use tidegate_model::gate::Throughput;
use tidegate_model::policy::Infeasible;
use toml::Spanned;

use crate::failure::{Code, Failure};
use crate::text_file::{self, Reader};

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
        let policy = Policy::parse_all(&text)
            .map_err(|errors| text_file::all_invalid(&name, &text, &errors))?;
        let absolute = || std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        let origin = if is_stdin { name.clone() } else { absolute().display().to_string() };
        Ok(Self { name, origin, text, policy })
    }

    /// Whether the budget covers every reservation.
    ///
    /// # Errors
    /// If it does not.
    pub fn check_feasible(&self) -> Result<(), Failure> {
        self.policy.feasible().map_err(|error| self.infeasible(error))
    }

    /// Returns the statements of the file that cannot mean anything, a line each.
    pub fn doubts(&self) -> Vec<String> {
        let is_user = |name: &str| match name.parse() {
            Ok(uid) => User::from_uid(Uid::from_raw(uid)).is_ok_and(|user| user.is_some()),
            Err(_) => User::from_name(name).is_ok_and(|user| user.is_some()),
        };
        let doubts = Policy::doubts(&self.text, is_user);
        doubts.iter().map(|doubt| format!("{}: {doubt}", self.name)).collect()
    }

    fn infeasible(&self, error: Infeasible) -> Failure {
        let Infeasible { unit, budget, reserved } = error;
        let level = |per_second| Throughput::new(unit, per_second);
        let message = format!(
            "reservations of {} do not fit the budget of {}",
            level(reserved),
            level(budget)
        );
        let label = |text: String, span: Range<usize>| LabeledSpan::new_with_span(Some(text), span);
        let spans: PolicySpans = toml::from_str(&self.text).unwrap_or_default();
        let mut labels = Vec::new();
        if let Some(entry) = spans.budget {
            labels.push(label(format!("there is {}", level(budget)), entry.span()));
        }
        for (entry, tenant) in spans.tenant.iter().zip(&self.policy.tenants) {
            if let (Some(entry), Some(promised)) =
                (&entry.reservation, tenant.reservation.get(unit))
            {
                labels.push(label(format!("{} is promised", level(promised)), entry.span()));
            }
        }
        Failure::new(Code::Infeasible, message)
            .help("lower a reservation or raise the budget")
            .source(&self.name, &self.text, labels)
    }
}

/// Positions in the text of capacities and promises.
#[derive(Default, Deserialize)]
struct PolicySpans {
    budget: Option<Spanned<IgnoredAny>>,
    #[serde(default)]
    tenant: Vec<TenantSpans>,
}

#[derive(Deserialize)]
struct TenantSpans {
    reservation: Option<Spanned<IgnoredAny>>,
}
