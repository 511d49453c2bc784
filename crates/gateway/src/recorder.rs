//! The recorder: a bounded buffer of the requests that workers have answered, while the controller
//! asks for them ([`tidegate_proto::recording`]).
//!
//! While no recording is under way, a worker reads one number for each batch of answers. During
//! one, workers append to one buffer, a batch at a time under its lock. The gateway's agent takes
//! it whenever the controller asks. Requests that do not fit are counted. A recording ends by
//! itself when the controller has not asked for [`LEASE`], and with the connection to it.

use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_model::cluster::Layout;
use tidegate_model::{Operation, TenantId, Time};
use tidegate_proto::recording::{Batch, LEASE, RecordedRequest};

/// The most requests between two questions of the controller, five of which come in a second: more
/// than a gateway serves in that time. They take 6 MiB.
const REQUESTS_MAX: usize = 1 << 17;

/// A connection in a recording. It gets another number in the next recording, and if the tenant of
/// its requests without a rule changes: a replay with other rules has to know that tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    session: u64,
    number: u32,
    tenant: Box<str>,
}

/// The extent of a request, as far as a recording has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) bytes: u32,
    /// Modulo one row of stripes.
    pub(crate) position: u64,
}

impl Extent {
    /// The extent of a request in a volume with this layout.
    pub(crate) fn new(layout: &Layout, offset: u64, bytes: u32) -> Self {
        Self { bytes, position: offset % layout.row() }
    }
}

/// The requests of a gateway, while they are recorded.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// The recording that is under way; zero for none.
    session: AtomicU64,
    log: Mutex<Log>,
}

/// The buffer.
#[derive(Debug, Default)]
pub(crate) struct Log {
    session: u64,
    began: Time,
    /// When the recording ends unless it is asked for.
    until: Time,
    connections: u32,
    /// By number, the tenants whose names were sent.
    tenants: Vec<bool>,
    batch: Batch,
}

impl Recorder {
    /// The recorder, if a recording is under way: all that a worker reads if none is.
    #[inline]
    pub(crate) fn active(self: &Arc<Self>) -> Option<Arc<Self>> {
        (self.session.load(Ordering::Relaxed) != 0).then(|| self.clone())
    }

    /// The controller asks for a recording. Returns what was recorded since its last question.
    pub(crate) fn on_question(&self, now: Time, session: u64) -> Option<Batch> {
        if session == 0 {
            self.end();
            return None;
        }
        let mut log = self.log();
        if log.session != session {
            *log = Log { session, began: now, ..Log::default() };
            self.session.store(session, Ordering::Relaxed);
        }
        log.until = now.after(LEASE);
        let batch = take(&mut log.batch);
        Some(Batch { session, span_ns: now.since(log.began).0, ..batch })
    }

    /// When to call [`Self::end`]; [`Time::MAX`] if no recording is under way.
    pub(crate) fn ends(&self) -> Time {
        let is_on = self.session.load(Ordering::Relaxed) != 0;
        if is_on { self.log().until } else { Time::MAX }
    }

    /// Ends the recording, if one is under way, and frees its memory.
    pub(crate) fn end(&self) {
        if self.session.swap(0, Ordering::Relaxed) != 0 {
            *self.log() = Log::default();
        }
    }

