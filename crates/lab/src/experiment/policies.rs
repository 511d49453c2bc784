//! Policies of the PAIO experiment, as text in the form that an operator writes.

use std::fmt::Write;

use tidegate_model::Rate;

use super::plan::ExperimentPlan;

/// The tenant that stands for an undivided disk.
pub(crate) const DISK: &str = "disk";

/// Tidegate's: promises, and a budget to share what is left of it.
pub(crate) fn shared(plan: &ExperimentPlan) -> String {
    let mut text = format!("budget = \"{}\"\n", plan.budget);
    for tenant in &plan.tenants {
        section(&mut text, plan, tenant.name, "reservation", tenant.promise);
    }
    text
}

/// Static limits: each tenant has its promise, whatever the others do.
pub(crate) fn limits(plan: &ExperimentPlan) -> String {
    let mut text = String::new();
    for tenant in &plan.tenants {
        section(&mut text, plan, tenant.name, "limit", tenant.promise);
    }
    text
}

/// A disk that does so much and no more, for all who use it.
pub(crate) fn disk(plan: &ExperimentPlan) -> String {
    let mut text = String::new();
    section(&mut text, plan, DISK, "limit", plan.disk);
    text
}

fn section(text: &mut String, plan: &ExperimentPlan, name: &str, field: &str, rate: Rate) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\n[[tenant]]\nname = \"{name}\"\n{field} = \"{rate}\"\n");
    if let Some(burst) = plan.burst {
        let _ = writeln!(text, "burst = \"{burst}\"");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::MIB;
    use tidegate_model::{Policy, Span};

    #[test]
    fn all_are_policies() {
        for measured in [2_000, 731, 3] {
            let plan = ExperimentPlan::new(Rate(measured * MIB), 25);
            let shared = Policy::parse(&shared(&plan)).unwrap();
            assert_eq!(shared.feasible(), Ok(()));
            let promises: Vec<_> =
                shared.tenants.iter().map(|tenant| tenant.reservation.bandwidth).collect();
            let planned: Vec<_> = plan.tenants.iter().map(|t| Some(t.promise)).collect();
            assert_eq!(promises, planned);
            assert_eq!(Policy::parse(&limits(&plan)).unwrap().tenants.len(), 4);
            let disk = Policy::parse(&disk(&plan)).unwrap();
            assert_eq!(disk.tenants[0].limit.bandwidth, Some(plan.disk));
        }
    }

    #[test]
    fn a_burst_is_that_of_the_plan() {
        let burst = Some(Span(100 * Span::MILLISECOND.0));
        let plan = ExperimentPlan { burst, ..ExperimentPlan::new(Rate(2_000 * MIB), 25) };
        for text in [shared(&plan), limits(&plan), disk(&plan)] {
            let tenants = Policy::parse(&text).unwrap().tenants;
            assert_eq!(text.matches("burst = \"100ms\"\n").count(), tenants.len(), "{text}");
        }
    }

    #[test]
    fn the_papers_policy_reads_like_the_paper() {
        let text = shared(&ExperimentPlan::new(Rate(2_000 * MIB), 25));
        assert!(
            text.starts_with("budget = \"1000MiB/s\"\n\n[[tenant]]\nname = \"I1\"\n"),
            "{text}"
        );
        assert!(text.ends_with("name = \"I4\"\nreservation = \"350MiB/s\"\n"), "{text}");
    }
}
