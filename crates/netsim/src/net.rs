//! A network, packet by packet: the traffic between hosts, through links and switches.
//!
//! # Parts
//! - [`packet`]: one packet on its way.
//! - [`NetworkPlan`]: the topology and the parameters of switches; as TOML with strict keys.
//! - [`Network`]: packets on their way; driven by the owner of the queue of events.
//!
//! ```
//! use tidegate_model::Class;
//! use tidegate_sim::event::{EventQueue, Events};
//! use tidegate_netsim::net::packet::{FlowId, PacketKind, Mark, Packet};
//! use tidegate_netsim::net::{Host, Network, NetworkPlan};
//! use tidegate_sim::time::Picoseconds;
//! let plan = NetworkPlan::parse(r#"
//!     [topology.dumbbell]
//!     pairs = 1
//!     edge = { rate = "12.5GB/s", delay = "1250ns" }
//!     middle = { rate = "12.5GB/s", delay = "10us" }
//!     [switch]
//!     buffer = "6008kB"
//! "#)?;
//! let mut network = Network::new(&plan.graph()?, &plan.switch, 1)?;
//! let path = network.connect(FlowId(0), Host(0), Host(1));
//! let packet = Packet {
//!     sequence: 0,
//!     sent: Picoseconds::ZERO,
//!     flow: FlowId(0),
//!     route: path.there,
//!     ahead: 0,
//!     payload: 1_448,
//!     wire: 1_502,
//!     kind: PacketKind::Data,
//!     class: Class::High,
//!     mark: Mark::Clear,
//! };
//! let mut events = Events::default();
//! network.send(Picoseconds::ZERO, packet, &mut |at, event| events.push(at, event));
//! let mut arrived = None;
//! while let Some((now, event)) = events.pop() {
//!     let delivered = network.on_event(now, event, &mut |at, event| events.push(at, event));
//!     arrived = delivered.map(|packet| (now, packet.payload)).or(arrived);
//! }
//! assert_eq!(arrived, Some((Picoseconds(12_860_480), 1_448)));
//! # Ok::<(), tidegate_sim::scenario::ScenarioError>(())
//! ```

mod buffer;
mod leaving;
mod line;
mod network;
pub mod packet;
mod port;
mod queue_stats;
mod route;
mod switch;
mod topology;

pub use line::Line;
pub use network::{InvariantViolation, Network, NetworkEvent, PacketCounts, PortId, Stuck};
pub use queue_stats::Counters;
pub use route::Path;
pub use switch::{BufferShare, Depth, Factor, Marking, Pause, PortService, Red, Switch};
pub use topology::{
    Cable, Dumbbell, FatTree, Graph, Host, ListedTopology, NetworkPlan, Star, Topology,
};
