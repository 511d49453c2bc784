//! The plug-in for RocksDB: the bytes of each kind of job are those that RocksDB itself reports.
//!
//! A library behind the plug-in (`programs/rocksdb_truth.cpp`) counts on its own: the sizes of
//! the tables that RocksDB reports for each job, and what each job's thread writes and reads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, ProgramOutcome};
use tidegate_tests::{built, eventually, tools, wait_for};

/// The contexts of background jobs.
const JOBS: [&str; 3] = ["flush", "compaction_l0", "compaction"];

/// The keys, and options by which they make several levels of small tables. One thread writes, so
/// the log is not shared, and the database waits for its compactions before it reads.
const WORK: [&str; 15] = [
    "--benchmarks=fillrandom,waitforcompaction,readrandom",
    "--num=200000",
    "--reads=20000",
    "--value_size=256",
    "--threads=1",
    "--seed=1",
    "--compression_type=none",
    "--write_buffer_size=1048576",
    "--target_file_size_base=1048576",
    "--max_bytes_for_level_base=4194304",
    "--max_background_jobs=4",
    "--cache_size=1048576",
    "--statistics=1",
    "--open_files=-1",
    "--db=db",
];

/// How long the work may take: some seconds on an idle machine.
const WORK_MAX: Duration = Duration::from_secs(150);

/// The libraries that are built for these tests.
struct Libraries {
    /// The library that programs preload.
    preload: PathBuf,
    /// The plug-in that it loads.
    plugin: PathBuf,
    truth: PathBuf,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[track_caller]
fn compile(arguments: &[&str], out: &Path) {
    let mut compiler = Command::new(tools::need("g++"));
    compiler.args(["-std=c++17", "-O1", "-Wall", "-Werror", "-fPIC", "-shared"]).arg("-o").arg(out);
    process::run(compiler.args(arguments)).success();
}

/// Builds the libraries, once for all tests.
fn libraries() -> &'static Libraries {
    static BUILT: OnceLock<Libraries> = OnceLock::new();
    BUILT.get_or_init(|| {
        tools::need("db_bench");
        tools::need("g++");
        let folder = built::scratch().join(format!("programs-{}", std::process::id()));
        let folder = folder.join("rocksdb");
        std::fs::create_dir_all(&folder).expect("a folder for libraries");
        let variables = [
            format!("OUT={}", folder.display()),
            format!("TIDEGATE={}", built::library().parent().unwrap().display()),
        ];
        let mut make = Command::new(tools::need("make"));
        make.args(["-C", "plugins/rocksdb", "CXXFLAGS=-O1 -Werror"]).args(variables);
        process::run(make.current_dir(root())).success();
        let truth = folder.join("truth.so");
        let source = tools::source("rocksdb_truth.cpp");
        compile(&[source.to_str().unwrap(), "-lrocksdb"], &truth);
        let mut files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let is_plugin = |path: &PathBuf| path.to_string_lossy().contains("/libtidegate-rocksdb-");
        let plugin = files.find(is_plugin).expect("make builds the plug-in");
        Libraries { preload: folder.join("libtidegate-rocksdb.so"), plugin, truth }
    })
}

/// A tenant for each kind of job and operation on tables, for the log, and for clients' reads.
fn policy() -> String {
    let mut text = String::new();
    let mut add = |tenant: &str, conditions: &str| {
        writeln!(text, "[[tenant]]\nname = \"{tenant}\"").unwrap();
        writeln!(text, "[[match]]\ntenant = \"{tenant}\"\n{conditions}").unwrap();
    };
    for job in JOBS {
        for operation in ["write", "read"] {
            let table = format!("operation = \"{operation}\"\npath = \"**/*.sst\"");
            add(&format!("{job}-{operation}"), &format!("context = \"{job}\"\n{table}"));
        }
    }
    add("wal-write", "context = \"wal\"\noperation = \"write\"\npath = \"**/*.log\"");
    add("none-read", "operation = \"read\"\npath = \"**/*.sst\"");
    text
}

