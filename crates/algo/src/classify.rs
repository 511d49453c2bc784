//! Classification and access control: the tenant of a request, the rules that match it, and the
//! rights of its client.

pub mod access;
pub mod channel;
pub mod owner;
