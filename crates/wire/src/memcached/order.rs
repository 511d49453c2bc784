//! Order of one client's requests about the same key.
//!
//! **Problem.** Nodes serve requests in any order. A client that pipelines expects the replies of
//! memcached, which serves its requests one after the other.
//!
//! **Mechanism.** A request waits while an earlier one about one of its keys has no reply, if one
//! of the two changes the value. Requests about other keys and two reads do not wait.
//! Keys are compared by a hash: two keys of equal hash wait for each other without need.

use super::request::Request;
use super::{Command, KEY_MAX};
use tidegate_model::Operation;

/// The effect of a request on the order: its key, and whether it may change the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    /// The key's hash; none for several keys, or all.
    key: Option<u64>,
    pub(super) is_change: bool,
}

impl Effect {
    /// The effect of a request; none if it has no key.
    pub(super) fn of(request: &Request<'_>) -> Option<Self> {
        let is_change = match request.command.operation() {
            Some(operation) => operation != Operation::Get,
            None if request.command == Command::FlushAll => true,
            None => return None,
        };
        let mut space = [0; KEY_MAX];
        let key = (request.keys == 1).then(|| hash(request.stored_key(&mut space)));
        Some(Self { key, is_change })
    }

    /// Whether a later request has to wait for the reply to this one.
    pub(super) fn delays(self, later: &Request<'_>, effect: Self) -> bool {
        if !self.is_change && !effect.is_change {
            return false;
        }
        match (self.key, effect.key) {
            (None, _) => true,
            (key, Some(_)) => key == effect.key,
            (key, None) if later.keys > 1 => later.keys().any(|other| Some(hash(other)) == key),
            (_, None) => true,
        }
    }
}

/// FNV-1a.
fn hash(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
