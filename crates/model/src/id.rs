//! Identities: small integers that stand for names.
//!
//! A name is written once in a policy and looked up once per process; from then on a request
//! carries these, and comparing them is comparing integers.

use core::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

/// An identity that is an index of a list.
macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        id!($(#[$doc])* $name(u16));

        impl $name {
            /// The index in its list.
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The identity with this index. No list is longer than the type can count.
            pub const fn at(index: usize) -> Self {
                Self(index as u16)
            }
        }
    };
}

id!(
    /// The tenant that owns a request. Zero means no tenant: such requests have no reservation.
    TenantId(u16)
);
id!(
    /// The context of a request: `foreground`, `flush`, … as interned by one process. Zero is
    /// "unknown".
    ContextId(u16)
);
id!(
    /// One data plane stage, as numbered by its controller. Zero is "not yet numbered".
    StageId(u64)
);
id!(
    /// One period of a controller. Controllers number periods by the calendar, so two runs agree.
    PeriodNumber(u64)
);
index!(
    /// One tenant of a policy: its index there, counting from zero. Its [`TenantId`] is one more.
    TenantIndex
);
index!(
    /// One storage node: its index in the cluster file, counting from zero.
    NodeId
);
index!(
    /// One data node: its index in the cluster file, counting from zero.
    DataNodeId
);
index!(
    /// One gateway: its index in the cluster file, counting from zero.
    GatewayId
);
index!(
    /// One session slot of a data node: its index there, counting from zero.
    SessionSlot
);

id!(
    /// A part of a volume that is open at a node, as numbered on one connection or by one store.
    PartNumber(u32)
);

impl PartNumber {
    /// The index in the list of open parts.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The number of the part with this index.
    pub const fn at(index: usize) -> Self {
        Self(index as u32)
    }
}

impl PeriodNumber {
    /// The period that begins so many periods later.
    pub const fn after(self, periods: u64) -> Self {
        Self(self.0.saturating_add(periods))
    }
}

impl TenantId {
    /// No tenant: the request matched no rule.
    pub const UNATTRIBUTED: Self = Self(0);
}

impl ContextId {
    /// No context was given.
    pub const NONE: Self = Self(0);
}
