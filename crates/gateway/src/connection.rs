//! One NBD client's connection: its handshake, its requests and their replies. It checks the volume
//! and the tenants that the client may use, finds the tenant and class of each request, and raises
//! a barrier ([`crate::barriers`]) when a client disconnects before its writes are done.
//!
//! At its limit of requests in flight a connection is not read: the client's socket fills up, and
//! the client waits. A request is in flight from the arrival of its head until the kernel has taken
//! the reply ([`tidegate_algo::allocation::memory_budget`]).

mod frontend;

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use tidegate_algo::allocation::memory_budget::{MemoryBudget, SHARE_MIN};
use tidegate_algo::classify::access::Denied;
use tidegate_algo::classify::owner::{Attribution, OwnerQuery};
use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::Interest;
use tidegate_fabric::service::Command;
use tidegate_fabric::stream::{Outgoing, Stream, is_departure};
use tidegate_model::Bytes;
use tidegate_wire::nbd::{
    self, Action, Errno, Handshake, HandshakeError, HandshakeStep, Negotiated, Refusal, Request,
    RequestError, RequestParser, Tls, constants, reply,
};

use crate::access::{Identity, Restrictions};
use crate::config::ListenerTls;
use crate::context::ServerContext;
use crate::in_flight::{Completed, InFlight, InFlightRequest, operation};
use crate::nbd::{node_command, refusal, refuse};
use crate::nodes::{Nodes, Target};
use crate::owners::{Owner, OwnerTable};
use crate::parts::Recorded;
use crate::programs::{ClientProgram, Programs};
use crate::volumes::{Opened, Visible, VolumeIndex, Volumes};
use crate::worker::{self, Charge};

/// The charge of a reply besides its data, in bytes; an error message fits in. A client that asks
/// for replies without data, and does not read, thus reaches its share, too.
const ANSWER: usize = 128;

