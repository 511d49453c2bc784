//! The latency that counts where a capacity is measured within a bound of latency.
//!
//! A bound holds for tenants, not for all requests together: in one percentile of all, the many
//! quick reads of a backup, which the kernel has read ahead, hide the few slow ones of a database.
//! So there is a 99th percentile for each tenant, and the greatest counts. Tenants with a
//! reservation come first: the bound is for them, and requests of others that take long even alone,
//! such as reads of many MiB, say nothing about them. Only while none of them uses the storage, the
//! bound is for all.
//!
//! Three things keep numbers out of it that say nothing:
//!
//! - Requests that took less than [`CACHED`] were answered from memory, and are left out.
//! - A tenant counts with [`SAMPLES`] requests or more. Of fewer than two hundred the slowest is
//!   left out, because one slow request is no queue.
//! - Where no tenant has so many, all requests count together, also those from memory: the storage
//!   has next to nothing to do.
//!
//! Example, with a bound of 5 ms: a database with a reservation had 15 reads of 9 ms, and 900 from
//! memory; a backup had 950 reads that were read ahead, and 50 of 2 ms. Of all together 99 of 100
//! took 2 ms. It is 9 ms that counts.
//!
//! Bound: a stage has one histogram. A stage that serves several tenants counts as one tenant, with
//! a reservation if one of them has one.

use alloc::collections::BTreeMap;

use tidegate_algo::concurrent::histogram::{BucketCounts, BucketIndex};
use tidegate_model::Span;
use tidegate_model::policy::{Levels, Policy, Tenant};

use super::window_stats::Waits;

/// Requests that take less are answered from memory: some microseconds for a page, and less than
/// the fastest drives take. Chosen by hand.
const CACHED: Span = Span(50 * Span::MICROSECOND.0);

/// With a short bound, requests are left out that take less than one part of it in so many: a
/// quarter of the latency at which a device is full.
const CACHED_PART: u64 = 16;

/// The fewest requests of a tenant that say something.
const SAMPLES: u64 = 8;

/// The most times that are counted in one bucket: a sum of untrusted counts must be a number.
const COUNT_MAX: u64 = u64::MAX >> 16;

/// The tenant whose requests a stage makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Requester {
    /// The tenant's index in the policy; none for a stage with several.
    pub(super) tenant: Option<usize>,
    /// Whether something is reserved for it.
    pub(super) is_promised: bool,
}

impl Requester {
    /// The requester behind a stage that serves these tenants.
    pub(super) fn of(policy: &Policy, mut tenants: impl Iterator<Item = usize>) -> Self {
        let is_promised = |index: &usize| has_reservation(policy, &policy.tenants[*index]);
        match (tenants.next(), tenants.next()) {
            (None, _) => Self::default(),
            (Some(only), None) => Self { tenant: Some(only), is_promised: is_promised(&only) },
            (Some(first), Some(second)) => {
                let mut all = [first, second].into_iter().chain(tenants);
                Self { tenant: None, is_promised: all.any(|index| is_promised(&index)) }
            }
        }
    }
}

fn has_reservation(policy: &Policy, tenant: &Tenant) -> bool {
    let is_some = |levels: Levels| levels != Levels::default();
    let group = policy.group_of(tenant).map(|group| group.promise.reservation);
    is_some(tenant.reservation) || group.is_some_and(is_some)
}

/// The times that requests took in an interval, by requester.
#[derive(Debug, Default)]
pub(super) struct LatencySample {
    requesters: BTreeMap<Requester, Waits>,
}

impl LatencySample {
    /// Adds times of a stage.
    pub(super) fn add(&mut self, requester: Requester, times: &Waits) {
        self.requesters.entry(requester).or_default().merge(times);
    }

