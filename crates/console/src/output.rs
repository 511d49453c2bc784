//! Output of commands: text and JSON on standard output, and colours where the terminal has them.

use std::io::{self, Write};

use serde::Serialize;

use crate::failure::{Code, Failure};
pub use crate::terminal::{columns, is_colored, is_unicode};

/// Writes `text` to standard output.
///
/// # Errors
/// If it cannot be written. If the reader has closed the pipe (`| head`), the error is one that
/// ends the command with success and without a message: see the conversion from [`io::Error`] in
/// `failure.rs`.
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
