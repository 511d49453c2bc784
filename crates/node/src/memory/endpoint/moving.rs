//! Moves of all clients to other memory: one client has to be shut out, the memory is damaged,
//! blocks run low and must not be swept, or the node's own RNIC has lost the memory.

use tidegate_model::{SessionSlot, Span};
use tidegate_onesided::data_node::ToClient;
use tidegate_proto::data_node::Notice;

use super::super::host::remake::RemadeStore;
use super::{ClientConnection, Endpoint, MOVE_MAX, RNIC_WAIT};

impl Endpoint {
    /// The node's own RNIC does not reach the memory any more, and soon no client's RNIC will: all
    /// clients reconnect once it does.
    pub(super) fn lose(&mut self) {
        if self.moving.is_some() || !self.host.is_lost() {
            return;
        }
        tracing::error!("the node's own RNIC has lost the memory; clients have to reconnect");
        let connections: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_in)
            .map(|(token, _)| *token)
            .collect();
        connections.into_iter().for_each(|token| self.leave(token));
        self.moving = Some(self.clock.now());
    }

    /// Shuts out the client of a session slot: by its RNIC, or else by moving away from it.
    pub(super) fn fence(&mut self, session_slot: SessionSlot) {
        let client = self
            .connections
            .iter()
            .find(|(_, connection)| connection.session_slot == Some(session_slot));
        // A client that has disconnected has no memory any more.
        let Some((&token, _)) = client else { return };
        self.leave(token);
        if self.host.rnic().is_some() {
            return;
        }
        self.begin_to_move();
    }

    /// Moves to memory whose clients are all known, so that blocks of dead clients can be swept
    /// again.
    pub(super) fn bring_back_blocks(&mut self) {
        if self.moving.is_none() {
            tracing::info!(
                "free blocks run low in memory that unknown clients may have; it is moved"
            );
            self.begin_to_move();
        }
    }

    /// Makes all clients reconnect.
    fn begin_to_move(&mut self) {
        self.moving.get_or_insert(self.clock.now().after(MOVE_MAX));
        for connection in self.connections.values_mut().filter(|connection| connection.is_in) {
            // A client that does not receive this is closed later.
            let _ = connection.send(&ToClient::Moving);
        }
    }

    /// Moves, once no client uses the memory any more or time is up, and answers waiting clients.
    pub(super) fn move_if_due(&mut self) {
        let Some(deadline) = self.moving else { return };
        let is_used = || self.connections.values().any(|connection| connection.is_in);
        // Behind an RNIC the node waits for the RNIC and not for clients.
        if self.clock.now() < deadline && (self.host.rnic().is_some() || is_used()) {
            return;
        }
        let gone: Vec<ClientConnection> = self
            .connections
            .extract_if(.., |_, connection| connection.is_in)
            .map(|it| it.1)
            .collect();
        let started = self.clock.now();
        match self.host.move_memory() {
            Ok(_) if self.host.rnic().is_some() => {
                tracing::warn!("the node's own RNIC reaches the memory again; clients reconnect");
            }
            Ok(store) => {
                if let RemadeStore::Emptied(structure) = store {
                    tracing::error!(%structure, "memory was damaged, so the store is empty");
                    let took = self.clock.now().since(started);
                    self.host.remade(structure, store, took);
                }
                let took_ms = self.clock.now().since(started).0 / Span::MILLISECOND.0;
                tracing::warn!(took_ms, "the memory was moved; clients reconnect");
                self.host.notice(Notice::Moved { took: self.clock.now().since(started) });
            }
            Err(error) if self.host.rnic().is_some() => {
                tracing::error!(%error, "the node's own RNIC does not reach the memory");
                self.moving = Some(self.clock.now().after(RNIC_WAIT));
                return;
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "the memory cannot be moved, so no client is shut out, and lost blocks stay \
                     lost"
                );
                self.host.stay(gone.iter().map(|connection| connection.session_slot));
            }
        }
        self.moving = None;
        self.answer_all();
    }

    /// Continues with other memory, because a structure of this one is damaged. Clients have
    /// nothing to finish there, so the node does not wait for them: they notice it and reconnect.
    pub(super) fn remake(&mut self) {
        // The damage may have been reported twice, and handled already.
        let Some(structure) = self.host.damaged() else { return };
        let started = self.clock.now();
        let clients: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_in)
            .map(|(token, _)| *token)
            .collect();
        let whose = self.host.tenants();
        for token in clients {
            if let Some(connection) = self.connections.get_mut(&token) {
                let _ = connection.send(&ToClient::Moving);
            }
            self.leave(token);
        }
        match self.host.remake(structure) {
            Ok(store) => {
                let took = self.clock.now().since(started);
                let took_ms = took.0 / Span::MILLISECOND.0;
                let is_store_kept = store == RemadeStore::Kept;
                tracing::error!(
                    %structure,
                    took_ms,
                    is_store_kept,
                    tenants = whose,
                    "memory was damaged by a client that has it, so the node continues with other \
                     memory; clients reconnect"
                );
                self.host.remade(structure, store, took);
            }
            Err(error) => {
                tracing::error!(
                    %structure,
                    %error,
                    "memory is damaged, and no new memory can be made"
                );
                self.moving = Some(self.clock.now().after(RNIC_WAIT));
                return;
            }
        }
        self.moving = None;
        self.answer_all();
    }
}
