//! The controller's part of a recording: it asks the gateways, and makes lines of their answers.
//!
//! # Mechanism
//! One operator records at a time. Each of the operator's questions returns the lines that have
//! come since the last one, asks all gateways for more, and renews the lease ([`super::LEASE`]), at
//! the controller and at the gateways. So an operator that is killed leaves nothing running, and a
//! gateway that connects in the middle is asked from then on.
//!
//! # Bound
//! [`TEXT_MAX`] of lines that the operator has not taken. Requests beyond are counted as lost.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use serde::{Deserialize, Serialize};
use tidegate_model::{GatewayId, TenantId, Time};

use super::{
    Batch, CONNECTIONS_MAX, End, LEASE, RecordedConnection, RecordedTenant, RecordingLine,
};

/// The most bytes of lines that wait for the operator: a second of half a million requests.
pub const TEXT_MAX: usize = 24 << 20;

/// The answer to an operator's question: what was recorded since the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingPart {
    /// The recording, for the next question.
    pub session: u64,
    /// Whole lines.
    pub text: String,
    /// The requests of all answers so far.
    pub requests: u64,
    /// Requests that are missing so far.
    pub lost: u64,
    /// Requests that failed so far.
    pub failed: u64,
    /// How long the recording is so far, in nanoseconds.
    pub span_ns: u64,
    /// The gateways that are asked now.
    pub gateways: u64,
    /// The gateways whose connections have ended meanwhile: what they had recorded and not sent is
    /// missing.
    pub left: Vec<String>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectError {
    /// There is none to record.
    #[error("no gateway is connected; start one with `tidegate up CLUSTER`")]
    NoGateway,
    /// Another operator records.
    #[error("another recording is under way; end it, or try again in five seconds")]
    Busy,
    /// It has ended, because no question came for so long or another controller answers.
    #[error("the recording has ended: no one has asked for it for five seconds; begin another")]
    Over,
}

/// The numbers of the recording for those of a gateway.
#[derive(Debug, Default)]
struct GatewayNumbers {
    tenants: BTreeMap<TenantId, RecordedTenant>,
    connections: BTreeMap<u32, u32>,
}

/// A recording that is under way.
#[derive(Debug, Default)]
struct Recording {
    until: Time,
    gateways: BTreeMap<GatewayId, GatewayNumbers>,
    tenants: Vec<String>,
    connections: u32,
    part: RecordingPart,
}

/// The machine. See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    active: Option<Recording>,
    sessions: u64,
}

impl Collector {
    /// The operator begins a recording, of this many gateways. Returns its number.
    pub(crate) fn begin(&mut self, now: Time, gateways: usize) -> Result<u64, CollectError> {
        if gateways == 0 {
            return Err(CollectError::NoGateway);
        }
        if self.active.as_ref().is_some_and(|active| now < active.until) {
            return Err(CollectError::Busy);
        }
        self.sessions += 1;
        let mut text = String::new();
        append(&mut text, &RecordingLine::Title);
        let part = RecordingPart { session: self.sessions, text, ..RecordingPart::default() };
        let active = Recording { until: now.after(LEASE), part, ..Recording::default() };
        self.active = Some(active);
        Ok(self.sessions)
    }

    /// The lines that have come since the last question, while this many gateways are asked. The
    /// last answer has the last line.
    pub(crate) fn take(
        &mut self,
        now: Time,
        (session, is_last): (u64, bool),
        gateways: usize,
    ) -> Result<RecordingPart, CollectError> {
        let active = self.active.as_mut().filter(|it| it.part.session == session);
        let active = active.filter(|it| now < it.until).ok_or(CollectError::Over)?;
        active.until = now.after(LEASE);
        let part = &mut active.part;
        part.gateways = gateways as u64;
        if is_last {
            let RecordingPart { span_ns, lost, failed, .. } = *part;
            append(&mut part.text, &RecordingLine::End(End { span_ns, lost, failed }));
        }
        let text = core::mem::take(&mut part.text);
        let part = RecordingPart { text, ..part.clone() };
        if is_last {
            self.active = None;
        }
        Ok(part)
    }

    /// A gateway has sent what it has recorded.
    pub(crate) fn on_batch(&mut self, gateway: GatewayId, name: &str, batch: Batch) {
        let active = self.active.as_mut().filter(|it| it.part.session == batch.session);
        let Some(Recording { gateways, tenants, connections, part, .. }) = active else { return };
        let numbers = gateways.entry(gateway).or_default();
        for (number, tenant) in batch.tenants {
            let known = tenants.iter().position(|known| *known == tenant);
            let index = RecordedTenant(known.unwrap_or(tenants.len()) as u16);
            if known.is_none() {
                append(&mut part.text, &RecordingLine::Tenant(index, tenant.clone()));
                tenants.push(tenant);
            }
            numbers.tenants.insert(number, index);
        }
        for (number, volume, tenant) in batch.connections {
            if *connections < CONNECTIONS_MAX {
                let connection = RecordedConnection { gateway: name.into(), volume, tenant };
                append(&mut part.text, &RecordingLine::Connection(*connections, connection));
                numbers.connections.insert(number, *connections);
                *connections += 1;
            }
        }
        part.span_ns = part.span_ns.max(batch.span_ns);
        part.lost = part.lost.saturating_add(batch.lost);
        part.failed = part.failed.saturating_add(batch.failed);
        for request in batch.requests {
            let connection = numbers.connections.get(&request.connection);
            let tenant = numbers.tenants.get(&request.tenant);
            match (connection, tenant) {
                (Some(connection), Some(tenant)) if part.text.len() < TEXT_MAX => {
                    let request = request.renumbered(*connection, *tenant);
                    append(&mut part.text, &RecordingLine::Request(request));
                    part.requests += 1;
                }
                _ => part.lost += 1,
            }
        }
    }

