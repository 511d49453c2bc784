//! `tidegate-lab sim`: scenarios in, tables, objects, series and pictures out.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::terminal::{on_a_terminal, shown_until};
use crate::{tidegate_lab, transcript};

const DTM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/dtm/three-classes.toml");

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/traces");

/// One host sends to another over two switches, for two milliseconds.
const PACKETS: &str = include_str!("sender.toml");

/// The standard output of a run, which succeeds.
#[track_caller]
fn stdout_of(directory: &Path, arguments: &[&str]) -> String {
    let output = tidegate_lab(directory).arg("sim").args(arguments).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that a run says that is refused.
#[track_caller]
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let output = tidegate_lab(directory).arg("sim").args(arguments).output().unwrap();
    transcript(&[], &output).replace("$ tidegate-lab \n", "")
}

#[test]
fn the_discrete_time_model() {
    let directory = tempfile::tempdir().unwrap();
    let run =
        |more: &[&str]| stdout_of(directory.path(), &[&["--model", "dtm", DTM], more].concat());
    assert!(run(&[]).contains("high      50.0 %  49.9 %"), "{}", run(&[]));
    let got = |more: &[&str]| {
        let json: Value = serde_json::from_str(&run(&[&["--json"], more].concat())).unwrap();
        json["flows"][0]["got_percent"].as_f64().unwrap()
    };
    assert!((49.0..51.0).contains(&got(&[])), "{}", got(&[]));
    assert!((33.0..40.0).contains(&got(&["--law", "dctcp"])), "{}", got(&["--law", "dctcp"]));
    run(&["--out", "run"]);
    let csv = fs::read_to_string(directory.path().join("run/series.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 400 * 3);
    assert!(directory.path().join("run/series.svg").exists());
}

#[test]
fn a_scenario_of_the_other_model_is_refused_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("packets.toml"), PACKETS).unwrap();
    fs::copy(DTM, directory.path().join("dtm.toml")).unwrap();
    let texts = [
        refused(directory.path(), &["dtm.toml", "--out", "run"]),
        refused(directory.path(), &["packets.toml", "--model", "dtm", "--out", "run"]),
        refused(directory.path(), &["dtm.toml", "--model", "dtm", "--law", "dcqcn"]),
    ];
    insta::assert_snapshot!(texts.join("\n"));
    assert!(!directory.path().join("run").exists());
    stdout_of(directory.path(), &["packets.toml"]);
}

/// The two applications of the example: requests that were answered, and the first's bytes.
fn done(stdout_of: &str) -> (u64, u64, u64) {
    let json: Value = serde_json::from_str(stdout_of).unwrap();
    let number = |index: usize, key: &str| json["applications"][index][key].as_u64().unwrap();
    (number(0, "done_requests"), number(0, "done_bytes"), number(1, "done_requests"))
}

/// The oracle is a reader of the lines that knows nothing of windows and formats.
#[test]
fn a_recording_is_replayed_from_beside_its_scenario() {
    let directory = tempfile::tempdir().unwrap();
    let example = Path::new(TRACES).join("replay.toml");
    let (requests, bytes, others) =
        done(&stdout_of(directory.path(), &[example.to_str().unwrap(), "--json"]));
    let text = fs::read_to_string(Path::new(TRACES).join("desktops.csv")).unwrap();
    let lines = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let wanted: Vec<u64> = lines
        .filter(|fields| fields[3] == "6" && !fields[2].is_empty())
        .filter(|fields| ("1455592741".."1455592743").contains(&fields[0]))
        .map(|fields| fields[5].parse().unwrap())
        .collect();
    assert_eq!((requests, bytes), (wanted.len() as u64, wanted.iter().sum()));
    assert!(others > 0);
}

#[test]
fn a_recording_with_a_line_that_is_wrong_ends_the_run_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let example = fs::read_to_string(Path::new(TRACES).join("replay.toml")).unwrap();
    let text = fs::read_to_string(Path::new(TRACES).join("desktops.csv")).unwrap();
    let last = text.lines().last().unwrap();
    fs::write(directory.path().join("replay.toml"), &example).unwrap();
    fs::write(directory.path().join("other.toml"), example.replace("systor", "msr")).unwrap();
    fs::write(directory.path().join("none.toml"), example.replace("desktops.csv", "no.csv"))
        .unwrap();
    fs::write(directory.path().join("desktops.csv"), text.replace(last, "1455592743,?,R,6,0,0"))
        .unwrap();
    let texts = ["replay.toml", "other.toml", "none.toml"]
        .map(|name| refused(directory.path(), &[name, "--out", "run"]));
    insta::assert_snapshot!(texts.join("\n"));
    assert_eq!(fs::read_dir(directory.path().join("run")).unwrap().count(), 0);
}

