//! Promises in bytes: the second token account of the tenants that have such a promise.
//!
//! A request of such a tenant takes tokens of both accounts. It is *eligible* while tokens of both
//! are left and both paces let it, and *reserved* while reservation tokens of both are left. So a
//! limit in either unit holds, and no reservation in one unit lets a tenant exceed its reservation
//! in the other. A unit in which a tenant has no reservation beside one in the other must not bind:
//! its count is [`u64::MAX`].
//!
//! A token of bytes stands for [`BYTES_PER_TOKEN`]. Bytes that make no whole token are kept for the
//! next request of the tenant, so that many small requests cost what their bytes do. Example, with
//! 1,024 bytes for a token: requests of 700 bytes take 0, 1, 1, 0, 1, … tokens, 175 of them 119.

use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::{Discipline, Time};

use super::state::Phase;
use super::tokens::TokenAccount;
use super::{PeriodGrant, Scheduler, Slot};

/// The account of bytes of one tenant.
#[derive(Debug, Default)]
pub(super) struct ByteAccount {
    pub(super) tokens: TokenAccount,
    /// Bytes that were dispatched and make no whole token.
    rest: u32,
    waiting: u64,
    arrived: u64,
    total: u64,
}

/// Counts of a tenant's bytes. Only `waiting` and the counts of tokens ever fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounters {
    /// Tokens used in this period.
    pub served: u64,
    /// Tokens used in the period before.
    pub served_before: u64,
    /// Bytes of requests that wait.
    pub waiting: u64,
    /// Bytes of requests that came since the account was made, cancelled ones included.
    pub arrived: u64,
    /// Bytes that were dispatched since then.
    pub total: u64,
}

impl ByteAccount {
    /// A request about so many bytes waits.
    pub(super) fn come(&mut self, bytes: u32) {
        self.arrived = self.arrived.saturating_add(u64::from(bytes));
        self.waiting = self.waiting.saturating_add(u64::from(bytes));
    }

    /// It is cancelled.
    pub(super) fn cancel(&mut self, bytes: u32) {
        self.waiting = self.waiting.saturating_sub(u64::from(bytes));
    }

    /// It is dispatched in `phase`.
    pub(super) fn dispatch(&mut self, discipline: Discipline, phase: Phase, bytes: u32) {
        self.cancel(bytes);
        self.spend(discipline, phase, bytes);
    }

    /// Takes tokens for so many bytes.
    pub(super) fn spend(&mut self, discipline: Discipline, phase: Phase, bytes: u32) {
        self.total = self.total.saturating_add(u64::from(bytes));
        let bytes = u64::from(self.rest) + u64::from(bytes);
        self.rest = (bytes % BYTES_PER_TOKEN) as u32;
        self.tokens.spend(discipline, phase, (bytes / BYTES_PER_TOKEN) as u32);
    }
}

impl<J> Scheduler<J> {
    /// Sets the tokens of bytes up to which a slot is served in this period; none if bytes are not
    /// counted for it. Has no effect on [`Slot::UNATTRIBUTED`].
    pub fn grant_bytes(&mut self, now: Time, slot: Slot, counts: Option<PeriodGrant>) {
        let index = self.index(slot);
        if index == 0 {
            return;
        }
        match counts {
            Some(counts) => {
                let (until, pacing) = (self.until, self.pacing);
                let waiting = self.waiting_bytes(index);
                let is_new = !self.states[index].counts_bytes();
                self.states[index].set_counts_bytes(true);
                let account = self.bytes.make(index);
                if is_new {
                    (account.waiting, account.arrived) = (waiting, waiting);
                }
                account.tokens.grant(now, until, pacing, counts);
            }
            None => {
                self.states[index].set_counts_bytes(false);
                self.bytes.remove(index);
            }
        }
        self.settle(now, index);
    }

    /// The tokens of bytes up to which a slot is served in this period; none if bytes are not
    /// counted for it.
    pub fn byte_counts(&self, slot: Slot) -> Option<PeriodGrant> {
        self.byte_tokens(self.index(slot)).map(|tokens| tokens.counts)
    }

    /// The counts of a slot's bytes so far; none if they are not counted.
    pub fn byte_counters(&self, slot: Slot) -> Option<ByteCounters> {
        let index = self.index(slot);
        let account = self.bytes.get(index).filter(|_| self.states[index].counts_bytes())?;
        Some(ByteCounters {
            served: account.tokens.served,
            served_before: account.tokens.served_before(),
            waiting: account.waiting,
            arrived: account.arrived,
            total: account.total,
        })
    }

    /// The tokens of bytes of a slot, if bytes are counted for it.
    pub(super) fn byte_tokens(&self, index: usize) -> Option<&TokenAccount> {
        let counts_bytes = self.states[index].counts_bytes();
        if counts_bytes { self.bytes.get(index).map(|account| &account.tokens) } else { None }
    }

    /// The same, to be changed.
    pub(super) fn byte_account_mut(&mut self, index: usize) -> Option<&mut ByteAccount> {
        let counts_bytes = self.states[index].counts_bytes();
        if counts_bytes { self.bytes.get_mut(index) } else { None }
    }

    /// The bytes of all requests that wait in a slot.
    fn waiting_bytes(&self, index: usize) -> u64 {
        let waiting = self.queues(index).into_iter().flat_map(|queue| self.requests.iter(queue));
        waiting.map(|request| u64::from(request.bytes)).sum()
    }
}
