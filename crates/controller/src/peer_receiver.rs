//! Messages of stages, nodes and gateways, received by one task for all connections.
//!
//! A thousand stages answer a request within a few milliseconds, one by one. A task that wakes for
//! each answer costs a wake-up of the thread per answer, ten times the cost of the answer itself.
//! So the receiver wakes for the first answer only. It reads all connections with data, pauses
//! for [`PAUSE`], and then reads at once all connections with data that arrived meanwhile. If at
//! least [`BUSY`] connections had data, it reads on without a pause. A single message outside such
//! a pause is read immediately.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_fabric::poller::Poller;
use tidegate_proto::cluster::message::FromNode;
use tidegate_proto::codec::{DecodeError, Decoder};
use tidegate_proto::controller::FromPeer;
use tidegate_proto::data_node::FromDataNode;
use tidegate_proto::message::{FromGateway, FromStage, Hello};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::input::Input;
use crate::peer_link::PeerLink;

/// The pause of the receiver after it has read messages: the runtime's shortest wait. It
/// lengthens a cycle by at most that, and bounds the messages that one stage can make the daemon
/// read.
const PAUSE: Duration = Duration::from_millis(1);

/// Connections with data in one poll from which on the next poll follows without a pause, because
/// most messages have then arrived already.
const BUSY: usize = 64;

/// Bytes read at a time. A report of a stage with a dozen channels is about a kilobyte, one of a
/// node with 2,000 busy tenants about 30.
const READ_CHUNK: usize = 64 << 10;

