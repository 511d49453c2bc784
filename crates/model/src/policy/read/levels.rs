//! Parser of levels: rates, limits, reservations and capacities, and bursts of buckets.

use alloc::format;
use core::ops::Range;

use toml::Spanned;

use super::super::Levels;
use crate::gate::{Burst, Throughput};
use crate::text::{ReadResult, Strings, Text, wrong};
use crate::units::{self, Bytes, Iops, Rate, Span, UnitProblem};

/// A capacity that is found while programs run.
pub(crate) const MEASURED: &str = "measured";

/// Reads a throughput.
pub(super) fn throughput(field: &str, text: &str, span: Range<usize>) -> ReadResult<Throughput> {
    let level = match (text.parse::<Iops>(), text.parse::<Rate>()) {
        (Ok(iops), _) => Throughput::Operations(iops),
        (_, Ok(rate)) => Throughput::Bandwidth(rate),
        (Err(as_operations), Err(as_bandwidth)) => {
            // The parser that knows the unit says what is wrong with the number.
            let is_unknown = as_bandwidth.problem == UnitProblem::UnknownUnit;
            let error = if is_unknown { as_operations } else { as_bandwidth };
            let is_known = error.problem != UnitProblem::UnknownUnit;
            let like = units::respelled_rate(text).filter(|_| !is_known);
            let fix = match like {
                Some(like) => format!("write it like {like:?}"),
                None if text == MEASURED => {
                    r#"write capacity = "measured" of a [[resource]] with path = "/**""#.into()
                }
                None if field == "capacity" => {
                    r#"write it like "150MiB/s" or "30k iops", or "measured""#.into()
                }
                None if error.problem == UnitProblem::NotWhole => {
                    "write a whole number of operations or bytes per second, 1 at least".into()
                }
                None => r#"write it like "150MiB/s" or "30k iops""#.into(),
            };
            return wrong(span, format!("{field}: {:?} {}", error.input, error.problem), fix);
        }
    };
    if level.per_second() == 0 {
        return wrong(
            span,
            format!("{field}: {text:?} lets nothing through"),
            "leave the field out",
        );
    }
    Ok(level)
}

/// Reads one throughput, or one of each unit.
pub(crate) fn levels(field: &str, texts: Option<&Spanned<Strings>>) -> ReadResult<Levels> {
    let mut levels = Levels::default();
    let Some(texts) = texts else { return Ok(levels) };
    if texts.get_ref().0.is_empty() {
        let message = format!("{field}: an empty list has no value");
        return wrong(texts.span(), message, "leave the field out");
    }
    for text in &texts.get_ref().0 {
        let level = throughput(field, text, texts.span())?;
        if levels.get(level.unit()).is_some() {
            let message = format!("{field}: two values in the same unit");
            return wrong(texts.span(), message, "keep one of them");
        }
        match level {
            Throughput::Bandwidth(rate) => levels.bandwidth = Some(rate),
            Throughput::Operations(iops) => levels.operations = Some(iops),
        }
    }
    Ok(levels)
}

/// Reads a burst; the default if there is none.
pub(super) fn burst(text: Option<&Text>) -> ReadResult<Burst> {
    let Some(text) = text else { return Ok(Burst::DEFAULT) };
    if let Ok(span) = text.get_ref().parse::<Span>() {
        return Ok(Burst::Time(span));
    }
    match text.get_ref().parse::<Bytes>() {
        Ok(size) => Ok(Burst::Size(size)),
        Err(error) => wrong(text.span(), format!("burst: {error}"), r#"or like "20ms""#),
    }
}

/// Reads the burst of a bucket with this rate.
pub(super) fn burst_of(rate: Throughput, text: Option<&Text>) -> ReadResult<Burst> {
    match (rate, burst(text)?, text) {
        (Throughput::Operations(_), Burst::Size(_), Some(text)) => {
            let message = "burst: it is of bytes, and the rate is of operations";
            let fix = "write the time in which the rate yields it, like \"20ms\"";
            wrong(text.span(), message, fix)
        }
        (_, burst, _) => Ok(burst),
    }
}
