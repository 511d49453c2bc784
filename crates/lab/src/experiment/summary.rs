//! The result in words and tables, for a terminal.

use tidegate_model::Span;

use super::DemoOutcome;
use super::live::format_seconds;
use super::live_verdict::LiveVerdict;
use super::plan::Mib;
use super::recording::{Control, Recording};
use super::score::{Circumstances, Score, TenantScore, WindowCounts};
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::table::{Cell, Table};

/// The whole result.
pub(crate) fn description(outcome: &DemoOutcome, paint: Paint) -> String {
    let table = table(&outcome.results, paint, output::columns().max(WIDTH));
    let verdict = match outcome.score(Control::Tidegate) {
        Some(score) => format!("With Tidegate {}.", sentence(score)),
        None => String::new(),
    };
    format!("{table}\n{verdict}\nReport: {}", outcome.report.display())
}

/// Thresholds of a second's circumstances: a shorter read of the disk, or shorter waits for a
/// processor, explain no missed promise.
const PULSE: Span = Span(15 * Span::MILLISECOND.0);
const STARVED: Span = Span(30 * Span::MILLISECOND.0);

/// The table is not cut on narrow screens: every column of it is needed.
const WIDTH: usize = 100;

/// One row for each tenant of each set-up, and one for all of them together.
pub(crate) fn table(results: &[(Recording, Score)], paint: Paint, width: usize) -> String {
    let mut table = Table::new()
        .left("SET-UP")
        .left("TENANT")
        .right("PROMISED")
        .right("HAD IT")
        .right("LOWEST")
        .right("MEAN")
        .right("WITH ALL 4")
        .right("TOOK");
    for (recording, score) in results {
        let control = recording.control;
        let title = format!("({}) {}", control.label(), control.title());
        for (index, tenant) in score.tenant_scores.iter().enumerate() {
            let title = if index == 0 { title.as_str() } else { "" };
            table.row(cells(title, tenant));
        }
        let tone = tone(score.budget_used);
        table.row([
            "".into(),
            "all".into(),
            "the budget".into(),
            Cell::toned(tone, share(score.budget_used)),
            lowest(score.budget_used).into(),
            format!("{} % used", format_percent(score.used_permille)).into(),
            "".into(),
            format_seconds(score.took).into(),
        ]);
    }
    table.render(paint, width)
}

fn cells(title: &str, tenant: &TenantScore) -> [Cell; 8] {
    [
        Cell::toned(Tone::Bold, title),
        tenant.name.into(),
        Mib(tenant.promise).to_string().into(),
        Cell::toned(tone(tenant.promise_kept), share(tenant.promise_kept)),
        lowest(tenant.promise_kept).into(),
        Mib(tenant.mean).to_string().into(),
        tenant.rate_with_all.map_or("-".into(), |rate| Mib(rate).to_string()).into(),
        format_seconds(tenant.took).into(),
    ]
}

fn tone(windows: WindowCounts) -> Tone {
    if windows.is_kept() { Tone::Good } else { Tone::Bad }
}

/// For which share of the time that counted.
pub(crate) fn share(windows: WindowCounts) -> String {
    windows.kept_permille().map_or("-".into(), |share| format!("{} %", format_percent(share)))
}

/// The lowest level, of what was to be reached.
pub(crate) fn lowest(windows: WindowCounts) -> String {
    windows.lowest_permille.map_or("-".into(), |low| format!("{} %", format_percent(low)))
}

