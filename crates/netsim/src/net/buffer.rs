//! The buffer memory of a switch, and the part of it that each queue may use.
//!
//! # Problem
//! All ports of a switch share one memory. A queue that takes all of it makes packets of others be
//! lost, urgent ones too (section 3.1.3 of the end-to-end paper demands a reservation for them).
//! And where nothing may be lost, neighbours must stop sending before memory ends.
//!
//! # Mechanism
//! A packet is in the buffer from the arrival of its last bit to the departure of its last bit.
//!
//! **Reserve.** At each port, `reserve` bytes are set aside for urgent packets; what they take
//! beyond it, and all that others take, is of the shared part. With a buffer of 6,000,000 bytes, 8
//! ports and a reserve of 150,000 at each, 4,800,000 are shared.
//!
//! **Share.** A queue may take of the shared part what is free; or up to a limit; or up to a factor
//! times what is free. With a factor of 1, one busy queue gets half, and two get a third each.
//!
//! **Pause.** Bytes that came in by a port are counted by the queue in which they are. When the
//! count reaches [`Pause::at`], the switch sends a pause to the neighbour, and when it is down to
//! [`Pause::resume`] to resume ([`super::network`] counts the bytes and sends both). Packets that
//! still come need headroom: while the note waits for the packet in front of it (and for notes of
//! other queues), and for two delays of the line, and for the packet that the neighbour has begun.
//! At 100 Gbit/s, 1 us, two queues and packets of 9,216 bytes: 2 * 12,500 + 2 * 64 + 3 * 9,216 =
//! 52,776 bytes. The third packet is the one that reached the threshold. With pauses, shares do not
//! matter: a buffer must have room for `at` and headroom of each queue of each port, and one that
//! has not is refused.
//!
//! # What is left out
//! Cells of fixed size, and pauses that end by themselves after a time: a paused queue waits until
//! it sends a resume.

use super::line::Wire;
use super::port::QUEUES;
use super::switch::{BufferShare, Factor, Pause, Switch};

/// Bytes of a pause frame on the wire: the shortest Ethernet frame.
pub(super) const NOTE: u16 = 64;

/// The largest packet that headroom is computed for: a jumbo frame.
const LARGEST: u64 = 9_216;

/// The shared memory of one switch.
#[derive(Clone, Debug)]
pub(super) struct SwitchBuffer {
    /// Of the shared part.
    pub size: u64,
    /// Of the shared part: never less than what is taken. Departures whose time was known on
    /// arrival are subtracted when their port is settled.
    pub used: u64,
    share: BufferShare,
}

impl SwitchBuffer {
    /// The memory of a switch with so many ports.
    pub(super) fn new(switch: &Switch, ports: usize) -> Self {
        let size = switch.buffer.0.saturating_sub(switch.reserve.0 * ports as u64);
        Self { size, used: 0, share: switch.share }
    }

    /// Whether a queue that holds so many bytes of the shared part may take so many more.
    #[inline]
    pub(super) const fn has_space(&self, held: u64, more: u64) -> bool {
        let free = self.size - self.used;
        let limit = match self.share {
            BufferShare::Whole => return more <= free,
            BufferShare::Limit(limit) => limit.0,
            // At most 2^40 * 2^13.
            BufferShare::Dynamic(factor) => free * factor.0 as u64 / Factor::ONE.0 as u64,
        };
        more <= free && held + more <= limit
    }
}

/// The bytes in the switch that came in by one port, by queue, and the headroom of each queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Ingress {
    pub queues: [Count; QUEUES],
    pub headroom: u64,
}

/// The same of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub bytes: u64,
    /// Whether the neighbour was sent a pause.
    pub is_paused: bool,
}

impl Ingress {
    /// Of a port at which this line ends.
    pub(super) fn new(pause: Option<Pause>, wire: &Wire, queues: usize) -> Self {
        let worst = 2 * wire.bytes_in_flight() + u64::from(NOTE) * queues as u64 + 3 * LARGEST;
        let given = pause.and_then(|pause| pause.headroom);
        let headroom = given.map_or(worst, |headroom| headroom.0);
        Self { queues: Default::default(), headroom }
    }

    /// The most bytes that all its queues may hold.
    pub(super) const fn most(&self, pause: Pause, queues: usize) -> u64 {
        (pause.at.0 + self.headroom) * queues as u64
    }
}
