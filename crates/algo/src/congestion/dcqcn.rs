//! DCQCN: a rate that falls with each notification of congestion and recovers by itself.
//!
//! # Problem
//! An RNIC that writes into another host's memory acknowledges seldom and keeps no window:
//! it sends at a rate. So congestion has to lower the rate, by little feedback, and its absence,
//! which no node reports, has to raise it.
//!
//! # Mechanism
//! Zhu and others, "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015), section 3.
//! The switch marks packets. The receiver answers marked packets with notifications, at most one in
//! 50 microseconds for each flow ([`Notifier`]). The sender ([`Limiter`]) has a *current* rate, at
//! which it sends, a *target* rate, to which it returns, and `alpha`, how congested it was of late:
//!
//! ```text
//! notification         target = current; current *= 1 - alpha / 2; alpha = (1 - g) alpha + g
//! none for 55 us       alpha = (1 - g) alpha, and again after each 55 us
//! a period has passed  periods += 1; raise
//! so much was sent     volumes += 1; raise
//! ```
//!
//! A notification sets both counts to zero, so a *raise* depends on how long ago it was:
//!
//! ```text
//! fast recovery   both counts below F         current = (current + target) / 2
//! additive        otherwise                   target += additive, then the same
//! hyper           both counts above F         target += (least count - F) * hyper, then the same
//! ```
//!
//! A flow begins at the rate of its line. Within one additive step of it, it is there: the limit is
//! lifted, and until the next notification nothing is counted and no timer runs. How alpha faded
//! meanwhile is computed at the next notification, not timed.
//!
//! Example at 40 Gbit/s: the first notification halves the rate to 20 (alpha is 1). A period later
//! it is 30, then 35, 37.5 and 38.75 Gbit/s; then the target would grow, but is the line's.
//!
//! Left out: the variant of HPCC's simulator, which has neither notifications nor volumes; and
//! leaving the target alone when no raise came between two notifications.

use tidegate_model::{Rate, Span, Time};

/// At most one notification for each flow in this time (section 3.1).
pub const NOTIFICATION: Span = Span(50_000);

/// Bytes per second in a gigabit per second.
const GIGABIT: f64 = 125_000_000.0;

/// The parameters of a limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DcqcnParameters {
    /// The rate of the line: the first one, and the largest.
    pub line: Rate,
    /// The least rate.
    pub least: Rate,
    /// The weight of the newest observation in alpha, `g`: more than 0, at most 1.
    pub gain: f64,
    /// Time without notifications after which alpha fades.
    pub quiet: Span,
    /// Time after which the rate is raised.
    pub period: Span,
    /// Bytes after which the rate is raised.
    pub volume: u64,
    /// How many periods or volumes it takes until the target is raised, `F`.
    pub recoveries: u32,
    /// By how much.
    pub additive: Rate,
    /// And by how much more for each period and volume after `F` of both.
    pub hyper: Rate,
}

impl DcqcnParameters {
    /// Of the paper, section 3.3 and figure 14, made for 40 Gbit/s: g = 1/256, 55 us, 10 MB, F = 5,
    /// 40 Mbit/s. Not there, but in the simulator that its authors published: hyper, 200 Mbit/s,
    /// and the least rate, 100 Mbit/s. Both steps grow with the line beyond 40 Gbit/s, or recovery
    /// would take longer the faster it is.
    pub fn for_line(line: Rate) -> Self {
        let scale = (line.0 as f64 / (40.0 * GIGABIT)).max(1.0);
        let step = |gigabits: f64| Rate((gigabits * GIGABIT * scale) as u64);
        Self {
            line,
            least: Rate(12_500_000).min(line),
            gain: 1.0 / 256.0,
            quiet: Span(55_000),
            period: Span(55_000),
            volume: 10_000_000,
            recoveries: 5,
            additive: step(0.04),
            hyper: step(0.2),
        }
    }
}

/// The receiver's part: when to send a congestion notification.
///
/// ```
/// use tidegate_algo::congestion::dcqcn::{NOTIFICATION, Notifier};
/// use tidegate_model::Time;
/// let mut notifier = Notifier::new(NOTIFICATION);
/// assert!(notifier.on_marked(Time(1_000)));
/// assert!(!notifier.on_marked(Time(50_999)));
/// assert!(notifier.on_marked(Time(51_000)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Notifier {
    interval: Span,
    next: Time,
}

impl Notifier {
    /// At most one notification in `interval`.
    pub const fn new(interval: Span) -> Self {
        Self { interval, next: Time::ZERO }
    }

    /// A marked packet has arrived. Whether to notify its sender.
    pub fn on_marked(&mut self, now: Time) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now.after(self.interval);
        }
        is_due
    }
}

