//! End-to-end demo, its report as one page: HTML that needs nothing else, with a timeline for each
//! act and resource.

use super::plan::{PROMISES, Resource, TenantPromise, Unit};
use super::report;
use super::score::{ActRecording, ActScore};
use super::series::Amount;
use crate::experiment::live_verdict::LiveVerdict;
use crate::experiment::page::{Html, HtmlPage, HtmlRow};
use crate::experiment::plot::{Panel, Series, draw};

/// The whole page.
pub(super) fn render(results: &[(ActRecording, ActScore)], load: f64) -> String {
    let mut page = HtmlPage::new(
        "One promise along the whole way",
        "One policy promises a database on a mounted file system, a client of NBD, a client of \
         memcached and a client of a data node their part. At each of the four a backup asks for \
         all that it can get. Acts differ only in the gates that are on.",
    );
    page.paragraph(
        "means",
        format!(
            "The machine had a load of {load:.1} before. A promise is kept in a second if the \
             tenant was served 97 % of it, by its own account. Seconds in which other programs \
             kept the run from a processor for more than 20 ms do not count."
        ),
    );
    for sentence in report::sentences(results) {
        page.paragraph("note", sentence);
    }
    table(&mut page, results);
    for (recording, score) in results {
        page.heading(recording.act.title);
        let line = report::line(recording, score);
        page.paragraph("means", format!("On: {}. {line}", gates(recording)));
        page.figure(&picture(recording));
    }
    page.finish()
}

fn gates(recording: &ActRecording) -> String {
    let names: Vec<&str> = recording.act.gates.iter().map(|gate| gate.name()).collect();
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

fn table(page: &mut HtmlPage, results: &[(ActRecording, ActScore)]) {
    let mut rows = Vec::new();
    for (recording, score) in results {
        for (number, one) in score.promises.iter().enumerate() {
            let is_reported = score.disturbance.is_none();
            let verdict = if is_reported { one.verdict() } else { LiveVerdict::Disturbed };
            let class = match verdict {
                LiveVerdict::Kept => "good",
                LiveVerdict::Missed => "bad",
                LiveVerdict::Disturbed => "",
            };
            let title = if number == 0 { recording.act.title } else { "" };
            let cells = vec![
                title.into(),
                one.promise.tenant.into(),
                one.promise.resource.name().into(),
                report::promised(recording, one.promise).into(),
                report::had(one).into(),
                format!("{} of {} s", one.time.kept, one.time.counted).into(),
                format!("{} s", one.time.disturbed).into(),
                report::p99(one).into(),
                Html::element("span", class, verdict.name()),
            ];
            rows.push(HtmlRow { class: String::new(), cells });
        }
        let mut cells = vec![Html::default(); 9];
        cells[1] = Html::element("span", "muted", format!("used: {}", report::used(score)));
        rows.push(HtmlRow { class: "all".into(), cells });
    }
    let heads = ["act", "tenant", "of", "promised", "had", "kept", "disturbed", "p99", "verdict"];
    page.table(&heads, rows);
}

/// A panel for each promise of operations: the tenant, the backup beside it, and the promise.
fn picture(recording: &ActRecording) -> String {
    let counted = PROMISES.iter().filter(|promise| promise.unit == Unit::Operations);
    let panels: Vec<Panel> = counted.map(|promise| panel(recording, promise)).collect();
    draw(recording.act.title, &panels)
}

fn panel(recording: &ActRecording, promise: &'static TenantPromise) -> Panel {
    let middle = |window: &Amount| {
        let ms = (window.from_ms + window.to_ms) / 2;
        ms.saturating_sub(recording.from_ms) as f64 / 1e3
    };
    let windows = |load| {
        let series = recording.series.iter().find(|series| series.load == load);
        series.map_or(Vec::new(), |s| s.windows(recording.from_ms, recording.seconds))
    };
    let points = |windows: &[Amount]| {
        windows.iter().map(|window| (middle(window), window.per_second())).collect()
    };
    let own = windows(promise.load);
    let end = recording.seconds as f64;
    let [before, after] = promise.rates.map(|rate| rate as f64);
    let promised = match recording.changed_ms {
        None => vec![(0.0, before), (end, before)],
        Some(ms) => {
            let change = ms.saturating_sub(recording.from_ms) as f64 / 1e3;
            vec![(0.0, before), (change, before), (change, after), (end, after)]
        }
    };
    let series = [
        Series::line(promise.tenant, points(&own)),
        Series::line("backup", points(&windows(promise.load.beside()))),
        Series::dashed("promised", promised),
    ];
    let resource = match promise.resource {
        Resource::Files => "the mounted file system",
        Resource::Cluster => "the cluster",
        Resource::Memory => "the data node",
    };
    let title = format!("{} on {resource}", promise.tenant);
    Panel::new(title, ["seconds", "operations per second"], series)
}

#[cfg(test)]
mod tests {
    use super::super::plan::ACTS;
    use super::super::score::tests::steady;
    use super::*;
    use crate::experiment::page::tests::assert_whole;

    #[test]
    fn the_page_has_every_act_and_needs_nothing_else() {
        let results: Vec<_> = ACTS
            .iter()
            .map(|act| {
                let recording = steady(act, 10);
                let score = ActScore::new(&recording);
                (recording, score)
            })
            .collect();
        let page = render(&results, 0.5);
        for act in &ACTS {
            assert!(page.contains(&format!("<h2>{}</h2>", act.title)), "{}", act.title);
        }
        assert_whole(&page);
    }
}
