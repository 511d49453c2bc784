//! Promises of a policy, applied to the applications of a simulated scenario.
//!
//! The same file identifies tenants for a controller and for the simulation: an application is the
//! tenant of its name, has that one's class, and a part of every link by that one's weight. That is
//! the meaning of weights in a policy: free capacity goes to tenants with further demand, by weight
//! and not by class. A class is a part of the tag of each request, by which queues of switches and
//! drives distinguish requests. So the paper's weights of classes are not used. *Example*: `oltp`
//! (high, 300), `report` (high, 100) and `backup` (low, 100) make 3 : 1 : 1 while all three send,
//! and 3 : 1 of `oltp` and `backup` while `report` does not.
//!
//! Several applications may be one tenant, and then have its part together. An urgent tenant goes
//! first and is promised nothing. An application that is promised a latency keeps that instead.
//!
//! **What is left out.** Reservations, limits and bursts: stages, gateways and nodes keep those,
//! and none of them is in the path that is simulated here.

use tidegate_netsim::e2e::Scenario;

use tidegate_console::failure::{Code, Failure};
use tidegate_console::policy_file::PolicyFile;

/// Promises applications what the policy promises the tenants of their names.
///
/// # Errors
/// If an application is no tenant.
pub(super) fn apply(scenario: &mut Scenario, file: &PolicyFile) -> Result<(), Failure> {
    let mut first = Vec::new();
    for (number, application) in (0..).zip(&mut scenario.application) {
        let name = application.workload.name.as_str();
        let Some((id, tenant)) = file.policy.tenant_named(name) else {
            let known: Vec<&str> =
                file.policy.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
            let message = format!("application {name:?} is no tenant of {}", file.name);
            let known = format!("name it after one of the tenants: {}", known.join(", "));
            return Err(Failure::new(Code::Invalid, message).help(known));
        };
        application.workload.class = tenant.class;
        application.weight = application.latency.is_none().then_some(tenant.weight);
        let with = first.iter().find(|(other, _)| *other == id).map(|(_, number)| *number);
        application.with = Some(with.unwrap_or(number));
        first.push((id, number));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::{Policy, Span};
    use tidegate_netsim::e2e;

    /// Applications with these names, of which each would fill the link that all share, on a host
    /// of its own.
    fn full(names: &[&str]) -> Scenario {
        let application = |(host, name): (usize, &&str)| {
            format!(
                "[[application]]\nfrom = {host}\nto = [{}]\n[application.workload]\n\
                 name = \"{name}\"\nreads = \"0%\"\nsizes = {{ fixed = \"64KiB\" }}\n\
                 offsets = \"sequential\"\nspace = \"1GiB\"\n\
                 load = {{ closed = {{ outstanding = 64 }} }}\n",
                host + 4
            )
        };
        let line = |delay: u32| format!("{{ rate = '10Gbps', delay = '{delay}us' }}");
        let [edge, middle] = [5, 20].map(line);
        let text = format!(
            "name = 'x'\nseed = 1\nlength = '60ms'\nskip = '20ms'\ntransport.law = 'qtcp'\n\
             promises.of = '90%'\n[network.switch]\nbuffer = '1MB'\n\
             marking = {{ step = '40 packets' }}\n\
             [network.topology.dumbbell]\npairs = 4\nedge = {edge}\nmiddle = {middle}\n"
        );
        Scenario::parse(&(text + &names.iter().enumerate().map(application).collect::<String>()))
            .unwrap()
    }

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
    fn each_tenant_has_its_weight_once() {
        let policy = policy(&[
            ("oltp", "high", 300),
            ("report", "high", 100),
            ("log", "urgent", 50),
            ("absent", "medium", 900),
            ("backup", "low", 1_000_000),
        ]);
        let mut some = scenario(&["oltp", "backup", "report", "oltp", "log"]);
        some.application[2].latency = Some(Span::MILLISECOND);
        apply(&mut some, &policy).unwrap();
        let promised = some.application.iter().map(|one| (one.weight, one.with.unwrap()));
        let expected =
            [(Some(300), 0), (Some(1_000_000), 1), (None, 2), (Some(300), 0), (Some(50), 4)];
        assert_eq!(promised.collect::<Vec<_>>(), expected);
        let classes = some.application.iter().map(|one| one.workload.class.name());
        assert_eq!(classes.collect::<Vec<_>>(), ["high", "low", "high", "high", "urgent"]);
        some.check().unwrap();
    }

    #[test]
    fn who_is_no_tenant_is_refused() {
        let refused = apply(&mut scenario(&["oltp", "web"]), &policy(&[("oltp", "high", 1)]));
        let formatted = serde_json::to_string(&refused.unwrap_err().to_json()).unwrap();
        assert!(
            formatted.contains("application \\\"web\\\" is no tenant of p.toml"),
            "{formatted}"
        );
        assert!(formatted.contains("one of the tenants: oltp"), "{formatted}");
    }

    /// Flows that divide a full link by QTCP, of tenants in any classes. By QTCP, who is promised
    /// most has a little less: 300 and 100 get 72 and 28 %.
    #[test]
    fn a_full_link_is_divided_by_the_weights_of_tenants() {
        for tenants in [
            &[("a", "high", 300), ("b", "high", 100)][..],
            &[("a", "low", 500), ("b", "high", 200), ("c", "high", 300)],
            &[("a", "medium", 100), ("b", "low", 100), ("c", "medium", 300), ("d", "high", 100)],
        ] {
            let names: Vec<&str> = tenants.iter().map(|(name, ..)| *name).collect();
            let mut scenario = full(&names);
            apply(&mut scenario, &policy(tenants)).unwrap();
            let outcome = e2e::run(&scenario).unwrap();
            let got = outcome.applications.iter();
            let got: Vec<f64> =
                got.map(|one| outcome.rate(one, |moment| moment.there) / 1e9).collect();
            let (all, sum): (f64, u32) =
                (got.iter().sum(), tenants.iter().map(|(.., weight)| weight).sum());
            assert!(all > 9.0, "the link is not full: {got:?}");
            for ((.., weight), got) in tenants.iter().zip(&got) {
                let part = f64::from(*weight) / f64::from(sum);
                assert!((got / all / part - 1.0).abs() < 0.15, "{tenants:?} got {got:?}");
            }
        }
    }

    /// The share that a tenant leaves goes to all other tenants by their weights, not to those of
    /// its class first. Two applications of a tenant get no more than one.
    #[test]
    fn tenants_of_one_class_do_not_share_what_one_leaves() {
        let tenants = [("a", "high", 100), ("b", "high", 100), ("c", "low", 100)];
        let got = |names: &[&str]| {
            let mut scenario = full(names);
            apply(&mut scenario, &policy(&tenants)).unwrap();
            let outcome = e2e::run(&scenario).unwrap();
            let of = |name: &str| {
                let own = outcome.applications.iter().filter(|one| one.name == name);
                own.map(|one| outcome.rate(one, |moment| moment.there)).sum::<f64>()
            };
            of("a") / of("c")
        };
        assert!((0.85..1.15).contains(&got(&["a", "c"])), "{}", got(&["a", "c"]));
        assert!((0.85..1.15).contains(&got(&["a", "a", "c"])), "{}", got(&["a", "a", "c"]));
    }
}
