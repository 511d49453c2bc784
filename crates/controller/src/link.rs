//! One connection to the controller, from its hello to its end.
//!
//! A connection without a hello in time, without a permit ([`crate::permits`]) or with a hello that
//! its peer may not send ([`crate::identity`]) is refused. Operators are then answered one request
//! at a time; all other peers are handed to the machine.

use std::fmt;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::clock::Clock;
use tidegate_fabric::segment_use;
use tidegate_fabric::stream::{Stream, peer_process};
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::controller::{ConnectionId, Peer, Refusal, ToPeer};
use tidegate_proto::message::{Hello, Reply, VERSION};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::identity::{Members, PeerIdentity};
use crate::input::Input;
use crate::operator;
use crate::peer_link::{PeerLink, read, relay};
use crate::peer_receiver::{PeerDecoder, PeerReceiver, ReadError};
use crate::permits::ConnectionPermits;
use crate::register::Register;
use crate::users::Users;

/// Bytes read at a time of a hello, which has a few hundred.
const READ_CHUNK: usize = 4 << 10;

/// Context of every new connection.
#[derive(Debug)]
pub(crate) struct ConnectionContext {
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) register: Arc<Register>,
    pub(crate) receiver: Arc<PeerReceiver>,
    pub(crate) hello_max: Duration,
    pub(crate) next_connection: AtomicU64,
    pub(crate) users: Users,
    pub(crate) permits: Arc<ConnectionPermits>,
    pub(crate) clock: Clock,
    pub(crate) members: Members,
    /// The log lines about peers that are refused before the machine knows them.
    pub(crate) refusals: Mutex<LogLimiter>,
}

impl ConnectionContext {
    /// Logs that a peer is refused, if a line is due: any user of this machine can connect.
    fn warn_refused(&self, peer: &PeerIdentity, reason: impl fmt::Display) {
        if let Some(unlogged) = self.due_refusal() {
            tracing::warn!(%peer, %reason, unlogged, "connection refused");
        }
    }

    fn warn_failed(&self, peer: &PeerIdentity, error: impl fmt::Display) {
        if let Some(unlogged) = self.due_refusal() {
            tracing::warn!(%peer, %error, unlogged, "the connection of an operator failed");
        }
    }

    /// Whether a line about a refused or failed peer is due, and how many were left out before.
    fn due_refusal(&self) -> Option<u64> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.admit(self.clock.now())
    }
}

/// Serves one connection, from its hello to its end.
pub(crate) async fn attend(
    stream: Stream,
    mut identity: PeerIdentity,
    context: Arc<ConnectionContext>,
) {
    // A peer without a permit gets no reason: only its hello would identify its protocol.
    let permit = context.permits.take(identity.kind(), context.clock.now());
    let Some(permit) = permit else { return };
    let (hello, rest) = match timeout(context.hello_max, read_hello(&stream)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => {
            return context.warn_refused(&identity, format_args!("no valid hello: {error}"));
        }
        Err(_) => {
            let within = context.hello_max;
            return context.warn_refused(&identity, format_args!("no hello within {within:?}"));
        }
    };
    if let PeerIdentity::Remote(names) = &mut identity {
        names.extend_from_slice(stream.names().unwrap_or_default());
    }
    if let Err(reason) = identity.may_be(&hello, &context.members) {
        refuse(&stream, &hello, &reason);
        return context.warn_refused(&identity, reason);
    }
    // A stage counts as its user's from here on, so that no user keeps all others out.
    let permit = match (&hello, &identity) {
        (Hello::Stage { .. }, PeerIdentity::Remote(_)) => {
            drop(permit);
            context.permits.take(identity.kind(), context.clock.now())
        }
        _ => Some(permit),
    };
    let Some(_permit) = permit else { return };
    match (hello, &identity) {
        (Hello::Operator { version }, _) => {
            let (is_allowed, register) = (identity.may_operate(), &context.register);
            let ended = operator::attend(&stream, version, is_allowed, rest, register).await;
            if let Err(error) = ended {
                context.warn_failed(&identity, error);
            }
        }
        (hello @ Hello::Stage { .. }, PeerIdentity::Local { uid, pid }) => {
            let process = peer_process::process(&stream);
            let peer = Peer { process, ..supervisor((*uid, *pid), &hello, &context.users).await };
            serve(stream, &context, (peer, hello), &rest).await;
        }
        (hello, PeerIdentity::Local { uid, pid }) => {
            let peer = Peer { uid: *uid, pid: *pid, ..Peer::default() };
            serve(stream, &context, (peer, hello), &rest).await;
        }
        (hello, PeerIdentity::Remote(names)) => {
            let address = stream.peer_address().unwrap_or_default();
            // The kernel names no process there; which one it is is the stage's own word.
            let pid = if let Hello::Stage { info, .. } = &hello { info.pid } else { 0 };
            let peer = Peer { pid, address, certificate: Some(names.clone()), ..Peer::default() };
            serve(stream, &context, (peer, hello), &rest).await;
        }
    }
}

/// A stage of this machine, with its user and process. A supervisor's programs can be seen without
/// it, by their segment.
async fn supervisor((uid, pid): (u32, u32), hello: &Hello, users: &Users) -> Peer {
    let is_watched =
        matches!(hello, Hello::Stage { info, .. } if segment_use::is_used(uid, &info.held.segment));
    Peer { uid, pid, user: users.name(uid).await, is_watched, ..Peer::default() }
}

/// Sends the reason of a refusal in the protocol of the hello. The reason has a few bytes: a peer
/// that does not take them at once will not read them either.
fn refuse(stream: &Stream, hello: &Hello, reason: &str) {
    let reason = reason.to_owned();
    let mut bytes = Vec::new();
    let refusal = Refusal { reason: reason.clone(), retry: false };
    let encoded = match ToPeer::refusal(hello, refusal) {
        Some(message) => encode(&message, &mut bytes),
        None => encode(&Reply::Refused { version: VERSION, reason }, &mut bytes),
    };
    if encoded.is_ok() {
        let _ = stream.send(&[IoSlice::new(&bytes)]);
    }
}

/// Serves a connection that is not an operator's, from behind its hello to its end.
async fn serve(
    stream: Stream,
    context: &ConnectionContext,
    (peer, hello): (Peer, Hello),
    rest: &[u8],
) {
    let id = ConnectionId(context.next_connection.fetch_add(1, Ordering::Relaxed));
    let link = Arc::new(PeerLink::new(id, stream));
    let Some(decoder) = PeerDecoder::of(&hello) else { return };
    let joined = Input::Joined { link: link.clone(), peer, hello };
    if context.inputs.send(joined).await.is_ok() {
        context.receiver.connect(&link, decoder, rest).await;
        attend_link(&link, &context.inputs).await;
        context.receiver.disconnect(&link);
    }
}

async fn read_hello(stream: &Stream) -> Result<(Hello, Vec<u8>), ReadError> {
    let mut decoder = Decoder::<Hello>::new();
    loop {
        if let Some(hello) = decoder.next_message()? {
            return Ok((hello, decoder.into_rest()));
        }
        match read(stream, &mut [0; READ_CHUNK], &mut decoder).await? {
            0 => return Err(ReadError::Closed),
            _ => continue,
        }
    }
}

/// Writes the bytes that the machine could not, until the link has to be closed. A failure to do so
/// is reported to the machine.
async fn attend_link(link: &PeerLink, inputs: &mpsc::Sender<Input>) {
    if let Err(error) = relay(link).await {
        let input = Input::Closed { connection: link.id, reason: error.to_string() };
        let _ = inputs.send(input).await;
    }
}
