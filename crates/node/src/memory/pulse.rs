//! The thread of a data node's monitor. It polls the monitor, and passes the events on: to the log,
//! to the controller, and to the endpoint, which shuts out clients that exceeded their tokens or
//! were silent. It sleeps between polls, and until it is woken while no client has a session slot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::clock::Clock;
use tidegate_fabric::reactor::MessageQueue;
use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::haechi::MonitorEvent;
use tidegate_proto::data_node::Notice;

use super::endpoint::Message;
use super::host::{Halt, Host};

/// A poll that is so much late is logged: reports are then older than clients expect, and pool
/// tokens wait. Chosen by hand.
const LATE: Span = Span(20 * Span::MILLISECOND.0);

/// After this time it checks again whether the memory can be used, without a wakeup.
const HALT_MAX: Duration = Duration::from_secs(1);

/// Runs the monitor until the node ends. Clients to shut out are reported to the endpoint.
pub(super) fn run(
    host: &Host,
    clock: Clock,
    endpoint: &MessageQueue<Message>,
    is_ending: &AtomicBool,
) {
    let mut events = Vec::new();
    let (mut late_lines, mut clients) = (LogLimiter::new(1), LogLimiter::default());
    while !is_ending.load(Ordering::Acquire) {
        let ticked = host.tick(&mut events);
        for event in events.drain(..) {
            let is_logged = || clients.admit(clock.now()).is_some();
            if let Some(message) = note(host, &event, is_logged) {
                endpoint.push(message);
            }
        }
        let deadline = match ticked {
            Ok(deadline) => deadline,
            Err(halt) => {
                endpoint.push(match halt {
                    Halt::Lost => Message::Lost,
                    Halt::Damaged(_) => Message::Damaged,
                });
                // The thread that makes other memory, or restores access to it, wakes this one.
                thread::park_timeout(HALT_MAX);
                continue;
            }
        };
        if host.is_move_due() {
            endpoint.push(Message::BlocksLow);
        }
        match deadline {
            // The thread that admits a client, or ends the node, wakes this one.
            Time::MAX => thread::park(),
            // A timer is up to 50 us late, to wake several sleepers together, which saves wakeups
            // here.
            deadline => thread::park_timeout(clock.until(deadline)),
        }
        let now = clock.now();
        let late = now.since(deadline);
        if late >= LATE && late_lines.admit(now).is_some() {
            tracing::warn!(late_ms = late.0 / Span::MILLISECOND.0, "monitor late");
            host.notice(Notice::Late { by: late });
            endpoint.push(Message::Period);
        }
    }
}

/// Logs an event, and returns the message for the endpoint. One that a client causes is logged if
/// `is_logged` says so.
fn note(host: &Host, event: &MonitorEvent, mut is_logged: impl FnMut() -> bool) -> Option<Message> {
    let tenant = |session_slot: SessionSlot| host.tenant(session_slot);
    match *event {
        MonitorEvent::Over(ref summary) => {
            let done: u64 =
                summary.session_slots.iter().flatten().map(|(_, it)| it.completed).sum();
            let (capacity, granted) = (summary.capacity, summary.granted);
            let (period, verdict) = (summary.epoch, summary.verdict);
            tracing::debug!(period, capacity, done, granted, ?verdict, "period ended");
            return Some(Message::Period);
        }
        // A disconnected client reports nothing more until its session slot is free.
        MonitorEvent::Silent(slot) if host.has_client(slot) && is_logged() => {
            let (session_slot, tenant) = (slot.0, tenant(slot));
            tracing::info!(session_slot, tenant, "a client stopped; others have its tokens");
        }
        MonitorEvent::Silent(_) => {}
        MonitorEvent::Left(session_slot) => {
            host.forget(session_slot);
            tracing::debug!(session_slot = session_slot.0, "a session slot is free");
            return Some(Message::SlotFree);
        }
        MonitorEvent::Unused { session_slot, periods } => {
            let tenant = tenant(session_slot);
            if is_logged() {
                let session_slot = session_slot.0;
                tracing::info!(session_slot, tenant, periods, "reservation not used");
            }
            host.notice(Notice::Unused { tenant, session_slot, periods });
            return Some(Message::Period);
        }
        MonitorEvent::Evicted(session_slot) => {
            let tenant = tenant(session_slot);
            if is_logged() {
                let session_slot = session_slot.0;
                tracing::warn!(session_slot, tenant, "a silent client lost its session slot");
            }
            host.notice(Notice::Evicted { tenant, session_slot });
            host.forget(session_slot);
            return Some(match host.has_client(session_slot) {
                true => Message::Fence(session_slot),
                // Its client has not reconnected since the node was started again.
                false => Message::SlotFree,
            });
        }
        MonitorEvent::Overstepped { session_slot, issued, tokens } => {
            let tenant = tenant(session_slot);
            if is_logged() {
                let session_slot = session_slot.0;
                tracing::warn!(session_slot, tenant, issued, tokens, "client exceeded its tokens");
            }
            host.notice(Notice::Overstepped { tenant, session_slot, issued, tokens });
            return Some(Message::Fence(session_slot));
        }
        MonitorEvent::Superseded => {
            tracing::error!("another monitor has taken over this node's memory")
        }
    }
    None
}
