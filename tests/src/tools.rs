//! Programs that scenarios use: found, or missed aloud.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::built;

/// Programs that `scripts/setup.sh test` installs or every Debian has, with their packages.
const PACKAGES: [(&str, &str); 29] = [
    ("cat", "coreutils"),
    ("cp", "coreutils"),
    ("dd", "coreutils"),
    ("db_bench", "rocksdb-tools"),
    ("fio", "fio"),
    ("gcc", "gcc"),
    ("g++", "g++"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("make", "make"),
    ("memcached", "memcached"),
    ("memcaslap", "libmemcached-tools"),
    ("memccapable", "libmemcached-tools"),
    ("memccat", "libmemcached-tools"),
    ("memccp", "libmemcached-tools"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("python3", "python3"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("rsync", "rsync"),
    ("setpriv", "util-linux"),
    ("setsid", "util-linux"),
    ("sh", "dash"),
    ("sqlite3", "sqlite3"),
    ("stat", "coreutils"),
    ("tar", "tar"),
    ("unshare", "util-linux"),
    ("umount", "mount"),
];

/// Where a program is, by `PATH`.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// A program that has to be there.
///
/// # Panics
/// If it is not, with the name of the package to install.
pub fn need(program: &str) -> PathBuf {
    find(program).unwrap_or_else(|| {
        let known = PACKAGES.iter().find(|(name, _)| *name == program);
        let package = known.map_or(program, |(_, package)| package);
        panic!("there is no {program}: `scripts/setup.sh test`, or apt-get install {package}")
    })
}

/// A program that comes with a toolchain that not everybody has. Says so if it is not there.
pub fn want(program: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        skipped(&format!("there is no {program}"));
    }
    found
}

/// A Python interpreter with this module: the one of `PATH`, or the system's, for which packages
/// install modules. Says so if there is none.
pub fn python_with(module: &str) -> Option<PathBuf> {
    let candidates = find("python3").into_iter().chain(["/usr/bin/python3".into()]);
    let has_module = |python: &PathBuf| {
        let output = Command::new(python).args(["-c", &format!("import {module}")]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = candidates.into_iter().find(has_module);
    if found.is_none() {
        skipped(&format!("no python3 has the module {module}"));
    }
    found
}

/// A TCP port of this machine on which no process listens.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("no port is free");
    listener.local_addr().expect("a listener has an address").port()
}

/// Says why something is not tested here, past the harness that hides what passing tests print.
///
/// # Panics
/// If `TIDEGATE_NO_SKIP` is set, as a user does who has installed all tools.
pub fn skipped(reason: &str) {
    assert!(std::env::var_os("TIDEGATE_NO_SKIP").is_none(), "not tested: {reason}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A file of `tests/programs/`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// Programs that were compiled by this process, by source and flags.
static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// The C program `tests/programs/NAME.c`, compiled once with these flags.
///
/// # Panics
/// If it does not compile.
pub fn compiled(name: &str, flags: &[&str]) -> PathBuf {
    let key = format!("{name} {}", flags.join(" "));
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = compiled.get(&key) {
        return program.clone();
    }
    let folder = built::scratch().join(format!("programs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for programs");
    let plain = name.rsplit('/').next().unwrap_or(name);
    let program = folder.join(format!("{plain}-{}", compiled.len()));
    let mut gcc = Command::new(need("gcc"));
    gcc.args(["-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", "-pthread"]).arg("-o").arg(&program);
    let output = gcc.arg(source(&format!("{name}.c"))).args(flags).output().expect("gcc starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}.c {flags:?}: {stderr}");
    compiled.insert(key, program.clone());
    program
}
