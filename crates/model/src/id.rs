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
    /// One storage node: its place in the cluster file, counting from zero.
    NodeId(u16)
);

impl TenantId {
    /// No tenant: the request matched no rule.
    pub const UNATTRIBUTED: Self = Self(0);
}

impl ContextId {
    /// No context was given.
    pub const NONE: Self = Self(0);
}
