//! Commands on a terminal, for the tests of both programs.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs `command` on a terminal. script(1) gives it one, prints what is written to it, and ends as
/// the command does. The terminal has no size until somebody says one.
pub(crate) fn on_a_terminal(directory: &Path, command: &str) -> Child {
    let command = format!("stty rows 24 columns 100; {command}");
    Command::new("script")
        .args(["-qefc", &command, "/dev/null"])
        .current_dir(directory)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads what is shown until `mark` is in it, or to the end.
pub(crate) fn shown_until(screen: &mut impl Read, mark: &str) -> String {
    let mut shown = String::new();
    let mut chunk = [0; 4096];
    while !shown.contains(mark) {
        match screen.read(&mut chunk).unwrap() {
            0 => break,
            count => shown += &String::from_utf8_lossy(&chunk[..count]),
        }
    }
    shown
}
