//! An RDMA device, and its registered memory, completion queues and queue pairs. Each object owns
//! the objects that it needs, so that none is destroyed while another uses it: registered memory,
//! queues and queue pairs hold the device.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::fs;
use std::sync::Arc;

use tidegate_onesided::data_node::rnic::{Endpoint, QueueAddress};

use super::RdmaError;
use super::ibverbs::*;
use super::library::{ibv_poll_cq, ibv_post_send, ibv_query_port, library};

/// How long an RNIC waits for an acknowledgement: 4.096 us times two to this power, 67 ms. RNICs
/// may wait up to four times as long.
const TIMEOUT: u8 = 14;

/// How often it tries again before the connection is lost: 0.5 s to 2 s after the peer is gone.
/// Seven is the most that there is, but the kernel's device in software takes that for ever.
const RETRIES: u8 = 6;

/// Routers on the way between two ports, at most.
const HOPS: u8 = 64;

/// An open device with a port that carries packets, and a protection domain of its own.
pub struct RdmaDevice {
    library: &'static Ibverbs,
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    name: String,
    port: DevicePort,
    limits: Limits,
}

// SAFETY: the library's calls may be made from all threads at once; that is part of its interface.
unsafe impl Send for RdmaDevice {}
// SAFETY: as above.
unsafe impl Sync for RdmaDevice {}

struct DevicePort {
    number: u8,
    lid: u16,
    mtu: u32,
    gid: [u8; 16],
    gid_index: u8,
}

#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Operations under way on one queue pair.
    pub requests: u32,
    /// Completions that wait in one queue.
    pub completions: u32,
    /// Reads and atomics that a queue pair answers at once.
    pub reads_answered: u8,
    /// Reads and atomics that a queue pair may ask for.
    pub reads_outstanding: u8,
}

impl RdmaDevice {
    /// Opens the device of this name, such as `mlx5_0`; without one, the first that has a port that
    /// carries packets.
    ///
    /// # Errors
    /// If there is no library, no such device, none with an active port, or the device knows no
    /// atomic operations.
    pub fn open(name: Option<&str>) -> Result<Arc<Self>, RdmaError> {
        let library = library()?;
        let mut count: c_int = 0;
        // SAFETY: the count is ours; the list is given back below, and devices stay open without.
        let list = unsafe { library.ibv_get_device_list(&mut count) };
        if list.is_null() {
            return Err(RdmaError::NoDevice { name: name.map(str::to_owned) });
        }
        // SAFETY: the list has so many entries.
        let devices = unsafe { std::slice::from_raw_parts(list, count.max(0) as usize) };
        let mut found = Err(RdmaError::NoDevice { name: name.map(str::to_owned) });
        for device in devices {
            // SAFETY: the device is of the list; its name is a text that it owns.
            let known = unsafe { CStr::from_ptr(library.ibv_get_device_name(*device)) };
            let known = known.to_string_lossy();
            if name.is_none_or(|name| name == known) {
                found = Self::open_one(library, *device, &known);
                if found.is_ok() {
                    break;
                }
            }
        }
        // SAFETY: the list came from the library and is not used any more.
        unsafe { library.ibv_free_device_list(list) };
        found.map(Arc::new)
    }

    fn open_one(
        library: &'static Ibverbs,
        device: *mut ibv_device,
        name: &str,
    ) -> Result<Self, RdmaError> {
        // SAFETY: the device is of a list that still stands.
        let context = unsafe { library.ibv_open_device(device) };
        if context.is_null() {
            return Err(RdmaError::call("opening the device"));
        }
        let name = name.to_owned();
        let mut raw = ibv_device_attr::default();
        // SAFETY: the context is open, the structure is ours.
        let status = unsafe { library.ibv_query_device(context, &mut raw) };
        // SAFETY: the context is open.
        let domain = unsafe { library.ibv_alloc_pd(context) };
        let limits = Limits {
            requests: raw.max_qp_wr.max(0) as u32,
            completions: raw.max_cqe.max(0) as u32,
            reads_answered: raw.max_qp_rd_atom.clamp(0, 255) as u8,
            reads_outstanding: raw.max_qp_init_rd_atom.clamp(0, 255) as u8,
        };
        // From here on the device is taken down by its drop.
        let port = DevicePort { number: 0, lid: 0, mtu: 0, gid: [0; 16], gid_index: 0 };
        let mut opened = Self { library, context, domain, name, port, limits };
        if status != 0 || domain.is_null() {
            return Err(RdmaError::call("asking the device"));
        }
        if raw.atomic_cap == IBV_ATOMIC_NONE {
            return Err(RdmaError::NoAtomics { device: opened.name.clone() });
        }
        opened.port = (1..=raw.phys_port_cnt)
            .find_map(|number| opened.active_port(number))
            .ok_or_else(|| RdmaError::NoPort { device: opened.name.clone() })?;
        Ok(opened)
    }

