//! Commands that the documents show work as they stand there, and the sizes that the documents
//! state are true.
//!
//! Commands are taken from the documents themselves. One that is added to README.md is run here or
//! fails the test, and one that is added to the manual is read by the command's own parser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_model::policy::limits;
use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, Running};
use tidegate_tests::{built, eventually, tools};

/// Commands that README.md shows and the tour does not run, each with the reason.
const NOT_RUN: [(&str, &str); 3] = [
    ("make demo", "measures for two minutes; the demo has tests of its own"),
    ("make test", "is what runs this test"),
    ("cargo build --release", "the tour runs what cargo has built for the tests"),
];

/// The folders that the tour's commands find where they are run.
const SHOWN: [&str; 5] = ["docs", "examples", "jobs", "policies", "scenarios"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The commands of a document's `sh` blocks, and behind the prompts of its `console` blocks.
fn commands(path: &Path) -> Vec<String> {
    let mut commands = Vec::new();
    let mut fence = None;
    let document = text(path);
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(language.trim()) };
            continue;
        }
        let shown = match fence {
            Some("sh") => Some(line),
            Some("console") => line.strip_prefix("$ "),
            _ => None,
        };
        let Some(shown) = shown else { continue };
        let mut command = shown.to_owned();
        while command.ends_with('\\') {
            command.pop();
            command += lines.next().unwrap_or_default().trim_start();
        }
        // A comment stands behind a blank; `#` in a word does not begin one.
        let command = command.split(" #").next().unwrap_or_default().trim();
        if !command.is_empty() && !command.starts_with('#') {
            commands.push(command.to_owned());
        }
    }
    assert!(fence.is_none(), "{}: a block that does not end", path.display());
    commands
}

/// Every page of the manual.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    let mut folders = vec![root().join("docs/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// A shell that runs one command after the other, as a reader types them.
struct Session {
    shell: Running,
    commands: usize,
    consumed: usize,
}

impl Session {
    /// A shell in `folder` that talks to the bed's controller. A reader has a place for the state,
    /// a free port and a key that ends `top`; here the environment says it.
    fn new(bed: &Bed, folder: &Path) -> Self {
        let mut shell = Command::new("bash");
        for (name, value) in bed.tidegate(&[]).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.env("TIDEGATE_STATE", bed.path("state")).env("TIDEGATE_NO_HTTP", "true");
        shell.env("TIDEGATE_COUNT", POLLS.to_string()).current_dir(folder);
        Self { shell: process::spawn(shell.stdin(Stdio::piped())), commands: 0, consumed: 0 }
    }

    /// Runs a command to its end, or to its start if it stays in the background, and gives what was
    /// said on standard output meanwhile.
    #[track_caller]
    fn run(&mut self, command: &str) -> String {
        self.commands += 1;
        // The code stands before what is waited for, so that it is read as well.
        let end = format!(" is the end of {}.", self.commands);
        self.shell.write_input(&format!("{command}\necho \"-- $?{end}\"\n"));
        self.shell.wait_for_output(&end);
        let out = self.shell.stdout();
        let output = out[self.consumed..].to_owned();
        self.consumed = out.len();
        let is_well = output.contains(&format!("-- 0{end}"));
        assert!(is_well, "{command}\n{output}\n{}", self.shell.stderr());
        output
    }
}

/// How many looks `top` takes.
const POLLS: usize = 2;

