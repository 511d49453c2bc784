//! A client of a data node: keys and values in memory that this process reads and writes itself.
//!
//! # Mechanism
//! [`Connection::open`] requests the data node's memory, over a Unix socket, once. From then on
//! nothing is sent: a get copies a value and checks it, a put writes one beside the old and swaps a
//! word, and both wait for a token, which comes out of words in the same memory. The node's own
//! processes may be stopped meanwhile.
//!
//! There are two ways to use it. A [`Store`] has gets, puts and deletes that wait until they are
//! done, for any number of threads, and needs no care. A [`Connection`] belongs to one thread,
//! which has many operations under way ([`Connection::begin_get`] and its like), learns from
//! [`Connection::poll`] or [`Connection::wait`] which have ended, and has to call one of these all
//! the time.
//!
//! ```no_run
//! use tidegate_stage::memory::{Settings, Store};
//! # fn main() -> Result<(), tidegate_stage::memory::Error> {
//! let settings = Settings { tenant: "web".into(), ..Settings::default() };
//! let store = Store::open("/run/tidegate/memory.sock", settings)?;
//! store.put(b"answer", b"42")?;
//! assert_eq!(store.get(b"answer")?.as_deref(), Some(&b"42"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! With RNICs (feature `verbs`) the memory may be on another machine: `Connection::open_remote`
//! connects by TCP and with a certificate, and all else goes through the node's RNIC. An RNIC does
//! not announce completions, so a thread that waits for one polls, and yields the processor in
//! between.
//!
//! # Bound
//! Tokens come each period. A client that connects within a period gets unreserved tokens, as far
//! as its tenant's limit goes, a few milliseconds later. Its reserved tokens come when the next
//! period begins. A client that does not poll for 5 ms checks whether its tokens are still its own.
//! After 50 ms it has lost those of this period. After three periods it loses its session slot, and
//! gets another by itself. But to give it the memory again the node has to move (below), so a
//! connection that no thread polls is to be closed.
//!
//! When the data node moves to other memory, what is under way may or may not have happened
//! ([`Error::Moved`]). If it has died, its memory is there as long as a process has it, and clients
//! go on with what is reserved for them. When a node listens there again, the first of them brings
//! it back. Behind an RNIC there is nothing to go on with: what was stored is gone with the node,
//! and clients come to the next one anew.

mod access;
mod entry;
mod forks;
mod lifeline;
mod store;
mod waiting;

use std::io;
use std::path::Path;
use std::sync::Arc;

use tidegate_algo::onesided::engine::TokenBalance;
use tidegate_fabric::memory::region::Region;
use tidegate_model::{Iops, Span, Time};
use tidegate_onesided::data_node::{SlotParameters, Welcome};
use tidegate_onesided::haechi::{port, region_layout};
use tidegate_onesided::kv::{self, Client, LayoutError, OpenError};
use tidegate_onesided::one_sided::Lost;
use tidegate_proto::retry::Retry;
use tidegate_proto::session::version::VersionMismatch;

use crate::clock::kernel_time;
use access::Access;
use entry::{DataNodeSession, Former, enter, outstanding};
use lifeline::{Entrance, Lifeline, LifelineState};

pub use store::Store;
pub use tidegate_algo::onesided::Period;
#[cfg(feature = "verbs")]
pub use tidegate_fabric::stream::Way;
pub use tidegate_onesided::haechi::port::EngineCounters;
pub use tidegate_onesided::kv::{
    Answer, ENTRY_MAX, KEY_MAX, OperationOutcome, Refused, VALUE_MAX, Value,
};
pub use waiting::Lateness;

/// How often the connection is listened to while there is something to do.
const LISTEN: Span = Span(10 * Span::MILLISECOND.0);

/// A client that was away for longer listens before it does anything: it may have lost its session
/// slot, and with it the memory.
const AWAY: Span = port::AWAY;

/// The first and the longest wait between two attempts to find a data node again that is gone.
const RETRY: [Span; 2] = [Span(50 * Span::MILLISECOND.0), Span(2 * Span::SECOND.0)];

/// A wait shorter than this is not worth a system call: waking up takes as long.
const NAP: Span = Span(20_000);

/// Blocks to take from the store at a time, at most.
const EXTENT: u32 = 64;

const _: () =
    assert!(region_layout::SESSION_SLOTS <= kv::HOLDERS, "a store knows all session slots");

/// For how many periods a block rests.
const REST: u64 = 2;

