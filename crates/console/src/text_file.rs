//! Reads a file that an operator wrote, and shows its faults in the form that all commands use.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use miette::LabeledSpan;
use serde::de::IgnoredAny;
use tidegate_fabric::trusted::{self, Secrecy, TrustProblem};
use tidegate_model::{Bytes, TextError};

use crate::failure::{Code, Failure};

/// The longest file that is read: longer ones are devices and other files, named by mistake.
const LENGTH_MAX: u64 = 64 << 20;

/// The longest line of which the text is shown, in bytes.
const LONGEST: usize = 1_000;

/// Expectations in errors of the TOML parser, each with the way to write such a value.
const WANTED: [(&str, &str); 9] = [
    (", expected a string", QUANTITY),
    (", expected a string or a list of strings", QUANTITY),
    (", expected u16", "write a whole number from 0 to 65535, without quotation marks"),
    (", expected u32", "write a whole number from 0 to 4294967295, without quotation marks"),
    (", expected u64", "write a whole number, at least 0, without quotation marks"),
    (", expected f64", "write a number, without quotation marks"),
    (", expected a boolean", "write true or false, without quotation marks"),
    (", expected a sequence", "write a list, like [1, 2]"),
    (", expected a map", "write a table, like { key = value }"),
];
const QUANTITY: &str = "a quantity is a string with a unit, like \"150MiB/s\"";

/// The reader for which a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// For the user who names it, to show or to pass on.
    User,
    /// For a daemon that obeys it. A daemon of root takes it only from files that other users
    /// cannot change.
    Daemon,
}

/// The text of the file at `path`, which is a `what`.
///
/// # Errors
/// If it cannot be read, or is not to be trusted.
pub fn read(what: &str, path: &Path, reader: Reader) -> Result<String, Failure> {
    let name = path.display().to_string();
    let is_exposed = reader == Reader::Daemon && rustix::process::geteuid().is_root();
    let text = match is_exposed {
        false => fs::File::open(path).and_then(read_bounded),
        true => match trusted::read(path, Secrecy::Open) {
            Ok(bytes) => String::from_utf8(bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
            Err(error) => match error.problem {
                TrustProblem::Io(error) => Err(error),
                _ => {
                    let message = format!("cannot trust the {what} {name}: {error}");
                    return Err(Failure::quoted(Code::Failure, &message));
                }
            },
        },
    };
    text.map_err(|error| unreadable(what, &name, &error))
}

/// All of a text of at most [`LENGTH_MAX`] bytes.
fn read_bounded(from: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    match from.take(LENGTH_MAX + 1).read_to_string(&mut text)? as u64 > LENGTH_MAX {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is longer than {}", Bytes(LENGTH_MAX)),
        )),
        false => Ok(text),
    }
}

/// The failure for a `what` that cannot be read.
pub fn unreadable(what: &str, name: &str, error: &io::Error) -> Failure {
    let help = match error.kind() {
        io::ErrorKind::NotFound if what == "policy" => {
            "check the path; a policy comes from a file, or from - (stdin)"
        }
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::FileTooLarge => "name a file that a person wrote",
        io::ErrorKind::IsADirectory => "name one file in it",
        io::ErrorKind::InvalidData => "it is to be a TOML file, which is text in UTF-8",
        _ => "see whether you may read it",
    };
    Failure::new(Code::Invalid, format!("cannot read the {what} {name}"))
        .cause(error.to_string())
        .help(help)
}

/// The kinds of files that operators write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Tenants and their promises.
    Policy,
    /// Nodes, volumes and gateways.
    Cluster,
}

impl FileKind {
    /// Fields at the top of a file of this kind, and of no other.
    const fn own_fields(self) -> &'static [&'static str] {
        match self {
            Self::Policy => &["tenant", "match", "channel", "resource", "group", "budget"],
            Self::Cluster => &["node", "data-node", "volume", "pool", "gateway", "controller"],
        }
    }

    /// The failure for an invalid text of this kind: if it has the fields of the other kind alone,
    /// that it is the other file; else all errors.
    pub fn invalid(self, name: &str, text: &str, errors: &[TextError]) -> Failure {
        let fields: BTreeMap<String, IgnoredAny> = toml::from_str(text).unwrap_or_default();
        let has = |kind: Self| kind.own_fields().iter().any(|field| fields.contains_key(*field));
        let fail = |message: &str, help: &str| {
            Failure::new(Code::Invalid, format!("{name} {message}")).help(help.to_owned())
        };
        match self {
            Self::Policy if has(Self::Cluster) && !has(Self::Policy) => fail(
                "is a cluster file, and a policy is expected",
                "name a policy there; `tidegate check --cluster FILE` checks a cluster file",
            ),
            Self::Cluster if has(Self::Policy) && !has(Self::Cluster) => fail(
                "is a policy, and a cluster file is expected",
                "name a cluster file there; `tidegate check FILE` checks a policy",
            ),
            _ => all_invalid(name, text, errors),
        }
    }
}

/// The failure for a text in which all of this is wrong.
pub fn all_invalid(name: &str, text: &str, errors: &[TextError]) -> Failure {
    let failures = errors.iter().map(|error| invalid(name, text, error));
    let none = || Failure::new(Code::Invalid, format!("{name} is invalid"));
    Failure::all(failures).unwrap_or_else(none)
}