    /// The port of this number, if it carries packets and has an address.
    fn active_port(&self, number: u8) -> Option<DevicePort> {
        let mut raw = ibv_port_attr::default();
        // SAFETY: the context is open, the structure is ours.
        let status = unsafe { ibv_query_port(self.library, self.context, number, &mut raw) };
        if status != 0 || raw.state != IBV_PORT_ACTIVE {
            return None;
        }
        let is_ethernet = u32::from(raw.link_layer) == IBV_LINK_LAYER_ETHERNET;
        let folder = format!("/sys/class/infiniband/{}/ports/{number}/gid_attrs/types", self.name);
        let gids = (0..raw.gid_tbl_len.clamp(0, 255) as u8).filter_map(|index| {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open, the address is ours.
            let status = unsafe {
                self.library.ibv_query_gid(self.context, number, c_int::from(index), &mut gid)
            };
            // SAFETY: all bytes of an address are its raw form.
            let gid = unsafe { gid.raw };
            let is_given = status == 0 && gid[8..] != [0; 8];
            let kind = || fs::read_to_string(format!("{folder}/{index}")).unwrap_or_default();
            is_given.then(|| (rank(&gid, kind().trim()), index, gid))
        });
        // Of equals, the first.
        let (_, gid_index, gid) = gids.min_by_key(|(rank, index, _)| (*rank, *index))?;
        let lid = if is_ethernet { 0 } else { raw.lid };
        Some(DevicePort { number, lid, mtu: raw.active_mtu, gid, gid_index })
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// The data by which a peer reaches these queue pairs of this device.
    pub(super) fn endpoint(&self, pairs: &[QueuePair]) -> Endpoint {
        Endpoint {
            gid: self.port.gid,
            lid: self.port.lid,
            mtu: self.port.mtu as u8,
            reads_answered: self.limits.reads_answered,
            reads_outstanding: self.limits.reads_outstanding,
            queues: pairs.iter().map(QueuePair::address).collect(),
        }
    }
}

/// Which of a port's addresses is best, the least first: RoCE v2 with an IPv4 address, which
/// routers know; with an IPv6 address; one for the link alone; RoCE v1. InfiniBand's are alike.
fn rank(gid: &[u8; 16], kind: &str) -> u8 {
    let is_ipv4 = gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
    let is_link_local = gid[..2] == [0xfe, 0x80];
    match kind {
        "IB/RoCE v1" => 3,
        _ if is_ipv4 => 0,
        _ if is_link_local => 2,
        _ => 1,
    }
}

impl fmt::Debug for RdmaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}, port {})", self.name, self.port.number)
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
        // SAFETY: whatever stood on the domain held the device, so nothing does any more.
        unsafe {
            if !self.domain.is_null() {
                self.library.ibv_dealloc_pd(self.domain);
            }
            self.library.ibv_close_device(self.context);
        }
    }
}

/// Memory that a device may reach.
#[derive(Debug)]
pub(super) struct Registration {
    device: Arc<RdmaDevice>,
    raw: *mut ibv_mr,
}

// SAFETY: it is only looked at, and taken down once; the library's calls may come from any thread.
unsafe impl Send for Registration {}

