//! Readers of the files that operators write: TOML in which every value keeps its place. An error
//! names the line, the field and the way to mend the value.
//!
//! A reader takes two steps: first the shape (serde, unknown fields refused), then the meaning, one
//! small function for each thing. This module has what the readers of all files have in common.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

mod all;

pub(crate) use all::read_all;

/// An error in a text, with its place and the way to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}{}{fix}", if fix.is_empty() { "" } else { "; " })]
pub struct TextError {
    /// The error in words, beginning with the field.
    pub message: String,
    /// The way to mend the error; may be empty where the message is sufficient.
    pub fix: String,
    /// The bytes of the text that are wrong.
    pub span: Range<usize>,
    /// The line of the span's start, counting from one.
    pub line: usize,
    /// The column of the span's start in characters, counting from one.
    pub column: usize,
}

/// More names than this are counted.
const LISTED_MAX: usize = 12;

/// Names as in a sentence: `a, b and c`, or the first of them and how many more.
pub fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [name] => name.clone(),
        [names @ .., last] if names.len() < LISTED_MAX => {
            format!("{} and {last}", names.join(", "))
        }
        names => {
            let (named, others) = names.split_at(LISTED_MAX);
            format!("{} and {} more", named.join(", "), others.len())
        }
    }
}

/// The longest name of anything, in bytes; it must fit a fixed field of a segment.
const NAME_MAX: usize = 63;

/// A string and its place.
pub(crate) type Text = Spanned<String>;

