//! What is wrong with a file that an operator wrote, shown as every command shows it.

use std::io;

use miette::LabeledSpan;
use tidegate_model::TextError;

use crate::failure::{Code, Failure};

/// The failure for a `what` that cannot be read.
pub(crate) fn unreadable(what: &str, name: &str, error: &io::Error) -> Failure {
    let help = match error.kind() {
        io::ErrorKind::NotFound if what == "policy" => {
            "check the path; a policy comes from a file, or from - (stdin)"
        }
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::IsADirectory => "name one file in it",
        io::ErrorKind::InvalidData => "it is to be a TOML file, which is text in UTF-8",
        _ => "see whether you may read it",
    };
    Failure::new(Code::Invalid, format!("cannot read the {what} {name}"))
        .cause(error.to_string())
        .help(help)
}

/// The failure for a text that makes no sense, shown with the place that is wrong.
pub(crate) fn invalid(name: &str, text: &str, error: &TextError) -> Failure {
    let label = LabeledSpan::new_primary_with_span(None, error.span.clone());
    let failure = match error.fix.as_str() {
        "" => mended(&error.message),
        fix => Failure::new(Code::Invalid, error.message.clone()).help(fix),
    };
    failure.source(name, text, vec![label])
}

/// A message that says how to mend it within itself, or not at all: that of the TOML reader.
fn mended(message: &str) -> Failure {
    let fail = |message: &str| Failure::new(Code::Invalid, message);
    if let Some((unknown, known)) = message.split_once(", expected one of ") {
        return fail(unknown).help(format!("use one of {known}"));
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        return fail(message).help(format!("add {field} to it"));
    }
    if message.starts_with("invalid type: integer") || message.starts_with("invalid type: float") {
        return fail(message).help("a quantity is a string with a unit, like \"150MiB/s\"");
    }
    Failure::quoted(Code::Invalid, message)
}
