//! Gateways tell each node of each unit of cost elsewhere exactly once, whichever of their workers
//! sends or claims, and at whatever moment.

use std::sync::Barrier;

use tidegate_algo::dsfq::Elsewhere;

/// Two workers send to two nodes and claim for both, as fast as they can; what each was told, and
/// what it sent.
fn work(tenant: &Elsewhere, worker: usize) -> [[u64; 2]; 2] {
    let [mut told, mut sent] = [[0u64; 2]; 2];
    for turn in 0..500_000 {
        let node = (turn + worker) % 2;
        let cost = 1 + turn as u32 % 3;
        sent[node] += u64::from(cost);
        told[node] += u64::from(tenant.sent(node, cost));
        told[0] += tenant.claim(0);
        told[1] += tenant.claim(1);
    }
    [told, sent]
}

#[test]
fn workers_tell_each_unit_once() {
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
    let [[told_0, sent_0], [told_1, sent_1]] = workers;
    for (node, other) in [(0, 1), (1, 0)] {
        let told = told_0[node] + told_1[node] + tenant.claim(node);
        assert_eq!(told, sent_0[other] + sent_1[other]);
    }
    assert_eq!(tenant.total(), [sent_0, sent_1].concat().iter().sum::<u64>());
}
