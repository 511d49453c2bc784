//! A node's work in the last minute, and the rules that held each tenant's requests.
//!
//! A node is read once a second. Counts that were added between two readings go into a part of the
//! minute, five seconds long. Parts that began more than a minute ago are dropped, so that between
//! 55 seconds and a minute are left.
//!
//! # Bound
//! A part has an entry for each tenant that did something in it. A tenant that is busy all the time
//! at a node takes about a kilobyte and a half, so 1,000 of them at 8 nodes 12 MB; one that is idle
//! takes nothing.

use alloc::collections::{BTreeMap, VecDeque};
use core::ops::AddAssign;

use tidegate_model::{Span, TenantIndex, Time, Waits};

/// How far back it reaches.
pub(crate) const MINUTE: Span = Span(60 * Span::SECOND.0);

/// How long a part is, at least.
pub(crate) const SEGMENT: Span = Span(5 * Span::SECOND.0);

/// One tenant's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Doing {
    pub(super) waits: Waits,
    /// Readings between which its limit held requests.
    pub(super) limited: u32,
    /// The node's work for all tenants, between the readings between which this tenant had requests
    /// there: its other work says nothing of this tenant.
    pub(super) beside: Work,
}

impl Doing {
    pub(super) fn is_nothing(&self) -> bool {
        self.waits == Waits::ZERO && self.limited == 0
    }
}

impl AddAssign for Doing {
    fn add_assign(&mut self, other: Self) {
        self.waits += other.waits;
        self.limited += other.limited;
        self.beside += other.beside;
    }
}

/// A node's work in the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    /// The time that was observed.
    pub(super) span: Span,
    /// Readings.
    pub(super) readings: u32,
    /// Those at which its store had as many requests as it takes.
    pub(super) full: u32,
    /// Units of cost that its store finished, for all tenants.
    pub(super) operations: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.span = self.span.saturating_add(other.span);
        self.readings += other.readings;
        self.full += other.full;
        self.operations += other.operations;
    }
}

/// Growth in the last minute, in parts of five seconds. Without growth it takes no memory.
#[derive(Clone, Debug)]
pub(crate) struct Recent<T> {
    /// When each part began; the latest last.
    parts: VecDeque<(Time, T)>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { parts: VecDeque::new() }
    }
}

impl<T: AddAssign + Copy + Default + PartialEq> Recent<T> {
    /// Adds what has grown by `now`.
    pub(crate) fn add(&mut self, now: Time, growth: T) {
        while self.parts.front().is_some_and(|(began, _)| now.since(*began) > MINUTE) {
            self.parts.pop_front();
        }
        if growth == T::default() {
            return;
        }
        match self.parts.back_mut().filter(|(began, _)| now.since(*began) <= SEGMENT) {
            Some((_, sum)) => *sum += growth,
            None => self.parts.push_back((now, growth)),
        }
    }

    /// The growth in the last minute.
    pub(crate) fn sum(&self, now: Time) -> T {
        let parts = self.parts.iter().filter(|(began, _)| now.since(*began) <= MINUTE);
        parts.fold(T::default(), |mut sum, (_, growth)| {
            sum += *growth;
            sum
        })
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }
}

#[derive(Debug)]
struct MinuteSegment {
    began: Time,
    work: Work,
    tenants: BTreeMap<TenantIndex, Doing>,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Minute {
    /// The latest last.
    parts: VecDeque<MinuteSegment>,
}

impl Minute {
    /// Adds the work between `since` and `now`.
    pub(super) fn add(&mut self, since: Time, now: Time, work: Work) {
        while self.parts.front().is_some_and(|part| now.since(part.began) > MINUTE) {
            self.parts.pop_front();
        }
        if self.parts.back().is_none_or(|part| now.since(part.began) > SEGMENT) {
            let (work, tenants) = (Work::default(), BTreeMap::new());
            self.parts.push_back(MinuteSegment { began: since, work, tenants });
        }
        if let Some(part) = self.parts.back_mut() {
            part.work += work;
        }
    }

    /// Adds a tenant's counts while the node did this, to the last addition.
    pub(super) fn add_tenant(&mut self, index: TenantIndex, doing: Doing) {
        if let Some(part) = self.parts.back_mut().filter(|_| !doing.is_nothing()) {
            *part.tenants.entry(index).or_default() += doing;
        }
    }

    /// The tenants are numbered anew; those without a number are forgotten.
    pub(super) fn renumber(&mut self, number: impl Fn(TenantIndex) -> Option<TenantIndex>) {
        for part in &mut self.parts {
            let tenants = core::mem::take(&mut part.tenants).into_iter();
            part.tenants = tenants.filter_map(|(from, it)| Some((number(from)?, it))).collect();
        }
    }

    /// The node's work in the last minute.
    pub(super) fn work(&self, now: Time) -> Work {
        self.parts(now).fold(Work::default(), |mut sum, part| {
            sum += part.work;
            sum
        })
    }

    /// One tenant's counts there in the last minute.
    pub(super) fn doing(&self, now: Time, index: TenantIndex) -> Doing {
        let parts = self.parts(now).filter_map(|part| part.tenants.get(&index));
        parts.fold(Doing::default(), |mut sum, doing| {
            sum += *doing;
            sum
        })
    }

    /// All tenants' counts there in the last minute, by index.
    pub(super) fn all(&self, now: Time) -> BTreeMap<TenantIndex, Doing> {
        let mut all = BTreeMap::<TenantIndex, Doing>::new();
        for (index, doing) in self.parts(now).flat_map(|part| &part.tenants) {
            *all.entry(*index).or_default() += *doing;
        }
        all
    }

    /// Adds each tenant's waits there in the last minute to its sum, by index.
    pub(super) fn add_waits(&self, now: Time, sums: &mut [Waits]) {
        for (index, doing) in self.parts(now).flat_map(|part| &part.tenants) {
            if let Some(sum) = sums.get_mut(index.index()) {
                *sum += doing.waits;
            }
        }
    }

    fn parts(&self, now: Time) -> impl Iterator<Item = &MinuteSegment> {
        self.parts.iter().filter(move |part| now.since(part.began) <= MINUTE)
    }
}
