//! Admission of stages, and the tenants that each may act for.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::Policy;
use tidegate_model::policy::{GateKind, limits};
use tidegate_model::text::listed;

use super::name_index::NameIndex;
use super::stage::Stage;
use crate::message::StageInfo;
use crate::session::{Peer, Refusal, shortened};

/// More tenants than this are not named to a user who may act for them. Chosen by hand.
const SHOWN_MAX: usize = 8;

/// The tenants of the policy that a stage serves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Admission {
    /// The index of the tenant it acts for.
    pub(super) home: Option<usize>,
    /// The indexes of all tenants whose requests it may send, in ascending order.
    pub(super) served: Vec<usize>,
}

/// Which tenants a stage serves: the one that it names, or all that its user may act for.
pub(super) fn admit(
    policy: &Policy,
    name_index: &NameIndex,
    peer: &Peer,
    info: &StageInfo,
) -> Result<Admission, Refusal> {
    if info.tenant.is_empty() {
        return Ok(Admission { home: None, served: all_served(policy, name_index, peer)? });
    }
    let Some(index) = name_index.tenant(&info.tenant) else {
        return Err(Refusal { reason: unknown(policy, peer, &info.tenant), retry: true });
    };
    let tenant = &policy.tenants[index];
    if !peer.may_act_for(tenant) {
        let reason = format!(
            "{} may not act for tenant {:?}; the policy allows {}",
            peer.account(),
            tenant.name,
            tenant.users.join(", ")
        );
        return Err(Refusal { reason, retry: false });
    }
    Ok(Admission { home: Some(index), served: [index].into() })
}

/// Why a stage is refused that names a tenant which the policy does not have. With the tenants that
/// its user may act for: others are no business of that user.
fn unknown(policy: &Policy, peer: &Peer, tenant: &str) -> String {
    let name = shortened(tenant);
    let known = policy.tenants.iter().filter(|tenant| peer.may_act_for(tenant));
    let known = known.map(|tenant| tenant.name.clone());
    let mut known: Vec<String> = known.take(SHOWN_MAX + 1).collect();
    if let Some(rest) = known.get_mut(SHOWN_MAX) {
        *rest = "others".into();
    }
    let account = peer.account();
    match known.is_empty() {
        true => format!("the policy has no tenant {name:?}, and none for {account}"),
        false => format!(
            "the policy has no tenant {name:?}; {account} may act for {}; name one of these, or \
             apply a policy that has {name:?}",
            listed(&known)
        ),
    }
}

/// The tenants that a user may act for, if one stage can hold the gates and channels of them all.
///
/// Each is to have a share at the stage, so that without the bound some programs of any user would
/// keep the controller busy under a policy of thousands of tenants. The search ends as the bound is
/// passed.
fn all_served(policy: &Policy, name_index: &NameIndex, peer: &Peer) -> Result<Vec<usize>, Refusal> {
    let mut served = Vec::new();
    // The gate that times requests is one of all tenants.
    let mut gates = usize::from(policy.measured_at(GateKind::Stage).is_some());
    let mut channels = 0;
    for (index, (tenant, slots)) in policy.tenants.iter().zip(&name_index.stage_slots).enumerate() {
        if !peer.may_act_for(tenant) {
            continue;
        }
        gates += slots.gates;
        channels += slots.channels;
        if gates > limits::GATES || channels > limits::CHANNELS {
            let reason = format!(
                "{} may act for more tenants than a stage holds, which is {} channels and {} \
                 gates; name one with --tenant",
                peer.account(),
                limits::CHANNELS,
                limits::GATES,
            );
            return Err(Refusal { reason, retry: true });
        }
        served.push(index);
    }
    Ok(served)
}

