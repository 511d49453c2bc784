//! `include/tidegate.h` is what the crate says, and compilers take it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn generated() -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(directory.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in ["status", "stage", "admission", "scopes", "rules", "layered", "store"] {
        builder = builder.with_src(directory.join(format!("src/{module}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    let mut text = String::from_utf8(text).unwrap();
    // Where constants of the crate's own were left out.
    while text.contains("\n\n\n") {
        text = text.replace("\n\n\n", "\n\n");
    }
    text
}

/// A compiler, by its name in the environment or as usual.
fn compiler(variable: &str, usual: &str) -> Command {
    Command::new(std::env::var(variable).unwrap_or_else(|_| usual.into()))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];

#[test]
fn the_header_agrees_with_the_crate() {
    let path = root().join("include/tidegate.h");
    let wanted = generated();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is not what src/ says; make it anew with \
         `UPDATE_GOLDEN=1 cargo test -p tidegate-capi --test header`",
        path.display()
    );
}

#[test]
fn the_version_is_the_release() {
    let [major, minor, patch] = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ]
    .map(|number| number.parse::<u32>().unwrap());
    let version = tidegate::stage::tidegate_version();
    assert_eq!(version, major << 16 | minor << 8 | patch);
}

#[test]
fn compilers_take_the_headers_without_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let include = root().join("include");
    let (c, cpp) = (directory.path().join("header.c"), directory.path().join("header.cpp"));
    std::fs::write(&c, "#include <tidegate.h>\n#include <tidegate.h>\n").unwrap();
    for standard in ["c99", "c11", "c17"] {
        let mut command = compiler("CC", "cc");
        run(command.args(STRICT).arg(format!("-std={standard}")).arg("-I").arg(&include).arg(&c));
    }
    std::fs::write(&cpp, "#include <tidegate.hpp>\n#include <tidegate.h>\n").unwrap();
    for options in [&["-std=c++17"][..], &["-std=c++20"], &["-std=c++17", "-fno-exceptions"]] {
        let mut command = compiler("CXX", "c++");
        run(command.args(STRICT).args(options).arg("-I").arg(&include).arg(&cpp));
    }
}

/// Where cargo put this crate's libraries when it built the test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let directory = test.parent().unwrap();
    let found = [directory, directory.parent().unwrap()];
    let found = found.iter().find(|directory| directory.join("libtidegate.so").exists());
    found.expect("cargo builds libtidegate.so beside the test").to_path_buf()
}

/// Builds the example `source` with the one command line that it documents, and returns its output.
fn example(source: &str, compiler: Command, link: &[&str]) -> String {
    let (directory, libraries) = (tempfile::tempdir().unwrap(), libraries());
    let program = directory.path().join("example");
    let mut compiler = compiler;
    compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(root().join("include"));
    compiler.arg(root().join("examples/c").join(source)).arg("-o").arg(&program);
    compiler.arg("-L").arg(&libraries).arg(format!("-Wl,-rpath,{}", libraries.display()));
    run(compiler.args(link));
    run(Command::new(&program).current_dir(&directory))
}

const EXPECTED_OUTPUT: &str = "\
flush: 16 requests, 1048576 bytes, waited
foreground: 16 requests, 65536 bytes, did not wait
";

#[test]
fn the_c_example_prints_what_it_promises() {
    assert_eq!(example("flush.c", compiler("CC", "cc"), &["-ltidegate"]), EXPECTED_OUTPUT);
}

#[test]
fn the_c_example_can_be_linked_statically() {
    let link = ["-Wl,-Bstatic", "-ltidegate", "-Wl,-Bdynamic", "-lpthread", "-ldl", "-lm"];
    assert_eq!(example("flush.c", compiler("CC", "cc"), &link), EXPECTED_OUTPUT);
}

#[test]
fn the_cpp_example_prints_what_it_promises() {
    let mut compiler = compiler("CXX", "c++");
    compiler.arg("-std=c++17");
    assert_eq!(example("flush.cpp", compiler, &["-ltidegate"]), EXPECTED_OUTPUT);
}

#[test]
fn a_child_of_fork_leaves_the_stage_to_its_parent() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fork.c");
    let expected_output = "\
open: done
child enforces: done
child completes: done
child sets a gate: rule refused
because it was forked
child clears: rule refused
child closes: done
child ended: 0
parent sets a gate: done
parent closes: done
";
    assert_eq!(example(source, compiler("CC", "cc"), &["-ltidegate"]), expected_output);
}
