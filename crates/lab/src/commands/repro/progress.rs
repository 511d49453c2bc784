//! How far a command is, and about how long it will still take.

use tidegate_console::amounts;

/// The time that a task takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TaskTime {
    /// Its result is there.
    Kept,
    /// An earlier command took so many seconds.
    Earlier(f64),
    /// This command took so many seconds.
    Done(f64),
    /// Its plan takes so many seconds, which says nothing of other tasks.
    Planned(f64),
    Unknown,
}

/// Which of `times` is next, and about how long that task and all after it take.
pub(super) fn progress(name: &str, next: usize, times: &[TaskTime]) -> String {
    let position = format!("{name} ({} of {}", next + 1, times.len());
    match left(next, times) {
        Some(seconds) => {
            let ns = (seconds.max(1.0) * 1e9) as u64;
            format!("{position}, about {} left)", amounts::age(ns))
        }
        None => format!("{position})"),
    }
}

/// The seconds from the task `next` on. A task without a time of its own takes the mean of those
/// that were measured; without any nothing is known.
fn left(next: usize, times: &[TaskTime]) -> Option<f64> {
    let measured = |time: &TaskTime| match *time {
        TaskTime::Earlier(seconds) | TaskTime::Done(seconds) => Some(seconds),
        TaskTime::Kept | TaskTime::Planned(_) | TaskTime::Unknown => None,
    };
    let own = |time: &TaskTime| match *time {
        TaskTime::Planned(seconds) => Some(seconds),
        _ => measured(time),
    };
    let known: Vec<f64> = times.iter().filter_map(measured).collect();
    let mean = (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64);
    let rest = times[next..].iter().filter(|time| **time != TaskTime::Kept);
    rest.map(|time| own(time).or(mean)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use TaskTime::{Done, Earlier, Kept, Planned, Unknown};

    #[test]
    fn the_time_left_is_that_of_earlier_runs_and_else_the_mean() {
        assert_eq!(progress("dsfq 9", 0, &[Unknown, Unknown]), "dsfq 9 (1 of 2)");
        let times = [Done(2.0), Kept, Unknown, Earlier(60.0), Unknown];
        assert_eq!(left(2, &times), Some(31.0 + 60.0 + 31.0));
        assert_eq!(progress("e2e 8", 2, &times), "e2e 8 (3 of 5, about 2 min 2 s left)");
        assert_eq!(left(4, &times), Some(31.0));
        assert_eq!(left(0, &[Planned(60.0), Planned(9.0)]), Some(69.0));
        assert_eq!(left(1, &[Done(2.0), Planned(60.0), Unknown]), Some(62.0));
        assert_eq!(left(0, &[Planned(60.0), Unknown]), None);
        assert_eq!(progress("e2e 9", 1, &[Earlier(9.0), Kept]), "e2e 9 (2 of 2, about 1 s left)");
    }
}
