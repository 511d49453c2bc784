//! Classes of requests, from the policy through the gateway to the node: two loads on a node that
//! is full have the ratio of their class weights.

use tidegate_tests::cluster::{Cluster, GATEWAY, volume};

use super::levels::{load, rate};

/// A machine that stalls for some seconds moves what it measures meanwhile.
const ATTEMPTS: u32 = 4;

/// A node that does a thousand requests in a second, and two tenants with volumes on it.
fn cluster(policy: &str) -> Cluster {
    let node = "[[node]]\nname = \"a\"\nmemory = true\ndepth = 4\nscheduler = \"unified\"\n\
                model = { rate = \"1k iops\" }\n";
    let gateway = format!("[[gateway]]\nname = {GATEWAY:?}\nnbd = \"unix:{GATEWAY}.sock\"\n");
    let volumes = [("front", "front"), ("scratch", "front"), ("back", "back")]
        .map(|(name, tenant)| volume(name, tenant, "4MiB", &["a"]));
    Cluster::new(&format!("{node}{gateway}{}", volumes.concat()), policy)
}

const TENANTS: &str = "[[tenant]]\nname = \"front\"\nclass = \"high\"\n\
                       [[tenant]]\nname = \"back\"\nclass = \"low\"\n";

/// Measures two loads until the first has this many times as much as the second, give or take a
/// tenth, and both together nearly what the node can do.
#[track_caller]
fn achieves(cluster: &Cluster, loads: [(&str, &str); 2], ratio: f64) {
    let mut seen = Vec::new();
    let is_held = (0..ATTEMPTS).any(|_| {
        let running = loads.map(|(export, offset)| load(&cluster.uri(export), 32, offset));
        let [first, second] = running.map(rate);
        seen.push((first, second));
        (first / second / ratio - 1.0).abs() <= 0.1 && first + second >= 900.0
    });
    assert!(is_held, "never {ratio} times as many: {seen:?}");
}

#[test]
fn two_tenants_have_the_ratio_of_their_class_weights() {
    let mut cluster = cluster(TENANTS);
    cluster.up();
    let loads = [("front", "0"), ("back", "0")];
    achieves(&cluster, loads, 1.0);
    // Connected clients are not asked to connect again.
    let weights = "class_weights = { high = 3, medium = 2, low = 1 }\n";
    cluster.bed().apply(&format!("{weights}{TENANTS}")).success();
    achieves(&cluster, loads, 3.0);
}

#[test]
fn a_rule_moves_some_requests_of_a_tenant_to_another_class() {
    let policy = format!(
        "class_weights = {{ high = 4, medium = 2, low = 1 }}\n{TENANTS}\
         [[match]]\ntenant = \"front\"\nvolume = \"scratch\"\noffset = \">=2MiB\"\n\
         operation = [\"read\", \"write\"]\nclass = \"low\"\n"
    );
    let mut cluster = cluster(&policy);
    cluster.up();
    achieves(&cluster, [("front", "0"), ("scratch", "2M")], 4.0);
    // Before the offset they are high, as the tenant is, and share its turns with the others.
    achieves(&cluster, [("front", "0"), ("scratch", "0")], 1.0);
}
