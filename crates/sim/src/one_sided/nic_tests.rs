//! The properties of the line, whatever its order.

use proptest::prelude::*;
use tidegate_model::{Iops, Span};

use super::*;

/// A client's NIC takes 10 ns for a page, the data node's link 7 ns.
fn nics(order: Order, service: Service) -> NicModel {
    let rate = |ns: u64| Iops(1_000_000_000 / ns);
    NicModel { client: rate(10), node: Iops(142_857_143), round_trip: Span(0), order, service }
}

const PAGE_SIZE: u32 = PAGE as u32;

const fn job(id: u64) -> NicOperation {
    NicOperation { id, size: PAGE_SIZE, mark: 0, buffer: 0 }
}

/// All that is served, if each client's operations are pushed at these times.
fn served(nics: &NicModel, pushed: &[Vec<u64>]) -> Vec<Served> {
    let mut line = OperationLine::new(nics, 1);
    let mut all: Vec<(Picoseconds, u32, u64)> = Vec::new();
    for times in pushed {
        let client = line.join();
        all.extend((0..).zip(times).map(|(id, at)| (Picoseconds(*at), client, id)));
    }
    all.sort();
    let mut out = Vec::new();
    for (at, client, id) in all {
        line.advance(at, |served| out.push(served));
        line.push(at, client, job(id));
    }
    while line.next() < Picoseconds::MAX {
        let next = line.next();
        line.advance(next, |served| out.push(served));
    }
    out
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Arrival), Just(Order::RoundRobin), Just(Order::Shared)]
}

fn pushed() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let times = prop::collection::vec(0u64..400_000, 0..12).prop_map(|mut times| {
        times.sort_unstable();
        times
    });
    prop::collection::vec(times, 1..5)
}

proptest! {
    /// Each client's operations are served in their order, none is lost, time never goes back, and
    /// neither NIC does more than it can.
    #[test]
    fn nothing_is_lost_or_overtaken(
        order in order(), exponential: bool, pushed in pushed(),
    ) {
        let service = if exponential { Service::Exponential } else { Service::Constant };
        let out = served(&nics(order, service), &pushed);
        prop_assert!(out.windows(2).all(|two| two[0].at <= two[1].at));
        for (client, times) in (0..).zip(&pushed) {
            let own: Vec<&Served> = out.iter().filter(|served| served.client == client).collect();
            prop_assert!(own.iter().map(|served| served.job.id).eq(0..times.len() as u64));
            if service == Service::Constant {
                // Its NIC, then the link.
                let mut free = 0;
                for (served, at) in own.iter().zip(times) {
                    free = free.max(*at) + 10_000;
                    prop_assert!(served.at.0 + 5 >= free + 6_999, "{} {free}", served.at);
                }
            }
        }
    }

    /// In order of arrival it is what a list of operations, sorted by when they leave their NICs,
    /// is; and in every order the link is done with all of them at the same time.
    #[test]
    fn the_link_never_idles_while_something_is_in_line(pushed in pushed()) {
        let mut exits = Vec::new();
        for times in &pushed {
            let mut free = 0;
            for at in times {
                free = free.max(*at) + 10_000;
                exits.push(free);
            }
        }
        exits.sort_unstable();
        let page = page(nics(Order::Arrival, Service::Constant).node);
        let completions: Vec<u64> = exits
            .iter()
            .scan(0, |free, exit| {
                *free = exit.max(free) + page;
                Some(*free)
            })
            .collect();
        let arrival = served(&nics(Order::Arrival, Service::Constant), &pushed);
        prop_assert!(arrival.iter().map(|served| served.at.0).eq(completions.iter().copied()));
        for order in [Order::RoundRobin, Order::Shared] {
            let out = served(&nics(order, Service::Constant), &pushed);
            let end = out.last().map_or(0, |last| last.at.0);
            // Sharing rounds down by less than a picosecond at each event.
            let last = completions.last().copied().unwrap_or(0);
            prop_assert!(end.abs_diff(last) <= 200, "{order:?}");
        }
    }
}

/// Round robin and shared, no client has more of the link than another one that also waits, however
/// many operations it keeps there. By arrival, a client's share grows with the operations that it
/// keeps.
#[test]
fn shares_of_clients_with_unequal_windows() {
    let shares = |order| {
        let mut line = OperationLine::new(&nics(order, Service::Constant), 1);
        let mut counts = [0u32; 3];
        for (client, window) in [(0, 4), (1, 4), (2, 16)] {
            line.join();
            (0..window).for_each(|id| line.push(Picoseconds::ZERO, client, job(id)));
        }
        for _ in 0..3_000 {
            let now = line.next();
            let mut out = Vec::new();
            line.advance(now, |served| out.push(served));
            for served in out {
                counts[served.client as usize] += 1;
                line.push(now, served.client, served.job);
            }
        }
        counts.map(|count| f64::from(count) / f64::from(counts.iter().sum::<u32>()))
    };
    for order in [Order::RoundRobin, Order::Shared] {
        let shares = shares(order);
        assert!(
            shares.iter().all(|share| (share - 1.0 / 3.0).abs() < 0.01),
            "{order:?} {shares:?}"
        );
    }
}
