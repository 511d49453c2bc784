//! Gateways tell each node of each unit of cost elsewhere exactly once, whichever of their workers
//! sends or claims, and at whatever moment.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_algo::dsfq::Elsewhere;

use super::Random;

#[test]
fn workers_tell_each_unit_once() {
    const NODES: usize = 3;
    let tenant = Elsewhere::new(NODES);
    let [told, sent] = [(); 2].map(|()| [const { AtomicU64::new(0) }; NODES]);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (tenant, told, sent) = (&tenant, &told, &sent);
            scope.spawn(move || {
                let mut random = Random(worker);
                for _ in 0..5_000 {
                    let node = random.next() as usize % NODES;
                    let delay = if random.within((0, 9)) == 0 {
                        tenant.claim(node)
                    } else {
                        let cost = random.within((1, 1_000));
                        sent[node].fetch_add(u64::from(cost), Ordering::Relaxed);
                        u64::from(tenant.sent(node, cost))
                    };
                    told[node].fetch_add(delay, Ordering::Relaxed);
                }
            });
        }
    });
    let [told, sent] = [told, sent].map(|sums| sums.map(AtomicU64::into_inner));
    let total: u64 = sent.iter().sum();
    assert_eq!(tenant.total(), total);
    for node in 0..NODES {
        assert_eq!(told[node] + tenant.claim(node), total - sent[node]);
    }
}