#[test]
fn what_links_did_is_written_for_those_that_were_used() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("packets.toml"), PACKETS).unwrap();
    stdout_of(directory.path(), &["packets.toml", "--out", "run"]);
    let csv = fs::read_to_string(directory.path().join("run/links.csv")).unwrap();
    let mut lines = csv.lines();
    let heads = "ns,from,to,class,queue_bytes,sent_bytes,marked_packets,dropped_packets";
    assert_eq!(lines.next(), Some(heads));
    // Three links there and three back, of one class, in two moments.
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 12, "{csv}");
    assert!(rows.iter().all(|row| row[3] == "high"));
    // 1 Gbit/s of payload for two milliseconds, with headers.
    let sent = rows.iter().filter(|row| row[1] == "switch 0" && row[2] == "switch 1");
    let sent: u64 = sent.map(|row| row[5].parse::<u64>().unwrap()).sum();
    assert!((250_000..280_000).contains(&sent), "{sent}");
}

#[test]
fn pictures_are_svg_or_png_by_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("packets.toml"), PACKETS).unwrap();
    stdout_of(directory.path(), &["packets.toml", "--out", "run", "--plot", "a.svg"]);
    assert_eq!(fs::read(path("a.svg")).unwrap(), fs::read(path("run/series.svg")).unwrap());
    for arguments in [&["packets.toml"][..], &["--model", "dtm", DTM]] {
        stdout_of(directory.path(), &[arguments, &["--plot", "a.png"]].concat());
        let png = fs::read(path("a.png")).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "{:?}", &png[..8]);
        // A picture of two by two panels, in twice as many pixels as SVG has units.
        let width = u32::from_be_bytes(png[16..20].try_into().unwrap());
        assert_eq!(width, 2 * 2 * (66 + 380 + 20));
    }
    let refused = refused(directory.path(), &["packets.toml", "--plot", "a.gif"]);
    assert!(refused.contains("end it with .svg or .png") && refused.ends_with("exit 2\n"));
}

/// The lines of a sweep of two rates and two seeds, on so many threads.
fn swept(directory: &Path, threads: &str, more: &[&str]) -> String {
    let rate = "application.0.workload.load.open.rate=1Gbps,2Gbps";
    let mut command = tidegate_lab(directory);
    command.env("RAYON_NUM_THREADS", threads).args(["sim", "packets.toml", "--sweep", rate]);
    let output = command.args(["--seeds", "2"]).args(more).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_sweep_is_the_runs_of_its_points_on_one_thread_or_many() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text =
        PACKETS.replace("{ rate = \"1Gbps\" }", "{ rate = \"1Gbps\", arrivals = \"poisson\" }");
    fs::write(path("packets.toml"), &text).unwrap();
    let alone = swept(directory.path(), "1", &["--json"]);
    assert_eq!(swept(directory.path(), "3", &["--json"]), alone);
    let lines: Vec<Value> = alone.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    let key = "application.0.workload.load.open.rate";
    let mut points = Vec::new();
    for mut line in lines {
        let point = line.as_object_mut().unwrap().remove("point").unwrap();
        let (rate, seed) = (point[key].as_str().unwrap(), line["seed"].as_u64().unwrap());
        fs::write(
            path("one.toml"),
            text.replace("rate = \"1Gbps\"", &format!("rate = \"{rate}\"")),
        )
        .unwrap();
        let seeded = ["one.toml", "--json", "--seed", &seed.to_string()];
        let single: Value = serde_json::from_str(&stdout_of(directory.path(), &seeded)).unwrap();
        assert_eq!(line, single, "{rate} {seed}");
        points.push(format!("{rate} {seed}"));
    }
    assert_eq!(points, ["1Gbps 1", "1Gbps 2", "2Gbps 1", "2Gbps 2"]);
    insta::assert_snapshot!(swept(directory.path(), "2", &["--out", "run"]));
    insta::assert_snapshot!(fs::read_to_string(path("run/sweep.csv")).unwrap());
}

#[test]
fn the_discrete_time_model_is_swept_too() {
    let directory = tempfile::tempdir().unwrap();
    let arguments =
        ["--model", "dtm", DTM, "--sweep", "epsilon=0.01,0.1", "--sweep", "law=qtcp,dctcp"];
    insta::assert_snapshot!(stdout_of(directory.path(), &arguments));
}

#[test]
fn what_no_scenario_knows_is_refused_with_its_point_before_any_run() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("packets.toml"), PACKETS).unwrap();
    let texts = [
        &["--sweep", "transport.law=dctcp,reno"][..],
        &["--sweep", "sample=1ms,2ms", "--sweep", "network.switch.bufer=1MB"],
        &["--sweep", "application.1.from=2"],
        &["--sweep", "transport.law"],
        &["--sweep", "seed=1,2", "--seeds", "2"],
        &["--sweep", "seed=1,2", "--plot", "a.png"],
    ]
    .map(|more| refused(directory.path(), &[&["packets.toml", "--out", "run"], more].concat()));
    insta::assert_snapshot!(texts.join("\n"));
    assert!(!directory.path().join("run").exists());
}