impl Registration {
    /// Registers memory for the device itself; for peers as well if it is a region.
    ///
    /// # Safety
    /// The memory is mapped, and stays so until the registration is dropped. No code holds a
    /// reference to what a device may be writing.
    pub(super) unsafe fn new(
        device: &Arc<RdmaDevice>,
        memory: *mut [u8],
        is_region: bool,
    ) -> Result<Self, RdmaError> {
        let remote = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
        // Relaxed ordering is not asked for: writes are to be seen in their order.
        let access = IBV_ACCESS_LOCAL_WRITE | if is_region { remote } else { 0 };
        // SAFETY: the domain stands as long as the device; of the memory, the caller promised.
        let raw = unsafe {
            device.library.ibv_reg_mr(device.domain, memory.cast(), memory.len(), access as c_int)
        };
        match raw.is_null() {
            true => Err(RdmaError::memory(memory.len())),
            false => Ok(Self { device: Arc::clone(device), raw }),
        }
    }

    /// The key by which the device finds the memory.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: a registration has the declared form and does not change.
        unsafe { (*self.raw).lkey }
    }

    /// The key by which peers name the memory.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it is registered, and not used again.
        unsafe { self.device.library.ibv_dereg_mr(self.raw) };
    }
}

/// Where a device says what it has done.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    device: Arc<RdmaDevice>,
    raw: *mut ibv_cq,
}

// SAFETY: the library's calls may come from any thread.
unsafe impl Send for CompletionQueue {}

impl CompletionQueue {
    /// A queue for so many completions at once.
    pub(super) fn new(device: &Arc<RdmaDevice>, capacity: u32) -> Result<Self, RdmaError> {
        let none = std::ptr::null_mut();
        // SAFETY: the context is open, and neither a name nor a channel is needed.
        let raw = unsafe {
            device.library.ibv_create_cq(
                device.context,
                capacity as c_int,
                none,
                std::ptr::null_mut(),
                0,
            )
        };
        match raw.is_null() {
            true => Err(RdmaError::call("making a queue of completions")),
            false => Ok(Self { device: Arc::clone(device), raw }),
        }
    }

    /// Fills in completions and returns their number; none if the device is broken.
    pub(super) fn poll(&mut self, into: &mut [ibv_wc]) -> Option<usize> {
        // SAFETY: the queue stands, and `&mut self` is the only access to it.
        usize::try_from(unsafe { ibv_poll_cq(self.raw, into) }).ok()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: it exists, and its owner has dropped its queue pairs before.
        unsafe { self.device.library.ibv_destroy_cq(self.raw) };
    }
}

/// One end of a reliable connection. It must be dropped before its queue of completions.
#[derive(Debug)]
pub(super) struct QueuePair {
    device: Arc<RdmaDevice>,
    raw: *mut ibv_qp,
    /// The number of its first packet.
    first: u32,
    /// Bytes that a request may carry in itself.
    inline: u32,
}

