//! Expectations on the response times of a run: `p99<2ms`.

use std::fmt;
use std::str::FromStr;

use tidegate_model::Span;

use super::pace::Series;

/// A bound on a percentile of the response times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expectation {
    text: String,
    quantile: f64,
    bound: Span,
}

impl Expectation {
    /// The value of the percentile, and whether it is below the bound. A series without requests
    /// keeps no bound.
    pub(crate) fn check(&self, series: &Series) -> (Span, bool) {
        let value = Span(series.response.value_at_quantile(self.quantile));
        (value, !series.response.is_empty() && value < self.bound)
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Expectation {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "write it like \"p99<2ms\", with p50, p99.9 or max".to_owned();
        let (name, bound) = text.split_once('<').ok_or_else(form)?;
        let bound = bound.trim().parse::<Span>().map_err(|error| error.to_string())?;
        let quantile = match name.trim() {
            "max" => 1.0,
            name => {
                let percent = name.strip_prefix('p').and_then(|digits| digits.parse::<f64>().ok());
                let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
                percent.ok_or_else(form)? / 100.0
            }
        };
        Ok(Self { text: text.to_owned(), quantile, bound })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::Time;

    use super::super::pace::{Direction, Drive, Ending, Pace};
    use super::super::schedule::Window;
    use super::*;

    #[test]
    fn expectations_are_kept_or_not() {
        let window = Window { from: Time::ZERO, until: Time(Span::SECOND.0) };
        let mut pace = Pace::new(Drive::Closed, window, 1);
        for request in 1..=100 {
            let slot = pace.sent(Time(0), Direction::Read);
            assert!(pace.answered(Time(request * 1_000), slot, Ending::Done));
        }
        let series = pace.end(Time(Span::SECOND.0)).all();
        for (text, kept) in [
            ("p50<60us", true),
            ("p50 < 40us", false),
            ("p99.9<2ms", true),
            ("max<100us", false),
            ("max<101us", true),
        ] {
            assert_eq!(text.parse::<Expectation>().unwrap().check(&series).1, kept, "{text}");
        }
        for wrong in ["p99", "p101<2ms", "q9<1ms", "p99<2"] {
            assert!(wrong.parse::<Expectation>().is_err(), "{wrong}");
        }
    }
}
