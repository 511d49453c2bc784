//! Trace replay with other policies (the *twin* of a cluster): its recorded load, another policy,
//! and the nodes and controller that ship.
//!
//! **Problem.** An operator wants to change the policy of a cluster that people work with, and to
//! know before what each tenant will have then. A model of the cluster would have to be trusted;
//! but the cluster is made of machines without I/O, which can be run again on the same requests.
//!
//! **Model.** The cluster file has the nodes, volumes and gateways; the policy is any policy; the
//! load is a recording ([`tidegate_proto::recording`]). A request is split by the gateway's machine
//! over the stripes of its volume, goes to the queues of the nodes' machines, and is let through as
//! these and the controller's machine decide. A device serves the requests that are let through
//! ([`Service`]): a given number at a time, each for a time that is fixed or varies, as the cluster
//! file's `model` says or as it was found. Messages take no time, but for one that is the same for
//! all requests. [`fit`] finds these times from a recording. Large requests are served in pieces,
//! as at a live node.
//!
//! **When a request is made.** The recording shows when a request came, and not why. There are two
//! kinds of clients ([`load`]). One keeps some number of requests under way, and asks again when it
//! is answered: its requests follow answers, as soon as they followed them in the recording, so it
//! asks for more where it is served faster. If it was still asking when the recording ended, it
//! goes on from the beginning when it has made all of its requests. The other asks when it has
//! something to ask: its requests come when they came in the recording, or as soon after that as it
//! has fewer under way than it ever had. *Example*: a client with one request under way was
//! answered at 3.0 ms and asked at 3.1 ms. If the twin answers at 2.0 ms, it asks at 2.1 ms.
//!
//! A client that was held back shows no more than that it asks for more. Of a client that wants
//! 5,000 requests per second and was limited to 2,000, the twin shows the service that it would get
//! if it took all that it can.
//!
//! **Results.** For each tenant and policy the [`TenantReport`]; the recording itself is reported
//! in the same way, so that the policy in force then tells how good the twin is.
//!
//! **What is left out.** How the time that gateways, networks and threads take varies: each request
//! has the same ([`Plan::transit`]); requests to pools; writes that are cut while others pass;
//! nodes that are away; reports of service elsewhere that no request carries.

mod fit;
pub mod load;
mod nodes;
mod report;
mod run;

pub use fit::{Fit, fit};
pub use load::{LoadError, RecordedLoad};
pub use report::{Figures, Kept, TenantReport, TwinReport};
pub use run::{Plan, PlanError, Progress, run};

use tidegate_model::Span;

/// How a node's device serves requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// As the cluster file says: by the rate and variance of the node's `model`, or else at its
    /// `capacity`; one request at a time.
    Declared,
    /// By these times.
    Timed(ServiceTimes),
}

/// The times of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTimes {
    /// The mean time of a unit: a piece of a request of at most 128 KiB.
    pub each: Span,
    /// The mean time that each MiB takes beyond that.
    pub per_mib: Span,
    /// How many requests are served at the same time, at least one.
    pub at_once: u16,
    /// How much of a time varies, in percent. That part is exponential: of 100 requests one takes
    /// 4.6 times its mean or longer. Nothing varies at 0, and everything at 100.
    pub varying_percent: u32,
}

impl ServiceTimes {
    /// The same time for each unit of cost, whatever its size, with so many served at once.
    pub const fn fixed(each: Span, at_once: u16) -> Self {
        Self { each, per_mib: Span::ZERO, at_once, varying_percent: 0 }
    }
}

#[cfg(test)]
mod tests;
