//! Tenants of a named resource: a request of any size is one operation, and bytes are counted
//! beside it, in a second token account.
//!
//! Elsewhere the cost of a request is all that is counted, and large requests cost more. Here a
//! request takes tokens of both accounts. It is *eligible* while tokens of both are left and both
//! paces let it, and *reserved* while reservation tokens of both are left. So a limit in either
//! unit holds, and no reservation in one unit lets a tenant exceed its reservation in the other.
//! For a tenant with a reservation in one unit alone the caller derives a count of the other.
//!
//! A large request is served in pieces, each of which waits for its turn. The first one takes the
//! token of the operation. The others take none and wait for none: they are no demand in
//! operations, so no counts would come for them, and the request would never end.
//!
//! A token of bytes stands for [`BYTES_PER_TOKEN`]. Bytes that make no whole token are kept for the
//! next request of the tenant, so that many small requests cost what their bytes do. Example, with
//! 1,024 bytes for a token: requests of 700 bytes take 0, 1, 1, 0, 1, … tokens, 175 of them 119.

use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::{Discipline, Time};

use super::requests::QueuedRequest;
use super::state::Binding;
use super::tokens::TokenAccount;
use super::words::Amounts;
use super::{PeriodGrant, Scheduler, Slot};

/// The account of bytes of one tenant, and its counts of operations and bytes.
#[derive(Debug, Default)]
pub(super) struct ByteAccount {
    pub(super) tokens: TokenAccount,
    /// Bytes that were dispatched and make no whole token.
    rest: u32,
    waiting: Amounts,
    arrived: Amounts,
    total: Amounts,
}

/// Counts of a tenant of a named resource. Only `waiting` and the counts of tokens ever fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounters {
    /// Tokens of bytes used in this period.
    pub served: u64,
    /// Tokens of bytes used in the period before.
    pub served_before: u64,
    /// Requests that wait.
    pub waiting: Amounts,
    /// Requests that came since the account was made, cancelled ones included.
    pub arrived: Amounts,
    /// Requests that were dispatched since then.
    pub total: Amounts,
}

impl ByteAccount {
    /// A request waits.
    pub(super) fn come(&mut self, amounts: Amounts) {
        self.arrived = self.arrived.plus(amounts);
        self.waiting = self.waiting.plus(amounts);
    }

    /// It is cancelled.
    pub(super) fn cancel(&mut self, amounts: Amounts) {
        self.waiting = self.waiting.minus(amounts);
    }

    /// It is dispatched, with reservation tokens or without.
    pub(super) fn dispatch(&mut self, discipline: Discipline, is_reserved: bool, amounts: Amounts) {
        self.cancel(amounts);
        self.spend(discipline, is_reserved, amounts);
    }

    /// Takes tokens for its bytes.
    pub(super) fn spend(&mut self, discipline: Discipline, is_reserved: bool, amounts: Amounts) {
        self.total = self.total.plus(amounts);
        let bytes = u64::from(self.rest) + amounts.bytes;
        self.rest = (bytes % BYTES_PER_TOKEN) as u32;
        self.tokens.spend(discipline, is_reserved, (bytes / BYTES_PER_TOKEN) as u32);
    }
}

impl<J> Scheduler<J> {
    /// Sets the tokens of bytes up to which a slot is served in this period; none if it is of no
    /// named resource. Has no effect on [`Slot::UNATTRIBUTED`].
    pub fn grant_bytes(&mut self, now: Time, slot: Slot, counts: Option<PeriodGrant>) {
        let index = self.index(slot);
        if index == 0 {
            return;
        }
        let had_account = self.states[index].counts_bytes();
        self.states[index].set_counts_bytes(counts.is_some());
        match counts {
            Some(counts) => {
                let (until, pacing) = (self.until, self.pacing);
                let waiting = if had_account { Amounts::default() } else { self.amounts(index) };
                let account = self.bytes.make(index);
                account.come(waiting);
                account.tokens.grant(now, until, pacing, counts);
            }
            None if had_account => self.bytes.remove(index),
            None => return,
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

    /// The accounts that bind the next request of a slot.
    pub(super) fn binding(&self, index: usize) -> Binding<'_> {
        let state = &self.states[index];
        if !state.counts_bytes() {
            return [Some(&state.tokens), None];
        }
        let mut firsts =
            self.queues(index).into_iter().filter_map(|queue| self.requests.first(queue));
        // Which class is next is known at its turn, so one first piece binds all of them.
        let is_paid = firsts.all(|first| first.operations == 0);
        [(!is_paid).then_some(&state.tokens), self.byte_tokens(index)]
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

    /// All requests that wait in a slot.
    fn amounts(&self, index: usize) -> Amounts {
        let waiting = self.queues(index).into_iter().flat_map(|queue| self.requests.iter(queue));
        waiting.map(QueuedRequest::amounts).fold(Amounts::default(), Amounts::plus)
    }
}
