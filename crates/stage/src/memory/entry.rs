//! Connects a client to a data node: the node's welcome, the memory or the route to it, and the
//! client of its store.
//!
//! The node decides how operations are carried out. It sends memory on this machine as a
//! descriptor, which is mapped. Of memory behind an RNIC it sends the route only: queue pairs are
//! made here once it is known how much may be under way, and the node connects its own with them.
//! In both cases the store's header is read first, and then there is a client.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
#[cfg(feature = "verbs")]
use std::thread;

use tidegate_fabric::memory::model::Model;
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::shm::Shm;
#[cfg(feature = "verbs")]
use tidegate_fabric::memory::verbs::{Opening, RdmaDevice, Verbs};
use tidegate_model::cluster::MemoryTransport;
use tidegate_model::{SessionSlot, Span};
use tidegate_onesided::data_node::{self, Hello, SlotParameters, VERSION, Welcome};
use tidegate_onesided::haechi::{Port, SessionParameters, region_layout};
#[cfg(feature = "verbs")]
use tidegate_onesided::kv::HEADER;
use tidegate_onesided::kv::{self, Client, Layout};
use tidegate_onesided::one_sided;
#[cfg(feature = "verbs")]
use tidegate_onesided::one_sided::{BufferPosition, Operation, Post, RemoteMemory as _};

use super::access::Access;
use super::lifeline::{Entrance, Lifeline};
use super::{EXTENT, Error, REST, Settings};
use crate::clock::kernel_time;

/// Operations that an RNIC holds for the engine beside the window: it polls, reports and takes at
/// the same time, each with a few words.
#[cfg(feature = "verbs")]
const ENGINE: u32 = 32;

/// The connection to a data node, its welcome, and the client of its store.
pub(super) struct DataNodeSession {
    pub(super) lifeline: Lifeline,
    pub(super) welcome: Welcome,
    pub(super) client: Client<Access>,
    /// The mapped memory; none behind an RNIC.
    pub(super) region: Option<Arc<Region>>,
}

/// State that a client presents to a data node that it knew.
#[derive(Default)]
pub(super) struct Former {
    /// Memory of a node that is gone.
    pub(super) region: Option<Arc<Region>>,
    /// Session slot that the node gave.
    pub(super) session_slot: Option<SessionSlot>,
}

/// Requests the memory, and opens the store in it.
pub(super) fn enter(
    entrance: &Entrance,
    settings: &Settings,
    former: Former,
) -> Result<DataNodeSession, Error> {
    let hello = Hello {
        version: VERSION,
        tenant: settings.tenant.clone(),
        reservation: settings.reservation,
        limit: settings.limit,
        parts: settings.parts,
        session_slot: former.session_slot,
        is_bare: settings.is_bare,
    };
    let opened = Lifeline::open(entrance, &hello, former.region.as_deref(), settings.patience);
    let (mut lifeline, welcome, file) = opened?;
    // A put takes two; the engine has two of its own.
    let buffers = 2 * outstanding(settings, &welcome) + 2;
    let ((access, layout), region) = match welcome.transport {
        MemoryTransport::Shm | MemoryTransport::Model => {
            let region = mapped(file)?;
            (mapping(&region, &welcome, buffers)?, Some(region))
        }
        MemoryTransport::Verbs => (connect_rnic(&mut lifeline, settings, &welcome, buffers)?, None),
    };
    let period =
        welcome.session_slot.as_ref().map_or(Span::SECOND, |session_slot| session_slot.period);
    let settings = kv::ClientSettings {
        outstanding: outstanding(settings, &welcome),
        locations: settings.locations,
        extent: EXTENT,
        session_slot: welcome.session_slot.as_ref().map(|session_slot| session_slot.number),
        rest: Span(REST * period.0),
    };
    let client = Client::new(access, layout, settings).map_err(Error::Store)?;
    Ok(DataNodeSession { lifeline, welcome, client, region })
}

/// Operations that a client keeps under way at most.
pub(super) fn outstanding(settings: &Settings, welcome: &Welcome) -> u32 {
    match settings.outstanding {
        0 => welcome.window,
        outstanding => outstanding.min(welcome.window),
    }
}

