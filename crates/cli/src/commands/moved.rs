//! Old names of commands that moved to `tidegate-lab`: each prints the new name.

use std::env;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output::shell_word;

/// The failure for a command under the name that it had before, with the command to type instead;
/// none if the arguments are refused for another reason.
pub(crate) fn failure(error: &clap::Error) -> Option<Failure> {
    let unknown = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(name))) => &name[..],
        _ => return None,
    };
    let arguments = env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let arguments: Vec<String> = arguments.collect();
    let at = arguments.iter().position(|argument| argument == unknown)?;
    let (old, new) = match (&arguments[at.saturating_sub(1)][..], unknown) {
        ("kv", "bench") => ("kv bench", "kv"),
        (_, "sim" | "demo" | "repro" | "bench" | "load") => (unknown, unknown),
        _ => return None,
    };
    let rest = arguments[at + 1..].iter().map(|argument| format!(" {}", shell_word(argument)));
    let command = format!("tidegate-lab {new}{}", rest.collect::<String>());
    let moved = format!("`tidegate {old}` has moved to `tidegate-lab {new}`");
    Some(Failure::new(Code::Usage, moved).help(format!("run: {command}")))
}