/// Demands of a client on a data node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The tenant that it acts for; empty to go by the policy's rules.
    pub tenant: String,
    /// The part of its tenant's reservation that the client wants; none for an equal part of it.
    pub reservation: Option<Iops>,
    /// The most that it wants to do; none for its part of its tenant's limit.
    pub limit: Option<Iops>,
    /// Without a requested reservation: it requests one of so many equal parts of its tenant's
    /// reservation; 1 for all that is left.
    pub parts: u32,
    /// Operations that may be under way, from 1 to 1000; 0 for as many as the node allows.
    pub outstanding: u32,
    /// The RDMA device, such as `mlx5_0`, where RNICs reach the memory; none for the first that
    /// carries packets.
    pub device: Option<String>,
    /// For how many keys to remember where they are, 16 bytes each.
    pub locations: u32,
    /// Without a session slot, tokens and limits, for measurements. Only root and the data node's
    /// own user may.
    pub is_bare: bool,
    /// How long to wait for the data node when the connection is opened; in a [`Store`] also how
    /// long an operation may take.
    pub patience: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tenant: String::new(),
            reservation: None,
            limit: None,
            parts: 1,
            outstanding: 0,
            device: None,
            locations: 1 << 16,
            is_bare: false,
            patience: Span(10 * Span::SECOND.0),
        }
    }
}

/// Error of a connection to a data node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No data node answers there.
    #[error("{}", unreachable(.0))]
    Unreachable(io::Error),
    /// It gives us no memory. Its reason, and after a semicolon what helps.
    #[error("{0}")]
    Refused(String),
    /// It is of another release.
    #[error("{0}")]
    Version(VersionMismatch),
    /// The data node sent memory that cannot be used, or the memory cannot be reached.
    #[error("the data node's memory cannot be used: {0}")]
    Memory(io::Error),
    /// There is no store in it that this release can use.
    #[error("{0}")]
    Store(LayoutError),
    /// The key or the value cannot be, or too much is under way.
    #[error("{0}")]
    Operation(Refused),
    /// Of a put: no block is free.
    #[error("the store is full; delete something, or give it more memory")]
    Full,
    /// Of a put: this client holds as many blocks at rest as it may. Nothing has changed.
    #[error(
        "too many updates by this client for the store's free space; try again after two periods, \
         or give the store more memory"
    )]
    Throttled,
    /// Of a put: there is no slot for this key, though there may be for others.
    #[error("the store has no place for this key; give it more memory")]
    Crowded,
    /// Others were faster, each of many times. Nothing has changed.
    #[error("others changed the same key at the same time; try again")]
    Contended,
    /// The store does not hold what was written to it. Nothing has changed.
    #[error("the value is damaged, and so is not given out; store it anew")]
    Corrupt,
    /// The data node has gone on with other memory, or has given its own anew, which the connection
    /// has now. Operations that were in flight have ended, and may or may not have happened.
    #[error("the data node has given out its memory anew; try again")]
    Moved,
    /// The data node has gone on with other memory, or our RNIC does not reach it any more, and why
    /// it does not let us in again. Operations that were in flight may or may not have happened.
    #[error("the data node's memory is not to be had any more: {0}")]
    Outside(String),
    /// Of an operation of a [`Store`]: it has not ended in time, as the data node is gone and too
    /// little is reserved for us. A put or delete may happen yet.
    #[error(
        "not done in time: the data node is gone, and too little is reserved for this client; \
         start the node again with `tidegate up CLUSTER`"
    )]
    Gone,
    /// The same, but the data node is there.
    #[error("not done in time: {}", match is_alone {
        true => "the data node begins no periods, and too little is reserved for this client; see \
                 whether its process is stopped",
        false => "others use what is not reserved for this client; reserve more, raise its limit, \
                  or wait longer",
    })]
    Late {
        /// It opens no periods: it is stopped, or its machine has no time for it.
        is_alone: bool,
    },
    /// Of a [`Store`]: this process was forked from the one that has opened it.
    #[error("the store was opened by the process that this one was forked from; open one here")]
    Forked,
}

/// Describes a connection that fails, with the remedy.
fn unreachable(error: &io::Error) -> String {
    let text = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "no data node listens there; start one with `tidegate up CLUSTER`"
        }
        io::ErrorKind::TimedOut => "the data node does not answer",
        io::ErrorKind::PermissionDenied => {
            "this user may not reach the data node's socket; have it listen in a folder that this \
             user may enter, outside of the state folder, which is its owner's alone"
        }
        io::ErrorKind::UnexpectedEof => "the data node has closed the connection",
        _ => return format!("the data node cannot be talked to: {error}"),
    };
    text.to_owned()
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Operation(refused)
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Layout(error) => Self::Store(error),
            OpenError::Lost(lost) => Self::Memory(io::Error::other(lost)),
        }
    }
}