    /// A gateway's connection is closed: what it has recorded and not sent is lost, and when it
    /// comes back its numbers begin anew.
    pub(crate) fn on_closed(&mut self, gateway: GatewayId, name: &str) {
        let Some(active) = &mut self.active else { return };
        if active.gateways.remove(&gateway).is_some() {
            active.part.left.retain(|left| left != name);
            active.part.left.push(name.into());
        }
    }
}

fn append(text: &mut String, line: &RecordingLine) {
    // A string takes everything.
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use tidegate_model::{Operation, Span};

    use crate::recording::{Parser, RecordedRequest};

    fn at(seconds: u64) -> Time {
        Time::ZERO.after(Span(seconds * Span::SECOND.0))
    }

    fn batch(session: u64, count: usize) -> Batch {
        let request = RecordedRequest {
            at_ns: 5,
            latency_ns: 7,
            connection: 40,
            tenant: TenantId(9),
            operation: Operation::Write,
            bytes: 512,
            position: 0,
        };
        Batch {
            session,
            span_ns: 20,
            lost: 1,
            failed: 2,
            tenants: vec![(TenantId(9), "oltp".into())],
            connections: vec![(40, "db".into(), String::new())],
            requests: vec![request; count],
        }
    }

    #[test]
    fn gateways_have_numbers_of_their_own_and_the_recording_has_one_set() {
        let mut collector = Collector::default();
        let session = collector.begin(at(0), 2).unwrap();
        collector.on_batch(GatewayId(0), "front", batch(session, 1));
        collector.on_batch(GatewayId(1), "side", batch(session, 1));
        collector.on_batch(GatewayId(1), "side", batch(session + 1, 9));
        let part = collector.take(at(1), (session, true), 1).unwrap();
        let expected = "\
tidegate recording 1
tenant 0 oltp
connection 0 front db \"\"
5 7 0 0 write 512 0
connection 1 side db \"\"
5 7 1 0 write 512 0
end 20 2 4
";
        assert_eq!(part.text, expected);
        assert_eq!((part.requests, part.lost, part.failed, part.span_ns), (2, 2, 4, 20));
        let mut parser = Parser::default();
        part.text.lines().for_each(|line| drop(parser.line(line.as_bytes()).unwrap()));
        assert!(parser.has_ended());
    }

    #[test]
    fn one_records_at_a_time_and_only_while_asked() {
        let mut collector = Collector::default();
        assert_eq!(collector.begin(at(0), 0), Err(CollectError::NoGateway));
        let first = collector.begin(at(0), 1).unwrap();
        assert_eq!(collector.begin(at(4), 1), Err(CollectError::Busy));
        assert!(collector.take(at(4), (first, false), 1).is_ok());
        assert_eq!(collector.begin(at(8), 1), Err(CollectError::Busy));
        assert_eq!(collector.take(at(9), (first, false), 1), Err(CollectError::Over));
        let second = collector.begin(at(9), 1).unwrap();
        assert_eq!(collector.take(at(9), (first, false), 1), Err(CollectError::Over));
        assert!(collector.take(at(10), (second, true), 1).is_ok());
        assert!(collector.begin(at(10), 1).is_ok());
    }

    #[test]
    fn what_the_operator_does_not_take_is_bounded_and_counted() {
        let mut collector = Collector::default();
        let session = collector.begin(at(0), 1).unwrap();
        collector.on_batch(GatewayId(0), "front", batch(session, 2_000_000));
        let part = collector.take(at(1), (session, false), 1).unwrap();
        assert!(part.text.len() < TEXT_MAX + 100);
        assert_eq!(part.requests + part.lost, 2_000_001);
        assert!(part.text.ends_with('\n') && part.lost > 1);
    }

    #[test]
    fn a_gateway_that_has_left_is_named_and_begins_anew() {
        let mut collector = Collector::default();
        let session = collector.begin(at(0), 1).unwrap();
        collector.on_batch(GatewayId(0), "front", batch(session, 1));
        collector.on_closed(GatewayId(0), "front");
        // Its numbers mean other connections from then on.
        let unknown = Batch { connections: vec![], ..batch(session, 1) };
        collector.on_batch(GatewayId(0), "front", unknown);
        collector.on_closed(GatewayId(0), "front");
        let part = collector.take(at(1), (session, false), 1).unwrap();
        assert_eq!((part.gateways, part.requests, part.lost), (1, 1, 3));
        assert_eq!(part.left, ["front"]);
    }
}