/// The second point replays a recording from a pipe. The test can write to the pipe only when that
/// point has begun, so the first point is done; the second would take a hundred thousand lines.
#[test]
fn ctrl_c_prints_the_points_that_are_done() {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let load = "load = { trace = { file = \"a\", format = \"mqsim\" } }\n";
    let (text, _) = PACKETS.split_once("reads").unwrap();
    let text = text.replace("\"2ms\"", "\"100s\"").replace("\"1ms\"", "\"10ms\"");
    let text = text.replace("[transport]", "[promises]\nevery = \"1s\"\n[transport]");
    fs::write(path("packets.toml"), format!("{text}{load}")).unwrap();
    fs::write(path("a"), "0 0 0 8 1\n").unwrap();
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("tidegate-lab"));
    command.env_clear().env("RAYON_NUM_THREADS", "1").current_dir(directory.path());
    command.args(["sim", "packets.toml", "--json"]);
    command.args(["--sweep", "application.0.workload.load.trace.file=a,pipe,a"]);
    let mut running = command.stdout(Stdio::piped()).spawn().unwrap();
    // This returns when the other end is open.
    let mut pipe = fs::File::options().write(true).open(path("pipe")).unwrap();
    let number = running.id().to_string();
    assert!(Command::new("kill").args(["-INT", &number]).status().unwrap().success());
    // A request in each millisecond, as long as the run reads them.
    (0..).take_while(|at| writeln!(pipe, "{at}000000 0 0 8 1").is_ok()).for_each(drop);
    let mut out = String::new();
    running.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert_eq!(out.lines().count(), 1, "{out}");
    let line: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(line["point"]["application.0.workload.load.trace.file"], "a");
}

/// The terminal output of a run that Ctrl-C ends at its first progress report, and its exit code.
fn interrupted(text: &str, arguments: &str, mark: &str) -> (String, Option<i32>) {
    use std::io::Write as _;
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("long.toml"), text).unwrap();
    let program = env!("CARGO_BIN_EXE_tidegate-lab");
    let command = format!("exec {program} sim long.toml --out run {arguments}");
    let mut script = on_a_terminal(directory.path(), &command);
    let mut screen = script.stdout.take().unwrap();
    let mut shown = shown_until(&mut screen, mark);
    script.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    shown += &shown_until(&mut screen, "never shown");
    let code = script.wait().unwrap().code();
    let lines =
        fs::read_to_string(directory.path().join("run/series.csv")).unwrap().lines().count();
    assert!(lines > 1, "{shown}");
    (shown, code)
}

#[test]
fn ctrl_c_prints_what_was_simulated_until_then() {
    let text = PACKETS.replace("\"2ms\"", "\"1000s\"");
    let (shown, code) = interrupted(&text, "", " events/s, ");
    assert_eq!(code, Some(130), "{shown}");
    assert!(shown.contains("APPLICATION") && shown.contains(" simulated, "), "{shown}");
    assert!(!shown.contains("1000s simulated"), "{shown}");
}

/// Many packets come in each slot, so that slots take long.
#[test]
fn and_the_slots_of_the_discrete_time_model() {
    let text = fs::read_to_string(DTM).unwrap();
    let text = text.replace("slots = 400", "slots = 1000000").replace("\"12500ns\"", "\"1ms\"");
    let (shown, code) = interrupted(&text, "--model dtm", " of 1M slots, ");
    assert_eq!(code, Some(130), "{shown}");
    assert!(shown.contains("PROMISED") && shown.contains(" slots; seed "), "{shown}");
    assert!(!shown.contains("1000000 slots; "), "{shown}");
}

#[test]
fn a_policy_gives_applications_their_class() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("packets.toml"), PACKETS).unwrap();
    fs::write(path("policy.toml"), "[[tenant]]\nname = \"one\"\nclass = \"low\"\n").unwrap();
    fs::write(path("other.toml"), "[[tenant]]\nname = \"two\"\n").unwrap();
    let class = |more: &[&str]| {
        let stdout_of = stdout_of(directory.path(), &[&["packets.toml", "--json"], more].concat());
        let json: Value = serde_json::from_str(&stdout_of).unwrap();
        json["applications"][0]["class"].as_str().unwrap().to_owned()
    };
    assert_eq!((class(&[]), class(&["--policy", "policy.toml"])), ("high".into(), "low".into()));
    let refused = refused(directory.path(), &["packets.toml", "--policy", "other.toml"]);
    assert!(refused.contains("application \"one\" is no tenant of other.toml"), "{refused}");
    assert!(refused.ends_with("exit 3\n"), "{refused}");
}
