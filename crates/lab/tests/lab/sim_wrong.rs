//! `tidegate-lab sim`, with every kind of mistake: one error that names the file, the line and how
//! to mend it, and nothing written.

use std::fs;
use std::path::Path;

use crate::{tidegate_lab, transcript};

/// One host that sends to another over two switches.
const PACKETS: &str = include_str!("sender.toml");

const DTM: &str = include_str!("../../../../scenarios/dtm/three-classes.toml");

/// Mistakes: the name of the case, the right text, and the text that replaces it.
const CASES: &[(&str, &str, &str)] = &[
    ("unknown-key", "from = 0", "form = 0"),
    ("no-path", "{ between = [\"left\", \"right\"], rate = \"10Gbps\", delay = \"1us\" },", ""),
    ("no-such-node", "between = [\"a\", \"left\"]", "between = [\"a\", \"lfet\"]"),
    ("zero-rate", "rate = \"10Gbps\"", "rate = \"0Gbps\""),
    ("weight", "from = 0", "from = 0\nweight = 0"),
    ("number", "from = 0", "from = -1"),
    ("no-such-host", "to = [1]", "to = [7]"),
    ("no-host", "to = [1]", "to = []"),
    ("unit", "length = \"2ms\"", "length = \"2MB\""),
    ("bare-number", "length = \"2ms\"", "length = 2"),
    ("skip", "sample = \"1ms\"", "skip = \"2ms\""),
    ("sample", "sample = \"1ms\"", "sample = \"1s\""),
    ("missing", "length = \"2ms\"\n", ""),
    ("choice", "law = \"dctcp\"", "law = \"reno\""),
    ("size", "\"10kB\"", "\"2GiB\""),
    ("moments", "length = \"2ms\"\nsample = \"1ms\"", "length = \"1000s\"\nsample = \"1us\""),
    ("outstanding", "open = { rate = \"1Gbps\" }", "closed = { outstanding = 4000000000 }"),
    ("small-buffer", "buffer = \"1MB\"", "buffer = \"1MB\"\nreserve = \"600kB\""),
    ("syntax", "[[application]]", "[[application]"),
];

/// The same network, link by link.
const LIST: &str = r#"[network.topology.list]
hosts = ["a", "b"]
switches = ["left", "right"]
links = [
  { between = ["a", "left"], rate = "10Gbps", delay = "1us" },
  { between = ["left", "right"], rate = "10Gbps", delay = "1us" },
  { between = ["right", "b"], rate = "10Gbps", delay = "1us" },
]
"#;

fn listed() -> String {
    let (before, rest) = PACKETS.split_once("[network.topology.dumbbell]").unwrap();
    let (_, after) = rest.split_once("[network.switch]").unwrap();
    format!("{before}{LIST}[network.switch]{after}")
}

/// The transcript of a run of this scenario, which writes nothing.
#[track_caller]
fn refusal(name: &str, text: &str, arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    refusal_in(directory.path(), name, text, arguments)
}

#[track_caller]
fn refusal_in(directory: &Path, name: &str, text: &str, arguments: &[&str]) -> String {
    let file = format!("{name}.toml");
    fs::write(directory.join(&file), text).unwrap();
    let arguments = [&["sim", &file, "--out", "run"], arguments].concat();
    let output = tidegate_lab(directory).args(&arguments).output().unwrap();
    let written = fs::read_dir(directory.join("run")).map_or(0, Iterator::count);
    assert_eq!(written, 0, "{name} has written something");
    transcript(&arguments, &output)
}

#[test]
fn every_mistake_is_shown_with_its_location_and_remedy() {
    let mut all = String::new();
    for (name, from, to) in CASES {
        let text = if PACKETS.contains(from) { PACKETS.to_owned() } else { listed() };
        assert!(text.contains(from), "{from}");
        all += &(refusal(name, &text.replacen(from, to, 1), &[]) + "\n");
    }
    for (name, from, to) in [
        ("slots", "slots = 400", "slots = 0"),
        ("gain", "gain = 0.5", "gain = nan"),
        ("share", "share = 2", "share = 0"),
    ] {
        assert!(DTM.contains(from), "{from}");
        all += &(refusal(name, &DTM.replacen(from, to, 1), &["--model", "dtm"]) + "\n");
    }
    insta::assert_snapshot!(all);
}