/// The failure for an invalid text, shown with the place that is wrong.
pub fn invalid(name: &str, text: &str, error: &TextError) -> Failure {
    match error.fix.as_str() {
        "" => wrong(name, text, &error.message, Some(error.span.clone())),
        fix => {
            let failure = Failure::new(Code::Invalid, error.message.clone()).help(fix);
            shown(failure, name, text, Some(error.span.clone()))
        }
    }
}

/// The same for a message that contains the remedy, where the place may not be known.
pub fn wrong(name: &str, text: &str, message: &str, span: Option<Range<usize>>) -> Failure {
    shown(mended(message), name, text, span)
}

/// A failure with its place in the text; with the file's name alone, if that is not known; and
/// without the text, if its line or one beside it is longer than a screen is wide.
fn shown(failure: Failure, name: &str, text: &str, span: Option<Range<usize>>) -> Failure {
    let Some(span) = span else { return failure.at(name) };
    let (before, after) = (&text.as_bytes()[..span.start], &text.as_bytes()[span.start..]);
    let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
    let mut back = before.rsplit(|byte| *byte == b'\n').map(<[u8]>::len);
    let mut ahead = after.split(|byte| *byte == b'\n').map(<[u8]>::len);
    let column = back.next().unwrap_or_default();
    let own = column + ahead.next().unwrap_or_default();
    let beside = back.next().max(ahead.next()).unwrap_or_default();
    if own.max(beside) > LONGEST {
        let line = lines(before) + 1;
        return failure.at(&format!("{name}: line {line}, column {}", column + 1));
    }
    failure.source(name, text, vec![LabeledSpan::new_primary_with_span(None, span)])
}

/// A message that contains the remedy, or has none: that of the TOML reader.
fn mended(message: &str) -> Failure {
    let fail = |message: &str| Failure::new(Code::Invalid, message);
    if let Some((unknown, known)) = message.split_once(", expected one of ") {
        return fail(unknown).help(format!("use one of {known}"));
    }
    if let Some((unknown, known)) = message.split_once(", expected ")
        && unknown.contains("unknown ")
    {
        return fail(unknown).help(format!("use {known}"));
    }
    if let Some((_, field)) = message.split_once("missing field ") {
        return fail(message).help(format!("add {field} to it"));
    }
    let is_invalid = message.contains("invalid type: ") || message.contains("invalid value: ");
    match WANTED.iter().find(|(end, _)| is_invalid && message.ends_with(end)) {
        Some((_, help)) => fail(message).help(*help),
        None => Failure::quoted(Code::Invalid, message),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::Policy;

    use super::*;

    fn text_of(failure: &Failure) -> String {
        serde_json::to_string(&failure.to_json()).unwrap()
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let failure = read("policy", Path::new("/dev/zero"), Reader::User).unwrap_err();
        assert!(text_of(&failure).contains("it is longer than 64MiB"), "{}", text_of(&failure));
    }

    #[test]
    fn expected_types_are_explained_by_the_form_to_write() {
        for (message, help) in [
            ("unknown field `a`, expected `b` or `c`", "use `b` or `c`"),
            ("unknown variant `a`, expected one of `b`, `c`, `d`", "use one of `b`, `c`, `d`"),
            ("invalid value: integer `-1`, expected u32", "whole number from 0 to 4294967295"),
            ("x.y: invalid type: string \"1\", expected f64", "without quotation marks"),
            ("invalid type: floating point `1.5`, expected a string", "a unit, like"),
            ("length: less than it is; make it longer", "make it longer"),
        ] {
            assert!(text_of(&mended(message)).contains(help), "{}", text_of(&mended(message)));
        }
    }

    #[test]
    fn a_file_of_the_other_kind_is_one_error() {
        let cluster = "policy = \"p.toml\"\n[[node]]\nname = \"a\"\n[[gateway]]\nname = \"g\"\n";
        let policy = "period = \"1s\"\n[[tenant]]\nname = \"db\"\n";
        let of = |kind: FileKind, text: &str| {
            let errors = Policy::parse_all(text).err().unwrap_or_default();
            text_of(&kind.invalid("a.toml", text, &errors))
        };
        let found = of(FileKind::Policy, cluster);
        assert!(found.contains("a.toml is a cluster file, and a policy is expected"), "{found}");
        let found = of(FileKind::Cluster, policy);
        assert!(found.contains("a.toml is a policy, and a cluster file is expected"), "{found}");
        let both = of(FileKind::Policy, &format!("{cluster}{policy}"));
        assert!(!both.contains("is expected"), "{both}");
    }

    #[test]
    fn an_endless_line_is_not_shown() {
        let long = "x".repeat(LONGEST + 1);
        let text = format!("\n{long}\nshort\n\nshorter\n");
        let at = |line: &str| {
            let at = text.find(line).unwrap();
            text_of(&wrong("a.toml", &text, "it is wrong", Some(at..at + 1)))
        };
        assert!(at("xx").contains("\"a.toml: line 2, column 1: it is wrong\""), "{}", at("xx"));
        assert!(at("short\n").contains("\"a.toml: line 3, column 1: it is wrong\""));
        assert!(at("shorter").contains("\"it is wrong\",\"file\":\"a.toml\",\"line\":5"));
    }
}
