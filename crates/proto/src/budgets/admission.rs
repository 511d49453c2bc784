//! Admission of stages, and the tenants that each may act for.

use alloc::format;
use alloc::vec::Vec;

use tidegate_model::Policy;

use super::name_index::NameIndex;
use super::stage::Stage;
use crate::message::StageInfo;
use crate::session::{Peer, Refusal, shortened};

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
        let may = |index: &usize| peer.may_act_for(&policy.tenants[*index]);
        let served = (0..policy.tenants.len()).filter(may).collect();
        return Ok(Admission { home: None, served });
    }
    let Some(index) = name_index.tenant(&info.tenant) else {
        let name = shortened(&info.tenant);
        let reason = format!("the policy has no tenant {name:?}; apply one that has it");
        return Err(Refusal { reason, retry: true });
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
        let reason = r#"the policy has no tenant "nobody"; apply one that has it"#;
        assert_eq!((refusal.reason.as_str(), refusal.retry), (reason, true));
    }
}