#[test]
fn programs_get_the_line_and_the_column() {
    let text = PACKETS.replace("to = [1]", "to = [7]");
    insta::assert_snapshot!(refusal("host", &text, &["--json"]));
}

#[test]
fn what_is_wrong_at_all_points_of_a_sweep_has_its_line() {
    let text = PACKETS.replace("from = 0", "from = 0\nweight = 0");
    insta::assert_snapshot!(refusal("weight", &text, &["--sweep", "transport.law=dctcp,qtcp"]));
}

#[test]
fn files_that_are_no_scenarios_are_refused_by_their_kind() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("empty.toml"), "").unwrap();
    fs::write(path("utf16.toml"), b"\xff\xfen\0a\0m\0e\0").unwrap();
    fs::write(path("paper.toml"), include_str!("../../../../scenarios/haechi/figure-10a.toml"))
        .unwrap();
    fs::File::create(path("large.toml")).unwrap().set_len(100 << 20).unwrap();
    let message_of = |name: &str| {
        let arguments = ["sim", name];
        transcript(&arguments, &tidegate_lab(directory.path()).args(arguments).output().unwrap())
    };
    let all = ["empty.toml", "utf16.toml", "paper.toml", "large.toml", ".", "nowhere.toml"];
    insta::assert_snapshot!(all.map(message_of).join("\n"));
}

/// Five switches in a circle, and a host at each that sends two switches on: each line of the
/// circle is paused by the next.
#[test]
fn queues_that_wait_for_each_other_are_found() {
    let each = |line: &dyn Fn(usize) -> String| (0..5).map(line).collect::<String>();
    let line = "rate = \"10Gbps\", delay = \"1us\"";
    let links = each(&|n| {
        let next = (n + 1) % 5;
        format!(
            "{{ between = [\"h{n}\", \"s{n}\"], {line} }},\n\
             {{ between = [\"s{n}\", \"s{next}\"], {line} }},\n"
        )
    });
    let applications = each(&|n| {
        format!(
            "[[application]]\nfrom = {n}\nto = [{}]\n[application.workload]\nname = \"a{n}\"\n\
             reads = \"0%\"\nsizes = {{ fixed = \"1MiB\" }}\noffsets = \"sequential\"\n\
             space = \"1GB\"\nload = {{ closed = {{ outstanding = 8 }} }}\n",
            (n + 2) % 5
        )
    });
    let text = format!(
        "name = \"circle\"\nseed = 1\nlength = \"20ms\"\ntransport.law = \"dctcp\"\n\
         [network.topology.list]\nhosts = [\"h0\", \"h1\", \"h2\", \"h3\", \"h4\"]\n\
         switches = [\"s0\", \"s1\", \"s2\", \"s3\", \"s4\"]\nlinks = [\n{links}]\n\
         [network.switch]\nbuffer = \"100MB\"\n\
         pause = {{ at = \"50kB\", resume = \"25kB\" }}\n{applications}"
    );
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("circle.toml"), text).unwrap();
    let output = tidegate_lab(directory.path()).args(["sim", "circle.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    // The report covers the time simulated until then.
    assert!(String::from_utf8_lossy(&output.stdout).contains("20ms simulated"));
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stderr));
}

/// A scenario with this recording, and what its run says.
fn replayed(name: &str, recording: &[u8], more: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(name), recording).unwrap();
    let (text, _) = PACKETS.split_once("reads").unwrap();
    let load = format!("load = {{ trace = {{ file = \"{name}\"{more} }} }}\n");
    refusal_in(directory.path(), "replay", &format!("{text}{load}"), &[])
}

#[test]
fn recordings_are_refused_with_their_lines() {
    let mqsim = ", format = \"mqsim\"";
    let all = [
        replayed("late.trace", b"5000000 0 0 8 1\n1000 0 8 8 1\n", &format!("{mqsim}, window = 0")),
        replayed("cut.trace", b"0 0 0 8 1\n1000 0 8 8 1\n2000 0 1", mqsim),
        replayed("packed.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48", ""),
        replayed("empty.trace", b"", mqsim),
        replayed("words.trace", b"hello world\n", ""),
        replayed("a.trace", b"", ", format = \"csv\""),
    ];
    insta::assert_snapshot!(all.join("\n"));
}
