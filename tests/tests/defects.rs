//! Defects that earlier implementations of the same ideas have been seen to have, a test each.
//! `docs/src/papers/defects.md` lists all of them with the test that keeps each away; those that
//! are not here stand beside the code.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tidegate_algo::shaping::fair_share::{TenantDemand, allocate};
use tidegate_algo::shaping::token_bucket::{Take, TokenBucket};
use tidegate_model::policy::Fallback;
use tidegate_model::{Span, StageId, Time};
use tidegate_proto::codec::encode;
use tidegate_proto::message::{ToStage, VERSION};
use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, ProgramOutcome};
use tidegate_tests::{PATIENCE, eventually, tools, wait_for};

use crate::limits::{bytes_are, held};
use crate::transparent::FREE;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// Bytes that a taker who always asks is granted within `from..to`, in virtual time.
fn granted(rate: u64, burst: u64, size: u64, from: u64, to: u64) -> u64 {
    let bucket = TokenBucket::new(rate, burst, Time::ZERO);
    let (mut now, mut bytes) = (0, 0);
    while now < to {
        if let Take::Wait(due) = bucket.take(size, Time(now)) {
            now = now.max(bucket.ready_at(due).0);
        }
        bytes += if (from..to).contains(&now) { size } else { 0 };
    }
    bytes
}

/// Refills that forget what is left of the last one delivered 57 % of 10 MiB/s for requests of
/// 128 KiB, and 69 % of 200 MiB/s for those of 1.43 MiB.
#[test]
fn every_size_of_request_gets_the_whole_rate() {
    for rate in [10 * MIB, 100 * MIB, 200 * MIB] {
        for size in [4 << 10, 64 << 10, 128 << 10, 192 << 10, MIB, 1_500_000] {
            let bytes = granted(rate, rate / 100, size, SECOND, 4 * SECOND);
            let wanted = 3 * rate;
            assert!(bytes.abs_diff(wanted) <= wanted / 50 + size, "{rate}/s by {size}: {bytes}");
        }
    }
}

/// A refill that was scheduled before the rate was known delivered 1 % of it in the first second.
#[test]
fn the_first_second_is_like_every_other() {
    for rate in [MIB, 10 * MIB, 100 * MIB, 1000 * MIB] {
        for size in [4 << 10, rate / 100, 64 * (rate / 100)] {
            let burst = rate / 100;
            let bytes = granted(rate, burst, size, 0, SECOND);
            assert!(bytes + size >= rate - rate / 50, "{rate}/s by {size}: {bytes}");
            assert!(bytes <= rate + burst + size, "{rate}/s by {size}: {bytes}");
        }
    }
}

/// A quota kept as whole nanoseconds per token makes 333 M/s of 300 M/s.
#[test]
fn large_rates_are_not_rounded_to_nanoseconds() {
    for rate in [300_000_000, 600_000_000, 1_100_000_000, 90_000_000_000] {
        let bytes = granted(rate, rate / 1_000, 4_096, 0, SECOND / 10);
        let wanted = rate / 10 + rate / 1_000;
        assert!(bytes.abs_diff(wanted) <= wanted / 1_000, "{rate}/s: {bytes}");
    }
}

/// Walking an unordered map, 100 shared by demands of 80 and 10 became 70/30 in one order and 85/15
/// in the other. And Algorithm 2 as printed sets every rate to an equal part of what is left.
#[test]
fn two_demands_are_divided_the_same_in_any_order() {
    let tenant = |demand| TenantDemand { demand, limit: demand, ..TenantDemand::BACKLOGGED };
    assert_eq!(allocate(100, &[tenant(80), tenant(10)]), [80, 10]);
    assert_eq!(allocate(100, &[tenant(10), tenant(80)]), [10, 80]);
    // Where both want more than half, half is what they get, and no demand is overwritten.
    assert_eq!(allocate(100, &[tenant(80), tenant(10), tenant(90)]), [45, 10, 45]);
    assert_eq!(allocate(100, &[tenant(90), tenant(80), tenant(10)]), [45, 45, 10]);
}