    /// The latency that counts under this bound, as the upper bound of its bucket. None if no time
    /// is known.
    pub(super) fn p99(&self, bound: Span) -> Option<Span> {
        let floor = BucketIndex::of(CACHED.min(Span(bound.0 / CACHED_PART)));
        let known = self
            .requesters
            .iter()
            .filter_map(|(requester, times)| Some((requester.is_promised, slowest(times, floor)?)));
        let promised = known.clone().filter(|(is_promised, _)| *is_promised);
        let counted = promised.map(|(_, p99)| p99).max();
        counted.or_else(|| known.map(|(_, p99)| p99).max()).or_else(|| self.of_all())
    }

    /// The 99th percentile of all times together.
    fn of_all(&self) -> Option<Span> {
        let mut all = Waits::default();
        self.requesters.values().for_each(|times| all.merge(times));
        counts(&all).collect::<BucketCounts>().percentile(99.0)
    }
}

/// The number of times in each bucket.
fn counts(times: &Waits) -> impl Iterator<Item = (BucketIndex, u64)> + Clone {
    let counts = times.counts.iter().map(|count| (*count).min(COUNT_MAX));
    (0..).map(BucketIndex::at).zip(counts)
}

/// The 99th percentile of the times from the bucket `floor` on, but not the longest time of them.
/// None if there are few.
fn slowest(times: &Waits, floor: BucketIndex) -> Option<Span> {
    let counts = counts(times).skip(floor.index());
    let total = counts.clone().fold(0u64, |sum, (_, count)| sum.saturating_add(count));
    if total < SAMPLES {
        return None;
    }
    let rank = (total - total / 100).min(total - 1);
    let mut below = 0u64;
    let found = counts.clone().find(|(_, count)| {
        below = below.saturating_add(*count);
        below >= rank
    });
    found.map(|(bucket, _)| bucket.upper_bound())
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use proptest::prelude::*;
    use tidegate_algo::concurrent::histogram::BUCKETS;

    const MS: u64 = Span::MILLISECOND.0;

    fn histogram(times: &[u64]) -> Waits {
        let mut waits = Waits { counts: alloc::vec![0; BUCKETS], ..Waits::default() };
        times.iter().for_each(|time| waits.counts[BucketIndex::of(Span(*time)).index()] += 1);
        waits
    }

    fn requester(tenant: usize, is_promised: bool) -> Requester {
        Requester { tenant: Some(tenant), is_promised }
    }

    fn sample(tenants: &[(bool, Vec<u64>)]) -> LatencySample {
        let mut sample = LatencySample::default();
        for (tenant, (is_promised, times)) in tenants.iter().enumerate() {
            // Two stages of each.
            let (one, other) = times.split_at(times.len() / 2);
            sample.add(requester(tenant, *is_promised), &histogram(one));
            sample.add(requester(tenant, *is_promised), &histogram(other));
        }
        sample
    }

    /// The example of the head.
    #[test]
    fn quick_reads_of_a_backup_hide_no_slow_ones_of_a_database() {
        let reads = |count: u64, took: u64| (0..count).map(move |_| took);
        let database = reads(15, 9 * MS).chain(reads(900, 4_000)).collect();
        let backup = reads(950, 3_000).chain(reads(50, 2 * MS)).collect();
        let both = sample(&[(true, database), (false, backup)]);
        let p99 = |sample: &LatencySample| sample.p99(Span(5 * MS)).unwrap().0;
        assert!((9 * MS..=10 * MS).contains(&p99(&both)), "{}", p99(&both));
        assert!((2 * MS..=3 * MS).contains(&both.of_all().unwrap().0));
    }

    /// A backup that reads 8 MiB at a time keeps no bound of 5 ms, even alone.
    #[test]
    fn the_bound_is_for_tenants_with_a_reservation_while_they_use_the_storage() {
        let backup = (false, alloc::vec![64 * MS; 20]);
        let p99 = |database: Vec<u64>| {
            let both = sample(&[(true, database), backup.clone()]);
            both.p99(Span(5 * MS)).unwrap().0 / MS
        };
        assert_eq!(p99(alloc::vec![MS; 8]), 1);
        assert!(p99(alloc::vec![MS; 7]) >= 64, "too few");
        assert!(p99(alloc::vec![10_000; 500]) >= 64, "it uses memory only");
    }

    #[test]
    fn one_slow_request_is_no_queue() {
        let slow = |count: usize, all: usize| {
            let times = (0..all).map(|at| if at < count { 90 * MS } else { MS }).collect();
            sample(&[(true, times)]).p99(Span(5 * MS)).unwrap().0 >= 90 * MS
        };
        assert!(!slow(1, 8) && slow(2, 8));
        assert!(!slow(1, 199) && slow(2, 199) && !slow(2, 200) && slow(3, 200));
    }

    #[test]
    fn a_stage_of_several_tenants_counts_as_one() {
        let text = r#"
            [[resource]]
            name = "disk"
            path = "/data/**"
            capacity = "measured"
            latency = "p99 < 20ms"
            [[group]]
            name = "g"
            on.disk.reservation = "10 iops"
            [[tenant]]
            name = "a"
            [[tenant]]
            name = "b"
            on.disk.reservation = "1MiB/s"
            [[tenant]]
            name = "c"
            group = "g"
        "#;
        let policy = Policy::parse(text).unwrap().at(tidegate_model::policy::GateKind::Stage);
        let of = |tenants: &[usize]| Requester::of(&policy, tenants.iter().copied());
        assert_eq!(of(&[]), Requester::default());
        assert_eq!(
            [of(&[0]), of(&[1]), of(&[2])],
            [requester(0, false), requester(1, true), requester(2, true),]
        );
        assert_eq!(of(&[0, 1]), Requester { tenant: None, is_promised: true });
    }

    fn times() -> impl Strategy<Value = Vec<u64>> {
        let time = prop_oneof![2 => 1_000u64..45_000, 2 => 60_000u64..3 * MS, 1 => MS..100 * MS];
        prop_oneof![
            1 => Just(Vec::new()),
            3 => prop::collection::vec(time.clone(), 0..30),
            1 => prop::collection::vec(time, 0..500),
        ]
    }

    proptest! {
        /// The oracle sorts the times of each tenant.
        #[test]
        fn the_greatest_percentile_of_a_tenant_counts(
            tenants in prop::collection::vec((any::<bool>(), times()), 0..5),
            bound in prop_oneof![Just(Span(5 * MS)), Just(Span(MS / 10))],
        ) {
            let floor = BucketIndex::of(Span(50_000).min(Span(bound.0 / 16)));
            let p99 = |times: &[u64]| {
                let mut device: Vec<u64> = times.to_vec();
                device.retain(|time| BucketIndex::of(Span(*time)) >= floor);
                device.sort_unstable();
                let rank = (device.len() * 99).div_ceil(100).min(device.len().max(1) - 1);
                (device.len() >= 8).then(|| device[rank - 1])
            };
            let greatest = |promised: bool| {
                let counted = tenants.iter().filter(|(is_promised, _)| *is_promised || !promised);
                counted.filter_map(|(_, times)| p99(times)).max()
            };
            let mut all: Vec<u64> =
                tenants.iter().flat_map(|(_, times)| times.iter().copied()).collect();
            all.sort_unstable();
            let of_all = || Some(all[(all.len() * 99).div_ceil(100).checked_sub(1)?]);
            let exact = greatest(true).or_else(|| greatest(false)).or_else(of_all);
            let expected = exact.map(|exact| BucketIndex::of(Span(exact)).upper_bound());
            prop_assert_eq!(sample(&tenants).p99(bound), expected);
        }
    }

    #[test]
    fn senseless_counts_are_a_number() {
        let mut sample = LatencySample::default();
        for tenant in 0..3 {
            let counts = alloc::vec![u64::MAX; 1024];
            sample.add(requester(tenant, tenant == 0), &Waits { counts, ..Waits::default() });
        }
        assert!(sample.p99(Span(MS)).is_some());
    }
}