/// The sender's part: how fast it may send.
///
/// ```
/// use tidegate_algo::congestion::dcqcn::{Limiter, DcqcnParameters};
/// use tidegate_model::{Rate, Time};
/// let mut limiter = Limiter::new(DcqcnParameters::for_line(Rate(5_000_000_000)));
/// assert_eq!(limiter.due(), None); // no limit, no timer
/// limiter.on_notification(Time(1_000));
/// assert_eq!(limiter.rate(), Rate(2_500_000_000));
/// let mut rates = Vec::new();
/// for _ in 0..4 {
///     let due = limiter.due().ok_or("no timer")?;
///     limiter.on_timer(due);
///     rates.push(limiter.rate().0 / 1_250_000); // in 10 Mbit/s
/// }
/// assert_eq!(rates, [3_000, 3_500, 3_750, 3_875]);
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    parameters: DcqcnParameters,
    /// Bytes per second.
    current: f64,
    target: f64,
    alpha: f64,
    /// Since when alpha is what it is; none before the first notification, when it is one.
    alpha_since: Option<Time>,
    /// When the period ends; none without a limit.
    due: Option<Time>,
    periods: u32,
    volumes: u32,
    /// Bytes sent of the volume that is under way.
    sent: u64,
}

impl Limiter {
    /// Of a flow that may send at the rate of its line.
    ///
    /// # Panics
    /// If a rate, a time or the volume is zero, the least rate above that of the line, or the gain
    /// outside its range.
    pub fn new(parameters: DcqcnParameters) -> Self {
        let DcqcnParameters { line, least, gain, quiet, period, volume, .. } = parameters;
        assert!(least > Rate::ZERO && least <= line, "a rate from {least} to {line}");
        assert!(gain > 0.0 && gain <= 1.0, "the gain is more than 0 and at most 1, not {gain}");
        assert!(quiet.0 > 0 && period.0 > 0 && volume > 0, "a period or a volume of nothing");
        let line = line.0 as f64;
        Self {
            parameters,
            current: line,
            target: line,
            alpha: 1.0,
            alpha_since: None,
            due: None,
            periods: 0,
            volumes: 0,
            sent: 0,
        }
    }

    /// How fast it may send, headers included.
    pub const fn rate(&self) -> Rate {
        Rate(self.current as u64)
    }

    /// Where it returns to.
    pub const fn target(&self) -> Rate {
        Rate(self.target as u64)
    }

    /// How congested it was at the last notification, 0 to 1. It has faded since.
    pub const fn alpha(&self) -> f64 {
        self.alpha
    }

    /// When [`Self::on_timer`] is to be called; none while there is no limit.
    pub const fn due(&self) -> Option<Time> {
        self.due
    }

    /// The receiver met congestion.
    pub fn on_notification(&mut self, now: Time) {
        let target = self.current;
        self.cut(now, 1.0, target);
    }

    /// A notification, after which `squeeze` of what DCQCN leaves is left, and the target is
    /// `target`.
    pub(crate) fn cut(&mut self, now: Time, squeeze: f64, target: f64) {
        self.fade(now);
        let least = self.parameters.least.0 as f64;
        self.current = (self.current * (1.0 - self.alpha / 2.0) * squeeze).max(least);
        self.target = target.max(self.current);
        self.alpha += self.parameters.gain * (1.0 - self.alpha);
        self.alpha_since = Some(now);
        self.due = Some(now.after(self.parameters.period));
        (self.periods, self.volumes, self.sent) = (0, 0, 0);
    }

    /// The rate at which it sends, in bytes per second.
    pub(crate) const fn current(&self) -> f64 {
        self.current
    }

    /// Lets alpha fade for the quiet since the last notification, which this one ends.
    fn fade(&mut self, now: Time) {
        if let Some(since) = self.alpha_since {
            let times = now.since(since).0 / self.parameters.quiet.0;
            self.alpha *= power(1.0 - self.parameters.gain, times);
        }
    }

    /// So many bytes were sent.
    pub fn on_sent(&mut self, bytes: u64) {
        if self.due.is_none() {
            return;
        }
        self.sent += bytes;
        while self.sent >= self.parameters.volume && self.due.is_some() {
            self.sent -= self.parameters.volume;
            self.volumes = self.volumes.saturating_add(1);
            self.raise();
        }
    }

    /// The time that [`Self::due`] named has come; nothing before it.
    pub fn on_timer(&mut self, now: Time) {
        while let Some(due) = self.due
            && due <= now
        {
            self.due = Some(due.after(self.parameters.period));
            self.periods = self.periods.saturating_add(1);
            self.raise();
        }
    }

    fn raise(&mut self) {
        let DcqcnParameters { line, recoveries, additive, hyper, .. } = self.parameters;
        let least = self.periods.min(self.volumes);
        let line = line.0 as f64;
        if least > recoveries {
            self.target += f64::from(least - recoveries) * hyper.0 as f64;
        } else if self.periods.max(self.volumes) >= recoveries {
            self.target += additive.0 as f64;
        }
        self.target = self.target.min(line);
        self.current = (self.current + self.target) / 2.0;
        if line - self.current <= additive.0 as f64 {
            (self.current, self.target, self.due) = (line, line, None);
        }
    }
}

