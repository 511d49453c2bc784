//! All mistakes of a policy or cluster file, reported at once.
//!
//! A reader stops at the first mistake, because later entries may depend on it. A text with a
//! mistake is read again without the entry that the mistake is in, and again, until nothing is
//! wrong any more. A wrong name is not left out, because every element needs one: it is replaced by
//! a placeholder, also wherever it is referred to. A mistake that only follows from what was left
//! out is not reported: an element that lacks something that was left out, a name of an element
//! that was left out, a rule that matches everything because its condition was left out.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::{ReadResult, TextError, Wrong, located, shape};

/// The most mistakes that are reported: an operator with more of them begins with the first.
const MOST: usize = 50;

/// How a mistake begins that is one of the element before.
const OVERSHADOWED: &str = "match: the rule above it ";

/// Reads `text` as a `Raw`, and that as what it means; reports all errors, in the order of the
/// text.
pub(crate) fn read_all<Raw: DeserializeOwned, T>(
    text: &str,
    meaning: impl Fn(Raw) -> ReadResult<T>,
) -> Result<T, Vec<TextError>> {
    let (table, syntax) = DeTable::parse_recoverable(text);
    let mut wrongs: Vec<Wrong> = syntax.iter().take(MOST).map(|error| shape(text, error)).collect();
    let mut rest = Rest {
        table,
        touched: BTreeSet::new(),
        changed: Vec::new(),
        names: Vec::new(),
        placeholders: Vec::new(),
    };
    while wrongs.is_empty() || syntax.is_empty() && wrongs.len() < MOST {
        let raw = Raw::deserialize(Deserializer::from(rest.table.clone()));
        let wrong = match raw.map_err(|error| shape(text, &error)).and_then(&meaning) {
            Ok(value) if wrongs.is_empty() => return Ok(value),
            Ok(_) => break,
            Err(wrong) => wrong,
        };
        let is_reported = wrongs.is_empty() || !rest.explains(&wrong);
        let is_left_out = rest.leave_out(&wrong);
        if is_reported {
            wrongs.push(wrong);
        }
        if !is_left_out {
            break;
        }
    }
    wrongs.sort_by_key(|wrong| wrong.span.start);
    wrongs.dedup_by(|one, other| one.span == other.span && one.message == other.message);
    rest.name_as_written(&mut wrongs);
    Err(wrongs.into_iter().map(|wrong| located(text, wrong)).collect())
}

/// The entries of a text that have not been left out.
struct Rest<'a> {
    table: Spanned<DeTable<'a>>,
    /// The first bytes of elements that lost an entry.
    touched: BTreeSet<usize>,
    /// Fields that lost a part or have a placeholder, each behind the first byte of its element.
    changed: Vec<(usize, String)>,
    /// Names of elements that were left out.
    names: Vec<String>,
    /// The values that were replaced by a placeholder, as written, and their first bytes; empty for
    /// a value that is no string.
    placeholders: Vec<(String, usize)>,
}

fn placeholder(number: usize) -> String {
    format!("stand-in-{number}-")
}

/// Placeholders for values that elements cannot do without, by field.
const PLACEHOLDERS: [(&str, &str); 6] = [
    ("size", "1GiB"),
    ("memory", "64MiB"),
    ("capacity", "1k iops"),
    ("client", "1k iops"),
    ("kind", "no-op"),
    ("rate", "1k iops"),
];

/// Fields, and those of the same element that are right or wrong only beside them.
const DEPENDENT: [(&str, &[&str]); 3] = [
    ("nodes", &["offsets", "size"]),
    ("size", &["offsets"]),
    ("kind", &["rate", "burst", "depth", "weights", "order", "level", "key"]),
];

/// Fields that refer to something by its name.
const REFERENCES: [&str; 5] = ["tenant", "channel", "group", "nodes", "pool"];

/// The field whose keys are names of resources.
const REFERRING_KEYS: &str = "on";

/// The way to an entry: from the outside, what to look for in each table and list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PathStep {
    Key(String),
    Index(usize),
}

