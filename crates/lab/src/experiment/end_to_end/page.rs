//! End-to-end demo, its report as one page: HTML that needs nothing else, with a timeline for each
//! act and resource.

use std::fmt::Write;

use super::plan::{PROMISES, Resource, TenantPromise, Unit};
use super::report;
use super::score::{ActRecording, ActScore, ActVerdict};
use super::series::Amount;
use crate::experiment::plot::{Panel, Series, draw};

const STYLE: &str = include_str!("../report.css");

/// The whole page.
pub(super) fn render(results: &[(ActRecording, ActScore)], load: f64) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>One promise along the whole way: Tidegate</title>\n<style>\n{STYLE}</style>\n\
         <main>\n<h1>One promise along the whole way</h1>\n\
         <p class=\"lead\">One policy promises a database on a mounted file system, a client of \
         NBD, a client of memcached and a client of a data node their part. At each of the four a \
         backup asks for all that it can get. Acts differ only in the gates that are on.</p>\n\
         <p class=\"means\">The machine had a load of {load:.1} before. A promise is kept in a \
         second if the tenant was served 97 % of it, by its own account. Seconds in which the \
         kernel kept the run from a processor for more than 20 ms do not count.</p>\n"
    );
    for sentence in report::sentences(results) {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escaped(&sentence));
    }
    page += &table(results);
    for (recording, score) in results {
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n<p class=\"means\">On: {}. {}</p>\n<figure>{}</figure>",
            escaped(recording.act.title),
            gates(recording),
            escaped(&report::line(recording, score)),
            picture(recording)
        );
    }
    page + "</main>\n</html>\n"
}

fn gates(recording: &ActRecording) -> String {
    let names: Vec<&str> = recording.act.gates.iter().map(|gate| gate.name()).collect();
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

fn table(results: &[(ActRecording, ActScore)]) -> String {
    let mut html = String::from(
        "<table><thead><tr><th>act<th>tenant<th>of<th>promised<th>had<th>kept<th>disturbed\
         <th>p99<th>verdict</tr></thead>\n<tbody>\n",
    );
    for (recording, score) in results {
        for (number, one) in score.promises.iter().enumerate() {
            let is_reported = score.disturbance.is_none();
            let verdict = if is_reported { one.verdict() } else { ActVerdict::Disturbed };
            let class = match verdict {
                ActVerdict::Kept => "good",
                ActVerdict::Missed => "bad",
                ActVerdict::Disturbed => "",
            };
            let _ = writeln!(
                html,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{} of {} s<td>{} s<td>{}\
                 <td class=\"{class}\">{}",
                if number == 0 { recording.act.title } else { "" },
                one.promise.tenant,
                one.promise.resource.name(),
                report::promised(recording, one.promise),
                report::had(one),
                one.kept,
                one.counted,
                one.disturbed,
                report::p99(one),
                verdict.name(),
            );
        }
        let used = report::used(score);
        let _ = writeln!(html, "<tr><td><td class=\"muted\" colspan=\"8\">used: {used}");
    }
    html + "</tbody></table>\n"
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
        Series::line("promised", promised),
    ];
    let resource = match promise.resource {
        Resource::Files => "the mounted file system",
        Resource::Cluster => "the cluster",
        Resource::Memory => "the data node",
    };
    let title = format!("{} on {resource}", promise.tenant);
    Panel::new(title, ["seconds", "operations per second"], series)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::plan::ACTS;
    use super::super::score::tests::steady;
    use super::*;

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
        let rest = page.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http", "href", "@import", "url(", "<script", "NaN"] {
            assert!(!rest.contains(outside), "{outside}");
        }
    }
}
