//! `tidegate-lab repro list`: what can be repeated, and which verdicts are recorded.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;

use super::{PAPERS, Paper};
use crate::experiment::paper::Figure;
use crate::experiment::recorded;
use tidegate_console::command_line::Common;
use tidegate_console::failure::Failure;
use tidegate_console::output::{self, Paint};
use tidegate_console::table::{Cell, Table};

/// A line of the list: a figure, and what is known of it. Its fields are read by programs and stay
/// as they are.
#[derive(Debug, Serialize)]
struct ListedFigure {
    paper: &'static str,
    figure: &'static str,
    worlds: &'static [&'static str],
    experiment: &'static str,
    /// How many simulated claims have which verdict, in the table of recorded numbers.
    recorded: BTreeMap<&'static str, usize>,
}

pub(super) fn print(common: &Common) -> Result<ExitCode, Failure> {
    let lines = lines();
    if common.json {
        lines.iter().try_for_each(output::print_json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let heads = ["PAPER", "FIGURE", "WHERE", "EXPERIMENT", "RECORDED"];
    let mut table = Table::new().each_left(heads);
    for line in &lines {
        let worlds = line.worlds.join(", ");
        let cells = [line.paper, line.figure, &worlds, line.experiment].map(Cell::from);
        table.row([&cells[..], &[Cell::from(counts(&line.recorded))]].concat());
    }
    output::print(&table.render(Paint::stdout(), usize::MAX))?;
    Ok(ExitCode::SUCCESS)
}

fn lines() -> Vec<ListedFigure> {
    PAPERS.into_iter().flat_map(of_paper).collect()
}

fn of_paper(paper: Paper) -> Vec<ListedFigure> {
    let mut lines: Vec<_> = paper.figures().iter().map(|figure| line(paper, figure)).collect();
    for (figure, verdict) in recorded::verdicts(paper.name()) {
        if let Some(line) = lines.iter_mut().rfind(|line| is_part(figure, line.figure)) {
            *line.recorded.entry(verdict).or_default() += 1;
        }
    }
    lines
}

fn line(paper: Paper, figure: &Figure<()>) -> ListedFigure {
    let Figure { name, about, worlds, .. } = *figure;
    let worlds = worlds.names();
    ListedFigure {
        paper: paper.name(),
        figure: name,
        worlds,
        experiment: about,
        recorded: BTreeMap::new(),
    }
}

/// Whether claims of `figure`, like `8b`, may be found where `listed` is repeated, like `8` or
/// `8a`. The last such figure in the list has them.
fn is_part(figure: &str, listed: &str) -> bool {
    let number = |name: &str| name.chars().take_while(char::is_ascii_digit).collect::<String>();
    let is_numbered = !number(figure).is_empty();
    figure == listed || is_numbered && number(figure) == number(listed) && listed < figure
}

/// Like `3 reproduced, 1 differs`; a dash where there are none.
pub(super) fn counts(verdicts: &BTreeMap<&'static str, usize>) -> String {
    let counts: Vec<String> =
        verdicts.iter().map(|(verdict, count)| format!("{count} {verdict}")).collect();
    if counts.is_empty() { "-".into() } else { counts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_claim_is_of_a_figure_in_the_list() {
        let listed: usize = lines().iter().flat_map(|line| line.recorded.values()).sum();
        let names = PAPERS.map(Paper::name);
        assert_eq!(listed, names.into_iter().flat_map(recorded::verdicts).count());
    }
}
