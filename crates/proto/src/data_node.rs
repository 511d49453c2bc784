//! Messages between a controller and its data nodes about each tenant's promise at each node.
//!
//! A tenant is promised operations per second at all data nodes together. The controller sets in a
//! [`Grant`] the part of that which a node keeps, the tenant's *share* there. A share stands until
//! a grant changes it: nothing expires while no message comes. It takes effect when the node's next
//! period begins, and the node reports that ([`FromDataNode::Granted`]), because only then may
//! another node get the amount that this one has lost.
//!
//! These messages have the version of [`crate::message::VERSION`]. A variant at the end of an enum
//! keeps it.

use alloc::vec::Vec;

use alloc::string::String;

use serde::{Deserialize, Serialize};
use tidegate_model::{Bytes, Iops, Policy, SessionSlot, Span, TenantIndex};

use crate::message::cluster::Share;

/// From a controller to a data node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDataNode {
    /// The policy in force, from now on: it assigns clients to tenants. A [`Grant`] of its revision
    /// follows; until then shares of tenants that it names stay what they are, and others have
    /// none.
    Policy {
        /// Its revision.
        revision: u64,
        /// The policy itself.
        policy: Policy,
    },
    /// The data node is not accepted; the connection ends.
    Refused {
        /// The version that the controller speaks.
        version: u16,
        /// Why, in words for people.
        reason: String,
    },
    /// Asks for a [`DataNodeReport`].
    Collect {
        /// Comes back in the report.
        round: u64,
    },
    /// Promises to tenants at this data node.
    Grant(Grant),
}

/// Promises to tenants at one data node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The revision of the policy in which tenants have their indexes. One of another revision is
    /// ignored.
    pub revision: u64,
    /// Grows with every grant to this node.
    pub serial: u64,
    /// The tenants whose shares change. Counts are operations per second.
    pub shares: Vec<Share>,
}

/// From a data node to its controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDataNode {
    /// The answer to [`ToDataNode::Collect`].
    Report(DataNodeReport),
    /// All shares up to this grant are in force, and the former ones are not any more.
    Granted {
        /// The last of those grants.
        serial: u64,
    },
    /// The node ends. Clients that it has left go on by what they were promised last.
    Disconnect,
    /// An event for the controller.
    Noticed(Notice),
    /// The memory was damaged since the node's process began. It follows each [`Notice::Damaged`],
    /// and the beginning of a connection.
    Remade {
        /// How often.
        times: u64,
        /// Which structure was damaged last.
        structure: String,
    },
}

/// An event that a data node has noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A client did more than it had tokens for, and is shut out.
    Overstepped {
        /// The tenant that it acts for; empty for none.
        tenant: String,
        /// Its session slot.
        session_slot: SessionSlot,
        /// Operations done and under way in the period.
        issued: u64,
        /// Operations that it had tokens for.
        tokens: u64,
    },
    /// A client was silent for three periods, and is shut out.
    Evicted {
        /// The tenant that it acts for; empty for none.
        tenant: String,
        /// Its session slot.
        session_slot: SessionSlot,
    },
    /// A client has not used its reservation.
    Unused {
        /// The tenant that it acts for; empty for none.
        tenant: String,
        /// Its session slot.
        session_slot: SessionSlot,
        /// In so many periods.
        periods: u32,
    },
    /// The node goes on with other memory.
    Moved {
        /// How long nothing was answered.
        took: Span,
    },
    /// The monitor looked so much later than it should have.
    Late {
        /// By so much.
        by: Span,
    },
    /// A structure of the memory was damaged, and the node goes on with other memory.
    Damaged {
        /// Which structure.
        structure: String,
        /// Whether the stored values are still there.
        is_store_kept: bool,
        /// How long nothing was answered.
        took: Span,
    },
}