/// One string, or a list of them.
#[derive(Default)]
pub(crate) struct Strings(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Strings, E> {
                Ok(Strings([text.to_owned()].into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strings, A::Error> {
                let mut strings = Vec::new();
                while let Some(text) = seq.next_element()? {
                    strings.push(text);
                }
                Ok(Strings(strings))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// An error before its line is counted.
pub(crate) struct Wrong {
    pub(crate) span: Range<usize>,
    pub(crate) message: String,
    pub(crate) fix: String,
}

pub(crate) type ReadResult<T> = Result<T, Wrong>;

pub(crate) fn wrong<T>(
    span: Range<usize>,
    message: impl fmt::Display,
    fix: impl fmt::Display,
) -> ReadResult<T> {
    Err(Wrong { span, message: message.to_string(), fix: fix.to_string() })
}

/// Reads `text` as a `Raw`, and that as what it means.
pub(crate) fn read<Raw: DeserializeOwned, T>(
    text: &str,
    meaning: impl FnOnce(Raw) -> ReadResult<T>,
) -> Result<T, TextError> {
    let raw = toml::from_str(text).map_err(|error| located(text, shape(text, &error)))?;
    meaning(raw).map_err(|wrong| located(text, wrong))
}

/// Converts an error of the TOML reader. Two that are frequent get a fix.
fn shape(text: &str, error: &toml::de::Error) -> Wrong {
    let span = error.span().unwrap_or(0..0);
    let message = error.message().trim_end().replace('\n', ", ");
    let found = text.get(span.clone()).and_then(|found| found.lines().next());
    let found = found.map_or("", str::trim);
    if message.starts_with(UNQUOTED) && !found.is_empty() {
        let message = format!("{found} is not in quotation marks");
        return Wrong { span, message, fix: format!("write {found:?}") };
    }
    let header = found.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let header = header.filter(|name| !name.starts_with('[') && message == TABLE_FOR_LIST);
    if let Some(name) = header {
        let message =
            format!("{name}: there may be several, so it stands in two pairs of brackets");
        return Wrong { span, message, fix: format!("write [[{name}]]") };
    }
    if let Some((found, expected)) = message.rsplit_once(", expected ") {
        let fix = match expected {
            "i64" | "u64" | "u32" | "u16" | "u8" => "write a whole number, such as 3",
            "f64" => "write a number, such as 0.5",
            "a boolean" => "write true or false",
            _ => return Wrong { span, message, fix: String::new() },
        };
        return Wrong { span, message: found.into(), fix: fix.into() };
    }
    Wrong { span, message, fix: String::new() }
}

/// How errors of the TOML reader begin, or are, that [`shape`] explains.
const UNQUOTED: &str = "string values must be quoted";
const TABLE_FOR_LIST: &str = "invalid type: map, expected a sequence";

pub(crate) fn located(text: &str, wrong: Wrong) -> TextError {
    let before = &text[..wrong.span.start.min(text.len())];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    TextError {
        message: wrong.message,
        fix: wrong.fix,
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        span: wrong.span,
    }
}

pub(crate) fn name(what: &str, text: &Text, taken: bool) -> ReadResult<String> {
    let name = text.get_ref();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
        return wrong(
            text.span(),
            format!("name: {name:?} is no name for a {what}"),
            format!("use 1 to {NAME_MAX} letters, digits, '_', '-' or '.'"),
        );
    }
    if taken {
        return wrong(text.span(), format!("name: {name:?} is taken"), "choose another name");
    }
    Ok(name.clone())
}

pub(crate) fn quantity<T: FromStr<Err: fmt::Display>>(
    field: &str,
    text: Option<&Text>,
) -> ReadResult<Option<T>> {
    let Some(text) = text else { return Ok(None) };
    match text.get_ref().parse() {
        Ok(value) => Ok(Some(value)),
        Err(error) => wrong(text.span(), format!("{field}: {error}"), ""),
    }
}

pub(crate) fn count(
    field: &str,
    value: Option<&Spanned<i64>>,
    most: i64,
) -> ReadResult<Option<u32>> {
    let Some(value) = value else { return Ok(None) };
    let number = *value.get_ref();
    if (1..=most).contains(&number) {
        return Ok(Some(number as u32));
    }
    let fix = format!("use 1 to {most}");
    wrong(value.span(), format!("{field}: {number} is out of range"), fix)
}

pub(crate) fn choice<T: Copy + Default>(
    field: &str,
    text: Option<&Text>,
    known: &[(&str, T)],
) -> ReadResult<T> {
    let Some(text) = text else { return Ok(T::default()) };
    let word = text.get_ref();
    if let Some((_, value)) = known.iter().find(|(name, _)| name == word) {
        return Ok(*value);
    }
    let fix = nearest(word, known.iter().map(|(name, _)| *name));
    wrong(text.span(), format!("{field}: {word:?} is not a choice"), fix)
}

/// "did you mean", by edit distance, or the list where nothing is near.
pub(crate) fn nearest<'a>(wanted: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let best = known.clone().min_by_key(|name| distance(wanted, name));
    match best {
        None => String::from("none is defined"),
        // Of a name with one letter, any other is a mistake.
        Some(name) if distance(wanted, name) < name.len().min(3) => {
            format!("did you mean {name:?}?")
        }
        Some(_) => {
            let names = known.take(10).collect::<Vec<_>>().join(", ");
            format!("known are {names}")
        }
    }
}

/// The same for the name of an entry of the file's `[[table]]`, which can also be added.
pub(crate) fn nearest_in<'a>(
    table: &str,
    wanted: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    let add = format!("add [[{table}]] with name = {wanted:?}");
    match known.clone().next() {
        None => add,
        Some(_) => {
            let nearest = nearest(wanted, known);
            if nearest.ends_with('?') { nearest } else { format!("{nearest}; or {add}") }
        }
    }
}

/// Levenshtein distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b = b.chars().collect::<Vec<_>>();
    let mut row = (0..=b.len()).collect::<Vec<_>>();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_counted() {
        let names: Vec<String> = (0..14).map(|name| name.to_string()).collect();
        assert_eq!(listed(&names[..1]), "0");
        assert_eq!(listed(&names[..12]), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 11");
        assert!(listed(&names).ends_with("10, 11 and 2 more"));
    }
}
