//! The report: one HTML file that needs nothing else, neither files nor network.

use std::fmt::Write;

use super::chart::{self, Scale, class};
use super::live::format_seconds;
use super::machine::Machine;
use super::plan::{ExperimentPlan, KEPT_PERMILLE, Mib, SETTLING};
use super::policies;
use super::recording::{Control, Recording};
use super::score::{Score, TenantScore, WindowCounts};
use super::summary::{format_percent, sentence};

const STYLE: &str = include_str!("report.css");

#[derive(Debug)]
pub(crate) struct ExperimentReport<'a> {
    pub(crate) plan: &'a ExperimentPlan,
    pub(crate) machine: &'a Machine,
    /// When it was, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The disk's rate by itself, in words.
    pub(crate) probe: &'a str,
    /// Caveats about the numbers.
    pub(crate) notes: &'a [String],
    pub(crate) results: &'a [(Recording, Score)],
}

impl ExperimentReport<'_> {
    /// The whole page.
    pub(crate) fn render(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>Four tenants, one disk: Tidegate</title>\n<style>\n{STYLE}</style>\n<main>\n"
        );
        page += &self.head();
        page += &self.pictures();
        page += &self.what_to_see();
        page += &self.table();
        page += &self.details();
        page + "</main>\n</html>\n"
    }

    fn head(&self) -> String {
        let plan = self.plan;
        let promises: Vec<String> = plan
            .tenants
            .iter()
            .map(|tenant| Mib(tenant.promise).to_string().replace(" MiB/s", ""))
            .collect();
        let mut html = format!(
            "<h1>Four tenants, one disk</h1>\n<p class=\"lead\">Tenants I1 to I4 are promised {} \
             MiB/s of a disk that is held at {}. Each starts at another time and reads a fixed \
             amount as fast as it may; three times over, and only who shares out the disk \
             differs.</p>\n",
            promises.join(", "),
            Mib(plan.disk)
        );
        for note in self.notes {
            let _ = writeln!(html, "<p class=\"note\">{}</p>", escaped(note));
        }
        html += "<div class=\"cards\">\n";
        for (recording, score) in self.results {
            html += &result_box(recording, score);
        }
        html + "</div>\n"
    }

    fn pictures(&self) -> String {
        let mut html = String::from(
            "<ul class=\"legend\"><li><i class=\"start\"></i>starts</li>\
             <li><i class=\"end\"></i>ends</li><li><i class=\"dash\"></i>promised</li>\
             <li><i class=\"kept\"></i>had it</li>\
             <li><i class=\"missed\"></i>did not have it</li>\
             <li><i class=\"uncounted\"></i>not counted: others have just come or gone</li></ul>\n",
        );
        let scale = Scale::new(self.plan, self.results.iter().map(|(recording, _)| recording));
        for (recording, score) in self.results {
            let _ = writeln!(
                html,
                "<h2>({}) {}: all done after {}</h2>\n<p class=\"means\">{}. Load of the machine \
                 before it: {:.2}.</p>\n<figure>\n{}</figure>",
                recording.control.label(),
                escaped(recording.control.title()),
                bound(&format_seconds(score.took)),
                escaped(&recording.means.join("; ")),
                recording.load_percent as f64 / 100.0,
                chart::draw(self.plan, recording, score, scale)
            );
        }
        html
    }

    fn what_to_see(&self) -> String {
        let mut html = String::from("<h2>What to expect, and what was measured</h2>\n");
        for (recording, score) in self.results {
            let (expected, measured) = (expected(recording.control), measured(score));
            let _ = writeln!(
                html,
                "<p>{}<br><b>Measured:</b> {}</p>",
                escaped(expected),
                bound(&escaped(&measured))
            );
        }
        html
    }

    fn table(&self) -> String {
        let mut html = String::from(
            "<h2>In numbers</h2>\n<div class=\"table\"><table>\n<thead><tr><th>set-up</th>\
             <th>tenant</th><th>promised</th><th>had its promise</th><th>lowest second</th>\
             <th>mean</th><th>with all four</th><th>took</th></tr></thead>\n<tbody>\n",
        );
        for (recording, score) in self.results {
            for (index, tenant) in score.tenant_scores.iter().enumerate() {
                html += &row(recording.control, index, tenant);
            }
            let _ = writeln!(
                html,
                "<tr class=\"all\"><td></td><td>all</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{} % of the budget</td><td></td><td>{}</td></tr>",
                Mib(self.plan.budget),
                judged(score.budget_used),
                percent(score.budget_used.lowest_permille),
                format_percent(score.used_permille),
                format_seconds(score.took)
            );
        }
        let _ = writeln!(
            html,
            "</tbody></table></div>\n<p class=\"means\">A tenant has its promise in a second in \
             which the disk reads at least {} % of it for its processes. Counted is every window \
             of one second, four times a second, while the tenant runs; not the {} seconds after \
             anybody starts or ends. The row \"all\" says the same of the whole budget. Bytes are \
             those that the kernel counts in /proc/&lt;pid&gt;/io, in every set-up alike.</p>",
            KEPT_PERMILLE / 10,
            SETTLING.as_seconds()
        );
        html
    }

    fn details(&self) -> String {
        let mut html = String::from("<h2>How it was run</h2>\n");
        for (recording, _) in self.results {
            let commands = recording.courses.iter().map(|course| shown(&course.command));
            let _ = writeln!(
                html,
                "<p>({}) {}</p>\n<pre>{}</pre>",
                recording.control.label(),
                escaped(recording.control.title()),
                commands.collect::<String>()
            );
        }
        let _ = writeln!(
            html,
            "<p>The policy of (c)</p>\n<pre>{}</pre>\n<h2>The machine</h2>\n{}",
            escaped(&policies::shared(self.plan)),
            self.machine()
        );
        html
    }

    fn machine(&self) -> String {
        let machine = self.machine;
        let memory = format!("{} GiB", (machine.memory_bytes + (1 << 29)) >> 30);
        let facts = [
            ("processor", format!("{} x {}", machine.cores, machine.processor)),
            ("memory", memory),
            ("kernel", machine.kernel.clone()),
            ("file system", format!("{} on {}", machine.file_system, machine.disk)),
            ("disk by itself", self.probe.to_owned()),
            ("load generator", machine.fio.clone()),
            ("Tidegate", machine.release.to_owned()),
            ("measured", date(self.at_ms)),
        ];
        let mut html = String::from("<dl>\n");
        for (name, value) in facts {
            let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escaped(&value));
        }
        html + "</dl>\n"
    }
}

