//! The paper's examples, with nodes that serve.

use tidegate_model::Span;
use tidegate_sim::cluster::ClusterTestbed;

const SECOND: Span = Span::SECOND;

/// Example 1, ten times as large: what is asked leaves red and blue 75 and 50 tokens at the first
/// of two servers, which has capacity for 100, and 25 and 50 at the second. 25 red ones move.
#[test]
fn example_1_moves_25_red_tokens() {
    let policy = "period = \"1s\"\nredistribute = \"200ms\"\n\
                  tenant = [{ name = \"red\", reservation = \"1k iops\" },\n\
                            { name = \"blue\", reservation = \"1k iops\" }]";
    let mut world = ClusterTestbed::new(policy, 1000, 2);
    world.demand(0, "red", 1500);
    world.demand(1, "red", 500);
    world.demand(0, "blue", 500);
    world.demand(1, "blue", 500);
    world.run(Span(4 * SECOND.0));
    for tenant in ["red", "blue"] {
        let served = world.served(2, tenant);
        assert!(served.abs_diff(1000) <= 15, "{tenant} was served {served}");
    }
}