/// Two "independent" channels ran at half their speed when the heap put them side by side.
#[test]
fn channels_and_gates_share_no_cache_line() {
    use tidegate_stage::layout::{ChannelCell, GateCell, QueueCell};
    for (align, size) in [
        (align_of::<ChannelCell>(), size_of::<ChannelCell>()),
        (align_of::<GateCell>(), size_of::<GateCell>()),
        (align_of::<QueueCell>(), size_of::<QueueCell>()),
    ] {
        assert!(align >= 128 && size.is_multiple_of(128), "{align}, {size}");
    }
}

/// Waiting on the clock that administrators set loses or gains hours.
#[test]
fn no_decision_reads_the_clock_on_the_wall() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let banned = ["SystemTime", "ClockId::Realtime", "CLOCK_REALTIME", "UNIX_EPOCH", "unix_ms"];
    // The one function for dates that people read is here, and nothing in these crates calls it.
    let for_people = root.join("crates/fabric/src/clock.rs");
    let mut seen = 0;
    for folder in ["model", "algo", "proto", "fabric", "stage", "preload", "capi"] {
        let mut folders = vec![root.join("crates").join(folder).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                if entry.path() == for_people {
                    continue;
                }
                let text = fs::read_to_string(entry.path()).unwrap();
                let found = banned.iter().find(|word| text.contains(*word));
                assert_eq!(found, None, "in {}", entry.path().display());
                seen += 1;
            }
        }
    }
    assert!(seen > 30, "only {seen} files were looked at");
}

/// Waiters that look every 100 us are awake 10,000 times a second.
#[test]
fn who_waits_sleeps() {
    let bed = Bed::new("[[tenant]]\nname = \"kv\"\nlimit = \"1B/s\"\nburst = \"1B\"\n");
    let script = "echo $$ > pid; exec dd if=/dev/zero of=file bs=64k count=2";
    let running = process::spawn(bed.run_script("kv", script).stdin(Stdio::null()));
    eventually("a request that waits", || bed.tenant("kv")["waiting_requests"] == 1);
    let pid = fs::read_to_string(bed.path("pid")).unwrap().trim().to_owned();
    let wakes = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let (start, before) = (Instant::now(), wakes());
    eventually("one second", || start.elapsed().as_millis() >= 1_000);
    let often = wakes() - before;
    assert!(often <= start.elapsed().as_millis() as u64 / 10, "awake {often} times");
    drop(running);
}

/// A request that matched no channel came back as an error with no errno, and nothing was written.
#[test]
fn what_matches_no_rule_is_done() {
    let bed =
        Bed::new("tenant = [{ name = \"a\" }]\nmatch = [{ tenant = \"a\", process = \"x\" }]");
    let script = "dd if=/dev/zero of=file bs=64k count=16; cat file | wc -c";
    let outcome = process::run(&mut bed.run_script("", script)).success();
    assert_eq!(outcome.stdout.trim(), MIB.to_string());
}

/// The result of a decision was ignored for reads, so that they passed unlimited.
#[test]
fn reads_wait_like_writes() {
    let bed = Bed::new("[[tenant]]\nname = \"slow\"\nlimit = \"4MiB/s\"\nburst = \"64KiB\"\n");
    fs::write(bed.path("file"), vec![0; 4 << 20]).unwrap();
    let outcome = process::run(bed.run("slow", "cat").arg("file")).success();
    let least = ((4 << 20) - (128 << 10)) as f64 / (4 << 20) as f64;
    assert!(outcome.time.as_secs_f64() >= least, "{:?}", outcome.time);
}

/// A controller that the test plays: it takes one connection, reads the hello, and does `talk`.
fn played(bed: &Bed, talk: impl Fn(&mut UnixStream) + Send + 'static) {
    let listener = UnixListener::bind(bed.socket()).expect("nobody listens there yet");
    std::thread::spawn(move || {
        // Stages come back; each time they are treated alike.
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut hello = [0; 4];
            if stream.read_exact(&mut hello).is_ok() {
                talk(&mut stream);
            }
        }
    });
}

fn welcome() -> Vec<u8> {
    let mut bytes = Vec::new();
    let (stage, silence_max) = (StageId(1), Span::SECOND);
    let welcome =
        ToStage::Welcome { version: VERSION, stage, silence_max, fallback: Fallback::Keep };
    encode(&welcome, &mut bytes).unwrap();
    bytes
}

