//! Invariants of an end-to-end simulation at every moment, checked where debug assertions are on.
//!
//! **Packets.** Each packet that was sent was delivered, dropped, waits or is on a line, and no
//! buffer holds more than its size ([`Network::check`](crate::net::Network::check)). Queues that
//! wait for each other for good are a fault of the scenario, and its outcome reports them.
//!
//! **Bytes.** Of each flow, acknowledged are at most those that have arrived, these at most those
//! that were sent, and these at most those that were requested.
//!
//! **Requests.** Each that was made waits at its host, or is at exactly one place: one message on
//! its way, or one device. So if 8 are outstanding, and 3 commands and 1 response are on their way,
//! drives have 4.

use super::server::SimServer;
use super::simulation::E2eSim;
use crate::net::InvariantViolation;
use tidegate_sim::event::EventQueue;

impl<Q: EventQueue<super::simulation::E2eEvent>> E2eSim<'_, Q> {
    /// Checks everything but the insides of devices.
    pub(super) fn check(&self) {
        let now = self.context.now;
        if let Err(fault @ InvariantViolation::Count { .. }) = self.context.network.check() {
            panic!("at {now}: {fault}");
        }
        self.transport.check();
        let waiting: usize = self.connections.iter().map(|one| one.waiting.len()).sum();
        let begun = self.exchanges.len() - self.announced as usize;
        let devices: usize = self.servers.iter().map(SimServer::outstanding).sum();
        let counted = waiting + self.transport.under_way() + devices;
        assert_eq!(counted, begun, "places of requests and requests, at {now}");
        if self.scenario.storage.is_some() {
            let outstanding = self.connections.iter().map(|one| one.outstanding as usize);
            assert_eq!(waiting + outstanding.sum::<usize>(), begun, "outstanding, at {now}");
        }
    }
}
