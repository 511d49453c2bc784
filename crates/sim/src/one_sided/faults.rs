//! Fault injection for one-sided memory: clients with reservations under faults that one seed
//! decides, and the invariants.
//!
//! **Problem.** A data node keeps its promises easily while all clients are there. It must also
//! keep them while clients stop, die, come and are late, the monitor starts again, and the node
//! becomes slower or faster.
//!
//! **Mechanism.** A seed becomes a data node, clients with promises and loads, and a list of faults
//! ([`FaultScenario`]). For some periods everything happens; then it is calm, for as long as an
//! estimate may take to settle; then every promise must be kept. Engines, monitor and fabric are
//! those of every other simulation:
//!
//! - *No token is created*: in no period are more pool tokens granted than were made, and no more
//!   operations issued than Ω (or what is reserved, if that is more), but for
//!   [`FaultScenario::slack`].
//! - *Every feasible reservation is met*, in each period of the calm: of each client that always
//!   has something to do, or requests evenly more than it reserved.
//! - *All of the node is used*, if the clients that always have something to do could use it
//!   although one of them waits for tokens: 99 % of what it can do, but for what the ends of a
//!   period hide ([`FaultScenario::usable`]) and what clients with nothing to do yield when it is
//!   too late ([`FaultScenario::late`]). If tokens are not paced it may be 15 % less.
//!
//! All of these follow from the mechanism but two. First, at most one client waits at a time as a
//! rule, and not with certainty: each waits 5 ms at most, 1.2 times that if the pool was empty, at
//! its own times. Second, the loss without pacing has no useful bound. Once the monitor had to wait
//! for a client, the rest of the pool comes bit by bit until the period's end. A client that has
//! used up its own tokens by then waits for it with the node idle. A seventh was the most in 10,000
//! seeds.
//!
//! **Bounds.** Thousands of operations in a second rather than millions, so that a seed takes
//! milliseconds; then what happens once in a tick or a window is a larger part of all. A period is
//! 200 ms at least, as the times in which clients are missed are not scaled.

mod generate;
mod station;
mod world;

use tidegate_algo::onesided::Rules;
use tidegate_algo::onesided::engine::Promise;
use tidegate_model::{Iops, Span, Time};
use tidegate_onesided::haechi::TICK;

pub(crate) use self::world::OneSidedTrial;
use crate::trial::Phases;

/// Periods in which everything happens.
const WILD: u64 = 6;
/// Periods from the last fault until everything must be as if there had been none: after a step of
/// the node, reservations are met in eight, and all of the node is used in twelve.
const SETTLE: u64 = 12;
/// Periods in which every promise must be kept: of the first, a part is not judged.
const CALM: u64 = 4;

/// Load of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientLoad {
    /// As much as it can get.
    All,
    /// So many operations in a second, evenly.
    Even(u64),
    /// As much as it can get for so long, then nothing for so long, and so on.
    OnOff(Span),
    /// Nothing.
    Nothing,
}

/// Fault of a client, the monitor or the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A client stands still for so long.
    Stop(usize, Span),
    /// A client dies.
    Die(usize),
    /// Another client comes, in place of one that died.
    Join(ClientSpec),
    /// A client's reports and polls are late by so much, from now on.
    Late(usize, Span),
    /// The monitor stands still for so long.
    Stall(Span),
    /// The monitor dies, and another begins after so long.
    Restart(Span),
    /// The node does so much from now on.
    Node(Iops),
}

/// One client as it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClientSpec {
    promise: Promise,
    load: ClientLoad,
}

/// The data node, clients and faults of one seed.
#[derive(Clone, Debug)]
struct FaultScenario {
    seed: u64,
    rules: Rules,
    period: Span,
    /// C_L and C_G, in operations per second; what the node is thought to do, in operations per
    /// period; and what it does in the end.
    local: Iops,
    node: Iops,
    thought: u64,
    last: Iops,
    window: u32,
    specs: Vec<ClientSpec>,
    faults: Vec<(Time, Fault)>,
}

impl FaultScenario {
    fn phases(&self) -> Phases {
        Phases { period: self.period, wild: WILD, heal: SETTLE, calm: CALM }
    }

    fn per_period(&self, rate: Iops) -> u64 {
        (u128::from(rate.0) * u128::from(self.period.0) / u128::from(Span::SECOND.0)) as u64
    }

    /// Returns the operations, out of `node`, that so many clients with endless demand use at
    /// least, whatever a period's ends hide. The estimate of the node's capacity stays while no
    /// more than this is unused. Three amounts are unused: the operations in line at the node when
    /// a period ends, which it serves before clients notice the next period; the tokens of two
    /// ticks, the time until a client takes new tokens; and a hundredth, up to which left-over pool
    /// tokens count as none.
    ///
    /// For instance, 2,707 operations in 250 ms and five clients with windows of 4: 2,679 less 20
    /// and less 21, which is 2,638.
    fn usable(&self, node: u64, clients: u64) -> u64 {
        let ticks = 2 * node * TICK.0 / self.period.0;
        (node * 99 / 100).saturating_sub(clients * u64::from(self.window) + ticks)
    }

    /// Returns the reservation that a client yields in a period too late for other clients to use,
    /// in operations. An idle client reports each fifth tick, and the monitor polls each tick. So
    /// the monitor learns of the yield up to six ticks late: at the period's end, and each time
    /// that the client ceases to send requests. The client ceases once in two of its phases, and
    /// the delay counts for a phase at most.
    ///
    /// For instance, 352 in 250 ms: 8 at the end, and with phases of 20 ms 52 more.
    fn late(&self, spec: &ClientSpec) -> u64 {
        let unknown = 6 * TICK.0;
        let reservation = spec.promise.reservation;
        let at_end = reservation * unknown / self.period.0;
        match spec.load {
            ClientLoad::All => 0,
            ClientLoad::OnOff(phase) => at_end + reservation * unknown.min(phase.0) / (2 * phase.0),
            ClientLoad::Even(_) | ClientLoad::Nothing => at_end,
        }
    }

    /// Returns the operations that a period may issue beyond Ω. Clients use old tokens before they
    /// notice the new period, for two milliseconds. Two windows of each client are added: a client
    /// may have taken tokens before it noticed that it had been away.
    fn slack(&self) -> u64 {
        let node = self.node.0.max(self.last.0);
        2 * node / 1_000 + 2 * self.clients() * u64::from(self.window)
    }

    fn clients(&self) -> u64 {
        let joins = self.faults.iter().filter(|(_, fault)| matches!(fault, Fault::Join(_)));
        (self.specs.len() + joins.count()) as u64
    }
}
