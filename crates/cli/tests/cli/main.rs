//! The command line as its users meet it: a process with arguments, output and an exit code.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod check;
mod codes;
mod documents;
mod help;
mod live;
mod terminal;

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;

/// `tidegate` in `directory`, in an environment that says nothing about Tidegate or the terminal.
fn tidegate(directory: &Path) -> Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("tidegate");
    command.current_dir(directory).env_clear().env("LC_ALL", "C.UTF-8");
    // The default socket is looked for here, where there is none.
    command.env("XDG_RUNTIME_DIR", directory).env("TIDEGATE_SOCKET", "no-controller.sock");
    command
}

/// The output of a command, as a transcript for golden files.
fn transcript(arguments: &[&str], output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    let code = output.status.code().map_or("a signal".into(), |code| code.to_string());
    format!("$ tidegate {}\n{said}{complained}exit {code}\n", arguments.join(" "))
}