/// Runs a program that writes for a while, and checks that it neither notices nor is held up.
fn unharmed(bed: &Bed) -> ProgramOutcome {
    let script = "for i in 1 2 3 4 5 6 7 8; do cp big copy-$i; sleep 0.05; done; echo whole";
    fs::write(bed.path("big"), vec![1; 1 << 20]).unwrap();
    let outcome = process::run(&mut bed.run_script("kv", script)).success();
    assert_eq!(outcome.stdout, "whole\n");
    for number in 1..=8 {
        assert_eq!(fs::metadata(bed.path(&format!("copy-{number}"))).unwrap().len(), MIB);
    }
    outcome
}

/// An unknown message, or one of a kind that was not implemented, aborted the program.
#[test]
fn an_unknown_message_is_no_ones_end() {
    for nonsense in [vec![1, 0, 0, 0, 250], vec![9; 3_000], u32::MAX.to_le_bytes().to_vec()] {
        let bed = Bed::empty();
        played(&bed, move |stream| {
            let _ = stream.write_all(&welcome());
            let _ = stream.write_all(&nonsense);
            let _ = stream.read(&mut [0; 1]);
        });
        unharmed(&bed);
    }
}

/// A controller that closed in the middle of an exchange ended the program by SIGPIPE.
#[test]
fn a_controller_that_goes_in_mid_sentence_is_no_ones_end() {
    for cut in [0, 3, 5] {
        let bed = Bed::empty();
        played(&bed, move |stream| {
            let _ = stream.write_all(&welcome()[..cut]);
        });
        unharmed(&bed);
    }
}