impl Rest<'_> {
    /// Whether a mistake follows from what was left out.
    fn explains(&self, wrong: &Wrong) -> bool {
        if self.names.iter().any(|name| wrong.message.contains(&format!("{name:?}"))) {
            return true;
        }
        let Some(way) = self.find(&wrong.span) else {
            return !self.touched.is_empty() || !self.names.is_empty();
        };
        let element = || way.split_last().is_some_and(|(_, way)| self.is_touched(way));
        self.is_touched(&way)
            || self.is_dependent(&way, wrong)
            || self.is_overshadowed(&way, wrong)
            || self.is_of_element(&way, wrong) && element()
    }

    /// Whether the entry is an element of which something was left out.
    fn is_touched(&self, way: &[PathStep]) -> bool {
        let Some(start) = self.span(way).map(|span| span.start) else { return false };
        matches!(way.last(), Some(PathStep::Index(_))) && self.touched.contains(&start)
            || self.placeholders.iter().any(|(_, first)| *first == start)
    }

    /// Whether the mistake is one of a field that depends on another one, which has changed.
    fn is_dependent(&self, way: &[PathStep], wrong: &Wrong) -> bool {
        let Some((_, element)) = way.split_last() else { return false };
        let Some(start) = self.span(element).map(|span| span.start) else { return false };
        let field = wrong.message.split(':').next().unwrap_or_default();
        let is_of = |changed: &str| {
            DEPENDENT.iter().any(|(name, fields)| *name == changed && fields.contains(&field))
        };
        self.changed.iter().any(|(first, changed)| *first == start && is_of(changed))
    }

    /// Whether the mistake is that the element before, which lost a condition, matches everything.
    fn is_overshadowed(&self, way: &[PathStep], wrong: &Wrong) -> bool {
        wrong.message.starts_with(OVERSHADOWED)
            && before(way).is_some_and(|before| self.is_touched(&before))
    }

    /// Leaves out the entry that a mistake is in. False if there is none.
    fn leave_out(&mut self, wrong: &Wrong) -> bool {
        let Some(mut way) = self.find(&wrong.span) else { return false };
        if wrong.message.starts_with(OVERSHADOWED)
            && let Some(before) = before(&way)
        {
            way = before;
        }
        if self.is_of_element(&way, wrong) {
            way.pop();
        } else if let Some(PathStep::Key(key)) = way.last() {
            let key = key.clone();
            let element = self.span(&way[..way.len() - 1]).map(|span| span.start);
            if key == "nodes" && self.leave_out_of_list(&way, wrong) || self.replace(&way, &key) {
                self.changed.extend(element.map(|start| (start, key)));
                return true;
            }
        }
        for length in 1..way.len() {
            if let (PathStep::Index(_), Some(span)) = (&way[length - 1], self.span(&way[..length]))
            {
                self.touched.insert(span.start);
            }
        }
        self.names.extend(self.name(&way));
        remove(self.table.get_mut(), &way)
    }

    /// Whether a mistake is reported at a name, and is one of the whole element.
    fn is_of_element(&self, way: &[PathStep], wrong: &Wrong) -> bool {
        let [.., PathStep::Index(_), PathStep::Key(key)] = way else { return false };
        let is_replaced = || {
            let start = self.span(way).map(|span| span.start);
            self.placeholders.iter().any(|(_, first)| Some(*first) == start)
        };
        key == "name" && (!wrong.message.starts_with("name: ") || is_replaced())
    }

    /// Leaves out those entries of a list that the mistake names, unless they are all.
    fn leave_out_of_list(&mut self, way: &[PathStep], wrong: &Wrong) -> bool {
        let list = value(self.table.get_ref(), way).map(Spanned::get_ref);
        let Some(DeValue::Array(list)) = list else { return false };
        let is_named = |entry: &Spanned<DeValue<'_>>| {
            matches!(entry.get_ref(), DeValue::String(text)
                if wrong.message.contains(&format!("{:?}", text.as_ref())))
        };
        let (named, length) = (list.iter().position(is_named), list.iter().count());
        let Some(named) = named.filter(|_| length > 1) else { return false };
        let mut way = way.to_vec();
        way.push(PathStep::Index(named));
        remove(self.table.get_mut(), &way)
    }

    /// Puts a placeholder in the place of a value that an element cannot do without. False if there
    /// is one already, or none is known.
    fn replace(&mut self, way: &[PathStep], key: &str) -> bool {
        let Some(found) = value(self.table.get_ref(), way) else { return false };
        let at = found.span().start;
        if self.placeholders.iter().any(|(_, first)| *first == at) {
            return false;
        }
        let written = match found.get_ref() {
            DeValue::String(text) => text.to_string(),
            _ => String::new(),
        };
        let is_name = key == "name";
        // A name that was taken is still the first one's.
        let is_taken = is_name && self.is_taken(way, &written);
        let new = match PLACEHOLDERS.iter().find(|(name, _)| *name == key) {
            Some((_, value)) => String::from(*value),
            None if key == "tenant" => {
                self.first_tenant().unwrap_or_else(|| placeholder(self.placeholders.len()))
            }
            None if is_name => placeholder(self.placeholders.len()),
            None => return false,
        };
        self.placeholders.push((written.clone(), at));
        if is_name && !is_taken && !written.is_empty() {
            refer(self.table.get_mut(), &written, &new);
        }
        set(self.table.get_mut(), way, new)
    }

    fn first_tenant(&self) -> Option<String> {
        let way =
            [PathStep::Key("tenant".into()), PathStep::Index(0), PathStep::Key("name".into())];
        match value(self.table.get_ref(), &way)?.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => None,
        }
    }

    /// Whether an element before has this name.
    fn is_taken(&self, way: &[PathStep], name: &str) -> bool {
        let [list @ .., PathStep::Index(index), PathStep::Key(_)] = way else { return false };
        (0..*index).any(|index| {
            let mut other = list.to_vec();
            other.extend([PathStep::Index(index), PathStep::Key("name".into())]);
            let found = value(self.table.get_ref(), &other).map(Spanned::get_ref);
            matches!(found, Some(DeValue::String(text)) if *text == name)
        })
    }

    fn name(&self, way: &[PathStep]) -> Option<String> {
        let mut way = way.to_vec();
        way.push(PathStep::Key("name".into()));
        match value(self.table.get_ref(), &way)?.get_ref() {
            DeValue::String(text) if !text.is_empty() => Some(text.to_string()),
            _ => None,
        }
    }

    /// Says names as they were written.
    fn name_as_written(&self, wrongs: &mut [Wrong]) {
        for (number, (written, _)) in self.placeholders.iter().enumerate() {
            let new = placeholder(number);
            for wrong in wrongs.iter_mut() {
                wrong.message = wrong.message.replace(&new, written);
                wrong.fix = wrong.fix.replace(&new, written);
            }
        }
    }

    fn span(&self, way: &[PathStep]) -> Option<Range<usize>> {
        value(self.table.get_ref(), way).map(Spanned::span)
    }

    /// The smallest entry that these bytes are in.
    fn find(&self, span: &Range<usize>) -> Option<Vec<PathStep>> {
        let mut best = None;
        if !span.is_empty() {
            find_in_table(self.table.get_ref(), span, &mut Vec::new(), &mut best);
        }
        best.map(|(_, way)| way)
    }
}

