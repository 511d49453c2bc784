//! The points of a sweep: a scenario with some of its keys set to each of some values.
//!
//! *Example*: `transport.law=dctcp,qtcp` and `application.0.workload.load.open.rate=30Gbps,60Gbps`
//! are four points, in the order of the keys: the last one changes first. A value is TOML where it
//! is some (`2`, `0.5`, `true`, `[3, 2, 1]`), and else text without quotation marks (`30Gbps`). A
//! number between points is an index of a list. A key that the scenario does not have is added; if
//! there is no such thing, the scenario's own strict reader refuses it.

use toml::{Table, Value};

/// The most points of a sweep: the output of each is kept in memory until all are done.
const POINTS_MAX: usize = 100_000;

/// A key, and the values that it is to have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) key: String,
    pub(super) values: Vec<Value>,
}

impl std::str::FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write it like transport.law=dctcp,qtcp";
        let (key, values) =
            text.split_once('=').ok_or_else(|| format!("it has no values; {form}"))?;
        let key = key.trim();
        if key.is_empty() || key.split('.').any(str::is_empty) {
            return Err(format!("{key:?} is no key; {form}"));
        }
        let values: Vec<&str> = parts(values);
        if values.iter().any(|value| value.is_empty()) {
            return Err(format!("a value of {key} is empty; {form}"));
        }
        let values = values.into_iter().map(value).collect();
        Ok(Self { key: key.to_owned(), values })
    }
}

/// Splits a text at the commas that are in no brackets and no quotation marks.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut quote, mut is_escaped) = (0i32, None, false);
    let is_between = move |character: char| {
        let was_escaped = core::mem::replace(&mut is_escaped, false);
        match (character, quote) {
            _ if was_escaped => {}
            ('\\', Some('"')) => is_escaped = true,
            ('"' | '\'', None) => quote = Some(character),
            (_, Some(open)) if character == open => quote = None,
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0 && quote.is_none()
    };
    text.split(is_between).map(str::trim).collect()
}

fn value(text: &str) -> Value {
    let read: Option<Table> = toml::from_str(&format!("value = {text}")).ok();
    let read = read.and_then(|mut table| table.remove("value"));
    // A day is no value of any key; what looks like one is a name.
    let read = read.filter(|value| !matches!(value, Value::Datetime(_)));
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}

pub(super) fn formatted(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => json(other).to_string(),
    }
}

/// The same for programs.
pub(super) fn json(value: &Value) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// All points, each with the values of all keys, in their order.
pub(super) fn points(axes: &[Axis]) -> Result<Vec<Vec<Value>>, String> {
    for (index, axis) in axes.iter().enumerate() {
        if axes[..index].iter().any(|other| other.key == axis.key) {
            return Err(format!("{} is swept twice; give all its values at once", axis.key));
        }
    }
    let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()));
    if count.is_none_or(|count| count > POINTS_MAX) {
        return Err(format!("more than {POINTS_MAX} points; sweep fewer values at a time"));
    }
    let mut points = vec![Vec::new()];
    for axis in axes {
        let longer = |point: Vec<Value>| {
            let with = move |value: &Value| {
                let mut point = point.clone();
                point.push(value.clone());
                point
            };
            axis.values.iter().map(with)
        };
        points = points.into_iter().flat_map(longer).collect();
    }
    Ok(points)
}

/// Sets a key, which is written with points.
pub(super) fn set(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let mut names = key.split('.');
    let mut last = names.next_back().unwrap_or_default();
    let mut names: Vec<&str> = names.collect();
    // For an element of a list, the list is looked up in the table that holds it.
    let mut index = None;
    if let Ok(number) = last.parse::<usize>()
        && let Some(list) = names.pop()
    {
        (index, last) = (Some(number), list);
    }
    let mut at: &mut Table = table;
    let mut names = names.into_iter().peekable();
    while let Some(name) = names.next() {
        let next = at.entry(name).or_insert_with(|| Value::Table(Table::new()));
        at = match next {
            Value::Table(inner) => inner,
            Value::Array(items) => {
                let count = items.len();
                let number = names.next().and_then(|number| number.parse::<usize>().ok());
                match number.and_then(|number| items.get_mut(number)) {
                    Some(Value::Table(inner)) => inner,
                    _ => return Err(among(key, name, count)),
                }
            }
            _ => return Err(format!("{key}: {name} has no keys, it is a value")),
        };
    }
    let Some(index) = index else {
        at.insert(last.to_owned(), value);
        return Ok(());
    };
    match at.get_mut(last) {
        Some(Value::Array(items)) if index < items.len() => items[index] = value,
        Some(Value::Array(items)) => return Err(among(key, last, items.len())),
        _ => return Err(format!("{key}: {last} is no list")),
    }
    Ok(())
}