// SAFETY: the library's calls may come from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A queue pair for so many requests at once, with room for `inline` bytes in each if the
    /// device has that.
    pub(super) fn new(
        device: &Arc<RdmaDevice>,
        completions: &CompletionQueue,
        requests: u32,
        inline: u32,
    ) -> Result<Self, RdmaError> {
        let first = first_packet()?;
        let cap = ibv_qp_cap {
            max_send_wr: requests,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        let mut plan = ibv_qp_init_attr {
            send_cq: completions.raw,
            recv_cq: completions.raw,
            cap,
            qp_type: IBV_QPT_RC,
            ..Default::default()
        };
        // SAFETY: domain and queue exist, and the plan is ours.
        let mut raw = unsafe { device.library.ibv_create_qp(device.domain, &mut plan) };
        if raw.is_null() && inline > 0 {
            plan.cap = ibv_qp_cap { max_inline_data: 0, ..cap };
            // SAFETY: as above.
            raw = unsafe { device.library.ibv_create_qp(device.domain, &mut plan) };
        }
        if raw.is_null() {
            return Err(RdmaError::call("making a queue pair"));
        }
        let device = Arc::clone(device);
        let inline = plan.cap.max_inline_data.min(inline);
        let mut pair = Self { device, raw, first, inline };
        pair.change(
            ibv_qp_attr {
                qp_state: IBV_QPS_INIT,
                port_num: pair.device.port.number,
                qp_access_flags: IBV_ACCESS_REMOTE_READ
                    | IBV_ACCESS_REMOTE_WRITE
                    | IBV_ACCESS_REMOTE_ATOMIC,
                ..Default::default()
            },
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        )?;
        Ok(pair)
    }

    /// How a peer reaches it.
    fn address(&self) -> QueueAddress {
        // SAFETY: a queue pair has the declared beginning, and keeps its number.
        QueueAddress { number: unsafe { (*self.raw).qp_num }, first: self.first }
    }

    /// Bytes that a request may carry in itself.
    pub(super) fn inline(&self) -> u32 {
        self.inline
    }

    /// Connects it to one of a peer's queue pairs. The peer's requests are answered from now on.
    pub(super) fn connect(&mut self, peer: &Endpoint, to: QueueAddress) -> Result<(), RdmaError> {
        let (port, limits) = (&self.device.port, self.device.limits);
        let grh = ibv_global_route {
            dgid: ibv_gid { raw: peer.gid },
            sgid_index: port.gid_index,
            hop_limit: HOPS,
            ..Default::default()
        };
        let ah_attr = ibv_ah_attr {
            grh,
            dlid: peer.lid,
            // Without a local number the way leads over Ethernet, by global addresses.
            is_global: u8::from(peer.lid == 0),
            port_num: port.number,
            ..Default::default()
        };
        let receives = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: port.mtu.min(peer.mtu.into()),
            dest_qp_num: to.number,
            rq_psn: to.first,
            max_dest_rd_atomic: limits.reads_answered.min(peer.reads_outstanding),
            min_rnr_timer: 1,
            ah_attr,
            ..Default::default()
        };
        let sends = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: self.first,
            max_rd_atomic: limits.reads_outstanding.min(peer.reads_answered),
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            ..Default::default()
        };
        self.change(
            receives,
            IBV_QP_STATE
                | IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        )?;
        self.change(
            sends,
            IBV_QP_STATE
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY,
        )
    }

    fn change(&mut self, mut to: ibv_qp_attr, fields: ibv_qp_attr_mask) -> Result<(), RdmaError> {
        // SAFETY: the queue pair stands, and the state is ours.
        match unsafe { self.device.library.ibv_modify_qp(self.raw, &mut to, fields as c_int) } {
            0 => Ok(()),
            errno => Err(RdmaError::Call { what: "connecting a queue pair", errno }),
        }
    }

    /// Posts requests, each of which points to the next. Returns whether all were taken.
    ///
    /// # Safety
    /// The requests and what they point to are as the device's driver wants them, and the memory of
    /// their pieces stays registered until they came to an end or the queue pair is dropped.
    pub(super) unsafe fn post(&mut self, requests: *mut ibv_send_wr) -> bool {
        // SAFETY: the queue pair stands; of the requests, the caller promised.
        unsafe { ibv_post_send(self.raw, requests) == 0 }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it stands, and is not used again. Once this returns, the device has forgotten it:
        // packets for it are dropped, and no memory is written for it.
        unsafe { self.device.library.ibv_destroy_qp(self.raw) };
    }
}

/// A number that no packet of an earlier connection is likely to have.
fn first_packet() -> Result<u32, RdmaError> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(
        |errno| RdmaError::Call { what: "asking for a random number", errno: errno.raw_os_error() },
    )?;
    Ok(u32::from_le_bytes(bytes) & 0x00ff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_reaches_furthest_is_taken() {
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1];
        let mut ipv6 = [1; 16];
        assert!(rank(&ipv4, "RoCE v2") < rank(&ipv6, "RoCE v2"));
        let global = rank(&ipv6, "RoCE v2");
        ipv6[..2].copy_from_slice(&[0xfe, 0x80]);
        assert!(global < rank(&ipv6, "RoCE v2"));
        assert!(rank(&ipv6, "RoCE v2") < rank(&ipv4, "IB/RoCE v1"));
    }
}
