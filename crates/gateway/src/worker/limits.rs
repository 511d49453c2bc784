//! A worker's part in the limits of its server: it refuses clients beyond the quotas of
//! connections, reports the memory that its clients take up, and closes clients that hold memory
//! for which others wait and that hardly move any bytes.

use std::sync::atomic::Ordering;

use tidegate_algo::allocation::connection_quota::QuotaExceeded;
use tidegate_algo::allocation::memory_budget::SHARE_MIN;
use tidegate_model::Origin;

use super::{Charge, Client, Frontend, Worker, client_entry};
use crate::clock;
use crate::counters::TurnedAway;
use crate::owners::OwnerTable;

/// The bytes that a client has to send or receive between two searches for clients that hold
/// memory: with fewer, it counts as stopped. A line of 1 Mbit/s moves more in five seconds. Chosen
/// by hand.
const STALL_BYTES: u64 = 256 << 10;

/// Why a client is refused, with the name of its user where that is known.
fn named(excess: &QuotaExceeded, table: &OwnerTable) -> String {
    match excess {
        QuotaExceeded::Origin(Origin::User(uid), most) if !table.user_name(*uid).is_empty() => {
            let name = table.user_name(*uid);
            format!("{most} clients of user {name} ({uid}) are connected, which is its quota")
        }
        excess => excess.to_string(),
    }
}

impl<S: Frontend> Worker<S> {
    /// Counts a refused client, and logs it if its line is due: a flood of connections does not
    /// fill the log. A client that was not accepted has no token.
    pub(super) fn turn_away(
        &mut self,
        token: Option<u64>,
        reason: TurnedAway,
        why: &dyn std::fmt::Display,
    ) {
        self.context.counts.turn_away(reason);
        if let Some(unlogged) = self.refusals.admit(clock::now()) {
            let entry = token.and_then(|token| client_entry(&mut self.slots, token));
            let peer = entry.map(|entry| tracing::field::display(entry.origin));
            tracing::warn!(peer, reason = %why, unlogged, "client refused");
        }
    }

    /// Logs that requests of a client do not count for the tenant of its program, if that is new.
    pub(super) fn report_fallback(&mut self, token: u64) {
        let Some(entry) = client_entry(&mut self.slots, token) else { return };
        let Some(reason) = entry.client.take_fallback() else { return };
        if let Some(unlogged) = self.fallbacks.admit(clock::now()) {
            let peer = entry.origin;
            tracing::warn!(%peer, %reason, unlogged, "a program's requests are not its tenant's");
        }
    }

    /// Checks the quotas of a client whose handshake is done, and closes it if they are exceeded.
    /// Returns whether the client stays.
    pub(super) fn open(&mut self, token: u64) -> bool {
        let Some(entry) = client_entry(&mut self.slots, token) else { return false };
        if entry.open.is_some() || entry.client.is_handshaking() {
            return true;
        }
        self.pending.remove(token);
        let tenant = entry.client.tenant(&self.frontend);
        let has_reservation = self.table.has_reservation(tenant);
        let kept = self.context.connections().insert(entry.origin, tenant, has_reservation);
        match kept {
            Ok(()) => {
                entry.span.record("tenant", tenant);
                entry.span.record("volume", entry.client.volume_name(&self.frontend));
                entry.open = Some(tenant.into());
                self.context.counts.admit();
                true
            }
            Err(excess) => {
                let why = named(&excess, &self.table);
                self.turn_away(Some(token), (&excess).into(), &why);
                self.close(token);
                false
            }
        }
    }

    /// Reports the memory in use to the shared counter.
    pub(super) fn report_memory(&mut self) {
        let used = self.frontend.budget().used();
        if used != self.memory_reported {
            // It wraps around where less is used than before, and the sum is right all the same.
            self.context
                .memory
                .fetch_add(used.wrapping_sub(self.memory_reported), Ordering::Relaxed);
            self.memory_reported = used;
        }
    }

    /// Closes clients that hold memory for which others wait, and that have moved hardly anything
    /// since the last two searches.
    pub(super) fn close_stalled(&mut self) {
        let is_contended = self.frontend.budget().is_contended();
        for token in self.tokens() {
            let Some(entry) = client_entry(&mut self.slots, token) else { continue };
            let Charge { all, at_nodes, moved } = entry.client.charge();
            let is_slow = moved.saturating_sub(entry.moved) < STALL_BYTES;
            entry.moved = moved;
            let is_stalled = is_contended && is_slow && all - at_nodes > SHARE_MIN;
            if is_stalled && entry.is_stalled {
                self.context.counts.turn_away(TurnedAway::MemoryBudget);
                let why = format!(
                    "it holds {} bytes of replies or of a request and moves less than \
                     {STALL_BYTES} bytes in {:?}, and others wait for memory",
                    all - at_nodes,
                    self.context.limits.stall
                );
                self.close_because(token, &why);
            } else {
                entry.is_stalled = is_stalled;
            }
        }
        if is_contended {
            self.memory_at = clock::after(self.context.limits.stall);
        }
    }
}