    /// The buffer.
    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        // A request is appended whole, or not at all.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was answered.
pub(crate) struct Answered {
    pub(crate) tenant: TenantId,
    pub(crate) operation: Operation,
    pub(crate) received_at: Time,
    pub(crate) extent: Extent,
    pub(crate) has_failed: bool,
}

impl Log {
    /// Appends a request that was answered now, through a connection to `volume` whose requests
    /// without a rule are those of `owner`. `name` returns the name of the request's tenant.
    pub(crate) fn add<'a>(
        &mut self,
        now: Time,
        recorded: &mut Option<Recorded>,
        request: Answered,
        ((volume, owner), name): ((&str, &str), impl FnOnce() -> &'a str),
    ) {
        if self.session == 0 {
            return;
        }
        if request.has_failed {
            self.batch.failed += 1;
            return;
        }
        if self.batch.requests.len() >= REQUESTS_MAX {
            self.batch.lost += 1;
            return;
        }
        let session = self.session;
        let known = recorded.as_ref().filter(|it| it.session == session && *it.tenant == *owner);
        let number = known.map_or(self.connections, |known| known.number);
        if known.is_none() {
            self.connections += 1;
            *recorded = Some(Recorded { session, number, tenant: owner.into() });
            self.batch.connections.push((number, volume.into(), owner.into()));
        }
        let (tenant, index) = (request.tenant, usize::from(request.tenant.0));
        if self.tenants.len() <= index {
            self.tenants.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.tenants[index], true) {
            self.batch.tenants.push((tenant, name().into()));
        }
        let received_at = request.received_at.max(self.began);
        self.batch.requests.push(RecordedRequest {
            at_ns: received_at.since(self.began).0,
            latency_ns: now.since(received_at).0,
            connection: number,
            tenant,
            operation: request.operation,
            bytes: request.extent.bytes,
            position: request.extent.position,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Bytes;

    fn answered(tenant: u16, received_at: u64) -> Answered {
        let extent = Extent { bytes: 4096, position: 0 };
        let (operation, received_at) = (Operation::Read, Time(received_at));
        Answered { tenant: TenantId(tenant), operation, received_at, extent, has_failed: false }
    }

    fn add(recorder: &Arc<Recorder>, recorded: &mut Option<Recorded>, request: Answered) {
        add_of(recorder, recorded, request, "oltp");
    }

    fn add_of(
        recorder: &Arc<Recorder>,
        recorded: &mut Option<Recorded>,
        request: Answered,
        owner: &str,
    ) {
        if let Some(recorder) = recorder.active() {
            recorder.log().add(Time(100), recorded, request, (("db", owner), || "etl"));
        }
    }

    #[test]
    fn only_what_is_answered_while_it_is_asked_for_is_recorded() {
        let (recorder, mut one, mut other) = (Arc::<Recorder>::default(), None, None);
        add(&recorder, &mut one, answered(3, 10));
        assert_eq!(recorder.ends(), Time::MAX);
        let empty = Batch { session: 7, ..Batch::default() };
        assert_eq!(recorder.on_question(Time(50), 7), Some(empty));
        assert_eq!(recorder.ends(), Time(50).after(LEASE));
        add(&recorder, &mut one, answered(3, 40));
        add(&recorder, &mut other, answered(3, 90));
        add(&recorder, &mut one, Answered { has_failed: true, ..answered(3, 90) });
        let batch = recorder.on_question(Time(150), 7).unwrap();
        assert_eq!((batch.span_ns, batch.failed, batch.lost), (100, 1, 0));
        assert_eq!(batch.tenants, [(TenantId(3), "etl".to_owned())]);
        let numbers: Vec<u32> = batch.connections.iter().map(|(number, ..)| *number).collect();
        assert_eq!(numbers, [0, 1]);
        let times: Vec<_> = batch.requests.iter().map(|it| (it.at_ns, it.latency_ns)).collect();
        assert_eq!(times, [(0, 50), (40, 10)], "the first was under way at the beginning");
        // Names and numbers are sent once, and anew in the next recording.
        add(&recorder, &mut one, answered(3, 90));
        let batch = recorder.on_question(Time(160), 7).unwrap();
        assert!(batch.tenants.is_empty() && batch.connections.is_empty());
        recorder.on_question(Time(170), 8);
        add(&recorder, &mut other, answered(3, 90));
        let batch = recorder.on_question(Time(180), 8).unwrap();
        assert_eq!((batch.tenants.len(), batch.connections.len()), (1, 1));
        assert_eq!(recorder.on_question(Time(190), 0), None);
        add(&recorder, &mut one, answered(3, 90));
        assert!(recorder.active().is_none());
    }

    /// The gateway hears of the client's program after its first requests.
    #[test]
    fn a_connection_is_recorded_for_the_tenant_that_owns_its_requests() {
        let (recorder, mut recorded) = (Arc::<Recorder>::default(), None);
        recorder.on_question(Time(0), 1);
        for owner in ["oltp", "oltp", "report", "report", "oltp"] {
            add_of(&recorder, &mut recorded, answered(3, 1), owner);
        }
        let batch = recorder.on_question(Time(0), 1).unwrap();
        let connection = |number, owner: &str| (number, "db".to_owned(), owner.to_owned());
        let expected = [(0, "oltp"), (1, "report"), (2, "oltp")];
        assert_eq!(batch.connections, expected.map(|(number, owner)| connection(number, owner)));
        let numbers: Vec<u32> = batch.requests.iter().map(|it| it.connection).collect();
        assert_eq!(numbers, [0, 0, 1, 1, 2]);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let (recorder, mut recorded) = (Arc::<Recorder>::default(), None);
        recorder.on_question(Time(0), 1);
        (0..REQUESTS_MAX + 3).for_each(|_| add(&recorder, &mut recorded, answered(0, 1)));
        let batch = recorder.on_question(Time(0), 1).unwrap();
        assert_eq!((batch.requests.len(), batch.lost), (REQUESTS_MAX, 3));
    }

    #[test]
    fn a_position_says_the_node_and_no_more() {
        let striped = Layout::new(Bytes(1 << 20), 3, Bytes(4096));
        let position = |offset| Extent::new(&striped, offset, 1).position;
        assert_eq!([0, 5000, 3 * 4096, 7 * 4096 + 1].map(position), [0, 5000, 0, 4097]);
        let plain = Layout::new(Bytes(1 << 20), 1, Bytes(4096));
        assert_eq!(Extent::new(&plain, 5000, 1).position, 0);
    }
}