/// A folder like a fresh clone after `cargo build --release`, where what is built is what cargo
/// built for the tests. The jobs are the same but shorter, and their files are in the bed.
fn clone(bed: &Bed) -> PathBuf {
    let folder = bed.subfolder("tidegate");
    for name in SHOWN {
        let mut copy = Command::new("cp");
        process::run(copy.arg("-R").arg(root().join(name)).arg(folder.join(name))).success();
    }
    bed.subfolder("tidegate/target");
    let profile = built::tidegate();
    let profile = profile.parent().expect("a program is in a folder");
    std::os::unix::fs::symlink(profile, folder.join("target/release")).unwrap();
    for name in ["oltp", "backup"] {
        let path = folder.join(format!("jobs/{name}.fio"));
        let job = text(&path);
        let file = bed.path(&format!("{name}.data"));
        let short = job
            .replace("runtime=20\n", "runtime=1\n")
            .replace("size=128M\n", "size=16M\n")
            .replace(&format!("/var/tmp/tidegate-{name}.data"), &file.display().to_string());
        let changed = job.lines().zip(short.lines()).filter(|(old, new)| old != new).count();
        assert_eq!(changed, 3, "the job is not as it was when this test was written:\n{job}");
        fs::write(path, short).unwrap();
    }
    // The usual port may be somebody's.
    let port = tools::free_port().to_string();
    for name in ["examples/cluster.toml", "jobs/volume.fio"] {
        let shown = text(&folder.join(name));
        assert!(shown.contains(PORT), "{name} does not name the port {PORT}");
        fs::write(folder.join(name), shown.replace(PORT, &port)).unwrap();
    }
    folder
}

/// Where the example's gateway listens.
const PORT: &str = "10809";

#[test]
fn the_tour_of_the_readme_can_be_taken() {
    for program in ["bash", "fio"] {
        tools::need(program);
    }
    built::shim();
    let bed = Bed::empty();
    let mut session = Session::new(&bed, &clone(&bed));
    let is_run = |command: &String| !NOT_RUN.iter().any(|(name, _)| name == command);
    for command in commands(&root().join("README.md")).into_iter().filter(is_run) {
        let output = session.run(&command);
        match command.as_str() {
            "tidegate up &" => session.shell.wait_for_output(" is ready at "),
            up if up.starts_with("tidegate up examples/cluster.toml") => {
                session.shell.wait_for_output("/archive\n");
            }
            up if up.starts_with("tidegate up examples/data-node.toml") => {
                session.shell.wait_for_output("memory.sock\n");
            }
            get if get.starts_with("tidegate kv get") => {
                assert!(output.starts_with("hello"), "{output}")
            }
            "tidegate status" if output.contains("\nGATEWAY ") => {
                eventually("what the job did", || {
                    let cluster = &bed.status()["cluster"];
                    cluster["gateways"][0]["requests"].as_u64() > Some(0)
                        && cluster["tenants"][0]["total_served_operations"].as_u64() > Some(0)
                });
            }
            "tidegate status" => {
                for tenant in ["oltp", "backup"] {
                    eventually("requests of each tenant pass gates", || {
                        bed.tenant(tenant)["bytes"].as_u64() > Some(0)
                    });
                }
            }
            "tidegate top" => {
                for tenant in ["oltp", "backup"] {
                    let lines = output.lines().filter(|line| line.contains(tenant));
                    assert_eq!(lines.count(), POLLS, "{output}");
                }
            }
            _ => {}
        }
    }
    // Whether the tour ends what it started.
    session.run("wait");
    assert!(!bed.socket().exists(), "the controller was not ended");
    session.shell.finish().success();
}

#[test]
fn what_is_exempt_from_the_tour_is_in_it_and_can_be_made() {
    let commands = commands(&root().join("README.md"));
    for (name, reason) in NOT_RUN {
        assert!(commands.iter().any(|command| command == name), "{name} is gone ({reason})");
        if let Some(target) = name.strip_prefix("make ") {
            let mut make = Command::new(tools::need("make"));
            process::run(make.args(["-n", target]).current_dir(root())).success();
        }
    }
}