type Best = Option<(usize, Vec<PathStep>)>;

/// The element before another in a list.
fn before(way: &[PathStep]) -> Option<Vec<PathStep>> {
    let (PathStep::Index(index), list) = way.split_last()? else { return None };
    let mut before = list.to_vec();
    before.push(PathStep::Index(index.checked_sub(1)?));
    Some(before)
}

fn find_in_table(
    table: &DeTable<'_>,
    span: &Range<usize>,
    way: &mut Vec<PathStep>,
    best: &mut Best,
) {
    for (key, value) in table.iter() {
        way.push(PathStep::Key(key.get_ref().to_string()));
        let range = key.span().start.min(value.span().start)..value.span().end;
        find_in_value(value, range, span, way, best);
        way.pop();
    }
}

fn find_in_value(
    value: &Spanned<DeValue<'_>>,
    range: Range<usize>,
    span: &Range<usize>,
    way: &mut Vec<PathStep>,
    best: &mut Best,
) {
    let is_in = range.start <= span.start && span.end <= range.end;
    if is_in && best.as_ref().is_none_or(|(length, _)| range.len() <= *length) {
        *best = Some((range.len(), way.clone()));
    }
    // The entries of a table lie behind its header, and not within the header's bytes.
    match value.get_ref() {
        DeValue::Table(table) => find_in_table(table, span, way, best),
        DeValue::Array(list) => {
            for (index, element) in list.iter().enumerate() {
                way.push(PathStep::Index(index));
                find_in_value(element, element.span(), span, way, best);
                way.pop();
            }
        }
        _ => {}
    }
}

