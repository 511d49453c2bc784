//! Parser of a cluster file's scheduler and of the unit of its shares.

use alloc::format;
use alloc::string::String;
use core::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use toml::Spanned;

use crate::cost::{Combine, CostModel, DeviceCost, LineCost};
use crate::discipline::{DISCIPLINES, Discipline};
use crate::text::{ReadResult, Text, choice, quantity, wrong};
use crate::units::Span;

/// No request costs more than 32 bits of nanoseconds.
const COST_MAX: Span = Span(4 * Span::SECOND.0);

/// A word, or a table for a device.
pub(super) enum RawCost {
    Word(String),
    Device(RawDevice),
}

impl<'de> Deserialize<'de> for RawCost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordOrTable;
        impl<'de> Visitor<'de> for WordOrTable {
            type Value = RawCost;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"requests\", \"bytes\" or a table of what a device takes")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<RawCost, E> {
                Ok(RawCost::Word(word.into()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawCost, A::Error> {
                RawDevice::deserialize(MapAccessDeserializer::new(map)).map(RawCost::Device)
            }
        }
        deserializer.deserialize_any(WordOrTable)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDevice {
    read: RawLine,
    write: Option<RawLine>,
    combine: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
    base: Text,
    per_mib: Text,
}

pub(super) fn scheduler(text: &Text) -> ReadResult<Discipline> {
    choice("scheduler", Some(text), &DISCIPLINES.map(|(discipline, name)| (name, discipline)))
}

pub(super) fn cost(raw: &Spanned<RawCost>) -> ReadResult<CostModel> {
    match raw.get_ref() {
        RawCost::Word(word) => {
            let text = Spanned::new(raw.span(), word.clone());
            let known = [("requests", CostModel::Requests), ("bytes", CostModel::Bytes)];
            choice("cost", Some(&text), &known)
        }
        RawCost::Device(raw) => {
            let read = line(&raw.read)?;
            let write = raw.write.as_ref().map(line).transpose()?.unwrap_or(read);
            let known = [("sum", Combine::Sum), ("max", Combine::Max)];
            let combine = choice("combine", raw.combine.as_ref(), &known)?;
            Ok(CostModel::Device(DeviceCost { read, write, combine }))
        }
    }
}

fn line(raw: &RawLine) -> ReadResult<LineCost> {
    let span = |field: &str, text: &Text| {
        let span = quantity(field, Some(text))?.unwrap_or(Span::ZERO);
        if span > COST_MAX {
            let message = format!("{field}: {span} is more than a request can cost");
            return wrong(text.span(), message, format!("use {COST_MAX} at most"));
        }
        Ok(span)
    };
    Ok(LineCost { base: span("base", &raw.base)?, per_mib: span("per_mib", &raw.per_mib)? })
}
