//! Temporary.
use tidegate_sim::{cluster, scenario::Scenario};
fn main() {
    let mut s = Scenario::parse(&std::fs::read_to_string(std::env::args().nth(1).unwrap()).unwrap()).unwrap();
    if let Some(n) = std::env::args().nth(2) { s.tenants.count = n.parse().unwrap(); }
    if let Some(n) = std::env::args().nth(3) { s.nodes.count = n.parse().unwrap(); }
    let o = cluster::run(&s).unwrap();
    let served = o.served(0);
    let mut moves: Vec<Vec<u64>> = vec![vec![]; served.len()];
    for m in &o.moves { moves[m.tenant].push(m.at.0 / 1_000_000_000); }
    let mut n = 0;
    for (t, p) in o.promises.iter().enumerate() {
        let r = p.reservation.0 * 5;
        if served[t] * 100 < r * 95 { n += 1; let iv: Vec<u32> = o.samples.iter().map(|s| s[t]).collect(); if n % 5 == 0 { println!("t{t} R{r} got {} ({:.1}%) moves {:?} intervals {iv:?}", served[t], served[t] as f64 * 100.0 / r as f64, moves[t]); } }
    }
    println!("{n} of {} missed; 100%: {} total served {}", served.len(), o.met(0, 1000), served.iter().sum::<u64>());
}