fn value<'a, 'b>(table: &'b DeTable<'a>, way: &[PathStep]) -> Option<&'b Spanned<DeValue<'a>>> {
    let (PathStep::Key(key), rest) = way.split_first()? else { return None };
    let mut at = table.get(key.as_str())?;
    for step in rest {
        at = match (step, at.get_ref()) {
            (PathStep::Key(key), DeValue::Table(table)) => table.get(key.as_str())?,
            (PathStep::Index(index), DeValue::Array(list)) => list.get(*index)?,
            _ => return None,
        };
    }
    Some(at)
}

/// Sets an entry to a text; one that is not there is added.
fn set(table: &mut DeTable<'_>, way: &[PathStep], text: String) -> bool {
    let Some((PathStep::Key(key), rest)) = way.split_first() else { return false };
    let Some(mut at) = table.get_mut(key.as_str()) else { return false };
    for step in rest {
        let next = match (step, at.get_mut()) {
            (PathStep::Key(key), DeValue::Table(table)) => table.get_mut(key.as_str()),
            (PathStep::Index(index), DeValue::Array(list)) => list.get_mut(*index),
            _ => None,
        };
        let Some(next) = next else { return false };
        at = next;
    }
    *at.get_mut() = DeValue::String(text.into());
    true
}

/// Has every reference to a name lead to its placeholder.
fn refer(table: &mut DeTable<'_>, written: &str, new: &str) {
    for (key, value) in table.iter_mut() {
        let is_reference = REFERENCES.contains(&key.get_ref().as_ref());
        if key.get_ref() == REFERRING_KEYS
            && let DeValue::Table(promises) = value.get_mut()
            && let Some((key, promise)) = promises.remove_entry(written)
        {
            promises.insert(Spanned::new(key.span(), String::from(new).into()), promise);
        }
        refer_in(value.get_mut(), is_reference, written, new);
    }
}

fn refer_in(value: &mut DeValue<'_>, is_reference: bool, written: &str, new: &str) {
    match value {
        DeValue::String(text) if is_reference && *text == written => {
            *text = String::from(new).into();
        }
        DeValue::Array(list) => {
            list.iter_mut().for_each(|it| refer_in(it.get_mut(), is_reference, written, new));
        }
        DeValue::Table(table) => refer(table, written, new),
        _ => {}
    }
}

/// Takes an entry out of a table, or of what is below it.
fn remove(table: &mut DeTable<'_>, way: &[PathStep]) -> bool {
    let Some((PathStep::Key(key), rest)) = way.split_first() else { return false };
    if rest.is_empty() {
        return table.remove(key.as_str()).is_some();
    }
    table.get_mut(key.as_str()).is_some_and(|value| remove_from(value.get_mut(), rest))
}