/// `base` multiplied by itself so many times, with multiplications only: the same bits everywhere.
fn power(base: f64, times: u64) -> f64 {
    let (mut product, mut square, mut left) = (1.0, base, times);
    while left > 0 {
        if left % 2 == 1 {
            product *= square;
        }
        square *= square;
        left /= 2;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: Rate = Rate(12_500_000_000);

    proptest! {
        /// Multiplied one by one.
        #[test]
        fn alpha_fades_by_the_quiet_that_passed(times in 0u64..3_000, rest in 0u64..55_000) {
            let mut limiter = Limiter::new(DcqcnParameters::for_line(LINE));
            limiter.on_notification(Time::ZERO);
            limiter.fade(Time(times * 55_000 + rest));
            let expected = (0..times).fold(1.0, |alpha, _| alpha * (1.0 - 1.0 / 256.0));
            prop_assert!((limiter.alpha - expected).abs() < 1e-12);
        }

        /// Whatever happens, the rate stays between the least and the line's, and the target above
        /// it. A notification never raises it, a timer or a volume never lowers it.
        #[test]
        fn rates_stay_within_bounds(steps in prop::collection::vec((0u8..3, 1u64..200), 1..300)) {
            let line = DcqcnParameters::for_line(LINE);
            let parameters = DcqcnParameters { volume: 1_000_000, ..line };
            let (mut limiter, mut now) = (Limiter::new(parameters), Time::ZERO);
            for (step, size) in steps {
                let before = limiter.current;
                now = now.after(Span(size * 1_000));
                match step {
                    0 => limiter.on_notification(now),
                    1 => limiter.on_sent(size * 10_000),
                    _ => limiter.on_timer(now),
                }
                let (fell, rose) = (limiter.current < before, limiter.current > before);
                prop_assert!(if step == 0 { !rose } else { !fell }, "{}", limiter.current);
                prop_assert!(limiter.rate() >= parameters.least && limiter.rate() <= LINE);
                prop_assert!(limiter.target() >= limiter.rate() && limiter.target() <= LINE);
                prop_assert!((0.0..=1.0).contains(&limiter.alpha));
                prop_assert_eq!(limiter.due().is_none(), limiter.rate() == LINE);
            }
        }

        /// No more notifications than intervals that were begun.
        #[test]
        fn notifications_are_rare(gaps in prop::collection::vec(0u64..30_000, 1..200)) {
            let (mut notifier, mut now, mut last) = (Notifier::new(NOTIFICATION), 0, None);
            for gap in gaps {
                now += gap;
                let may = last.is_none_or(|last| now - last >= NOTIFICATION.0);
                prop_assert_eq!(notifier.on_marked(Time(now)), may);
                last = if may { Some(now) } else { last };
            }
        }
    }

    /// The three ways to be raised, by hand: F = 2, a line of 100 units, a unit is 1 GB/s.
    #[test]
    fn fast_then_additive_then_hyper() {
        let unit = 1_000_000_000;
        let parameters = DcqcnParameters {
            line: Rate(100 * unit),
            recoveries: 2,
            volume: 1,
            additive: Rate(unit),
            hyper: Rate(10 * unit),
            ..DcqcnParameters::for_line(LINE)
        };
        let mut limiter = Limiter::new(parameters);
        limiter.on_notification(Time::ZERO); // 50, target 100, alpha 1
        limiter.on_notification(Time::ZERO); // 25, target 50
        let mut seen = alloc::vec::Vec::new();
        for _ in 0..3 {
            limiter.on_timer(limiter.due.unwrap());
            seen.push((limiter.rate().0 / 1_000_000, limiter.target().0 / unit));
        }
        for _ in 0..3 {
            limiter.on_sent(1);
            seen.push((limiter.rate().0 / 1_000_000, limiter.target().0 / unit));
        }
        let fast = (37_500, 50);
        let additive = [(44_250, 51), (48_125, 52), (50_562, 53), (52_281, 54)];
        let hyper = (58_140, 64); // the third period and the third volume: once the step
        assert_eq!(seen, [&[fast], &additive[..], &[hyper]].concat());
    }

    #[test]
    fn alone_it_returns_to_its_line() {
        let mut limiter = Limiter::new(DcqcnParameters::for_line(LINE));
        (0..50).for_each(|_| limiter.on_notification(Time::ZERO));
        assert_eq!(limiter.rate(), Rate(12_500_000));
        let mut periods = 0;
        while let Some(due) = limiter.due() {
            limiter.on_timer(due);
            periods += 1;
        }
        // Without volumes there is no hyper: after four periods of fast recovery there are 999
        // steps of 12.5 MB/s from the thousandth part of the line to all of it.
        assert_eq!((limiter.rate(), periods), (LINE, 1_003));
    }
}
