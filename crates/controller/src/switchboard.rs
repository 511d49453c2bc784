//! Messages of stages, nodes and gateways, received by one task for all connections.
//!
//! A thousand stages answer a question within a few milliseconds, one by one. A task that wakes for
//! each answer costs a wake-up of the thread per answer, ten times the cost of the answer itself.
//! So the switchboard wakes for the first answer only. It reads all connections with data, pauses
//! for [`PAUSE`], and then reads at once all connections with data that arrived meanwhile. If at
//! least [`BUSY`] connections had data, it reads on without a pause. A single message outside such
//! a pause is read immediately.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_fabric::crowd::Crowd;
use tidegate_proto::cluster::message::FromNode;
use tidegate_proto::codec::{DecodeError, Decoder};
use tidegate_proto::data_node::FromDataNode;
use tidegate_proto::message::{FromGateway, FromStage};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::link::{Link, Party};
use crate::machine::Input;

/// The pause of the switchboard after it has read messages: the runtime's shortest wait. It
/// lengthens a cycle by at most that, and bounds the messages that one stage can make the daemon
/// read.
const PAUSE: Duration = Duration::from_millis(1);

/// Connections with data in one look from which on the next look follows without a pause, because
/// most messages have then arrived already.
const BUSY: usize = 64;

/// Bytes read at a time. A report of a stage with a dozen channels is about a kilobyte, one of a
/// node with 2,000 busy tenants about 30.
const PIECE: usize = 64 << 10;