/// A client of one data node. It belongs to one thread at a time.
#[derive(Debug)]
pub struct Connection {
    entrance: Entrance,
    settings: Settings,
    /// None once the data node is gone.
    lifeline: Option<Lifeline>,
    welcome: Welcome,
    client: Client<Access>,
    /// The mapped memory; none behind an RNIC.
    region: Option<Arc<Region>>,
    /// When the clock was read last, and the lifeline.
    now: Time,
    last_listened: Time,
    /// Until when there was nothing to do after that, and how late it was polled again.
    due: Time,
    late: Lateness,
    retry: Retry,
    /// Why the node has not let us in again since it went on with other memory. Ours is not to be
    /// used any more then.
    outside: Option<String>,
}

impl Connection {
    /// Requests the memory of the data node that listens at `path`.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn open(path: impl AsRef<Path>, settings: Settings) -> Result<Self, Error> {
        Self::enter(Entrance::Socket(path.as_ref().to_owned()), settings)
    }

    /// Requests the memory, reached by RNICs, of the data node at the end of this way.
    ///
    /// # Errors
    /// If it cannot be had.
    #[cfg(feature = "verbs")]
    pub fn open_remote(way: Way, settings: Settings) -> Result<Self, Error> {
        Self::enter(Entrance::Way(way), settings)
    }

    fn enter(entrance: Entrance, settings: Settings) -> Result<Self, Error> {
        let entry = enter(&entrance, &settings, Former::default())?;
        let DataNodeSession { lifeline, welcome, client, region } = entry;
        let now = kernel_time();
        Ok(Self {
            entrance,
            settings,
            lifeline: Some(lifeline),
            welcome,
            client,
            region,
            now,
            last_listened: now,
            due: now,
            late: Lateness::default(),
            retry: Retry::new(RETRY[0], RETRY[1]),
            outside: None,
        })
    }

    /// The tenant that the client acts for; empty for the default tenant.
    pub fn tenant(&self) -> &str {
        &self.welcome.tenant
    }

    /// The session slot and its parameters; none without one.
    pub fn session_slot(&self) -> Option<&SlotParameters> {
        self.welcome.session_slot.as_ref()
    }

    /// Operations that are reserved for the period that runs; none without a session slot.
    pub fn reservation(&self) -> u64 {
        self.client.remote().balance().map_or(0, |balance| balance.promise().reservation)
    }

    /// The period that runs, by this client's clock, number 0 before the first; none without a
    /// session slot.
    pub fn period(&self) -> Option<Period> {
        self.client.remote().balance().map(TokenBalance::period)
    }

    /// Counts of the engine since the data node granted the memory; none without a session slot.
    pub fn counts(&self) -> Option<EngineCounters> {
        match self.client.remote() {
            Access::Shm(port) => Some(port.counts()),
            Access::Model(port) => Some(port.counts()),
            #[cfg(feature = "verbs")]
            Access::Rnic(port) => Some(port.counts()),
            _ => None,
        }
    }

    /// Whether no period has begun for a while, so that only what is reserved is used.
    pub fn is_alone(&self) -> bool {
        match self.client.remote() {
            Access::Shm(port) => port.is_alone(),
            Access::Model(port) => port.is_alone(),
            #[cfg(feature = "verbs")]
            Access::Rnic(port) => port.is_alone(),
            _ => false,
        }
    }

    /// Whether the connection has noticed that the data node is gone.
    pub fn is_gone(&self) -> bool {
        self.lifeline.is_none()
    }

    /// Begins a lookup of a key's value. `token` comes back with the outcome.
    ///
    /// # Errors
    /// If it is not begun.
    #[inline]
    pub fn begin_get(&mut self, key: &[u8], token: u64) -> Result<(), Refused> {
        self.client.get(key, token)
    }

    /// Begins to give a key a value, likewise.
    ///
    /// # Errors
    /// If it is not begun.
    #[inline]
    pub fn begin_put(&mut self, key: &[u8], value: &[u8], token: u64) -> Result<(), Refused> {
        self.client.put(key, value, token)
    }

    /// Begins to take a key's value away, likewise.
    ///
    /// # Errors
    /// If it is not begun.
    #[inline]
    pub fn begin_delete(&mut self, key: &[u8], token: u64) -> Result<(), Refused> {
        self.client.delete(key, token)
    }

    /// Notes how many operations are to be done in this period and cannot be begun, as the limit of
    /// operations in flight is reached. The call costs nothing; the data node learns of it when the
    /// period is over. If a tenant wants more at several data nodes, its reservation then goes to
    /// each as it is wanted there. A client that does not count them need not call this.
    pub fn note_unmet(&mut self, count: u64) {
        self.client.remote_mut().note_unmet(count);
    }

    /// Operations that were begun and have not ended.
    pub fn outstanding(&self) -> usize {
        self.client.outstanding()
    }

    /// Operations that may be under way.
    pub fn window(&self) -> u32 {
        outstanding(&self.settings, &self.welcome)
    }

    /// The bytes of a value that was found.
    #[inline]
    pub fn value(&self, value: &Value) -> &[u8] {
        self.client.value(value)
    }

    /// Gives back what a value took. One that was found in other memory is not to be given back.
    #[inline]
    pub fn release(&mut self, value: Value) {
        self.client.release(value);
    }

    /// Goes on with what was begun, without waiting, and appends what has ended.
    ///
    /// # Errors
    /// [`Error::Moved`], after which nothing is under way; [`Error::Outside`] as long as a move has
    /// left us outside; all others once that a node gone for a while does not let us in again.
    #[inline]
    pub fn poll(&mut self, outcomes: &mut Vec<OperationOutcome>) -> Result<(), Error> {
        let now = kernel_time();
        self.late.add(now.since(self.due.max(self.now)));
        let passed = now.since(std::mem::replace(&mut self.now, now));
        if passed > AWAY || now.since(self.last_listened) >= LISTEN {
            self.listen(now)?;
        }
        if let Some(reason) = &self.outside {
            return Err(Error::Outside(reason.clone()));
        }
        match self.client.poll(now, outcomes) {
            Ok(()) => Ok(()),
            // Stopped just now, it did not receive that the node moves; or the RNIC does not reach
            // the memory any more: the node has shut us out, or is gone, or the network is.
            Err(Lost) => Err(self.follow(now)),
        }
    }

    /// When to poll at the latest, also if nothing was begun.
    pub fn next_deadline(&self) -> Time {
        self.client.remote().next_deadline(self.now).min(self.last_listened.after(LISTEN))
    }

    /// The time by the clock of [`Self::next_deadline`], as it was read last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Listens to the data node, and follows it to other memory.
    #[cold]
    fn listen(&mut self, now: Time) -> Result<(), Error> {
        self.last_listened = now;
        match self.lifeline.as_mut().map_or(LifelineState::End, Lifeline::receive) {
            LifelineState::Silence => Ok(()),
            LifelineState::Moving => Err(self.follow(now)),
            LifelineState::End => {
                self.lifeline = None;
                if self.retry.is_due(now) { self.come_again(now) } else { Ok(()) }
            }
        }
    }

    /// Leaves memory that the node leaves, too, for other. It waits until the connection is closed.
    #[cold]
    fn follow(&mut self, now: Time) -> Error {
        (self.lifeline, self.outside, self.last_listened) = (None, Some(String::new()), now);
        match self.come_again(now) {
            Ok(()) => Error::Outside(self.outside.clone().unwrap_or_default()),
            Err(error) => error,
        }
    }

    /// Requests memory once more.
    ///
    /// # Errors
    /// That there is other now, or why there is none if the node is there and ours is not left.
    fn come_again(&mut self, now: Time) -> Result<(), Error> {
        // A data node that is gone may come back, and then has no memory until a client brings it.
        // The node has noted its last memory, so it takes no other: it may also have died while it
        // moved.
        let session_slot = self.session_slot().map(|session_slot| session_slot.number);
        let former = Former { region: self.region.clone(), session_slot };
        match enter(&self.entrance, &self.settings, former) {
            Ok(DataNodeSession { lifeline, welcome, client, region }) => {
                (self.lifeline, self.welcome) = (Some(lifeline), welcome);
                (self.client, self.region, self.outside) = (client, region, None);
                self.retry.succeed();
                return Err(Error::Moved);
            }
            Err(error) => {
                self.retry.later(now);
                match (&mut self.outside, error) {
                    (Some(reason), error) => *reason = error.to_string(),
                    // It is gone. Its memory is still here.
                    (None, Error::Unreachable(_)) => {}
                    (None, error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}
