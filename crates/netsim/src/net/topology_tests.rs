//! Shapes are what their formulas say, and impossible ones are refused with what to write.

use super::*;

const LIST: &str = r#"
    [topology.list]
    hosts = ["a", "b"]
    switches = ["left", "right"]
    links = [
        { between = ["a", "left"], rate = "1GB/s", delay = "1us" },
        { between = ["left", "right"], rate = "1GB/s", delay = "1us" },
        { between = ["right", "b"], rate = "1GB/s", delay = "1us" },
    ]
    [switch]
    buffer = "1MB"
    service = { weighted = [3, 2, 1] }
    share = { dynamic = 0.5 }
    marking = { red = { from = "5kB", to = "200kB", most = "1%" } }
    pause = { at = "100kB", resume = "90kB", headroom = "10kB" }
"#;

#[track_caller]
fn refused(from: &str, to: &str, refusal: &str) {
    assert!(LIST.contains(from), "{from}");
    let error = NetworkPlan::parse(&LIST.replacen(from, to, 1)).unwrap_err().to_string();
    assert!(error.contains(refusal), "{error}");
}

#[test]
fn what_is_refused_of_a_list() {
    let graph = NetworkPlan::parse(LIST).unwrap().graph().unwrap();
    assert_eq!((graph.hosts(), graph.switches()), (2, 2));
    assert_eq!((graph.name(Host(1)), graph.host("left")), ("b", None));
    refused("\"1GB/s\"", "\"0B/s\"", "topology.list.links.0.rate: 0B/s; from \"1kB/s\"");
    refused("\"1us\"", "\"2s\"", "topology.list.links.0.delay: 2s; at most \"1s\"");
    refused("\"1GB/s\"", "\"1GB\"", "has a unit that is not known here; write it like \"1GB/s\"");
    refused("[\"a\", \"left\"]", "[\"x\", \"left\"]", "no host or switch is called \"x\"");
    refused("[\"a\", \"left\"]", "[\"a\", \"a\"]", "links.0.between: two ends of \"a\"");
    refused(
        "between = [\"left\", \"right\"]",
        "between = [\"left\", \"a\"]",
        "host \"a\" has 2 links and one port",
    );
    refused(
        "between = [\"left\", \"right\"]",
        "between = [\"left\", \"left2\"]",
        "no host or switch is called",
    );
    refused(
        "{ between = [\"left\", \"right\"], rate = \"1GB/s\", delay = \"1us\" },",
        "",
        "no path from \"a\" to \"b\"; add a link",
    );
    refused("[\"a\", \"b\"]", "[\"a\", \"b\", \"left\"]", "\"left\" is there twice");
    refused("hosts = [\"a\", \"b\"]", "hosts = []", "no host or switch is called \"a\"");
    refused("between = [\"a\"", "betwene = [\"a\"", "betwene");
}

#[test]
fn what_is_refused_of_a_switch() {
    refused("\"1MB\"", "\"0B\"", "switch.buffer");
    refused("[3, 2, 1]", "[3, 0, 1]", "weights from 1 to 1000");
    refused("0.5", "0.3", "no multiple of 1/128");
    refused("dynamic = 0.5", "limit = \"0B\"", "switch.share.limit");
    refused("\"5kB\"", "\"200kB\"", "switch.marking.red: from below to");
    refused("\"1%\"", "\"101%\"", "too large");
    refused("\"90kB\"", "\"100kB\"", "switch.pause: resume is to lie below at");
    refused("\"10kB\"", "\"2MB\"", "switch.pause: at and headroom are at most");
    refused(
        "{ red = { from = \"5kB\", to = \"200kB\", most = \"1%\" } }",
        "{ step = \"5 apples\" }",
        "140 packets",
    );
    refused("[switch]", "[switch]\nreserve = \"2MB\"", "switch.reserve");
    refused("buffer =", "bufer =", "bufer");
}

fn shape(topology: &str) -> Result<Graph, ScenarioError> {
    NetworkPlan::parse(&format!("[topology]\n{topology}\n[switch]\nbuffer = \"1MB\""))?.graph()
}

const LINE: &str = r#"{ rate = "12.5GB/s", delay = "1us" }"#;

#[test]
fn what_is_refused_of_shapes() {
    let refusal = |topology: &str, refusal: &str| {
        let error = shape(&topology.replace("LINE", LINE)).unwrap_err().to_string();
        assert!(error.contains(refusal), "{error}");
    };
    refusal("fat_tree = { ports = 5, line = LINE }", "an even number from 2 to 32");
    refusal("fat_tree = { ports = 0, line = LINE }", "an even number from 2 to 32");
    refusal("star = { hosts = 1, line = LINE }", "star.hosts: from 2 to 10000");
    refusal("dumbbell = { pairs = 0, edge = LINE, middle = LINE }", "pairs: from 1 to 10000");
    let slow = r#"{ rate = "1B/s", delay = "1us" }"#;
    refusal(&format!("dumbbell = {{ pairs = 1, edge = LINE, middle = {slow} }}"), "middle.rate");
    refusal(&format!("star = {{ hosts = 2, line = {slow} }}"), "topology.star.line.rate");
}

/// k³/4 hosts, 5k²/4 switches of k ports each, and 3k³/4 links.
#[test]
fn fat_trees_have_the_sizes_of_the_formulas() {
    for k in [2usize, 4, 6, 8, 16] {
        let graph = shape(&format!("fat_tree = {{ ports = {k}, line = {LINE} }}")).unwrap();
        assert_eq!(graph.hosts(), k * k * k / 4);
        assert_eq!(graph.switches(), 5 * k * k / 4);
        assert_eq!(graph.links().len(), 3 * k * k * k / 4);
        let ports = graph.ports();
        assert!(ports[graph.hosts()..].iter().all(|ports| ports.len() == k));
        // No two links between the same nodes.
        let mut ends: Vec<_> = graph.links().iter().map(|link| link.ends).collect();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), graph.links().len());
    }
}
