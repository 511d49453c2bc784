//! Parsers of the fields of a trace line: strict, with an error for each malformed field.

use tidegate_model::Bytes;

use super::TraceProblem;

/// How much of what was found an error shows, in letters.
const SHOWN: usize = 40;

/// The beginning of what was found.
pub(super) fn beginning(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// One that is wrong.
pub(super) fn wrong(name: &'static str, found: &str, expected: &'static str) -> TraceProblem {
    TraceProblem::Field { name, found: beginning(found), expected }
}

/// Exactly so many of them.
pub(super) fn exactly<'a, const N: usize>(
    fields: impl Iterator<Item = &'a str>,
    expected: &'static str,
) -> Result<[&'a str; N], TraceProblem> {
    let (mut all, mut found) = ([""; N], 0);
    for field in fields {
        if let Some(slot) = all.get_mut(found) {
            *slot = field.trim();
        }
        found += 1;
    }
    if found == N { Ok(all) } else { Err(TraceProblem::Fields { found, expected }) }
}

/// A whole number, in decimal digits alone.
pub(super) fn number(name: &'static str, text: &str) -> Result<u64, TraceProblem> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| wrong(name, text, "a whole number from 0 to 2^64 - 1"))
}

/// The number of a device.
pub(super) fn device(text: &str) -> Result<u32, TraceProblem> {
    let number = number("device", text).ok().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| wrong("device", text, "a whole number from 0 to 2^32 - 1"))
}

/// A decimal number, in units of its ninth decimal.
pub(super) fn billionths(name: &'static str, text: &str) -> Result<u64, TraceProblem> {
    let fail = || wrong(name, text, "a number from 0 to 1.8e10 with at most nine decimals");
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = decimals.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || decimals.is_empty() || decimals.len() > 9 {
        return Err(fail());
    }
    let whole = number(name, whole).map_err(|_| fail())?;
    let part = decimals.bytes().fold(0, |part, digit| part * 10 + u64::from(digit - b'0'));
    let part = part * 10u64.pow(9 - decimals.len() as u32);
    let sum = whole.checked_mul(1_000_000_000).and_then(|whole| whole.checked_add(part));
    sum.ok_or_else(fail)
}

/// Where a request begins and how much it moves, both in units of so many bytes.
pub(super) fn extent(offset: &str, size: &str, unit: u64) -> Result<[Bytes; 2], TraceProblem> {
    let [start, length] = [number("offset", offset)?, number("size", size).unwrap_or(0)];
    if length == 0 {
        return Err(wrong("size", size, "a whole number from 1 to 2^64 - 1"));
    }
    let bytes = [start, length].map(|count| count.checked_mul(unit));
    match bytes {
        [Some(start), Some(length)] if start.checked_add(length).is_some() => {
            Ok([Bytes(start), Bytes(length)])
        }
        _ => Err(wrong("offset", offset, "a place from which all bytes lie below 2^64")),
    }
}
