//! Striping in an end-to-end simulation: the server and the drive of an offset.

use tidegate_model::Bytes;

/// Where something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StripeLocation {
    /// Which of the servers, by their order in the scenario.
    pub(super) server: u32,
    /// Which of its drives.
    pub(super) drive: u8,
    /// From the start of that.
    pub(super) at: Bytes,
}

impl StripeLocation {
    /// Where an offset lies if stripes go from server to server, and each time around to the next
    /// drive.
    ///
    /// Two servers with two drives each and stripes of 1 MiB: 0, 1, 2, 3 and 4 MiB lie on server 0
    /// drive 0, server 1 drive 0, server 0 drive 1, server 1 drive 1, and 1 MiB into the first.
    pub(super) fn of(offset: Bytes, stripe: Bytes, servers: u32, drives: u32) -> Self {
        let (number, rest) = (offset.0 / stripe.0, offset.0 % stripe.0);
        let (row, server) = (number / u64::from(servers), number % u64::from(servers));
        let (round, drive) = (row / u64::from(drives), row % u64::from(drives));
        Self { server: server as u32, drive: drive as u8, at: Bytes(round * stripe.0 + rest) }
    }
}
