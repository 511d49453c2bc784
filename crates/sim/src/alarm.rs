//! Wake-up of a simulated state machine: an event at the earliest deadline that it asked for.
//!
//! A machine states its next deadline after each call, mostly the same one as before. A deadline
//! becomes an event only if it is earlier than the event that is pending. If the deadline has
//! meanwhile moved to a later time, the pending event comes too early: the machine then does
//! nothing, states its deadline again, and that one becomes the next event.

use tidegate_model::Time;

use crate::time::Picoseconds;

/// The earliest wake-up of a machine that is in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Alarm(Picoseconds);

impl Alarm {
    /// None is in the queue.
    pub const OFF: Self = Self(Picoseconds::MAX);

    /// One has come.
    pub fn ring(&mut self, now: Picoseconds) {
        if now >= self.0 {
            *self = Self::OFF;
        }
    }

    /// For when to put one into the queue, if the machine is to be called at `deadline`.
    #[must_use]
    pub fn set(&mut self, now: Picoseconds, deadline: Time) -> Option<Picoseconds> {
        let next = Picoseconds::from(deadline).max(now);
        let is_earlier = next < self.0;
        if is_earlier {
            self.0 = next;
        }
        is_earlier.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_earlier_is_put_into_the_queue() {
        let (at, mut alarm) = (|ns| Picoseconds::from(Time(ns)), Alarm::OFF);
        assert_eq!(alarm.set(at(1), Time(5)), Some(at(5)));
        assert_eq!(alarm.set(at(2), Time(7)), None);
        assert_eq!(alarm.set(at(2), Time(3)), Some(at(3)));
        alarm.ring(at(3));
        assert_eq!(alarm.set(at(3), Time(2)), Some(at(3)), "not in the past");
        assert_eq!(alarm.set(at(3), Time::MAX), None);
    }
}
