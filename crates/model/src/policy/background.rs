//! Background channels: a tenant's work that no client waits for, as flushes and compactions of a
//! database. The controller gives each a rate from what the tenant's other channels leave
//! (`tidegate_algo::shaping::tail_latency`).

use alloc::format;
use core::ops::Range;

use super::{Channel, GateKind, Policy, Tenant};
use crate::gate::Unit;
use crate::text::{ReadResult, wrong};
use crate::units::Rate;

/// How urgent a background flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowPriority {
    /// Clients wait in the end if it is slow, as for flushes.
    High,
    /// It can be put off for long.
    Low,
}

impl FlowPriority {
    /// Its name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Low => "low",
        }
    }
}

/// The background work that a channel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundSpec {
    /// How urgent it is.
    pub priority: FlowPriority,
    /// The rate that it has however busy the foreground is; none for a part of the tenant's rate
    /// ([`Self::minimum_of`]).
    pub minimum: Option<Rate>,
}

impl BackgroundSpec {
    /// Without a `minimum`, one part in this many of the tenant's rate: what PAIO (§9.2) gives to
    /// each flow, 10 MiB/s of 200 MiB/s. A part and not an amount, because the rate of a tenant
    /// may be anything, and changes while its capacity is measured.
    const MINIMUM_PART: u64 = 20;

    /// The minimum in bytes per second, where the tenant has `rate`.
    pub fn minimum_of(self, rate: u64) -> u64 {
        self.minimum.map_or(rate / Self::MINIMUM_PART, |minimum| minimum.0)
    }
}

/// Refuses a background channel whose tenant has no rate in bytes at its stages. `spans` has where
/// each channel says that it is one of background.
pub(super) fn check(policy: &Policy, spans: &[Range<usize>]) -> ReadResult<()> {
    let at_stages = policy.at(GateKind::Stage);
    for (channel, span) in policy.channels.iter().zip(spans) {
        let Some(tenant) = unbounded(&at_stages, channel) else { continue };
        let (channel, tenant) = (&channel.name, &tenant.name);
        let message = format!(
            "background: {channel} has what the foreground of {tenant} leaves, and {tenant} has no \
             rate in bytes at stages"
        );
        let fix = match (policy.resources.is_empty(), policy.resource_at(GateKind::Stage)) {
            (true, _) => "add budget = \"200MiB/s\", or limit = \"200MiB/s\" to the tenant",
            (false, Some(_)) => {
                "add a bandwidth like \"200MiB/s\" to the capacity of the resource with path, or \
                 write capacity = \"measured\""
            }
            (false, None) => {
                "add a [[resource]] with path = \"/**\" and capacity = \"measured\", for example"
            }
        };
        return wrong(span.clone(), message, fix);
    }
    Ok(())
}

/// The tenant of a background channel, if nothing bounds its bytes.
fn unbounded<'a>(policy: &'a Policy, channel: &Channel) -> Option<&'a Tenant> {
    let tenant = policy.tenant(channel.tenant).filter(|_| channel.background.is_some())?;
    let group = policy.group_of(tenant).map(|group| group.promise.limit).unwrap_or_default();
    let levels = [policy.budget, tenant.limit, group];
    levels.iter().all(|level| level.get(Unit::Bytes).is_none()).then_some(tenant)
}

#[cfg(test)]
mod tests {
    use alloc::string::{String, ToString};

    use super::*;

    const CHANNEL: &str = "[[channel]]\nname = \"flush\"\ntenant = \"kv\"\n";

    fn error(text: &str) -> String {
        Policy::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_channel_may_be_one_of_background() {
        let text = |fields: &str| {
            format!("[[tenant]]\nname = \"kv\"\nlimit = \"200MiB/s\"\n{CHANNEL}{fields}")
        };
        let read = |fields: &str| Policy::parse(&text(fields)).unwrap().channels[0].background;
        assert_eq!(read(""), None);
        let (priority, minimum) = (FlowPriority::High, None);
        assert_eq!(read("background = \"high\""), Some(BackgroundSpec { priority, minimum }));
        let low = read("background = \"low\"\nminimum = \"10MiB/s\"").unwrap();
        assert_eq!((low.priority, low.minimum), (FlowPriority::Low, Some(Rate(10 << 20))));
        assert_eq!(low.minimum_of(5), 10 << 20);
        assert_eq!(BackgroundSpec { minimum: None, ..low }.minimum_of(200), 10);
        for (fields, wanted) in [
            ("background = \"medium\"", "line 7, column 14: background: \"medium\" is not a prio"),
            ("minimum = \"1MiB/s\"", "line 7, column 11: minimum: only a background channel has"),
            (
                "background = \"low\"\nminimum = \"9 iops\"",
                "line 8, column 11: minimum: \"9 iops\"",
            ),
            ("background = true", "line 7, column 14: invalid type: boolean"),
        ] {
            let found = error(&text(fields));
            assert!(found.contains(wanted), "{found}\n  should contain\n{wanted}");
        }
    }

    #[test]
    fn a_background_needs_a_rate_in_bytes() {
        let tenant = "[[tenant]]\nname = \"kv\"\n";
        let background = format!("{CHANNEL}background = \"high\"\n");
        let files = |capacity: &str| {
            format!("[[resource]]\nname = \"files\"\npath = \"/**\"\ncapacity = {capacity}\n")
        };
        let with = |before: &str, tenant_fields: &str| {
            format!("{before}{tenant}{tenant_fields}{background}")
        };
        for fits in [
            with("budget = \"1GiB/s\"\n", ""),
            with("", "limit = \"1GiB/s\"\n"),
            with("[[group]]\nname = \"g\"\nlimit = \"1GiB/s\"\n", "group = \"g\"\n"),
            with(&files("\"measured\""), ""),
            with(&files("[\"1GiB/s\", \"9 iops\"]"), ""),
        ] {
            Policy::parse(&fits).unwrap();
        }
        let cluster = "[[resource]]\nname = \"cluster\"\n";
        for (text, wanted) in [
            (with("", ""), "line 6, column 14: background: flush has what the foreground of kv"),
            (with("budget = \"9 iops\"\n", ""), "add budget = \"200MiB/s\", or limit"),
            // A reservation bounds nothing.
            (with("", "reservation = \"1GiB/s\"\n"), "kv has no rate in bytes at stages; add"),
            (with(&files("\"9 iops\""), ""), "to the capacity of the resource with path"),
            (with(cluster, ""), "add a [[resource]] with path"),
        ] {
            let found = error(&text);
            assert!(found.contains(wanted), "{found}\n  should contain\n{wanted}");
        }
    }
}