/// State that the connections of one worker share.
pub(crate) struct Frontend {
    pub(crate) volumes: Volumes,
    pub(crate) nodes: Nodes,
    pub(crate) in_flight: InFlight,
    pub(crate) context: Arc<ServerContext>,
    pub(crate) budget: MemoryBudget,
    pub(crate) tls: Option<ListenerTls>,
    /// The owners of requests.
    pub(crate) table: Arc<OwnerTable>,
    /// The programs that clients may be.
    pub(crate) programs: Arc<Programs>,
    /// The names of the cluster's daemons: their certificates are no client's.
    pub(crate) parties: Arc<[String]>,
    /// New requests are refused.
    pub(crate) is_ending: bool,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CloseReason {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the connection is gone: {0}")]
    Io(#[from] io::Error),
}

/// One client.
#[derive(Debug)]
pub(crate) struct NbdConnection {
    /// Its number at the worker.
    token: u64,
    stream: Stream,
    identity: Identity,
    program: ClientProgram,
    out: Outgoing,
    phase: ConnectionPhase,
    /// Received bytes that have to wait.
    held: Vec<u8>,
    /// Requests in flight at nodes, and the bytes that they carry.
    requests: usize,
    bytes: usize,
    /// The bytes that the budget is charged with for it, and the bytes that it has sent and
    /// received.
    charged: usize,
    moved: u64,
    /// The client has announced its disconnect: requests in flight get replies, and nothing more is
    /// read.
    is_leaving: bool,
    /// After the reply, the connection switches to TLS.
    is_encrypting: bool,
    /// Why the first refused export was refused, and whether the worker has read that.
    denial: RefCell<Option<String>>,
    is_denial_reported: bool,
}

#[derive(Debug)]
enum ConnectionPhase {
    Handshake(Handshake),
    Serving(Box<ServedClient>),
}

#[derive(Debug)]
struct ServedClient {
    negotiated: Negotiated<Opened>,
    owner: Owner,
    restrictions: Restrictions,
    parser: RequestParser<Buffer>,
    /// The incarnations of parts that its flushes rely on.
    recorded: Recorded,
}

impl NbdConnection {
    /// A new client, after the server's greeting.
    fn new(token: u64, stream: Stream, tls: Option<&ListenerTls>) -> Self {
        let tls = match tls {
            None => Tls::Off,
            Some(ListenerTls { is_required: false, .. }) => Tls::Selective,
            Some(ListenerTls { is_required: true, .. }) => Tls::Forced,
        };
        let mut output = Vec::new();
        let phase = ConnectionPhase::Handshake(Handshake::begin(tls, &mut output));
        let mut out = Outgoing::new();
        out.push(&output);
        Self {
            token,
            identity: Identity::of(&stream),
            program: ClientProgram::default(),
            stream,
            out,
            phase,
            held: Vec::new(),
            requests: 0,
            bytes: 0,
            charged: 0,
            moved: 0,
            is_leaving: false,
            is_encrypting: false,
            denial: RefCell::new(None),
            is_denial_reported: false,
        }
    }

    /// Whether the limit of requests in flight is reached. Where other clients have left since, the
    /// next reply triggers another check.
    fn is_full(&self, context: &ServerContext) -> bool {
        context.limits.is_reached(context.present(), self.requests)
    }

    /// Whether a request has arrived that was not admitted.
    fn is_pending(&self) -> bool {
        matches!(&self.phase, ConnectionPhase::Serving(client) if client.parser.is_pending())
    }

    /// The bytes of its requests, from when they were admitted until the kernel has the replies.
    fn load(&self) -> usize {
        let arriving = match &self.phase {
            ConnectionPhase::Handshake(_) => 0,
            ConnectionPhase::Serving(client) => client.parser.reserved(),
        };
        self.bytes + self.out.len() + arriving
    }

    /// Reports the memory in use to the budget.
    fn settle(&mut self, budget: &mut MemoryBudget) {
        let now = self.load() + self.held.len();
        budget.charge(self.token, self.charged, now);
        self.charged = now;
    }

    /// Consumes held bytes, if there is headroom now. Returns whether any were consumed.
    fn go_on(&mut self, frontend: &mut Frontend) -> Result<bool, CloseReason> {
        if (self.held.is_empty() && !self.is_pending()) || self.is_full(&frontend.context) {
            return Ok(false);
        }
        let held = std::mem::take(&mut self.held);
        let was_pending = self.is_pending();
        self.take(&held, frontend)?;
        Ok(self.held.len() < held.len() || (was_pending && !self.is_pending()))
    }

    fn take(&mut self, mut bytes: &[u8], frontend: &mut Frontend) -> Result<(), CloseReason> {
        while !self.is_leaving {
            let must_wait = match &self.phase {
                // A client that requests lists and does not read them is not answered further.
                ConnectionPhase::Handshake(_) => self.out.len() > SHARE_MIN,
                ConnectionPhase::Serving(_) => self.is_full(&frontend.context),
            };
            if must_wait {
                self.held.extend_from_slice(bytes);
                return Ok(());
            }
            match &mut self.phase {
                ConnectionPhase::Handshake(_) => {
                    if !self.negotiate(&mut bytes, frontend)? {
                        return Ok(());
                    }
                }
                ConnectionPhase::Serving(_) => {
                    let load = self.load();
                    let ConnectionPhase::Serving(client) = &mut self.phase else { return Ok(()) };
                    let admits = |size| frontend.budget.admits(self.token, load, size + ANSWER);
                    match client.parser.next_admitted(&mut bytes, admits)? {
                        None => {
                            // The bytes behind a request that waits; none are left if no request
                            // waits.
                            self.held.extend_from_slice(bytes);
                            return Ok(());
                        }
                        Some(request) => self.on_request(request, frontend),
                    }
                    self.settle(&mut frontend.budget);
                }
            }
        }
        Ok(())
    }

    /// Takes options. Returns whether there may be more to take.
    fn negotiate(
        &mut self,
        bytes: &mut &[u8],
        frontend: &mut Frontend,
    ) -> Result<bool, CloseReason> {
        let ConnectionPhase::Handshake(handshake) = &mut self.phase else { return Ok(true) };
        let mut output = Vec::new();
        let visible = Visible {
            volumes: &frontend.volumes,
            knowledge: frontend.table.knowledge(&frontend.parties),
            client: self.identity.client(&self.stream, &frontend.table),
            denial: &self.denial,
        };
        let step = handshake.on_bytes(bytes, &visible, &mut output);
        self.out.push(&output);
        match step? {
            HandshakeStep::More => return Ok(!bytes.is_empty()),
            HandshakeStep::Aborted => self.is_leaving = true,
            // The answer is sent before anything else is.
            HandshakeStep::StartTls => self.is_encrypting = true,
            HandshakeStep::Negotiated(negotiated) => {
                let opened = &negotiated.export.target;
                let (owner, restrictions, not_counted) = self.owner(opened, frontend);
                let parser = RequestParser::new(Buffer::with_length);
                let recorded = frontend.nodes.record(opened.volume);
                frontend.nodes.barriers().open(opened.volume);
                let negotiated = *negotiated;
                let client = ServedClient { negotiated, owner, restrictions, parser, recorded };
                self.phase = ConnectionPhase::Serving(Box::new(client));
                self.program.note(not_counted);
            }
        }
        Ok(true)
    }

    /// The owner of its requests through an export, its restrictions, and why its requests do not
    /// count for the tenant of its program.
    fn owner(&self, opened: &Opened, frontend: &Frontend) -> (Owner, Restrictions, Option<Denied>) {
        let client = self.identity.client(&self.stream, &frontend.table);
        let (client, volume) =
            ((client, self.program.tenant()), frontend.volumes.volume(opened.volume));
        Restrictions::of_export(&frontend.table, &frontend.parties, client, (volume, opened))
    }

    fn on_request(&mut self, request: Request<Buffer>, frontend: &mut Frontend) {
        let ConnectionPhase::Serving(client) = &self.phase else { return };
        let Request { cookie, offset, length, .. } = request;
        let structured = client.negotiated.structured;
        let action = match client.negotiated.admit(&request) {
            Ok(action) => action,
            Err(refusal) => {
                frontend.context.counts.refuse();
                return refuse(&mut self.out, structured, cookie, refusal);
            }
        };
        let submitted = match action {
            Action::Disconnect => {
                self.is_leaving = true;
                return;
            }
            Action::Acknowledge if request.command == constants::command::READ => {
                return self.out.push(&reply::data(structured, cookie, offset, 0));
            }
            Action::Acknowledge => return self.out.push(&reply::success(cookie)),
            Action::Submit(_) if frontend.is_ending => {
                frontend.context.counts.refuse();
                let refusal = Refusal { errno: Errno::Shutdown, message: "the gateway is ending" };
                return refuse(&mut self.out, structured, cookie, refusal);
            }
            Action::Submit(command) => command,
        };
        let command = node_command(submitted);
        let Attribution { tenant, class } = attribution(client, command, (offset, length));
        if client.restrictions.deny(tenant) {
            frontend.context.counts.refuse();
            let message = "the policy does not let this client act for the request's tenant";
            let refusal = Refusal { errno: Errno::Perm, message };
            return refuse(&mut self.out, structured, cookie, refusal);
        }
        let request = InFlightRequest {
            connection: self.token,
            received_at: frontend.nodes.now,
            cookie,
            command,
            tenant,
            class,
            volume: client.negotiated.export.target.volume,
            offset,
            length,
            one: submitted == nbd::Command::BlockStatus { one: true },
            buffer: request.payload,
        };
        self.requests += 1;
        self.bytes += request.weight();
        let Frontend { volumes, nodes, in_flight, .. } = frontend;
        let layout = volumes.layout(request.volume);
        let submitted = in_flight.submit(request, layout, |volume, part, job| {
            nodes.queue(Target { volume, part, is_long: false }, job, &client.recorded);
        });
        if let Err((request, fault)) = submitted {
            frontend.context.counts.refuse();
            self.reply(Completed::new(request, Err(fault)));
        }
    }

    /// Queues the answer to a request.
    fn reply(&mut self, completed: Completed) {
        let ConnectionPhase::Serving(client) = &self.phase else { return };
        self.requests -= 1;
        self.bytes -= completed.request.weight();
        let structured = client.negotiated.structured;
        let InFlightRequest { cookie, command, offset, length, .. } = completed.request;
        match (completed.outcome, command) {
            (Err(fault), _) => refuse(&mut self.out, structured, cookie, refusal(fault)),
            (Ok(()), Command::Read) => {
                self.out.push(&reply::data(structured, cookie, offset, length as usize));
                completed.data().for_each(|buffer| self.out.push_buffer(buffer));
            }
            (Ok(()), Command::Map) => {
                self.out.push(&reply::block_status(cookie, completed.extents.len()));
                for (length, flags) in completed.extents {
                    self.out.push(&reply::extent(length, flags));
                }
            }
            (Ok(()), _) => self.out.push(&reply::success(cookie)),
        }
    }
}

/// The tenant and the class of a request for these bytes of a volume.
fn attribution(
    client: &ServedClient,
    command: Command,
    (offset, length): (u64, u32),
) -> Attribution {
    client.owner.of(OwnerQuery {
        operation: operation(command),
        size: Bytes(u64::from(length)),
        offset: Some(Bytes(offset)),
        key: None,
    })
}

impl worker::Client for NbdConnection {
    type Frontend = Frontend;
    type CloseReason = CloseReason;

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn is_handshaking(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Handshake(_))
    }

    fn tenant<'a>(&'a self, _: &'a Frontend) -> &'a str {
        match &self.phase {
            ConnectionPhase::Handshake(_) => "",
            ConnectionPhase::Serving(client) => &client.negotiated.export.target.tenant,
        }
    }

    fn owner_name(&self) -> &str {
        match &self.phase {
            ConnectionPhase::Handshake(_) => "",
            ConnectionPhase::Serving(client) => client.owner.name(),
        }
    }

    fn volume(&self) -> Option<VolumeIndex> {
        match &self.phase {
            ConnectionPhase::Handshake(_) => None,
            ConnectionPhase::Serving(client) => Some(client.negotiated.export.target.volume),
        }
    }

    fn volume_name<'a>(&'a self, frontend: &'a Frontend) -> &'a str {
        self.volume().map_or("", |volume| &frontend.volumes.volume(volume).name)
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    fn has_requests(&self) -> bool {
        self.requests > 0
    }

    /// Requests from before the client's disconnect message are carried out, also if it does not
    /// wait for the replies.
    fn is_waiting(&self) -> bool {
        self.has_requests() && !self.is_leaving
    }

    fn on_table(&mut self, frontend: &Frontend) {
        let ConnectionPhase::Serving(client) = &self.phase else { return };
        let (owner, restrictions, not_counted) =
            self.owner(&client.negotiated.export.target, frontend);
        if let ConnectionPhase::Serving(client) = &mut self.phase {
            (client.owner, client.restrictions) = (owner, restrictions);
        }
        self.program.note(not_counted);
    }

    fn receive(
        &mut self,
        scratch: &mut [u8],
        frontend: &mut Frontend,
    ) -> Result<bool, CloseReason> {
        if self.program.look_up(&self.stream, &frontend.programs) {
            worker::Client::on_table(self, frontend);
        }
        let unfilled = match &mut self.phase {
            ConnectionPhase::Handshake(_) => &mut [],
            ConnectionPhase::Serving(client) => client.parser.unfilled(),
        };
        let direct = unfilled.len();
        let (count, is_other) = {
            // The rest of a large write goes to its buffer, and any bytes behind it to scratch.
            let mut slices = [IoSliceMut::new(unfilled), IoSliceMut::new(scratch)];
            let slices = if direct == 0 { &mut slices[1..] } else { &mut slices[..] };
            match self.program.receive(&self.stream, slices) {
                Ok((0, _)) => return Ok(false),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(CloseReason::Io(error)),
            }
        };
        self.moved += count as u64;
        if is_other {
            worker::Client::on_table(self, frontend);
        }
        if let ConnectionPhase::Serving(client) = &mut self.phase {
            client.parser.advance(count.min(direct));
        }
        self.take(&scratch[..count.saturating_sub(direct)], frontend)?;
        self.settle(&mut frontend.budget);
        Ok(true)
    }

    fn take_denial(&mut self) -> Option<String> {
        let denial = self.denial.get_mut().take().filter(|_| !self.is_denial_reported)?;
        self.is_denial_reported = true;
        Some(denial)
    }

    fn take_fallback(&mut self) -> Option<String> {
        self.program.take_fallback()
    }

    fn is_encrypting(&self) -> bool {
        self.is_encrypting && self.out.is_empty()
    }

    fn encrypt(&mut self, frontend: &Frontend) -> Result<(), CloseReason> {
        self.is_encrypting = false;
        self.program.forget();
        if let Some(tls) = &frontend.tls {
            self.stream = self.stream.try_clone()?.accept_tls(&tls.guard)?;
        }
        Ok(())
    }

    fn answer(&mut self, completed: Completed, _: &mut Frontend) {
        self.reply(completed);
    }

    fn make_progress(&mut self, frontend: &mut Frontend) -> Result<bool, CloseReason> {
        let before = self.out.len();
        self.out.flush_early(&self.stream, !self.has_requests())?;
        self.moved += (before - self.out.len()) as u64;
        self.settle(&mut frontend.budget);
        let is_more = self.go_on(frontend);
        self.settle(&mut frontend.budget);
        is_more
    }

    fn unsent(&self) -> usize {
        self.out.len()
    }

    fn is_waiting_for_memory(&self) -> bool {
        self.is_pending()
    }

    fn charge(&self) -> Charge {
        Charge { all: self.charged, at_nodes: self.bytes.min(self.charged), moved: self.moved }
    }

    fn wanted(&self, frontend: &Frontend) -> Interest {
        let is_able = !self.is_leaving && !self.is_encrypting;
        let read = is_able
            && self.held.is_empty()
            && !self.is_pending()
            && !self.is_full(&frontend.context);
        Interest { read, write: !self.out.is_empty() }
    }

    /// A client that has announced its disconnect need not wait for replies, and one without an
    /// export has no requests.
    fn has_left(&self, close_reason: &CloseReason) -> bool {
        let may_leave = self.is_leaving || self.is_handshaking();
        may_leave && matches!(close_reason, CloseReason::Io(error) if is_departure(error))
    }

    fn is_over(&self, is_ending: bool) -> bool {
        let is_idle =
            self.requests == 0 && self.out.is_empty() && self.held.is_empty() && !self.is_pending();
        (self.is_leaving || is_ending) && is_idle
    }
}
