//! The monitor's thread: it sleeps until there is something to look at, for good if nobody has a
//! seat.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidegate_fabric::reactor::Mailbox;
use tidegate_model::{Span, Time};
use tidegate_onesided::haechi::Event;
use tidegate_proto::data_node::Notice;

use super::door::Letter;
use super::host::{Halt, Host};
use crate::clock::Clock;

/// A look that is so much late is worth a word: reports are older then than clients count on, and
/// pool tokens wait. Chosen by hand.
const LATE: Span = Span(20 * Span::MILLISECOND.0);

/// After this time it looks again whether the memory can be used, if nobody woke it.
const HALT_MAX: Duration = Duration::from_secs(1);

/// There is no more than one such word in this time.
const PAUSE: Span = Span(10 * Span::SECOND.0);

/// Runs the monitor until the node ends. The door is told who is to be shut out.
pub(super) fn run(host: &Host, clock: Clock, door: &Mailbox<Letter>, is_ending: &AtomicBool) {
    let mut events = Vec::new();
    let mut told = Time::ZERO;
    while !is_ending.load(Ordering::Acquire) {
        let ticked = host.tick(&mut events);
        events.drain(..).filter_map(|event| note(host, &event)).for_each(|note| door.push(note));
        let deadline = match ticked {
            Ok(deadline) => deadline,
            Err(halt) => {
                door.push(match halt {
                    Halt::Lost => Letter::Lost,
                    Halt::Damaged(_) => Letter::Damaged,
                });
                // The thread that makes other memory, or has it reached again, wakes this one.
                thread::park_timeout(HALT_MAX);
                continue;
            }
        };
        if host.is_move_due() {
            door.push(Letter::BlocksLow);
        }
        match deadline {
            // The thread that admits a client, or ends the node, wakes this one.
            Time::MAX => thread::park(),
            // A timer is up to 50 us late, to wake several sleepers together, which is welcome.
            deadline => thread::park_timeout(clock.until(deadline)),
        }
        let now = clock.now();
        let late = now.since(deadline);
        if late >= LATE && now >= told {
            told = now.after(PAUSE);
            tracing::warn!(late_ms = late.0 / Span::MILLISECOND.0, "the monitor looks late");
            host.notice(Notice::Late { by: late });
            door.push(Letter::Period);
        }
    }
}

/// Logs what happened, and says what the door is to be told.
fn note(host: &Host, event: &Event) -> Option<Letter> {
    let tenant = |seat: u16| host.tenant(seat);
    match *event {
        Event::Over(ref summary) => {
            let done: u64 = summary.seats.iter().flatten().map(|(_, it)| it.completed).sum();
            let (capacity, granted) = (summary.capacity, summary.granted);
            let (period, verdict) = (summary.epoch, summary.verdict);
            tracing::debug!(period, capacity, done, granted, ?verdict, "a period is over");
            return Some(Letter::Period);
        }
        // One that has left says nothing more until its seat is free.
        Event::Silent(seat) if !host.has_guest(seat) => {}
        Event::Silent(seat) => {
            tracing::info!(seat, tenant = tenant(seat), "a client stopped; others have its tokens");
        }
        Event::Left(seat) => {
            host.forget(seat);
            tracing::debug!(seat, "a seat is free");
            return Some(Letter::SlotFree);
        }
        Event::Unused { seat, periods } => {
            let tenant = tenant(seat);
            tracing::info!(seat, tenant, periods, "a client does not use what is reserved for it");
            host.notice(Notice::Unused { tenant, seat, periods });
            return Some(Letter::Period);
        }
        Event::Evicted(seat) => {
            let tenant = tenant(seat);
            tracing::warn!(seat, tenant, "a client was silent, and lost its seat");
            host.notice(Notice::Evicted { tenant, seat });
            host.forget(seat);
            return Some(Letter::Fence(seat));
        }
        Event::Overstepped { seat, issued, tokens } => {
            let tenant = tenant(seat);
            tracing::warn!(seat, tenant, issued, tokens, "a client did more than it may");
            host.notice(Notice::Overstepped { tenant, seat, issued, tokens });
            return Some(Letter::Fence(seat));
        }
        Event::Superseded => tracing::error!("another monitor has taken over this node's memory"),
    }
    None
}