/// The set-up at a glance: the tenant that fared worst, and how long everything took.
fn result_box(recording: &Recording, score: &Score) -> String {
    let shares = score
        .tenant_scores
        .iter()
        .filter_map(|tenant| Some((tenant.promise_kept.kept_permille()?, tenant.name)));
    let worst = shares.min().unwrap_or((0, "nobody"));
    let (tone, formatted) = match worst {
        (1000, _) => ("good", "of the time every tenant had its promise".to_owned()),
        (_, name) => ("bad", format!("of the time {name} had its promise, the worst off")),
    };
    format!(
        "<div class=\"card\"><h3>({}) {}</h3><div class=\"big {tone}\">{}</div><p>{formatted}</p>\
         <p>all done after <b>{}</b></p></div>\n",
        recording.control.label(),
        recording.control.title(),
        bound(&format!("{} %", format_percent(worst.0))),
        bound(&format_seconds(score.took))
    )
}

fn row(control: Control, index: usize, tenant: &TenantScore) -> String {
    let title = match index {
        0 => format!("({}) {}", control.label(), control.title()),
        _ => String::new(),
    };
    format!(
        "<tr class=\"{}\"><td>{title}</td><td><b>{}</b></td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td>{}</td><td>{}</td></tr>\n",
        class(index),
        tenant.name,
        Mib(tenant.promise),
        judged(tenant.promise_kept),
        percent(tenant.promise_kept.lowest_permille),
        Mib(tenant.mean),
        tenant.rate_with_all.map_or("-".into(), |rate| Mib(rate).to_string()),
        format_seconds(tenant.took)
    )
}

fn judged(windows: WindowCounts) -> String {
    let tone = if windows.is_kept() { "good" } else { "bad" };
    format!("<span class=\"{tone}\">{}</span>", percent(windows.kept_permille()))
}

/// A description of the picture if everything works.
fn expected(control: Control) -> &'static str {
    match control {
        Control::None => {
            "(a) The disk serves everybody alike. While all four run, each has a quarter: more \
             than the small promises, less than the large ones. Their lines meet in one, between \
             the dashed ones."
        }
        Control::Static => {
            "(b) Every line lies on its promise and never above it. What is missing between the \
             shade and the budget is idle, most of all when few are left."
        }
        Control::Tidegate => {
            "(c) While all four run, each line lies on its promise, as in (b). Whenever somebody \
             is missing, the others have what is left over at once, as in (a): the shade reaches \
             the budget from beginning to end."
        }
    }
}