fn mapped(file: Option<OwnedFd>) -> Result<Arc<Region>, Error> {
    let file = file.ok_or_else(|| Error::Unreachable(io::Error::other("it sent no memory")))?;
    Region::from_fd(file).map(Arc::new).map_err(Error::Memory)
}

/// To memory that this process has mapped.
fn mapping(
    region: &Arc<Region>,
    welcome: &Welcome,
    buffers: u32,
) -> Result<(Access, Layout), Error> {
    let layout = kv::Opening::at_once(Shm::new(region.clone(), 1), welcome.store)?;
    let shm = || Shm::new(region.clone(), buffers).until_left(region_layout::LEFT);
    let model =
        || Model::new(region.clone(), region_layout::NIC, buffers).until_left(region_layout::LEFT);
    let access = match (welcome.transport, &welcome.session_slot) {
        (MemoryTransport::Model, None) => Access::BareModel(model()),
        (MemoryTransport::Model, Some(session_slot)) => {
            Access::Model(Box::new(port(model(), session_slot, welcome)?))
        }
        (_, None) => Access::BareShm(shm()),
        (_, Some(session_slot)) => Access::Shm(Box::new(port(shm(), session_slot, welcome)?)),
    };
    Ok((access, layout))
}

/// Connects to memory that an RNIC of this machine reaches.
#[cfg(feature = "verbs")]
fn connect_rnic(
    lifeline: &mut Lifeline,
    settings: &Settings,
    welcome: &Welcome,
    buffers: u32,
) -> Result<(Access, Layout), Error> {
    let failed = |error| Error::Memory(io::Error::other(error));
    let device = RdmaDevice::open(settings.device.as_deref()).map_err(failed)?;
    let opening = Opening::new(&device, buffers, welcome.window + ENGINE).map_err(failed)?;
    let answer = lifeline.request_path(&opening.request(), settings.patience)?;
    let mut verbs = opening.connect(&answer).map_err(failed)?;
    let layout = layout(&mut verbs, welcome.store)?;
    let access = match &welcome.session_slot {
        None => Access::BareRnic(Box::new(verbs)),
        Some(session_slot) => Access::Rnic(Box::new(port(verbs, session_slot, welcome)?)),
    };
    Ok((access, layout))
}

/// The error of a build without support for RNICs.
#[cfg(not(feature = "verbs"))]
fn connect_rnic(
    _: &mut Lifeline,
    _: &Settings,
    _: &Welcome,
    _: u32,
) -> Result<(Access, Layout), Error> {
    Err(Error::Memory(io::Error::other(
        "it is reached over RDMA, which this program was built without; use one of `tidegate`'s \
         own",
    )))
}

fn port<F: one_sided::RemoteMemory>(
    remote: F,
    session_slot: &SlotParameters,
    welcome: &Welcome,
) -> Result<Port<F>, Error> {
    let parameters = SessionParameters {
        rules: data_node::rules(session_slot.rules),
        period: session_slot.period,
        local_rate: session_slot.client.0,
    };
    let port = Port::new(remote, parameters, session_slot.number, welcome.window, kernel_time());
    port.map_err(|_| Error::Memory(io::Error::other("it has no room for words of control")))
}

/// Where everything is in the store that begins at `at`. The RNIC does nothing else now.
#[cfg(feature = "verbs")]
fn layout(remote: &mut Verbs, at: u64) -> Result<Layout, Error> {
    let failed = |error: io::Error| Error::Memory(error);
    let operation =
        Operation::Read { from: at, into: BufferPosition::start(0), length: HEADER as u32 };
    let posted = remote.post(Post { id: 0, operation });
    posted.map_err(|error| failed(io::Error::other(error)))?;
    let lost = |_| failed(io::Error::other("it was lost as soon as it was there"));
    remote.flush(kernel_time()).map_err(lost)?;
    let mut done = Vec::with_capacity(1);
    while done.is_empty() {
        // An RNIC answers within microseconds, or has lost the memory within two seconds.
        remote.poll(kernel_time(), &mut done).map_err(lost)?;
        thread::yield_now();
    }
    let mut header = [0; HEADER];
    header.copy_from_slice(&remote.buffer(0)[..HEADER]);
    Layout::read(at, &header).map_err(Error::Store)
}
