use tidegate_sim::e2e::{Scenario, run};
fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path).unwrap();
        for law in ["dctcp", "qtcp"] {
            let scenario = Scenario::parse(&text.replace("\"qtcp\"", &format!("{law:?}"))).unwrap();
            let start = std::time::Instant::now();
            let outcome = run(&scenario).unwrap();
            println!("{law}: {} events, {:?}, {:?}", outcome.events, start.elapsed(), outcome.fault);
            for one in &outcome.applications {
                println!(
                    "{:<8} asked {:>6} done {:>6} there {:>6.2} stored {:>6.2} back {:>6.2} Gbps  p50 {:>8} p99 {:>8} us device p50 {:>6} p99 {:>6}  Q {:.2}",
                    one.name, one.asked.requests, one.done.requests,
                    outcome.rate(one, |m| m.there) / 1e9, outcome.rate(one, |m| m.stored) / 1e9, outcome.rate(one, |m| m.back) / 1e9,
                    one.latency.value_at_quantile(0.5) / 1000, one.latency.value_at_quantile(0.99) / 1000,
                    one.device.value_at_quantile(0.5) / 1000, one.device.value_at_quantile(0.99) / 1000,
                    one.series.last().map_or(0.0, |m| m.quality),
                );
            }
            for port in outcome.ports.iter().filter(|p| p.queue_mean > 3000.0) {
                println!("{:?} busy {:.3} queue {:.0} B most {} marked {} dropped {}", port.between, port.busy, port.queue_mean, port.queue_most, port.marked, port.dropped);
            }
        }
    }
}
