//! The limit in a closed loop: a device that serves one request after the other, other requests
//! that are always as many as may be there, and reads that wait for all of them.

use super::*;
use proptest::prelude::*;

/// A device, by the times in which it serves a read and another request, which weighs one.
struct Bed {
    control: DepthControl,
    now: Time,
    read: Span,
    other: Span,
    /// How many other requests there would be without a limit.
    demand: u32,
    /// By how much times of others vary: a state of xorshift, or zero for not at all.
    random: u64,
}

impl Bed {
    fn new(depth: u32, read: u64, other: u64, demand: u32) -> Self {
        let (read, other, demand) = (Span(read), Span(other), demand.min(depth.max(1)));
        Self { control: DepthControl::new(depth), now: Time::ZERO, read, other, demand, random: 0 }
    }

    /// The time of the next other request: its mean, or anything from nothing to twice of it.
    fn next_other(&mut self) -> u64 {
        if self.random == 0 {
            return self.other.0;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % (2 * self.other.0)
    }

    /// One read, and the others that it waits for. Returns its time.
    fn read(&mut self) -> Span {
        let others = self.control.limit().min(self.demand);
        let dispatched = self.now;
        let waits: u64 = (0..others).map(|_| self.next_other()).sum();
        let took = Span(self.read.0 + waits);
        self.now = self.now.after(took);
        if others > 0 {
            self.control.on_other(self.now, others);
        }
        self.control.on_reserved(self.now, dispatched, 0);
        took
    }

    fn run(&mut self, length: Span) {
        let end = self.now.after(length);
        while self.now < end {
            self.read();
        }
    }

    /// The mean of the limit, over windows without a probe.
    fn mean(&mut self) -> f64 {
        let (mut sum, mut count) = (0u64, 0u64);
        for _ in 0..READS {
            self.read();
            if self.control.deadline() == Time::MAX {
                sum += u64::from(self.control.limit().min(self.demand));
                count += 1;
            }
        }
        sum as f64 / count as f64
    }
}

const US: u64 = 1_000;

/// Reads until a limit is at rest, and over which its mean is taken.
const READS: u32 = 6_400;

#[test]
fn one_slow_request_lowers_the_limit_and_those_beside_it_do_not_again() {
    let mut control = DepthControl::new(32);
    (0..SAMPLES).for_each(|_| control.on_reserved(Time(100), Time(0), 0));
    let slow = |control: &mut DepthControl, at: u64| {
        control.on_reserved(Time(at), Time(at - 1_000), 40);
        control.limit()
    };
    assert_eq!(slow(&mut control, 2_000), 20, "half of the 40 that were there");
    assert_eq!(slow(&mut control, 2_500), 20, "it was at the device before");
    assert_eq!(slow(&mut control, 3_000), 10);
}

#[test]
fn large_requests_weigh_more() {
    assert_eq!([0, 4 << 10, 32 << 10, 64 << 10, 128 << 10].map(weight), [1, 1, 2, 3, 5]);
}

#[test]
fn large_writes_beside_reads() {
    // As measured on a virtual disk: 4 KiB in 0.2 ms, pieces of 128 KiB in 60 us each.
    let mut bed = Bed::new(32, 200 * US, 60 * US, 128);
    bed.run(Span::SECOND);
    let mean = bed.mean();
    assert!((2.5..4.0).contains(&mean), "{mean}");
}

#[test]
fn a_device_that_became_quicker_is_found_out() {
    let mut bed = Bed::new(32, 200 * US, 1_000 * US, 128);
    bed.run(Span(10 * Span::SECOND.0));
    assert!(bed.mean() < 1.5);
    bed.other = Span(20 * US);
    bed.run(Span::SECOND);
    assert!(bed.mean() > 7.0);
    // Reads take longer by themselves: the probes tell, and more others are no harm.
    bed.read = Span(600 * US);
    bed.run(Span(BASES as u64 * PROBE_INTERVAL.0 + Span::SECOND.0));
    assert!(bed.mean() > 20.0);
}

#[test]
fn few_others_are_never_held_back() {
    let mut bed = Bed::new(32, 400 * US, 10 * US, 3);
    bed.run(Span(5 * Span::SECOND.0));
    assert_eq!(bed.control.limit.get(), 32 * WEIGHT_MAX);
}

#[test]
fn without_reserved_requests_there_is_no_limit() {
    let mut bed = Bed::new(32, 200 * US, 1_000 * US, 128);
    bed.control.on_other(bed.now, 32);
    assert_eq!(bed.control.limit(), u32::MAX);
    bed.run(Span(3 * Span::SECOND.0));
    let limit = bed.control.limit();
    assert!((1..32).contains(&limit), "{limit}");
    let later = bed.now.after(IDLE).after(Span(1));
    bed.control.on_other(later, limit);
    assert_eq!((bed.control.limit(), bed.control.deadline()), (u32::MAX, Time::MAX));
    // And as before when they come again.
    bed.control.on_reserved(later, later, 1);
    assert_eq!(bed.control.limit(), limit);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Reads wait about as long for others as they take alone, or for one request; and the device
    /// has as many others as that allows.
    #[test]
    fn reads_take_twice_their_time_at_most(
        depth in 1..128u32,
        read in 20 * US..5_000 * US,
        other in 5 * US..5_000 * US,
    ) {
        let mut bed = Bed::new(depth, read, other, 1_000);
        (0..READS).for_each(|_| {
            bed.read();
        });
        let fits = (read as f64 / other as f64).min(f64::from(depth));
        let mean = bed.mean();
        prop_assert!(mean <= (fits * 1.2 + 1.1).min(f64::from(depth)), "{mean} of {fits}");
        prop_assert!(mean >= (fits * 0.8 - 1.0).max(1.0), "{mean} of {fits}");
    }

    /// Times of others that vary by all of their mean make at most one read in a hundred take more
    /// than twice its time, unless a single other request does; and the reads wait for as many as
    /// then fit, but for a third of them and one.
    #[test]
    fn a_percentile_is_kept(
        read in 50 * US..5_000 * US,
        each in 1u64..16,
        seed in 1u64..1_000_000,
    ) {
        let other = read / (2 * each);
        let mut bed = Bed { random: seed, ..Bed::new(128, read, other, 1_000) };
        (0..READS).for_each(|_| {
            bed.read();
        });
        let slow = (0..4 * READS).filter(|_| bed.read() > Span(2 * read)).count();
        prop_assert!(slow as u32 * 100 <= 4 * READS, "{slow} of {}", 4 * READS);
        // The sum of n has the mean n and the deviation of sqrt(n / 3), in units of `other`; three
        // deviations are to fit.
        let (mean, sum) = (bed.mean(), 2.0 * each as f64);
        let fits = (sum + 1.5 - (3.0 * sum + 2.25_f64).sqrt()).max(1.0);
        prop_assert!(mean >= fits * 0.67 - 1.0, "{mean} of {fits}");
    }

    /// Whatever happens, others are kept out for a probe's time at most, and otherwise at least one
    /// may go.
    #[test]
    fn others_always_go_on(
        depth in 0..200u32,
        steps in prop::collection::vec((0..4u8, 0..40_000 * US, 0..40_000 * US), 0..400),
    ) {
        let (mut control, mut now) = (DepthControl::new(depth), Time::ZERO);
        for (step, pause, took) in steps {
            now = now.after(Span(pause));
            match step {
                0 => control.on_reserved(now, Time(now.0.saturating_sub(took)), 1),
                3 => control.on_reserved(now, Time(now.0.saturating_sub(took)), 0),
                1 => control.on_other(now, 1),
                _ => control.advance(now),
            }
            let bound = Span(3 * PROBE_MAX.0);
            match control.limit() {
                0 => prop_assert!(control.deadline() <= now.after(bound)),
                u32::MAX => prop_assert_eq!(control.deadline(), Time::MAX),
                limit => prop_assert!(limit <= depth.max(1) * WEIGHT_MAX),
            }
            prop_assert!(control.limit() > 0 || control.deadline() > now || step == 1);
        }
    }
}