/// Why a connection ended that we did not close.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("it closed the connection")]
    Closed,
    #[error("malformed message: {0}")]
    Malformed(#[from] DecodeError),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// All links that the daemon reads from, and the channel to the machine.
#[derive(Debug)]
pub(crate) struct PeerReceiver {
    poller: Poller,
    links: Mutex<HashMap<u64, OpenLink>>,
    inputs: mpsc::Sender<Input>,
}

#[derive(Debug)]
struct OpenLink {
    link: Arc<PeerLink>,
    decoder: PeerDecoder,
}

#[derive(Debug)]
pub(crate) enum PeerDecoder {
    Stage(Decoder<FromStage>),
    Node(Decoder<FromNode>),
    Gateway(Decoder<FromGateway>),
    DataNode(Decoder<FromDataNode>),
}

impl PeerDecoder {
    /// The decoder of the messages that follow a hello; none for an operator's.
    pub(crate) fn of(hello: &Hello) -> Option<Self> {
        Some(match hello {
            Hello::Stage { .. } => Self::Stage(Decoder::new()),
            Hello::Node { .. } => Self::Node(Decoder::of_pages()),
            Hello::Gateway { .. } => Self::Gateway(Decoder::of_pages()),
            Hello::DataNode { .. } => Self::DataNode(Decoder::of_pages()),
            Hello::Operator { .. } => return None,
        })
    }

    fn extend(&mut self, bytes: &[u8]) {
        match self {
            Self::Stage(decoder) => decoder.extend(bytes),
            Self::Node(decoder) => decoder.extend(bytes),
            Self::Gateway(decoder) => decoder.extend(bytes),
            Self::DataNode(decoder) => decoder.extend(bytes),
        }
    }

    fn next_message(&mut self) -> Result<Option<FromPeer>, DecodeError> {
        Ok(match self {
            Self::Stage(decoder) => decoder.next_message()?.map(FromPeer::Stage),
            Self::Node(decoder) => decoder.next_message()?.map(FromPeer::Node),
            Self::Gateway(decoder) => decoder.next_message()?.map(FromPeer::Gateway),
            Self::DataNode(decoder) => decoder.next_message()?.map(FromPeer::DataNode),
        })
    }
}

impl PeerReceiver {
    pub(crate) fn new(inputs: mpsc::Sender<Input>) -> io::Result<Self> {
        Ok(Self { poller: Poller::new()?, links: Mutex::default(), inputs })
    }

    /// Reads the messages of a peer from now on; `rest` is what followed its hello. An end of the
    /// connection is reported to the machine and aborts the link.
    pub(crate) async fn connect(&self, link: &Arc<PeerLink>, decoder: PeerDecoder, rest: &[u8]) {
        let mut open = OpenLink { link: link.clone(), decoder };
        open.decoder.extend(rest);
        let mut received = Vec::new();
        let is_open = open.take(&mut received)
            && (!link.stream.holds_input()
                || open.receive(&mut vec![0; READ_CHUNK], &mut received));
        // Before any later message of it.
        self.forward(&mut received).await;
        if !is_open {
            return;
        }
        self.add(open, &mut received);
        self.forward(&mut received).await;
    }

    fn add(&self, open: OpenLink, received: &mut Vec<Input>) {
        // Under the lock, so that the poller reports no connection before it is in the list.
        let mut links = self.links();
        match self.poller.add(&open.link.stream, open.link.id.0) {
            Ok(()) => drop(links.insert(open.link.id.0, open)),
            Err(error) => drop(open.end(error.into(), received)),
        }
    }

    /// Stops reading the messages of a peer.
    pub(crate) fn disconnect(&self, link: &PeerLink) {
        if self.links().remove(&link.id.0).is_some() {
            let _ = self.poller.remove(&link.stream);
        }
    }

    /// Passes on their messages, until the daemon ends.
    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            ended = self.listen() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "cannot poll connections any more");
                }
            }
        }
        self.links().clear();
    }

    async fn listen(&self) -> io::Result<()> {
        let (mut readable, mut received) = (Vec::new(), Vec::new());
        let mut chunk = vec![0; READ_CHUNK];
        loop {
            self.wait().await?;
            loop {
                self.poller.poll(Duration::ZERO, &mut readable)?;
                if readable.is_empty() {
                    break;
                }
                let is_busy = readable.len() >= BUSY;
                self.receive(&mut readable, &mut chunk, &mut received);
                self.forward(&mut received).await;
                if !is_busy {
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits until a connection has data. The poller is registered with the runtime only for that
    /// long: a registration wakes the thread even if no task waits.
    async fn wait(&self) -> io::Result<()> {
        #[allow(deprecated, reason = "what is borrowed stays open, and its successor is unsafe")]
        let readiness = AsyncFd::with_interest(self.poller.as_fd(), Interest::READABLE)?;
        drop(readiness.readable().await?);
        Ok(())
    }

    /// Reads once from each connection with data.
    fn receive(&self, readable: &mut Vec<u64>, chunk: &mut [u8], received: &mut Vec<Input>) {
        let mut links = self.links();
        for id in readable.drain(..) {
            let Some(open) = links.get_mut(&id) else { continue };
            if !open.receive(chunk, received)
                && let Some(open) = links.remove(&id)
            {
                let _ = self.poller.remove(&open.link.stream);
            }
        }
    }

    async fn forward(&self, received: &mut Vec<Input>) {
        for input in received.drain(..) {
            // The machine ends only when all tasks are about to.
            let _ = self.inputs.send(input).await;
        }
    }

    /// A panic with the list locked leaves at worst one connection half read, and no other.
    fn links(&self) -> MutexGuard<'_, HashMap<u64, OpenLink>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenLink {
    /// Reads received bytes, as far as they fit `chunk`; the poller reports the rest. Returns
    /// whether there may be more.
    fn receive(&mut self, chunk: &mut [u8], received: &mut Vec<Input>) -> bool {
        loop {
            match self.link.stream.receive(&mut [IoSliceMut::new(chunk)]) {
                Ok(0) => return self.end(ReadError::Closed, received),
                Ok(count) => self.decoder.extend(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) => return self.end(error.into(), received),
            }
            if !self.take(received) {
                return false;
            }
            if !self.link.stream.holds_input() {
                return true;
            }
        }
    }

    /// Handles complete messages.
    fn take(&mut self, received: &mut Vec<Input>) -> bool {
        loop {
            match self.decoder.next_message() {
                Ok(Some(message)) => {
                    received.push(Input::PeerMessage { connection: self.link.id, message });
                }
                Ok(None) => return true,
                Err(error) => return self.end(error.into(), received),
            }
        }
    }

    /// Ends the connection: the receiver reads nothing more.
    fn end(&self, error: ReadError, received: &mut Vec<Input>) -> bool {
        received.push(Input::Closed { connection: self.link.id, reason: error.to_string() });
        self.link.abort();
        false
    }
}
