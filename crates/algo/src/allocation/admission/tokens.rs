//! Limits that are less than one token in a period.
//!
//! Nodes count whole operations, and whole KiB, in each period. A limit is rounded down, but to one
//! token at least, else its tenant would have nothing ever. So a limit below one token in a period
//! is not kept: with periods of 10 ms, 1 iops would be 100.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::policy::Levels;
use tidegate_model::{Policy, Span};

/// A warning for each limit of a tenant or a group that storage nodes do not keep. `policy` is as
/// nodes see it; without a named resource they count no bytes and hold nothing back for groups.
pub(super) fn below_one(policy: &Policy, is_resource: bool) -> Vec<String> {
    let groups = policy.groups.iter().filter(|_| is_resource);
    let groups = groups.map(|group| (format!("group {}", group.name), group.promise.limit));
    let tenants = policy.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.limit));
    let limits = groups.chain(tenants);
    limits.flat_map(|(name, limit)| unkept(&name, limit, policy.period, is_resource)).collect()
}

fn unkept(name: &str, limit: Levels, period: Span, is_resource: bool) -> Vec<String> {
    let is_below = |rate: u64, token: u64| {
        let tokens = u128::from(rate) * u128::from(period.0);
        tokens < u128::from(Span::SECOND.0) * u128::from(token)
    };
    let operations = limit.operations.filter(|iops| is_below(iops.0, 1));
    let bytes = limit.bandwidth.filter(|rate| is_resource && is_below(rate.0, BYTES_PER_TOKEN));
    let operations = operations.map(|iops| (format!("{iops}"), "one operation"));
    let bytes = bytes.map(|rate| (format!("{rate}"), "1KiB"));
    let warning = |(limit, token)| {
        format!(
            "the limit of {name}, {limit}, is less than {token} in a period of {period}, which is \
             what nodes let pass in each; raise it, or lengthen the period"
        )
    };
    operations.into_iter().chain(bytes).map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::policy::GateKind;

    fn warned(head: &str, on: &str) -> Vec<String> {
        let text = format!("{head}\n[[tenant]]\nname = \"slow\"\n{on}");
        let policy = Policy::parse(&text).unwrap();
        below_one(&policy.at(GateKind::Node), policy.resource_at(GateKind::Node).is_some())
    }

    #[test]
    fn limits_below_one_token_are_reported() {
        let cluster = "[[resource]]\nname = \"cluster\"\n";
        let limit = |limit: &str| format!("on.cluster.limit = [{limit}]\n");
        assert_eq!(
            warned(cluster, &limit("\"1 iops\", \"1023B/s\"")),
            ["the limit of slow, 1023B/s, is less than 1KiB in a period of 1s, which is what \
              nodes let pass in each; raise it, or lengthen the period"]
        );
        assert_eq!(warned(cluster, &limit("\"1 iops\", \"1KiB/s\"")), [""; 0]);
        let short = "period = \"10ms\"\nredistribute = \"10ms\"\n";
        assert_eq!(warned(&format!("{short}{cluster}"), &limit("\"99 iops\"")).len(), 1);
        assert_eq!(warned(&format!("{short}{cluster}"), &limit("\"100 iops\"")), [""; 0]);
        let group =
            format!("{short}{cluster}[[group]]\nname = \"g\"\non.cluster.limit = \"9B/s\"\n");
        assert!(warned(&group, "")[0].starts_with("the limit of group g, 9B/s, "));
        // Bytes without a resource are counted at stages alone.
        assert_eq!(warned("", "limit = \"9B/s\"\n"), [""; 0]);
        assert_eq!(warned(short, "limit = \"9 iops\"\n").len(), 1);
    }
}