/// A data node's report on its clients, from the words that they write to its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataNodeReport {
    /// The revision of the policy that it has; 0 for none.
    pub revision: u64,
    /// That of the question.
    pub round: u64,
    /// Ω: the node's capacity, as far as it has learned.
    pub capacity: Iops,
    /// Periods that were over since its process began.
    pub periods: u64,
    /// Operations done in them, by clients of tenants and by others.
    pub operations: u64,
    /// Session slots that are taken.
    pub session_slots: u32,
    /// Tenants that have a share, a client, or ever did anything.
    pub tenants: Vec<TenantReport>,
    /// Tokens per second that clients took out of the pool in the last period.
    pub pool: u64,
    /// Bytes of its store that values can have.
    pub memory: Bytes,
    /// Those of them that are in use: by values, or kept by clients for their next ones.
    pub used: Bytes,
}

/// One tenant at one data node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantReport {
    /// The tenant's index in the policy.
    pub tenant: TenantIndex,
    /// Operations per second that are promised to it here, at most: of the share that was sent last
    /// and the one that is still in force.
    pub reserved: u64,
    /// The most that it may do here per second, likewise; `u64::MAX` for no limit.
    pub allowed: u64,
    /// Its clients that have a session slot.
    pub clients: u32,
    /// The most, per second, that these can be promised: what they request and what one can do.
    pub most: u64,
    /// Operations per second that it did in the last period.
    pub done: u64,
    /// Whether it wanted to do more in it, and still did when it ended.
    pub wants_more: bool,
    /// How many more that was per second, if all of its clients that did count it.
    pub unmet: Option<u64>,
    /// Operations since the node's process began.
    pub operations: u64,
    /// Operations of its share that it requested and that were not done, since then.
    pub missed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let shares =
            alloc::vec![Share { tenant: TenantIndex(1), reserved: 300, allowed: u64::MAX }];
        let grant = ToDataNode::Grant(Grant { revision: 2, serial: 3, shares });
        let bytes = postcard::to_allocvec(&grant).unwrap();
        assert_eq!(bytes, b"\x03\x02\x03\x01\x01\xac\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        let collect = postcard::to_allocvec(&ToDataNode::Collect { round: 4 }).unwrap();
        assert_eq!(collect, b"\x02\x04");
        let tenant = TenantReport {
            tenant: TenantIndex(1),
            reserved: 2,
            allowed: 3,
            clients: 4,
            most: 5,
            done: 6,
            wants_more: true,
            unmet: Some(18),
            operations: 7,
            missed: 8,
        };
        let report = DataNodeReport {
            revision: 9,
            round: 10,
            capacity: Iops(11),
            periods: 12,
            operations: 13,
            session_slots: 14,
            tenants: alloc::vec![tenant],
            pool: 15,
            memory: Bytes(16),
            used: Bytes(17),
        };
        let bytes = postcard::to_allocvec(&FromDataNode::Report(report)).unwrap();
        let expected = b"\x00\x09\x0a\x0b\x0c\x0d\x0e\x01\x01\x02\x03\x04\x05\x06\x01\x01\x12\
                     \x07\x08\x0f\x10\x11";
        assert_eq!(bytes, expected);
        let notice = Notice::Overstepped {
            tenant: "t".into(),
            session_slot: SessionSlot(1),
            issued: 2,
            tokens: 3,
        };
        let bytes = postcard::to_allocvec(&FromDataNode::Noticed(notice)).unwrap();
        assert_eq!(bytes, b"\x03\x00\x01t\x01\x02\x03");
        let granted = postcard::to_allocvec(&FromDataNode::Granted { serial: 1 }).unwrap();
        assert_eq!(granted, b"\x01\x01");
        assert_eq!(postcard::to_allocvec(&FromDataNode::Disconnect).unwrap(), b"\x02");
        let notice =
            Notice::Damaged { structure: "s".into(), is_store_kept: true, took: Span(300) };
        let bytes = postcard::to_allocvec(&FromDataNode::Noticed(notice)).unwrap();
        assert_eq!(bytes, b"\x03\x05\x01s\x01\xac\x02");
        let remade = FromDataNode::Remade { times: 300, structure: "s".into() };
        assert_eq!(postcard::to_allocvec(&remade).unwrap(), b"\x04\xac\x02\x01s");
    }
}
