//! Clients of data nodes under load: `tidegate-lab kv`.
//!
//! Each client is a process of its own, which is this program again, so that none of them shares
//! anything with another but the memory. They report what they have done as lines of JSON; here the
//! lines become rows.

mod bench;
mod client;
mod processes;
mod report;
mod wish;

pub(crate) use bench::{Args, run};
pub(crate) use processes::ClientProcesses;
pub(crate) use report::ReportRow;