fn remove_from(value: &mut DeValue<'_>, way: &[PathStep]) -> bool {
    match (value, way) {
        (DeValue::Table(table), way) => remove(table, way),
        (DeValue::Array(list), [PathStep::Index(index)]) => {
            let kept = mem::replace(list, DeArray::new()).into_iter().enumerate();
            let before = kept.len();
            kept.filter(|(start, _)| start != index).for_each(|(_, element)| list.push(element));
            list.len() < before
        }
        (DeValue::Array(list), [PathStep::Index(index), rest @ ..]) => {
            list.get_mut(*index).is_some_and(|it| remove_from(it.get_mut(), rest))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, Policy};
    use proptest::prelude::*;

    /// The line and the first words of each error.
    fn messages(errors: Vec<TextError>) -> Vec<(usize, String)> {
        let short = |message: &str| message.chars().take(28).collect();
        errors.into_iter().map(|error| (error.line, short(&error.message))).collect()
    }

    fn lines(messages: &[(usize, String)]) -> Vec<usize> {
        messages.iter().map(|(line, _)| *line).collect()
    }

    #[test]
    fn all_errors_of_a_policy_are_reported_at_once() {
        let text = r#"period = "1"
budget = 5
bugdet = "x"
[[tenant]]
name = "a b"
weight = 0
limit = ["1MiB/s", "2MiB/s"]
[[tenant]]
name = "kv"
class = "hi"
colour = "red"
[[tenant]]
name = "kv"
[[tenant]]
weight = 7
[[channel]]
name = "c"
tenant = "a b"
[[match]]
tenant = "kw"
process = "y"
[[match]]
channel = "c"
size = "big"
[[match]]
tenant = "kv"
operation = "fly"
[[match]]
tenant = "kv"
process = "x"
"#;
        let messages = messages(Policy::parse_all(text).unwrap_err());
        // Not reported: that what names the tenant "a b" or the channel "c" names none, that rules
        // without their condition match everything, that a tenant without its name has none.
        assert_eq!(
            lines(&messages),
            [1, 2, 3, 5, 6, 7, 10, 11, 13, 14, 20, 24, 27],
            "{messages:#?}"
        );
    }

    #[test]
    fn all_errors_of_a_cluster_are_reported_at_once() {
        let text = r#"scheduler = "best"
[[node]]
name = "a"
capacity = "0 iops"
memory = true
[[node]]
name = "a"
memory = true
[[node]]
name = "b"
[[gateway]]
name = "front"
nbd = "nowhere"
[[volume]]
name = "v"
size = "5B"
tenant = "t"
nodes = ["a", "zz"]
stripe = "3KiB"
"#;
        let messages = messages(Cluster::parse_all(text).unwrap_err());
        assert_eq!(lines(&messages), [1, 4, 7, 10, 13, 16, 18, 19], "{messages:#?}");
    }

    #[test]
    fn what_follows_from_a_field_beside_it_is_not_reported() {
        let device = |name| format!("[[node]]\nname = {name:?}\ndevice = \"{name}.img\"\n");
        let volume = "[[volume]]\nname = \"v\"\nsize = \"1GiB\"\ntenant = \"t\"\n\
                      nodes = [\"z\", \"b\"]\noffsets = [\"0B\", \"0B\"]\n";
        let cluster = device("a") + &device("b") + volume;
        let found = messages(Cluster::parse_all(&cluster).unwrap_err());
        assert_eq!(found, [(11, "nodes: none is \"z\"".into())]);
        let policy = "tenant = [{ name = \"kv\" }]\n[[channel]]\nname = \"c\"\ntenant = \"kv\"\n\
                      gates = [{ kind = \"token_bucket\", rate = \"1MiB/s\", burst = \"1MiB\" }]\n";
        let found = messages(Policy::parse_all(policy).unwrap_err());
        assert_eq!(found, [(5, "kind: \"token_bucket\" is not ".into())]);
    }

    #[test]
    fn frequent_errors_of_the_form_have_a_fix() {
        let fix = |text: &str| {
            let error = Policy::parse_all(text).unwrap_err().remove(0);
            assert_eq!(Policy::parse(text).unwrap_err(), error);
            format!("{}; {}", error.message, error.fix)
        };
        assert_eq!(
            fix("period = \"1s\"\n[tenant]\nname = \"db\"\n"),
            "tenant: there may be several, so it stands in two pairs of brackets; write [[tenant]]"
        );
        assert_eq!(
            fix("budget = 100MiB/s\n"),
            "100MiB/s is not in quotation marks; write \"100MiB/s\""
        );
    }

    #[test]
    fn syntax_errors_are_reported_together() {
        let text = "a = [1\nb = \nc == 3\n";
        let messages = messages(Policy::parse_all(text).unwrap_err());
        assert!(messages.len() >= 2, "{messages:?}");
    }

    #[test]
    fn reading_a_text_with_many_mistakes_terminates() {
        let text = "[[tenant]]\nname = \"\"\n".repeat(200);
        assert_eq!(Policy::parse_all(&text).unwrap_err().len(), MOST);
        assert_eq!(Cluster::parse_all("").unwrap_err().len(), 1);
        assert_eq!(Cluster::parse_all("[[node]]\nname = \"a\"\n").unwrap_err().len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn all_begins_with_the_first(text in "[a-z\\[\\]=\"{}\n 0-9]{0,200}") {
            match (Policy::parse(&text), Policy::parse_all(&text)) {
                (Ok(one), Ok(other)) => prop_assert_eq!(one, other),
                (Err(first), Err(all)) => {
                    prop_assert!(all.iter().any(|error| error.line == first.line), "{:?}", all);
                }
                (one, all) => prop_assert!(false, "{one:?} {all:?}"),
            }
        }
    }
}
