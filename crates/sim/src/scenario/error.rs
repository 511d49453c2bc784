//! Errors of a scenario: the key, its line and column, and a valid value.
//!
//! Checks have keys, not lines: a scenario may come from a file, from a point of a sweep or from
//! code. So an error has the key, with points and list indexes as `--sweep` takes it, and the
//! holder of the text finds its line. An error on a key that is not in the text (its default is
//! wrong, or it is missing) points to the innermost key around it.

use core::fmt;
use core::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Error of a scenario, with its key, its place in the text, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// Empty if it is about all of it.
    key: String,
    what: String,
    location: Option<Location>,
}

/// Where in a text something stands.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Location {
    span: Range<usize>,
    line: usize,
    column: usize,
}

impl ScenarioError {
    /// One from a sentence, with the key before a colon if it is about one.
    pub fn new(sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        let is_key =
            |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        match sentence.split_once(": ").filter(|(key, _)| is_key(key)) {
            Some((key, what)) => Self::of_key(key, what),
            None => Self::of_key("", sentence),
        }
    }

    /// One about a key.
    pub(crate) fn of_key(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), what: what.into(), location: None }
    }

    /// Converts an error of the TOML reader; with a text, the reader has the position in it.
    pub(super) fn of_toml(error: &toml::de::Error, text: Option<&str>) -> Self {
        let what = error.message().trim_end().replace('\n', ", ");
        if let (Some(text), Some(span)) = (text, error.span()) {
            return Self { key: String::new(), what, location: Some(Location::new(text, span)) };
        }
        // Of a table, the key is only in the last line.
        let text_of_error = error.to_string();
        let last = text_of_error.trim_end().rsplit('\n').next().unwrap_or_default();
        let key = last.strip_prefix("in `").and_then(|key| key.strip_suffix('`'));
        Self::of_key(key.unwrap_or_default(), what)
    }

    /// The same, of what stands under another key.
    #[must_use]
    pub fn within(mut self, key: &str) -> Self {
        let inner = core::mem::take(&mut self.key);
        self.key = if inner.is_empty() { key.to_owned() } else { format!("{key}.{inner}") };
        self
    }

    /// The same, with its place in this text, if that can be found and is not known yet.
    #[must_use]
    pub fn located(mut self, text: &str) -> Self {
        if self.location.is_none() && !self.key.is_empty() {
            self.location = find(text, &self.key).map(|span| Location::new(text, span));
        }
        self
    }

    /// The key that it is about, with points; empty if it is about all of it, or the reader of TOML
    /// named none.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the error and its remedy, beginning with the key, without the place.
    pub fn message(&self) -> String {
        match self.key.as_str() {
            "" => self.what.clone(),
            key => format!("{key}: {}", self.what),
        }
    }

    /// The bytes of the text that it is about, if the text was available.
    pub fn span(&self) -> Option<Range<usize>> {
        self.location.as_ref().map(|location| location.span.clone())
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Location { line, column, .. }) = &self.location {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.message())
    }
}

impl core::error::Error for ScenarioError {}

impl Location {
    fn new(text: &str, span: Range<usize>) -> Self {
        let before = &text.as_bytes()[..span.start.min(text.len())];
        let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let column = String::from_utf8_lossy(&before[begin..]).chars().count() + 1;
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        // The span of a missing key is the whole text, so only its first line is marked.
        let own = &text.as_bytes()[span.start.min(text.len())..span.end.min(text.len())];
        let length = own.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(own.len());
        Self { span: span.start..span.start + length, line, column }
    }
}

/// Where a key stands in a text, or else the innermost of those that it would stand in.
fn find(text: &str, key: &str) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    let mut names = key.split('.');
    let (name, mut value) = document.get_ref().get_key_value(names.next()?)?;
    let mut found = whole(name.span(), value.span());
    for name in names {
        let inner = match value.get_ref() {
            DeValue::Table(table) => {
                let inner = table.get_key_value(name);
                inner.map(|(name, value)| (whole(name.span(), value.span()), value))
            }
            DeValue::Array(items) => {
                let location = name.parse::<usize>().ok();
                location.and_then(|location| items.get(location)).map(|item| (item.span(), item))
            }
            _ => None,
        };
        let Some((span, inner)): Option<(Range<usize>, &Spanned<DeValue<'_>>)> = inner else {
            break;
        };
        (found, value) = (span, inner);
    }
    Some(found)
}

/// A key and its value, if they stand side by side: keys of a table stand in its header.
fn whole(name: Range<usize>, value: Range<usize>) -> Range<usize> {
    name.start..if value.start >= name.end { value.end } else { name.end }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "seed = 1\n[network]\nswitch = { buffer = \"1MB\" }\n\
                        [network.topology.list]\nhosts = [\"a\", \"b\"]\n\
                        [[application]]\nfrom = 0\n\n[[application]]\nfrom = 1\n\
                        workload.load.open.rate = \"0B/s\"\n";

    #[track_caller]
    fn assert_located(key: &str, at: &str) {
        let error = ScenarioError::of_key(key, "wrong").located(TEXT);
        let span = error.span().unwrap();
        assert_eq!(&TEXT[span.clone()], at, "{key}");
        let line = TEXT[..span.start].matches('\n').count() + 1;
        assert!(error.to_string().starts_with(&format!("line {line}, column ")), "{error}");
    }

    #[test]
    fn a_key_is_located_where_it_is_or_would_be() {
        assert_located("seed", "seed = 1");
        assert_located("network.switch.buffer", "buffer = \"1MB\"");
        assert_located("network.switch.reserve", "switch = { buffer = \"1MB\" }");
        assert_located("network.topology.list.hosts.1", "\"b\"");
        assert_located("application.1.from", "from = 1");
        assert_located("application.0.weight", "[[application]]");
        assert_located("application.1.workload.load.open.rate", "rate = \"0B/s\"");
        assert_eq!(ScenarioError::of_key("promises.every", "wrong").located(TEXT).span(), None);
    }

    #[test]
    fn a_key_starts_at_the_root() {
        let error = ScenarioError::new("switch.buffer: at least 1 byte").within("network");
        assert_eq!(error.key(), "network.switch.buffer");
        assert_eq!(error.to_string(), "network.switch.buffer: at least 1 byte");
        let error = ScenarioError::new("in one sentence: no key").within("application.0");
        assert_eq!(error.message(), "application.0: in one sentence: no key");
    }

    #[test]
    fn a_reader_of_tables_reports_keys_and_a_reader_of_text_reports_lines() {
        #[derive(Debug, serde::Deserialize)]
        struct Outer {
            #[expect(dead_code, reason = "it is never read")]
            inner: std::collections::BTreeMap<String, u32>,
        }
        let text = "[inner]\nseed = -1\n";
        let wrong = |error: &toml::de::Error, text| ScenarioError::of_toml(error, text).to_string();
        let error = toml::from_str::<Outer>(text).unwrap_err();
        assert!(wrong(&error, Some(text)).starts_with("line 2, column 8: invalid value"));
        let table: toml::Table = toml::from_str(text).unwrap();
        let error = table.try_into::<Outer>().unwrap_err();
        assert!(wrong(&error, None).starts_with("inner.seed: invalid value"), "{error}");
    }
}
