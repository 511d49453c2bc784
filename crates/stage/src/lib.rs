//! The data plane stage: the gates that an application's requests pass.
//!
//! A stage lives in a memory *segment* (ADR 2), with everything that requests touch: compiled
//! rules, buckets, queues, counters. [`Stage`] is a handle on a segment; a request calls
//! [`Stage::enforce`]. An *agent* writes the segment: it holds the link to the controller, turns
//! rules into tables and rates, and wakes waiting requests. For `tidegate run` the agent is the
//! supervisor process, and the whole process tree shares the segment. For a program that uses this
//! library the agent is a thread.
//!
//! ```no_run
//! use tidegate_model::Operation;
//! use tidegate_stage::{StageAgent, Request, Scope, Settings};
//!
//! let agent = StageAgent::start(Settings { tenant: "kv".into(), ..Settings::default() })?;
//! let stage = agent.stage();
//! let _scope = Scope::enter("flush");
//! let admission = stage.enforce(&Request::new(Operation::Write, 65_536));
//! // ... write ...
//! admission.complete(65_536);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A request's code allocates nothing, locks nothing while it waits, and makes no system call
//! unless it has to wait. It leaves `errno` alone: system calls go through `rustix`, which does not
//! use it.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test measures time"))]

pub mod asynchronous;
pub mod bypass;
mod clock;
mod context_names;
pub mod files;
mod gate;
mod identity;
pub mod inspect;
pub mod layout;
mod lease;
mod local;
mod lock;
mod permit;
pub mod programs;
pub mod record;
mod ring_times;
pub mod scope;
pub mod scratch;
pub mod segment;
mod stage;
mod wait;
mod waiters;

#[cfg(feature = "agent")]
mod agent;
#[cfg(feature = "agent")]
mod census;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "agent")]
mod report;
#[cfg(feature = "agent")]
mod settings;
#[cfg(feature = "agent")]
pub mod supervise;
#[cfg(feature = "agent")]
mod sweep;
#[cfg(feature = "transform")]
pub mod transform;
#[cfg(feature = "agent")]
mod usage;
#[cfg(feature = "agent")]
mod users;

#[cfg(feature = "agent")]
pub use agent::{NoRules, StageAgent};
pub use bypass::Bypass;
pub use local::{Inside, forget_thread};
pub use scope::Scope;
pub use segment::Segment;
#[cfg(feature = "agent")]
pub use settings::Settings;
pub use stage::{Admission, Request, Stage, Subject};
// For programs that need to know the demands of the rules in force.
pub use tidegate_algo::classify::channel::{Classifier, RuleTable};