/// `99.7` of thousandths; without the digit where it says nothing.
pub(crate) fn format_percent(permille: u64) -> String {
    match (permille / 10, permille % 10) {
        (whole, 0) => format!("{whole}"),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

/// In one sentence, whether promises were kept.
pub(crate) fn sentence(score: &Score) -> String {
    let missed: Vec<String> = score
        .tenant_scores
        .iter()
        .filter(|tenant| !tenant.promise_kept.is_kept())
        .map(|tenant| {
            let missed = format_seconds(tenant.promise_kept.missed());
            let down = lowest(tenant.promise_kept);
            format!("{} for {missed} (down to {down}{})", tenant.name, excuse(tenant.then))
        })
        .collect();
    match (score.verdict(), score.disturbance().or_else(|| score.unseen())) {
        (LiveVerdict::Kept, _) => format!("every tenant had its promise: {}", score.time),
        (LiveVerdict::Missed, _) => {
            format!("promises were missed: {}; all were {}", missed.join(", "), score.time)
        }
        (LiveVerdict::Disturbed, why) => {
            format!("there is no verdict: {}", why.unwrap_or_default())
        }
    }
}

/// The circumstances of a missed promise, if they were bad enough.
fn excuse(then: Circumstances) -> String {
    let milliseconds = |span: Span| span.0 / Span::MILLISECOND.0;
    let mut description = Vec::new();
    if then.pulse >= PULSE {
        let ms = milliseconds(then.pulse);
        description.push(format!("the disk took {ms} ms for 4 KiB that nobody limits"));
    }
    if then.starved >= STARVED {
        let ms = milliseconds(then.starved);
        description.push(format!("its processes waited {ms} ms for a processor"));
    }
    if description.is_empty() {
        String::new()
    } else {
        format!(", while {}", description.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::recording::{Control, fluid};

    #[test]
    fn a_table_shows_each_tenants_share() {
        let plan = fluid::plan();
        let result = |control| {
            let recording = fluid::recording(&plan, control);
            let score = Score::new(&plan, &recording);
            (recording, score)
        };
        let results = Control::ALL.map(result);
        insta::assert_snapshot!(table(&results, Paint::none(), 120), @r"
        SET-UP             TENANT    PROMISED  HAD IT   LOWEST        MEAN  WITH ALL 4    TOOK
        (a) no control     I1       150 MiB/s   100 %  170.6 %   455 MiB/s   256 MiB/s  16.5 s
                           I2       200 MiB/s   100 %    128 %   333 MiB/s   256 MiB/s  18.8 s
                           I3       300 MiB/s  35.7 %   85.3 %   333 MiB/s   256 MiB/s  18.8 s
                           I4       350 MiB/s  33.3 %   73.1 %   323 MiB/s   256 MiB/s  15.5 s
                           all     the budget   100 %  102.3 %  101 % used              24.8 s
        (b) static limits  I1       150 MiB/s   100 %    100 %   150 MiB/s   150 MiB/s  50.0 s
                           I2       200 MiB/s   100 %    100 %   200 MiB/s   200 MiB/s  31.3 s
                           I3       300 MiB/s   100 %    100 %   298 MiB/s   300 MiB/s  21.0 s
                           I4       350 MiB/s   100 %    100 %   345 MiB/s   350 MiB/s  14.5 s
                           all     the budget  38.6 %     15 %   50 % used              50.0 s
        (c) Tidegate       I1       150 MiB/s   100 %    100 %   313 MiB/s   150 MiB/s  24.0 s
                           I2       200 MiB/s   100 %    100 %   281 MiB/s   200 MiB/s  22.3 s
                           I3       300 MiB/s   100 %    100 %   329 MiB/s   300 MiB/s  19.0 s
                           I4       350 MiB/s   100 %    100 %   345 MiB/s   350 MiB/s  14.5 s
                           all     the budget   100 %   99.9 %   99 % used              25.3 s
        ");
        let kept = sentence(&results[2].1);
        assert!(kept.starts_with("every tenant had its promise: kept in "), "{kept}");
        assert!(kept.ends_with(" seconds that count, 0 disturbed"), "{kept}");
        insta::assert_snapshot!(
            sentence(&results[0].1).split(';').next().unwrap_or_default(),
            @"promises were missed: I3 for 4.5 s (down to 85.3 %), I4 for 4.5 s (down to 73.1 %)"
        );
        let ms = |ms| Span(ms * Span::MILLISECOND.0);
        insta::assert_snapshot!(
            excuse(Circumstances { pulse: ms(38), starved: ms(70) }),
            @", while the disk took 38 ms for 4 KiB that nobody limits and its processes waited 70 ms for a processor"
        );
    }
}