/// The numbers that the truth's line of this kind has.
fn truth(printed: &str, kind: &str) -> Vec<u64> {
    let start = format!("truth {kind} ");
    let line = printed.lines().find_map(|line| line.strip_prefix(&start));
    let line = line.unwrap_or_else(|| panic!("no truth of {kind} in {printed}"));
    line.split(' ').map(|number| number.parse().expect("a number")).collect()
}

/// A counter of RocksDB's own statistics.
fn ticker(printed: &str, name: &str) -> u64 {
    let start = format!("rocksdb.{name} COUNT : ");
    let line = printed.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("no {name}"))
}

fn is_near(value: u64, expected: u64) -> bool {
    value.abs_diff(expected) * 200 <= expected
}

/// Runs the work, and compares what Tidegate has counted for each tenant with the truth.
#[track_caller]
fn is_attributed(bed: &Bed, program: &mut Command) {
    let mut running = process::spawn(program.stdin(Stdio::piped()));
    let printed = wait_for("the end of the work", WORK_MAX, || {
        let is_running = running.is_running();
        let printed = running.stdout();
        assert!(is_running || printed.ends_with("\ndone\n"), "it ends: {}", running.stderr());
        printed.ends_with("\ndone\n").then_some(printed)
    });
    let mut expected = BTreeMap::new();
    let mut table = format!("{:24} {:>12} {:>12}\n", "tenant", "RocksDB", "Tidegate");
    for job in JOBS {
        let [reported, written, read] = truth(&printed, job)[..] else { panic!("{printed}") };
        assert_eq!(written, reported, "{job}: its tables are what its thread has written");
        assert!(written > 0, "no {job} has written: the work is too small");
        expected.insert(format!("{job}-write"), (written, true));
        expected.insert(format!("{job}-read"), (read, false));
    }
    expected.insert("wal-write".into(), (truth(&printed, "wal")[0], true));
    expected.insert("none-read".into(), (truth(&printed, "none")[2], false));
    for (tenant, (bytes, is_exact)) in &expected {
        let counted = || bed.tenant(tenant)["bytes"].as_u64().unwrap_or(0);
        writeln!(table, "{tenant:24} {bytes:12} {:12}", counted()).unwrap();
        eventually(&format!("{bytes} bytes of {tenant}\n{table}"), || match is_exact {
            true => counted() == *bytes,
            false => is_near(counted(), *bytes),
        });
    }
    // Not one by one, but all that compactions have read is also in RocksDB's statistics.
    let read = expected["compaction_l0-read"].0 + expected["compaction-read"].0;
    let reported = ticker(&printed, "compact.read.bytes");
    writeln!(table, "{:24} {reported:12} {read:12}", "compactions' reads").unwrap();
    println!("{table}");
    assert!(is_near(read, reported), "{table}");
    running.finish().success();
}

/// A run of the program with these libraries: the shim stays in front of them.
fn preloaded(bed: &Bed, libraries: &[&Path]) -> Command {
    let mut run = bed.run("", "sh");
    run.args(["-euc", "LD_PRELOAD=\"$LD_PRELOAD:$0\" exec \"$@\""]).arg(joined(libraries));
    run.arg(tools::need("db_bench"));
    run
}

fn joined(libraries: &[&Path]) -> String {
    let paths = libraries.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(":")
}

#[test]
fn jobs_are_distinguished_in_a_program_that_knows_nothing_of_it() {
    let libraries = libraries();
    let bed = Bed::new(&policy());
    let program = &mut preloaded(&bed, &[&libraries.preload, &libraries.truth]);
    is_attributed(&bed, program.args(WORK));
}

/// RocksDB gives no write hints here, and starts threads for parts of a job. Of an option that is
/// there twice the later one counts, and the database waits for a compaction that is asked for.
#[test]
fn jobs_are_distinguished_without_hints_and_in_several_threads() {
    let libraries = libraries();
    let bed = Bed::new(&policy());
    let program = &mut preloaded(&bed, &[&libraries.preload, &libraries.truth]);
    let more = ["--benchmarks=fillrandom,compact,readrandom", "--compaction_style=1"];
    is_attributed(&bed, program.args(WORK).args(more).arg("--subcompactions=4"));
}

#[test]
fn jobs_are_distinguished_where_the_file_system_is_named() {
    let libraries = libraries();
    let bed = Bed::new(&policy());
    let program = &mut preloaded(&bed, &[&libraries.preload, &libraries.truth]);
    is_attributed(&bed, program.args(WORK).arg("--fs_uri=tidegate://"));
}