/// Why a connection ended that we did not close.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("it closed the connection")]
    Closed,
    #[error("it talks nonsense: {0}")]
    Malformed(#[from] DecodeError),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// A message of a peer.
#[derive(Debug)]
pub(crate) enum Said {
    /// From a stage.
    Stage(FromStage),
    /// From a storage node.
    Node(FromNode),
    /// From a gateway.
    Gateway(FromGateway),
    /// From a data node.
    DataNode(FromDataNode),
}

/// All links that the daemon reads from, and the channel to the machine.
#[derive(Debug)]
pub(crate) struct Switchboard {
    crowd: Crowd,
    lines: Mutex<HashMap<u64, Line>>,
    inputs: mpsc::Sender<Input>,
}

#[derive(Debug)]
struct Line {
    link: Arc<Link>,
    ear: Ear,
}

/// The decoder of a party's messages.
#[derive(Debug)]
enum Ear {
    Stage(Decoder<FromStage>),
    Node(Decoder<FromNode>),
    Gateway(Decoder<FromGateway>),
    DataNode(Decoder<FromDataNode>),
}

impl Ear {
    fn new(party: Party) -> Self {
        match party {
            Party::Stage => Self::Stage(Decoder::new()),
            Party::Node => Self::Node(Decoder::of_pages()),
            Party::Gateway => Self::Gateway(Decoder::of_pages()),
            Party::DataNode => Self::DataNode(Decoder::of_pages()),
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        match self {
            Self::Stage(decoder) => decoder.extend(bytes),
            Self::Node(decoder) => decoder.extend(bytes),
            Self::Gateway(decoder) => decoder.extend(bytes),
            Self::DataNode(decoder) => decoder.extend(bytes),
        }
    }

    fn next_message(&mut self) -> Result<Option<Said>, DecodeError> {
        match self {
            Self::Stage(decoder) => decoder.next_message().map(|said| said.map(Said::Stage)),
            Self::Node(decoder) => decoder.next_message().map(|said| said.map(Said::Node)),
            Self::Gateway(decoder) => decoder.next_message().map(|said| said.map(Said::Gateway)),
            Self::DataNode(decoder) => decoder.next_message().map(|said| said.map(Said::DataNode)),
        }
    }
}

impl Switchboard {
    pub(crate) fn new(inputs: mpsc::Sender<Input>) -> io::Result<Self> {
        Ok(Self { crowd: Crowd::new()?, lines: Mutex::default(), inputs })
    }

    /// Listens to a party from now on; `rest` is what came right behind its hello. An end of the
    /// connection is told to the machine and aborts the link.
    pub(crate) async fn connect(&self, link: &Arc<Link>, rest: &[u8]) {
        let mut line = Line { link: link.clone(), ear: Ear::new(link.party) };
        line.ear.extend(rest);
        let mut heard = Vec::new();
        let is_open = line.take(&mut heard);
        // Before anything that it says later.
        self.tell(&mut heard).await;
        if !is_open {
            return;
        }
        self.add(line, &mut heard);
        self.tell(&mut heard).await;
    }

    fn add(&self, line: Line, heard: &mut Vec<Input>) {
        // Under the lock, so that the crowd reports no connection before its line is there.
        let mut lines = self.lines();
        match self.crowd.add(&line.link.stream, line.link.id.0) {
            Ok(()) => drop(lines.insert(line.link.id.0, line)),
            Err(error) => drop(line.end(error.into(), heard)),
        }
    }

    /// Listens no more to a party.
    pub(crate) fn disconnect(&self, link: &Link) {
        if self.lines().remove(&link.id.0).is_some() {
            let _ = self.crowd.remove(&link.stream);
        }
    }

    /// Passes on what they say, until it is time to end.
    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            ended = self.listen() => {
                if let Err(error) = ended {
                    tracing::error!("nobody is heard any more: {error}");
                }
            }
        }
        self.lines().clear();
    }

    async fn listen(&self) -> io::Result<()> {
        let (mut speakers, mut heard) = (Vec::new(), Vec::new());
        let mut piece = vec![0; PIECE];
        loop {
            self.wait().await?;
            loop {
                self.crowd.look(Duration::ZERO, &mut speakers)?;
                if speakers.is_empty() {
                    break;
                }
                let is_busy = speakers.len() >= BUSY;
                self.hear(&mut speakers, &mut piece, &mut heard);
                self.tell(&mut heard).await;
                if !is_busy {
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits until a connection has data. The crowd is registered with the runtime only for that
    /// long: a registration wakes the thread even if no task waits.
    async fn wait(&self) -> io::Result<()> {
        #[allow(deprecated, reason = "what is borrowed stays open, and its successor is unsafe")]
        let bell = AsyncFd::with_interest(self.crowd.as_fd(), Interest::READABLE)?;
        drop(bell.readable().await?);
        Ok(())
    }

    /// Reads a piece from each of the speakers.
    fn hear(&self, speakers: &mut Vec<u64>, piece: &mut [u8], heard: &mut Vec<Input>) {
        let mut lines = self.lines();
        for speaker in speakers.drain(..) {
            let Some(line) = lines.get_mut(&speaker) else { continue };
            if !line.hear(piece, heard)
                && let Some(line) = lines.remove(&speaker)
            {
                let _ = self.crowd.remove(&line.link.stream);
            }
        }
    }

    async fn tell(&self, heard: &mut Vec<Input>) {
        for input in heard.drain(..) {
            // The machine is gone only when all of us are about to be.
            let _ = self.inputs.send(input).await;
        }
    }

    /// A panic with the lines locked would leave at worst one line half read, and no other.
    fn lines(&self) -> MutexGuard<'_, HashMap<u64, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Takes in what has arrived, as far as it fits `piece`. Returns whether there may be more.
    fn hear(&mut self, piece: &mut [u8], heard: &mut Vec<Input>) -> bool {
        match (&self.link.stream).read(piece) {
            Ok(0) => self.end(ReadError::Closed, heard),
            Ok(count) => {
                self.ear.extend(&piece[..count]);
                self.take(heard)
            }
            Err(error) if is_passing(&error) => true,
            Err(error) => self.end(error.into(), heard),
        }
    }

    /// Takes the messages that are complete.
    fn take(&mut self, heard: &mut Vec<Input>) -> bool {
        loop {
            match self.ear.next_message() {
                Ok(Some(message)) => {
                    heard.push(Input::Said { connection: self.link.id, message });
                }
                Ok(None) => return true,
                Err(error) => return self.end(error.into(), heard),
            }
        }
    }

    /// Nothing more is heard.
    fn end(&self, error: ReadError, heard: &mut Vec<Input>) -> bool {
        heard.push(Input::Closed { connection: self.link.id, reason: error.to_string() });
        self.link.abort();
        false
    }
}

/// Whether reading again later may go better.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
