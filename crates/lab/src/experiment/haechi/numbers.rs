//! All numbers that the Haechi paper prints, beside those of our model.

use serde_json::json;

use super::plot::{Panel, Series, draw};
use super::{
    Comparison, FigureContext, FigureResult, NEAR, Number, bare, demand, pattern, promises, source,
};
use super::{formatted, tenths};
use crate::experiment::verdict::at_most;
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut numbers = bare::numbers(context)?;
    for figure in [demand::numbers, promises::numbers, pattern::numbers] {
        numbers.extend(figure(context)?);
    }
    let mut table = Table::new().left("FIGURE").left("WHAT").right("PAPER").right("MODEL");
    table = table.left("").right("RATIO").left("");
    for number in &numbers {
        let Number { figure, what, unit, paper, model, kind, is_given } = *number;
        table.row([
            figure.into(),
            what.into(),
            paper.to_string().into(),
            match unit {
                "s" | "%" => format!("{model:.2}").into(),
                _ => formatted(model).into(),
            },
            unit.into(),
            match kind {
                Comparison::Amount => format!("{:.3}", model / paper).into(),
                Comparison::Share => format!("{:+.1} points", number.off()).into(),
                Comparison::Bound => if number.is_near() { "below" } else { "above" }.into(),
            },
            if is_given { "given" } else { "predicted" }.into(),
        ]);
    }
    let others = || numbers.iter().filter(|number| !number.is_given);
    let near = others().filter(|number| number.is_near()).count();
    let worst = others().map(|number| number.off().abs()).fold(0.0, f64::max);
    let count = others().count();
    let claim = source("numbers", &[]).claim(
        "a model with two numbers gives all others that the paper prints",
        json!({
            "numbers_given": numbers.len() - count,
            "numbers_predicted": count,
            "of_which_within_2_percent": near,
            "off_at_most_percent": tenths(worst),
            "numbers": numbers.iter().map(Number::as_json).collect::<Vec<_>>(),
        }),
        [at_most(format!("more than {NEAR} % off"), "", 0.0, (count - near) as f64)],
    );
    let claim = claim.ours();
    let line = |name, of: fn(&Number) -> f64| {
        let points = numbers.iter().filter(|number| number.unit == "K/s").zip(1u32..);
        Series::line(name, points.map(|(number, at)| (f64::from(at), of(number))).collect())
    };
    let panel = Panel::new(
        "The paper's numbers and ours",
        ["row of the table", "thousand reads per second"],
        [line("paper", |number| number.paper), line("model", |number| number.model)],
    );
    Ok(FigureResult { claims: vec![claim], table, picture: draw("Paper and model", &[panel]) })
}
