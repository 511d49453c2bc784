//! A data node's store from C and Python: all that can be done with it, what is said where that
//! cannot be, and the examples as the manual shows them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tidegate_tests::cluster::Cluster;
use tidegate_tests::process::{self, ProgramOutcome};
use tidegate_tests::{built, tools};

const FILE: &str = r#"
    [[data-node]]
    name = "m"
    listen = "unix:m.sock"
    memory = "32MiB"
    capacity = "80k iops"
    client = "40k iops"
    period = "100ms"
"#;

const POLICY: &str = r#"
    [[tenant]]
    name = "web"
    reservation = "20k iops"
"#;

/// A controller and a data node, in a process each.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(FILE, POLICY);
    cluster.up_data_nodes(&["m"]);
    cluster
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the compiler flags with which a C program finds the header and the library.
fn flags() -> Vec<String> {
    let library = built::library();
    let folder = library.parent().unwrap().display();
    let include = root().join("include");
    let include = include.display();
    let folders = [format!("-I{include}"), format!("-L{folder}"), format!("-Wl,-rpath,{folder}")];
    folders.into_iter().chain(["-ltidegate".into()]).collect()
}

/// Python with a path to find the package in the folder `package`, and nothing of ours else.
fn python(package: &Path) -> Command {
    let mut python = Command::new(tools::need("python3"));
    python.env("PYTHONPATH", package).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env_remove("TIDEGATE_LIBRARY");
    python
}

const EXPECTED: &str = "\
open: done
put: done
get: done, a value of 5 bytes
into three bytes: buffer too small, nothing of 5 bytes
into none: buffer too small, nothing of 5 bytes
put of nothing: done
get of nothing: done, a value of 0 bytes
get of what is not there: done, nothing of 0 bytes
put of much: done
get of much: done, a value of 4096 bytes
put of too much: value too long
no key: key of an impossible length
a long key: key of an impossible length
a null key: invalid argument
a null buffer: invalid argument
many: done, 100 found, 100 missing, 0 wrong
two of many: key of an impossible length, buffer too small, and of others done
together: the first's
none of many: done
threads: 0 wrong
deleted: 1 0
child gets: store of another process, nothing of 0 bytes
child closes: done
child ended: 0
parent gets: done, a value of 5 bytes
open as nobody's tenant: not admitted by the data node
open where nobody is: data node unreachable
open as nobody: done
nobody gets: done, a value of 5 bytes
ready
";

const EXPECTED_LATER: &str = "\
with a reservation: done, a value of 5 bytes
without: data node unreachable
close: done
close: done
";

#[test]
fn a_c_program_reads_and_writes_and_gets_errors() {
    let mut cluster = cluster();
    let flags = flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut program = Command::new(tools::compiled("stores", &flags));
    program.args([cluster.path("m.sock"), cluster.path("nobody.sock")]).stdin(Stdio::piped());
    let mut running = process::spawn(&mut program);
    running.wait_for_output("ready");
    assert_eq!(running.stdout(), EXPECTED);
    cluster.kill("m");
    running.write_input("\n");
    let outcome = running.finish().success();
    assert_eq!(outcome.stdout.strip_prefix(EXPECTED), Some(EXPECTED_LATER));
}

#[test]
fn the_c_example_does_what_the_manual_shows() {
    let cluster = cluster();
    let mut flags = flags();
    flags.push("-std=c99".into());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = tools::compiled("../../examples/c/store", &flags);
    let at = cluster.path("m.sock");
    let outcome = process::run(Command::new(program).arg(at).arg("web")).success();
    let output = "\
greeting: hello
nothing: no value
red: a colour
green: a colour
blue: a colour
ultraviolet: no value
an empty key: key of an impossible length
deleted: 1
";
    assert_eq!(outcome.stdout, output);
}

/// The example, with the package in this folder.
fn example(cluster: &Cluster, python: &mut Command) -> ProgramOutcome {
    python.arg(root().join("examples/python/store.py"));
    process::run(python.arg(cluster.path("m.sock")).arg("web"))
}

#[test]
fn a_python_program_reads_and_writes_and_gets_errors() {
    let cluster = cluster();
    let mut python = python(&root().join("python"));
    python.env("TIDEGATE_LIBRARY", built::library()).env("TIDEGATE_AT", cluster.path("m.sock"));
    python.args(["-m", "unittest", "discover", "--verbose", "--pattern", "test_store.py"]);
    python.arg("--start-directory").arg(root().join("python/tests"));
    let outcome = process::run(&mut python).success();
    assert!(outcome.stderr.contains("Ran 7 tests"), "{outcome:?}");
}

#[test]
fn the_python_package_can_be_installed_without_a_network() {
    let mut cluster = cluster();
    let folder = cluster.bed().subfolder("installed");
    let mut pip = Command::new(tools::need("python3"));
    pip.args(["-m", "pip", "install", "--no-index", "--quiet", "--target"]).arg(&folder);
    pip.env("TIDEGATE_LIBRARY", built::library()).env("PYTHONDONTWRITEBYTECODE", "1");
    process::run(pip.arg(root().join("python"))).success();
    let outcome = example(&cluster, &mut python(&folder)).success();
    let output = "\
greeting: b'hello'
nothing: None
many: [b'value 0', b'value 1', b'value 2', None]
large: the value has 5000 bytes, and with this key it may have at most 4096
deleted: True False
";
    assert_eq!(outcome.stdout, output);
    cluster.kill("m");
    let outcome = example(&cluster, &mut python(&folder)).failure(1);
    assert!(outcome.stderr.contains("no data node listens there"), "{outcome:?}");
}

#[test]
fn the_python_package_is_of_this_release() {
    let source = std::fs::read_to_string(root().join("python/tidegate/__init__.py")).unwrap();
    let version = format!("\n__version__ = \"{}\"\n", env!("CARGO_PKG_VERSION"));
    assert!(source.contains(&version), "python/tidegate says another version");
}