/// The words of a command, as a shell takes them: quotes keep blanks together.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for character in command.chars() {
        match (character, quote) {
            ('"' | '\'', None) => quote = Some(character),
            (_, Some(open)) if character == open => quote = None,
            (_, None) if character.is_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(character),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// One command of a pipeline as its words, without what follows the arguments, if it is ours.
fn ours(command: &str) -> Option<Vec<String>> {
    let words = words(command);
    if !matches!(words.first()?.as_str(), "tidegate" | "tidegate-lab") {
        return None;
    }
    let words = words.into_iter();
    let ours = words.take_while(|word| !matches!(word.as_str(), "--" | "&" | ">" | ">>" | "<"));
    Some(ours.collect())
}

#[test]
fn every_command_of_the_documents_makes_sense() {
    let mut count = 0;
    let bed = Bed::empty();
    for page in pages().into_iter().chain([root().join("README.md"), root().join("PROMISES.md")]) {
        for command in commands(&page) {
            for words in command.split(" | ").filter_map(ours) {
                // Arguments are read from left to right, so what stands before `--help` is read.
                let arguments: Vec<&str> =
                    words[1..].iter().map(String::as_str).chain(["--help"]).collect();
                let mut program = match words[0].as_str() {
                    "tidegate" => bed.tidegate(&arguments),
                    _ => bed.tidegate_lab(&arguments),
                };
                let outcome = process::run(&mut program);
                assert!(outcome.code == Some(0), "{}: {command}\n{outcome:?}", page.display());
                count += 1;
            }
        }
    }
    assert!(count >= 25, "only {count} commands were found");
}

#[test]
fn the_manual_names_the_limits_of_a_stage() {
    let page = text(&root().join("docs/src/policy.md"));
    let words: Vec<&str> = page.split_whitespace().collect();
    let text = words.join(" ");
    let sentence = format!(
        "A stage has at most {} rules, {} channels, {} gates ({} of them queues), and {} gates in \
         a channel ({} of them queues).",
        limits::RULES,
        limits::CHANNELS,
        limits::GATES,
        limits::QUEUES,
        limits::GATES_PER_CHANNEL,
        limits::QUEUES_PER_CHANNEL
    );
    assert!(text.contains(&sentence), "the book does not say: {sentence}");
}

/// A policy that is at every limit at once is one that a stage holds.
#[test]
fn a_stage_has_all_that_a_policy_may_request() {
    let mut policy = String::from("[[tenant]]\nname = \"t\"\n");
    // One channel is the tenant's own.
    let channels = limits::CHANNELS - 1;
    let (mut gates, mut queues) = (limits::GATES, limits::QUEUES);
    for number in 0..channels {
        let mut row = Vec::new();
        for index in 0..limits::GATES_PER_CHANNEL.min(gates) {
            let is_queue = index < limits::QUEUES_PER_CHANNEL && queues > 0;
            queues -= usize::from(is_queue);
            row.push(match is_queue {
                true => "{ kind = \"concurrency\", depth = 8 }",
                false => "{ kind = \"no-op\" }",
            });
        }
        gates -= row.len();
        let row = row.join(", ");
        policy += &format!("[[channel]]\nname = \"c{number}\"\ntenant = \"t\"\ngates = [{row}]\n");
    }
    assert_eq!((gates, queues), (0, 0));
    for number in 0..limits::RULES {
        let channel = number % channels;
        let pattern = format!("{number}-{}", "x".repeat(100));
        policy += &format!("[[match]]\nchannel = \"c{channel}\"\nprocess = \"{pattern}\"\n");
    }
    let bed = Bed::new(&policy);
    let mut command = bed.run_script("", "echo is here; read nothing || true");
    let running = process::spawn(command.stdin(Stdio::piped()));
    running.wait_for_output("is here");
    eventually("a stage with the policy", || bed.status()["stages"][0]["revision"] == 1);
    assert_eq!(bed.status()["stages"][0]["error"], Value::Null);
    running.finish().success();
    // One more of anything is found before the controller receives it.
    let one_more = policy.clone() + "[[channel]]\nname = \"more\"\ntenant = \"t\"\ngates = []\n";
    let refused = bed.apply(&one_more).failure(3).complaint();
    assert!(refused.contains("channels: one too many of tenant t"), "{refused}");
    // Settings of another tenant only matter to a stage that names no tenant.
    bed.apply(&(policy + "[[tenant]]\nname = \"more\"\n")).success();
    let mut command = bed.run_script("t", "echo is here; read nothing || :");
    let named = process::spawn(command.stdin(Stdio::piped()));
    named.wait_for_output("is here");
    eventually("one that takes the rules", || bed.status()["stages"][0]["revision"] == 2);
    assert_eq!(bed.status()["stages"][0]["error"], Value::Null);
    named.finish().success();
    let nameless = process::run(&mut bed.run_script("", "echo is here")).success();
    let notices = nameless.notices();
    let reason = "may act for more tenants than a stage holds, which is 128 channels and 255 gates";
    assert!(notices.contains(reason), "{notices}");
}
