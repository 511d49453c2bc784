//! A policy as what applications are promised in a scenario.
//!
//! The same file tells a controller and the simulated world who is who: an application is the
//! tenant of its name, and has that one's class. A class has as much of every link as the tenants
//! in it weigh together, if they are in the scenario: the paper's promises are of classes, which
//! flows divide evenly, so weights within a class do not tell its tenants apart. *Example*: `oltp`
//! (high, 300), `report` (high, 100) and `backup` (low, 100) make 4 : 0 : 1, and `oltp` and
//! `report` share what high has by their flows.
//!
//! **What is left out.** Reservations, limits and bursts: stages, gateways and nodes keep those,
//! and none of them is in the path that is simulated here.

use tidegate_model::{Class, TenantId};
use tidegate_sim::e2e::Scenario;

use crate::failure::{Code, Failure};
use crate::policy_file::PolicyFile;

/// The classes that have weights; urgent goes before all of them.
const WEIGHED: [Class; 3] = [Class::High, Class::Medium, Class::Low];

/// Promises applications what the policy promises the tenants of their names.
///
/// # Errors
/// If an application is no tenant, or what a class weighs is no number that links can be divided
/// by.
pub(super) fn apply(scenario: &mut Scenario, file: &PolicyFile) -> Result<(), Failure> {
    let mut named: Vec<(TenantId, Class, u32)> = Vec::new();
    for application in &mut scenario.application {
        let name = application.workload.name.as_str();
        let Some((id, tenant)) = file.policy.tenant_named(name) else {
            let known: Vec<&str> =
                file.policy.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
            let message = format!("application {name:?} is no tenant of {}", file.name);
            let known = format!("name it after one of the tenants: {}", known.join(", "));
            return Err(Failure::new(Code::Invalid, message).help(known));
        };
        application.workload.class = tenant.class;
        if !named.iter().any(|(other, ..)| *other == id) {
            named.push((id, tenant.class, tenant.weight));
        }
    }
    let weights = WEIGHED.map(|class| {
        let own = named.iter().filter(|(_, other, _)| *other == class);
        own.map(|(_, _, weight)| u64::from(*weight)).sum::<u64>()
    });
    // With urgent tenants alone nobody divides anything.
    if weights == [0; 3] {
        return Ok(());
    }
    let Ok(weights) = <[u32; 3]>::try_from(
        weights.iter().filter_map(|weight| u32::try_from(*weight).ok()).collect::<Vec<u32>>(),
    ) else {
        let message = format!("tenants of a class weigh 2^32 and more together in {}", file.name);
        return Err(Failure::new(Code::Invalid, message).help("divide all weights by ten"));
    };
    scenario.promises.weights = weights;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Policy;

    /// Applications with these names, all of class low.
    fn scenario(names: &[&str]) -> Scenario {
        let application = |name: &&str| {
            format!(
                "[[application]]\nfrom = 0\nto = [1]\n[application.workload]\nname = \"{name}\"\n\
                 class = \"low\"\nlike = \"tpcc\"\nspace = \"1GiB\"\n\
                 load = {{ closed = {{ outstanding = 1 }} }}\n"
            )
        };
        let text = "name = 'x'\nseed = 1\nlength = '1ms'\ntransport.law = 'qtcp'\n\
                    network.switch.buffer = '1MB'\n[network.topology.star]\nhosts = 2\n\
                    line = { rate = '1Gbps', delay = '1us' }\n";
        let applications = names.iter().map(application).collect::<String>();
        Scenario::parse(&format!("{text}{applications}")).unwrap()
    }

    fn policy(tenants: &[(&str, &str, u32)]) -> PolicyFile {
        let tenant = |(name, class, weight): &(&str, &str, u32)| {
            format!("[[tenant]]\nname = \"{name}\"\nclass = \"{class}\"\nweight = {weight}\n")
        };
        let text: String = tenants.iter().map(tenant).collect();
        let policy = Policy::parse(&text).unwrap();
        PolicyFile { name: "p.toml".into(), origin: String::new(), text, policy }
    }

    #[test]
    fn a_class_weighs_what_its_tenants_weigh_that_are_there() {
        let policy = policy(&[
            ("oltp", "high", 300),
            ("report", "high", 100),
            ("log", "urgent", 50),
            ("absent", "medium", 900),
            ("backup", "low", 100),
        ]);
        // Of a tenant with two applications, the weight counts once.
        let mut some = scenario(&["oltp", "backup", "report", "oltp", "log"]);
        apply(&mut some, &policy).unwrap();
        assert_eq!(some.promises.weights, [400, 0, 100]);
        let classes = some.application.iter().map(|one| one.workload.class.name());
        assert_eq!(classes.collect::<Vec<_>>(), ["high", "low", "high", "high", "urgent"]);
        some.check().unwrap();
        let mut urgent = scenario(&["log"]);
        apply(&mut urgent, &policy).unwrap();
        assert_eq!(urgent.promises.weights, [3, 2, 1]);
    }

    #[test]
    fn who_is_no_tenant_is_refused() {
        let refused = apply(&mut scenario(&["oltp", "web"]), &policy(&[("oltp", "high", 1)]));
        let told = serde_json::to_string(&refused.unwrap_err().to_json()).unwrap();
        assert!(told.contains("application \\\"web\\\" is no tenant of p.toml"), "{told}");
        assert!(told.contains("one of the tenants: oltp"), "{told}");
        let heavy: Vec<String> = (0..4_300).map(|number| format!("t{number}")).collect();
        let names: Vec<&str> = heavy.iter().map(String::as_str).collect();
        let tenants: Vec<_> = names.iter().map(|name| (*name, "high", 1_000_000)).collect();
        let refused = apply(&mut scenario(&names), &policy(&tenants));
        let told = serde_json::to_string(&refused.unwrap_err().to_json()).unwrap();
        assert!(told.contains("weigh 2^32"), "{told}");
    }
}
