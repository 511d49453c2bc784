//! How the tests of both programs run them and write down the results.

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;

/// `command` in `directory`, in an environment that says nothing about Tidegate or the terminal.
pub(crate) fn isolated(mut command: Command, directory: &Path) -> Command {
    command.current_dir(directory).env_clear().env("LC_ALL", "C.UTF-8");
    // No controller listens at the default socket.
    command.env("XDG_RUNTIME_DIR", directory).env("TIDEGATE_SOCKET", "no-controller.sock");
    command
}

/// The output of a command, as a transcript for golden files.
pub(crate) fn transcript(program: &str, arguments: &[&str], output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    let code = output.status.code().map_or("a signal".into(), |code| code.to_string());
    format!("$ {program} {}\n{out}{error}exit {code}\n", arguments.join(" "))
}