/// The result that the picture shows, in numbers.
fn measured(score: &Score) -> String {
    let used = format_percent(score.used_permille);
    let took = format_seconds(score.took);
    format!("{}; {used} % of the budget was used; all done after {took}.", sentence(score))
}

/// The same text, in which no line ends between a number and its unit.
fn bound(text: &str) -> String {
    let mut bound = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(blank) = rest.find(' ') {
        let (before, after) = rest.split_at(blank);
        let is_number = before.ends_with(|c: char| c.is_ascii_digit());
        let unit = after.trim_start().split([' ', ',', ';', '.', ')']).next().unwrap_or_default();
        bound += before;
        bound += if is_number && UNITS.contains(&unit) { "\u{a0}" } else { " " };
        rest = &after[1..];
    }
    bound + rest
}

/// Units that stand behind numbers in a report.
const UNITS: [&str; 6] = ["%", "s", "ms", "MiB/s", "KiB", "GiB"];

/// A share of the time in a column of such, with the same digits in every row.
fn percent(permille: Option<u64>) -> String {
    permille.map_or("-".into(), |share| format!("{}.{} %", share / 10, share % 10))
}

/// `2026-11-21 04:46 UTC`.
fn date(unix_ms: u64) -> String {
    let minutes = unix_ms / 60_000;
    let (days, minute) = (minutes / 1440, minutes % 1440);
    // The civil calendar, counted in days from 0000-03-01 so that leap days come last.
    let day = days + 719_468;
    let era = day / 146_097;
    let of_era = day % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minute / 60, minute % 60)
}

/// A command, in which lines end between words and nowhere else: not at the hyphens of `--size`.
fn shown(command: &str) -> String {
    let words = command.split(' ').map(|word| format!("<span>{}</span>", escaped(word)));
    format!("<code>{}</code>", words.collect::<Vec<_>>().join(" "))
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::recording::fluid;

    fn page() -> String {
        let plan = fluid::plan();
        let results = Control::ALL.map(|control| {
            let recording = fluid::recording(&plan, control);
            let score = Score::new(&plan, &recording);
            (recording, score)
        });
        let machine = Machine {
            processor: "A <fast> one".into(),
            cores: 2,
            memory_bytes: 24 << 30,
            kernel: "6.18".into(),
            disk: "vda".into(),
            file_system: "ext4".into(),
            fio: "fio-3.33".into(),
            release: "0.1.0",
        };
        let notes = ["SCALED & so on".to_owned()];
        let (probe, at_ms) = ("2,000 MiB/s", 1_795_320_933_000);
        ExperimentReport {
            plan: &plan,
            machine: &machine,
            at_ms,
            probe,
            notes: &notes,
            results: &results,
        }
        .render()
    }

    #[test]
    fn a_report_needs_nothing_else() {
        let page = page();
        for outside in ["http", "src=", "<link", "@import", "url(", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("SCALED &amp; so on") && page.contains("A &lt;fast&gt; one"));
        if let Some(path) = std::env::var_os("TIDEGATE_TEST_REPORT") {
            std::fs::write(path, page).unwrap();
        }
    }

    #[test]
    fn elements_are_closed() {
        let page = page();
        let voids = ["meta", "!doctype", "br"];
        let mut open: Vec<&str> = Vec::new();
        for tag in page.split('<').skip(1) {
            let tag = tag.split('>').next().unwrap();
            let name = tag.split([' ', '\n']).next().unwrap();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "</{name}>"),
                None if tag.ends_with('/') || voids.contains(&name) => {}
                None => open.push(name),
            }
        }
        assert_eq!(open, [""; 0]);
    }

    #[test]
    fn boxes_show_the_worst_share() {
        let page = page();
        let boxes: Vec<&str> = page.lines().filter(|l| l.contains("class=\"card\"")).collect();
        assert!(boxes[0].contains("bad") && boxes[0].contains("the worst off"), "{}", boxes[0]);
        assert!([1, 2].iter().all(|index| boxes[*index].contains(">100\u{a0}%<")));
    }

    #[test]
    fn numbers_stay_with_their_units() {
        assert_eq!(bound("took 24.7 s, 97 % of it"), "took 24.7\u{a0}s, 97\u{a0}% of it");
        assert_eq!(bound("for 4 KiB; all 4 sit"), "for 4\u{a0}KiB; all 4 sit");
        assert_eq!(
            (bound(""), bound(" 1 "), bound("2 s")),
            ("".into(), " 1 ".into(), "2\u{a0}s".into())
        );
    }

    #[test]
    fn dates_are_the_calendars() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_320_933_000), "2026-11-22 04:15 UTC");
    }
}