fn among(key: &str, list: &str, count: usize) -> String {
    let last = count.max(1) - 1;
    format!("{key}: {list} is a list of {count}; write {list}.0 to {list}.{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(text: &str) -> Axis {
        text.parse().unwrap()
    }

    #[test]
    fn values_are_toml_or_else_text() {
        let values = |text: &str| axis(&format!("key={text}")).values;
        assert_eq!(values("1,2"), [Value::Integer(1), Value::Integer(2)]);
        assert_eq!(values("true, 0.5"), [Value::Boolean(true), Value::Float(0.5)]);
        assert_eq!(values("30Gbps,60Gbps").len(), 2);
        assert_eq!(values("30Gbps")[0], Value::String("30Gbps".into()));
        assert_eq!(values("\"a,b\",'c'").len(), 2);
        assert_eq!(values(r#""a\",b",'c\',d"#)[0], Value::String("a\",b".into()));
        assert_eq!(values("[3,2,1],[1,1,1]")[1], Value::Array(vec![Value::Integer(1); 3]));
        assert_eq!(values("{ fixed = \"4KiB\" },sequential").len(), 2);
        assert_eq!(values("2026-01-01")[0], Value::String("2026-01-01".into()));
        for wrong in ["key", "=1", "a..b=1", "key=", "key=1,,2"] {
            assert!(wrong.parse::<Axis>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_last_key_changes_first() {
        let points = points(&[axis("a=1,2"), axis("b=x,y")]).unwrap();
        let formatted: Vec<String> =
            points.iter().map(|point| point.iter().map(formatted).collect::<String>()).collect();
        assert_eq!(formatted, ["1x", "1y", "2x", "2y"]);
        assert_eq!(super::points(&[]).unwrap(), [Vec::<Value>::new()]);
        assert!(super::points(&[axis("a=1"), axis("a=2")]).unwrap_err().contains("twice"));
        let many = Axis { key: "a".into(), values: vec![Value::Boolean(true); 400] };
        let other = Axis { key: "b".into(), ..many.clone() };
        assert!(super::points(&[many, other]).unwrap_err().contains("100000"));
    }

    #[test]
    fn keys_are_set_where_they_are_or_are_added() {
        let text = "a = 1\nb = { c = 2 }\nlist = [{ x = 1 }, { x = 2 }]\nplain = [3, 2, 1]";
        let with = |key: &str| -> Result<String, String> {
            let mut table: Table = toml::from_str(text).unwrap();
            set(&mut table, key, Value::Integer(9))?;
            Ok(json(&Value::Table(table)).to_string())
        };
        for (key, holds) in [
            ("a", r#""a":9"#),
            ("b.c", r#""c":9"#),
            ("b.d.e", r#"{"e":9}"#),
            ("list.1.x", r#"{"x":9}"#),
            ("list.0.y.z", r#""y":{"z":9}"#),
            ("plain.2", "[3,2,9]"),
        ] {
            let formatted = with(key);
            assert!(
                formatted.as_ref().is_ok_and(|formatted| formatted.contains(holds)),
                "{key}: {formatted:?}"
            );
        }
        for (key, message) in [
            ("a.b", "it is a value"),
            ("list.2.x", "list.0 to list.1"),
            ("list.x", "list.0 to list.1"),
            ("plain.3", "plain.0 to plain.2"),
            ("b.0", "b is no list"),
        ] {
            assert!(with(key).unwrap_err().contains(message), "{key}: {:?}", with(key));
        }
    }
}