/// A program waited, a second at a time and for ever, until the controller called it ready.
#[test]
fn a_silent_controller_delays_no_program() {
    let bed = Bed::empty();
    played(&bed, |stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let outcome = unharmed(&bed);
    assert!(outcome.notices().contains("running without limits"), "{outcome:?}");
}

/// Without a controller at its start a program was aborted.
#[test]
fn a_program_starts_without_a_controller() {
    let bed = Bed::empty();
    let outcome = unharmed(&bed);
    assert!(outcome.notices().contains("nothing listens"), "{outcome:?}");
}

/// After one clean close a stage never connected again.
#[test]
fn a_stage_connects_again() {
    let mut bed = Bed::new(FREE);
    let running = held(&bed, "free", "echo x > file");
    bed.wait_for_stages(1);
    bed.kill_controller();
    bed.up();
    bed.wait_for_stages(1);
    running.finish().success();
}

/// Most ways to read and write were not hooked: streams of the C library, vectors, copies in the
/// kernel, asynchronous calls. Each moves 256 KiB here, and all of it is counted.
#[test]
fn every_way_to_move_bytes_is_counted() {
    let writes = [
        "write",
        "pwrite",
        "pwrite64",
        "writev",
        "pwritev",
        "pwritev2",
        "dprintf",
        "syscall",
        "aio_write",
        "lio_listio",
        "splice",
        "sendfile",
        "copy_file_range",
        "fwrite",
        "fwrite_unlocked",
        "fputs",
        "putc",
        "fprintf",
    ];
    let reads = [
        "read", "pread", "pread64", "readv", "preadv", "preadv2", "aio_read", "fread", "getc",
        "fgets", "getline",
    ];
    let all = || writes.iter().chain(&reads);
    let mut policy = String::new();
    for name in all() {
        policy += &format!("[[tenant]]\nname = \"{name}\"\n");
        policy += &format!("[[match]]\ntenant = \"{name}\"\npath = \"**/calls/{name}\"\n");
        policy += "operation = [\"read\", \"write\"]\n";
    }
    let bed = Bed::new(&policy);
    let folder = bed.subfolder("calls");
    let lines = format!("{}\n", "y".repeat(63)).repeat(4_096);
    fs::write(bed.path("source"), &lines).unwrap();
    reads.iter().for_each(|name| fs::write(folder.join(name), &lines).unwrap());
    let mut command = bed.run("", tools::compiled("calls", &[]));
    let running = process::spawn(command.arg(&folder).stdin(Stdio::piped()));
    running.wait_for_output("done");
    let count = |status: &serde_json::Value, name: &str| {
        let tenants = status["tenants"].as_array().unwrap().iter();
        let found = tenants.clone().find(|tenant| tenant["name"] == name);
        found.and_then(|tenant| tenant["bytes"].as_u64()).unwrap_or(0)
    };
    let wrong = || {
        let status = bed.status();
        let wrong = all().map(|name| (*name, count(&status, name)));
        wrong.filter(|(_, bytes)| *bytes != 256 << 10).collect::<Vec<_>>()
    };
    let start = Instant::now();
    wait_for("every call counted", PATIENCE, || {
        let wrong = wrong();
        assert!(start.elapsed() < PATIENCE, "not 256 KiB: {wrong:?}");
        wrong.is_empty().then_some(())
    });
    running.finish().success();
}

/// Paths were compared as they were written, so that relative ones matched nothing.
#[test]
fn relative_paths_are_known() {
    let policy = "
        tenant = [{ name = \"deep\" }]
        [[match]]
        tenant = \"deep\"
        path = \"/**/one/two/*\"
        operation = \"write\"";
    let bed = Bed::new(policy);
    bed.subfolder("one/two");
    let script = "w() { dd if=/dev/zero of=$1 bs=64k count=1 2> /dev/null; }
                  w one/two/a; w ./one/../one/two/b; cd one; w two/c; cd two; w d; w $PWD/e
                  w ../two/../../outside; ln -s one/two ../../link; cd ../..; w link/f
                  python3 -c \"
import os
folder = os.open('one', os.O_DIRECTORY)
file = os.open('two/g', os.O_WRONLY | os.O_CREAT, dir_fd=folder)
os.write(file, bytes(65536))\"";
    tools::need("python3");
    let running = held(&bed, "", script);
    bytes_are(&bed, &[("deep", 7 * (64 << 10))]);
    running.finish().success();
}

/// Files that the program did not open itself were not limited, descriptors that were duplicated
/// were lost, and closing an unknown one broke.
#[test]
fn descriptors_are_followed_wherever_they_go() {
    let bed = Bed::new(FREE);
    let program = tools::compiled("descriptors", &[]);
    let script = format!("exec 7<> inherited; exec {}", program.display());
    let running = process::spawn(bed.run_script("free", &script).stdin(Stdio::piped()));
    running.wait_for_output("done");
    // Nine by descriptors of its own, one in the child, one that was inherited.
    bytes_are(&bed, &[("free", 11 * (64 << 10))]);
    running.finish().success();
}

/// The counts of a program were lost when it ended in `_exit`, was killed, or became another
/// program.
#[test]
fn what_was_done_outlives_a_sudden_end() {
    let bed = Bed::new(FREE);
    let mut command = bed.run("free", tools::compiled("sudden", &[]));
    let running = process::spawn(command.stdin(Stdio::piped()));
    running.wait_for_output("done");
    let plain = process::run(
        Command::new(tools::compiled("sudden", &[])).current_dir(bed.subfolder("plain")),
    );
    assert_eq!(running.stdout(), plain.success().stdout);
    // A child of vfork has its parent's memory: it is let pass, and counted as such.
    bed.wait_for_count("free", "bytes", 5 * (64 << 10));
    running.finish().success();
}

/// Reports were written at a program's end to descriptors that it had closed, or to its output.
#[test]
fn the_shim_itself_prints_nothing() {
    let bed = Bed::new(FREE);
    fs::write(bed.path("a"), vec![5; 1 << 20]).unwrap();
    let mut cp = bed.run("free", "cp");
    let outcome = process::run(cp.args(["a", "b"]).env("LD_DEBUG_OUTPUT", "/nowhere")).success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
    let outcome = process::run(&mut bed.run_script("free", "exec 1>&- 2>&-; cat a > c")).success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""));
    assert_eq!(fs::metadata(bed.path("c")).unwrap().len(), MIB);
}

/// Globals of the library were used before their constructors had run.
#[test]
fn requests_before_the_first_constructor_pass() {
    let bed = Bed::new(FREE);
    let early = tools::compiled("early", &["-shared", "-fPIC"]);
    let mut command = bed.run("free", "true");
    let outcome = process::run(command.env("LD_PRELOAD", early)).success();
    assert_eq!(outcome.stderr, "");
    for name in ["early", "late"] {
        assert_eq!(fs::metadata(bed.path(name)).unwrap().len(), 4_100);
    }
}

/// A handler that interrupts the shim, and one that leaves for another place, must not hang it.
#[test]
fn signal_handlers_may_write() {
    let bed = Bed::new("[[tenant]]\nname = \"kv\"\nlimit = \"50MiB/s\"\nburst = \"64KiB\"\n");
    let mut command = bed.run("kv", tools::compiled("interrupted", &[]));
    let running = process::spawn(command.stdin(Stdio::piped()));
    running.wait_for_output("done");
    assert_eq!(fs::metadata(bed.path("handler")).unwrap().len(), 300 * 100);
    let written = fs::metadata(bed.path("main")).unwrap().len();
    bed.wait_for_count("kv", "bytes", 1);
    let counted = bed.tenant("kv")["bytes"].as_u64().unwrap();
    assert!(counted <= written + 300 * 100, "{counted} of {written}");
    running.finish().success();
}

/// A sandbox that forbids sockets, clocks and mappings ends a program that uses them. Files that
/// the program has open stay limited; where it may not even sleep, it runs on without, and that is
/// counted.
#[test]
fn a_sandboxed_program_runs_on() {
    let bed = Bed::new("[[tenant]]\nname = \"kv\"\nlimit = \"4MiB/s\"\nburst = \"64KiB\"\n");
    let program = tools::compiled("filtered", &[]);
    for how in ["no-sleep", "strict", ""] {
        let plain = process::run(Command::new(&program).arg(how).current_dir(bed.folder()));
        if plain.code == Some(77) {
            return tools::skipped("system calls cannot be filtered here");
        }
        plain.success();
        let mut command = bed.run("kv", &program);
        let running = process::spawn(command.arg(how).stdin(Stdio::piped()));
        running.wait_for_output("done");
        if how.is_empty() {
            // The program's output went through a pipe and is not counted.
            bytes_are(&bed, &[("kv", MIB)]);
        }
        let outcome = running.finish().success();
        let limited = outcome.time.as_secs_f64() >= 0.2;
        assert!(limited || !how.is_empty(), "a quarter of a second of its rate");
        let report = outcome.notices().contains("calls");
        assert_eq!(report, !how.is_empty(), "{how}: {outcome:?}");
        assert_eq!(fs::metadata(bed.path("filtered")).unwrap().len(), MIB);
    }
}

/// A child in an environment without the shim ran unlimited without a message.
#[test]
fn a_child_without_the_shim_is_reported() {
    let bed = Bed::new(FREE);
    let cp = tools::need("cp");
    fs::write(bed.path("a"), vec![5; 4 << 20]).unwrap();
    let mut command = bed.run("free", tools::compiled("empty", &[]));
    let outcome = process::run(command.arg(&cp).args(["a", "b"])).success();
    assert!(outcome.notices().contains("unloaded: 1 call;"), "{outcome:?}");
    let outcome = process::run(&mut bed.run_script("free", "env -u LD_PRELOAD cp a c")).success();
    assert!(outcome.notices().contains("unloaded"), "{outcome:?}");
}

/// A preloaded program in front of the one that is meant (`timeout`, `env`, `nice`) is one more
/// process of the same stage, not a second stage.
#[test]
fn wrapped_programs_are_one_stage() {
    let bed = Bed::new(FREE);
    let script = "timeout 60 nice env A=b dd if=/dev/zero of=file bs=64k count=16 2> /dev/null";
    let running = held(&bed, "free", script);
    bytes_are(&bed, &[("free", MIB)]);
    assert_eq!(bed.status()["stages"].as_array().map(Vec::len), Some(1));
    running.finish().success();
}

/// The table of defects names tests that exist.
#[test]
fn the_table_of_defects_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = fs::read_to_string(root.join("docs/src/papers/defects.md")).unwrap();
    let mut named = 0;
    for line in table.lines().filter(|line| line.starts_with("| ") && line.contains(".rs`")) {
        let cell = line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let mut file = String::new();
        for name in cell.split('`').skip(1).step_by(2) {
            if name.ends_with(".rs") {
                file = fs::read_to_string(root.join(name))
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
                continue;
            }
            assert!(file.contains(&format!("fn {name}(")), "no test {name} as in: {line}");
            named += 1;
        }
    }
    assert!(named >= 40, "only {named} tests are named");
}
