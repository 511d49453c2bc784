//! Gateways report each unit of cost elsewhere exactly once to each node, whichever of their
//! workers sends or reports, and at whatever moment.

use std::sync::Barrier;

use tidegate_algo::scheduling::dsfq::Elsewhere;

/// Two workers send to two nodes and report to both, as fast as they can; what each reported, and
/// what it sent.
fn work(tenant: &Elsewhere, worker: usize) -> [[u64; 2]; 2] {
    let [mut reported, mut sent] = [[0u64; 2]; 2];
    for round in 0..500_000 {
        let node = (round + worker) % 2;
        let cost = 1 + round as u32 % 3;
        sent[node] += u64::from(cost);
        reported[node] += u64::from(tenant.sent(node, cost));
        reported[0] += tenant.take_unreported(0);
        reported[1] += tenant.take_unreported(1);
    }
    [reported, sent]
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test with real threads")]
fn workers_report_each_unit_once() {
    let tenant = Elsewhere::new(2);
    let (tenant, begin) = (&tenant, &Barrier::new(2));
    let workers = std::thread::scope(|scope| {
        let spawn = |worker| {
            scope.spawn(move || {
                begin.wait();
                work(tenant, worker)
            })
        };
        [0, 1].map(spawn).map(|thread| thread.join().expect("a worker failed"))
    });
    let [[reported_0, sent_0], [reported_1, sent_1]] = workers;
    for (node, other) in [(0, 1), (1, 0)] {
        let reported = reported_0[node] + reported_1[node] + tenant.take_unreported(node);
        assert_eq!(reported, sent_0[other] + sent_1[other]);
    }
    assert_eq!(tenant.total(), [sent_0, sent_1].concat().iter().sum::<u64>());
}