#[test]
fn jobs_are_distinguished_without_the_shim() {
    let libraries = libraries();
    let bed = Bed::new(&policy());
    let mut program = Command::new(tools::need("db_bench"));
    program.env("LD_PRELOAD", joined(&[&libraries.preload, &libraries.truth]));
    program.env("TIDEGATE_SOCKET", bed.socket()).current_dir(bed.folder());
    is_attributed(&bed, program.args(WORK));
}

/// Runs a program with these libraries and variables, without Tidegate.
fn alone(libraries: &[&Path], program: &[&str], variables: &[(&str, &str)]) -> ProgramOutcome {
    let mut command = Command::new(tools::need(program[0]));
    command.args(&program[1..]).env("LD_PRELOAD", joined(libraries));
    process::run(command.envs(variables.iter().copied()))
}

/// The program runs, and prints this; where it must not run without labels, it does not.
#[track_caller]
fn is_refused(libraries: &[&Path], program: &[&str], reason: &str) {
    let runs = alone(libraries, program, &[]).success();
    assert!(runs.notices().contains(reason), "{runs:?}");
    assert!(runs.notices().contains("its I/O has no contexts"), "{runs:?}");
    let ends = alone(libraries, program, &[("TIDEGATE_FAIL_CLOSED", "1")]).failure(126);
    assert!(ends.notices().contains(reason), "{ends:?}");
    alone(libraries, program, &[("TIDEGATE_FAIL_CLOSED", "off")]).success();
}

#[test]
fn a_rocksdb_without_a_plug_in_is_reported() {
    let (libraries, bed) = (libraries(), Bed::empty());
    let preload = bed.path("libtidegate-rocksdb.so");
    std::fs::copy(&libraries.preload, &preload).unwrap();
    let database = format!("--db={}", bed.path("db").display());
    let program = ["db_bench", "--benchmarks=fillseq", "--num=100", &database];
    is_refused(&[&preload], &program, "and there is no ");

    // A plug-in that refers to what this RocksDB does not have.
    let plugin = bed.path(libraries.plugin.file_name().unwrap().to_str().unwrap());
    let source = bed.path("missing.cpp");
    let text = "void rocksdb_has_no_such_function(); \
                void (*reference)() = rocksdb_has_no_such_function;";
    std::fs::write(&source, text).unwrap();
    compile(&[source.to_str().unwrap()], &plugin);
    is_refused(&[&preload], &program, "undefined symbol: ");

    // Something else of that name.
    std::fs::write(&source, "int nothing;").unwrap();
    compile(&[source.to_str().unwrap()], &plugin);
    is_refused(&[&preload], &program, "is no plug-in of Tidegate");
}

#[test]
fn a_plug_in_for_another_version_is_refused() {
    let (libraries, bed) = (libraries(), Bed::empty());
    let preload = bed.path("libtidegate-rocksdb.so");
    std::fs::copy(&libraries.preload, &preload).unwrap();
    std::fs::copy(&libraries.plugin, bed.path("libtidegate-rocksdb-99.1.so")).unwrap();
    let (source, other) = (bed.path("other.cpp"), bed.path("other.so"));
    let text = "#include <string>
                namespace rocksdb { std::string GetRocksVersionAsString(bool patch); }
                std::string rocksdb::GetRocksVersionAsString(bool patch) {
                    return patch ? \"99.1.2\" : \"99.1\";
                }";
    std::fs::write(&source, text).unwrap();
    compile(&[source.to_str().unwrap()], &other);
    is_refused(&[&preload, &other], &["true"], "and the program has 99.1.2");
}

#[test]
fn a_program_without_rocksdb_is_left_alone() {
    let libraries = libraries();
    let closed = [("TIDEGATE_FAIL_CLOSED", "1")];
    let quiet = alone(&[&libraries.preload], &["true"], &closed).success();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    let debug = alone(&[&libraries.preload], &["true"], &[("TIDEGATE_DEBUG", "1")]).success();
    assert!(debug.notices().contains("not in this program"), "{debug:?}");
}
