//! Standard output and standard error, as the terminal or pipe behind them wants them.

use std::env;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;

use rustix::io::dup;
use rustix::termios::tcgetwinsize;
use serde::Serialize;

use crate::failure::{Code, Failure};

/// Writes `text` to standard output.
///
/// # Errors
/// If it cannot be written; silently so if the reader has left.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes `value` as one line of JSON to standard output.
///
/// # Errors
/// As [`print`].
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(Code::Failure, "cannot write JSON").cause(error))?;
    print(&format!("{text}\n"))
}

/// Whether `stream` wants colours: it is a terminal that has them, and `NO_COLOR` is not set.
pub fn is_colored(stream: &impl IsTerminal) -> bool {
    // https://no-color.org: any value but the empty one counts.
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    stream.is_terminal() && !refused && !dumb
}

/// Whether the locale can show more than ASCII.
pub fn is_unicode() -> bool {
    // The first of them that is set decides, as in setlocale(3).
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_default()
        .to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The width of the terminal, or 100 where there is none.
pub fn columns() -> usize {
    // Standard output may be a pipe to a pager, which shows the text on the same terminal.
    let terminal = File::open("/dev/tty").map(OwnedFd::from).or_else(|_| dup(io::stdout()));
    let size = terminal.ok().and_then(|terminal| tcgetwinsize(terminal).ok());
    size.filter(|size| size.ws_col > 0).map_or(100, |size| usize::from(size.ws_col).max(20))
}

/// A word as one would type it to a shell.
pub fn shell_word(word: &str) -> String {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "-_=./:,+".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// `text` on one line and without control characters. Command lines and messages come from
/// programs, and must not be able to control the terminal.
pub fn on_one_line(text: &str) -> String {
    let visible =
        text.chars().map(|character| if character.is_control() { ' ' } else { character });
    visible.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How a piece of text is to stand out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Not at all.
    #[default]
    Plain,
    /// A heading.
    Bold,
    /// Less than the rest.
    Faint,
    /// All is well.
    Good,
    /// An operator should check this.
    Warn,
    /// A promise is broken, or something does not work.
    Bad,
}

/// Whether text is painted. Colour never adds information to the words.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    /// Paints for standard output.
    pub fn stdout() -> Self {
        Self(is_colored(&io::stdout()))
    }

    /// Paints nothing.
    pub fn none() -> Self {
        Self(false)
    }

    /// `text` in this tone.
    pub fn tone(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Bold => "1",
            Tone::Faint => "2",
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "1;31",
        };
        if self.0 && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_programs_has_no_colours() {
        assert_eq!(on_one_line("sh -c \n\x1b[2J  rm\t-r\u{9b}1m "), "sh -c [2J rm -r 1m");
    }
}
