//! The report: the results of all figures of a command as one page.

use std::collections::BTreeMap;

use super::list;
use super::task::FigureTask;
use crate::experiment::kept::{KeptResult, Origin};
use crate::experiment::page::{Html, HtmlPage, HtmlRow, date};
use crate::experiment::verdict::{Claim, Regression};
use tidegate_console::amounts;
use tidegate_console::output::Tone;

/// A figure with its result and its judged claims.
pub(super) struct Section<'a> {
    task: &'a FigureTask,
    result: KeptResult,
    claims: Vec<Claim>,
}

impl<'a> Section<'a> {
    pub(super) fn new(task: &'a FigureTask, result: KeptResult, claims: Vec<Claim>) -> Self {
        Self { task, result, claims }
    }

    fn id(&self) -> String {
        format!("{}-{}", self.task.paper, self.task.name)
    }
}

/// The page of these figures, of `count` that were chosen.
pub(super) fn render(sections: &[Section<'_>], count: usize, command: &str) -> String {
    let all = counts(sections.iter().flat_map(|section| &section.claims));
    let lead = format!("{}: {}.", amounts::plural(count as u64, "experiment"), list::counts(&all));
    let mut page = HtmlPage::new("Experiments of papers, repeated", lead);
    if sections.len() < count {
        let missing = count - sections.len();
        page.paragraph("note", format!("{missing} of them have no result yet."));
    }
    page.paragraph("means", Html::from("Made by ").and(Html::element("code", "", command)));
    page.heading("Verdicts");
    page.table(&["paper", "figure", "experiment", "verdicts"], sections.iter().map(row));
    sections.iter().for_each(|section| add(&mut page, section));
    page.finish()
}

fn counts<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for claim in claims {
        *counts.entry(claim.verdict.name()).or_default() += 1;
    }
    counts
}

fn row(section: &Section<'_>) -> HtmlRow {
    let worst = section.claims.iter().map(|claim| claim.verdict.word().1);
    let rank = |tone: &Tone| [Tone::Bad, Tone::Warn].iter().position(|one| one == tone);
    let worst = worst.min_by_key(|tone| rank(tone).unwrap_or(usize::MAX)).unwrap_or(Tone::Warn);
    let cells = vec![
        section.task.paper.into(),
        Html::link(&section.id(), &section.task.name),
        section.task.about.into(),
        Html::element("span", class(worst), list::counts(&counts(&section.claims))),
    ];
    HtmlRow { class: "text".into(), cells }
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Bad => "bad",
        _ => "warn",
    }
}

/// The figure: what it is, its pictures, its claims, and how it was made.
fn add(page: &mut HtmlPage, section: &Section<'_>) {
    let Section { task, result, claims } = section;
    page.anchor(&section.id(), &format!("{} {}: {}", task.paper, task.name, task.about));
    result.pictures.iter().for_each(|picture| page.figure(picture));
    let claims = claims.iter().map(claim).fold(Html::default(), Html::and);
    page.add(Html::element("ol", "claims", claims));
    if !result.text.is_empty() {
        let table = Html::element("pre", "", result.text.as_str());
        // A table of the paper has no picture, and is what readers come for.
        let is_all = result.pictures.is_empty();
        page.add(if is_all { table } else { Html::details("The printed table", table) });
    }
    let Origin { program, machine, command } = &result.origin;
    let release = program.split(' ').next().unwrap_or_default();
    let sources = result.commit.as_ref().map(|commit| format!(", sources {commit}"));
    let took = amounts::span((result.seconds * 1e9) as u64);
    page.paragraph(
        "means",
        Html::element("code", "", command.as_str()).and(format!(
            " took {took} on {}. Tidegate {release}{}. {machine}.",
            date(result.at_ms),
            sources.unwrap_or_default(),
        )),
    );
}

fn claim(claim: &Claim) -> Html {
    let (word, tone) = claim.verdict.word();
    let ours = if claim.ours { " Our own claim." } else { "" };
    let seed = claim.seed.map(|seed| format!(", seed {seed}")).unwrap_or_default();
    let context = format!(" Figure {}, {}{seed}.{ours}", claim.figure, claim.world);
    let distance = claim.distance.map(|distance| format!("{distance} times off"));
    let drifted = claim.regression == Some(Regression::Drifted);
    let drifted = drifted.then(|| "our numbers are not those that are recorded".to_owned());
    let reasons = [claim.reason.clone(), distance, drifted].into_iter().flatten();
    let reasons = reasons.map(|line| Html::element("div", "muted", line));
    let measured = serde_json::to_string_pretty(&claim.measured).unwrap_or_default();
    let content = Html::element("b", class(tone), word)
        .and(format!(" {}.", claim.claim))
        .and(Html::element("span", "muted", context))
        .and(reasons.fold(Html::default(), Html::and))
        .and(Html::details("Measured", Html::element("pre", "", measured)));
    Html::element("li", "", content).and("\n")
}

#[cfg(test)]
mod tests {
    use super::super::task::tests::task;
    use super::*;
    use crate::experiment::kept::tests::result;
    use crate::experiment::page::tests::assert_whole;

    #[test]
    fn the_page_shows_claims_with_their_figures_and_what_is_missing() {
        let (task, result) = (task(), result("tidegate-lab repro dsfq 9"));
        let mut claims: Vec<Claim> = result.claims().collect();
        claims[1].regression = Some(Regression::Drifted);
        let page = render(&[Section::new(&task, result, claims)], 2, "tidegate-lab repro dsfq");
        assert_whole(&page);
        let shown = [
            "2 experiments: 1 differs, 1 reproduced",
            "1 of them have no result yet",
            "<a href=\"#dsfq-9\">9</a>",
            "one &amp; one (1 ±0.1 ms).",
            "1.50 ms instead of 1 ±0.1 ms: rounded",
            "our numbers are not those that are recorded",
            "sources abc123. 2 x &lt;cores&gt;.",
            "<svg></svg>",
        ];
        for text in shown {
            assert!(page.contains(text), "{text}: {page}");
        }
    }
}