/// The same for a stage that an earlier policy admitted. Stages that have not returned say nothing
/// more about themselves than their tenant.
pub(super) fn admit_again(
    policy: &Policy,
    name_index: &NameIndex,
    stage: &Stage,
) -> Result<Admission, Refusal> {
    match name_index.tenant(&stage.info.tenant).filter(|_| stage.is_absent) {
        Some(index) => Ok(Admission { home: Some(index), served: [index].into() }),
        None => admit(policy, name_index, &stage.peer, &stage.info),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(tenant: &str, user: &str, uid: u32) -> Result<Admission, Refusal> {
        let text = r#"
            tenant = [
                { name = "open" }, { name = "named", users = "ann" },
                { name = "numbered", users = ["1001", "root"] },
            ]
        "#;
        let policy = Policy::parse(text).unwrap();
        let peer = Peer { uid, pid: 7, user: user.into(), ..Peer::default() };
        let info = StageInfo { tenant: tenant.into(), ..StageInfo::default() };
        admit(&policy, &NameIndex::new(&policy), &peer, &info)
    }

    #[test]
    fn a_stage_of_another_host_is_the_user_in_its_certificate() {
        let text = r#"tenant = [{ name = "open" }, { name = "root", users = ["root", "0"] },
            { name = "ann", users = "cert:ann" }]"#;
        let policy = Policy::parse(text).unwrap();
        let outcome = |tenant: &str, name: &str| {
            let peer = Peer { certificate: Some([name.into()].into()), ..Peer::default() };
            let info = StageInfo { tenant: tenant.into(), ..StageInfo::default() };
            admit(&policy, &NameIndex::new(&policy), &peer, &info).map(|it| it.served)
        };
        assert_eq!(outcome("ann", "ann"), Ok([2].into()));
        assert_eq!(outcome("", "ann"), Ok([0, 2].into()));
        let refusal = outcome("ann", "bob").unwrap_err();
        let reason =
            r#"certificate "bob" may not act for tenant "ann"; the policy allows cert:ann"#;
        assert_eq!((refusal.reason.as_str(), refusal.retry), (reason, false));
        // The number of a peer that the kernel does not name is nobody's, least of all root's.
        assert!(outcome("root", "root").is_err());
    }

    /// Each tenant costs a share at the stage in every cycle.
    #[test]
    fn a_stage_without_a_tenant_serves_no_more_than_it_can_hold() {
        let served = |budget: &str, tenants: usize, users: &str| {
            let tenant = |number| format!("[[tenant]]\nname = \"t{number}\"\n{users}");
            let text = (0..tenants).map(tenant).collect::<String>();
            let policy = Policy::parse(&format!("{budget}\n{text}")).unwrap();
            let peer = Peer { uid: 1000, user: "ann".into(), ..Peer::default() };
            let served = admit(&policy, &NameIndex::new(&policy), &peer, &StageInfo::default());
            served.map(|admission| admission.served.len()).map_err(|refusal| refusal.reason)
        };
        let both = "budget = [\"1GiB/s\", \"10k iops\"]";
        assert_eq!(served(both, 127, ""), Ok(127));
        assert!(served(both, 128, "").unwrap_err().contains("255 gates; name one with --tenant"));
        assert_eq!(served("", 128, ""), Ok(128));
        assert!(served("", 129, "").unwrap_err().contains("user ann may act for more tenants"));
        assert_eq!(served(both, 10_000, "users = \"bob\"\n"), Ok(0));
    }

    #[test]
    fn the_policy_decides_which_user_acts_for_which_tenant() {
        let served = |tenant, user, uid| outcome(tenant, user, uid).map(|a| a.served);
        assert_eq!(served("open", "", 5), Ok([0].into()));
        assert_eq!(served("named", "ann", 1000), Ok([1].into()));
        assert_eq!(served("numbered", "bob", 1001), Ok([2].into()));
        assert_eq!(served("", "ann", 1000), Ok([0, 1].into()));
        let refusal = outcome("named", "bob", 1001).unwrap_err();
        let reason = r#"user bob may not act for tenant "named"; the policy allows ann"#;
        assert_eq!((refusal.reason.as_str(), refusal.retry), (reason, false));
        let refusal = outcome("nobody", "ann", 1000).unwrap_err();
        let reason = "the policy has no tenant \"nobody\"; user ann may act for open and named; \
                      name one of these, or apply a policy that has \"nobody\"";
        assert_eq!((refusal.reason.as_str(), refusal.retry), (reason, true));
    }

    #[test]
    fn a_user_is_shown_few_of_many_tenants_and_no_others() {
        let reason = |tenants: usize, users: &str| {
            let tenant = |number| format!("[[tenant]]\nname = \"t{number}\"\n{users}");
            let policy = Policy::parse(&(0..tenants).map(tenant).collect::<String>()).unwrap();
            unknown(&policy, &Peer { user: "ann".into(), ..Peer::default() }, "t")
        };
        assert!(reason(8, "").contains("may act for t0, t1, t2, t3, t4, t5, t6 and t7; name"));
        assert!(reason(9, "").contains("t6, t7 and others; name one of these"));
        assert_eq!(
            reason(9, "users = \"bob\"\n"),
            "the policy has no tenant \"t\", and none for user ann"
        );
    }
}
