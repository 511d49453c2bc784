//! The report: one HTML file that needs nothing else, neither files nor network.

use std::fmt::Write;

use super::chart::{self, Scale, class};
use super::live::told_seconds;
use super::machine::Machine;
use super::plan::{KEPT_PERMILLE, Mib, Plan, SETTLING};
use super::policies;
use super::recording::{Control, Recording};
use super::score::{Fare, Score, Tally};
use super::summary::{lowest, sentence, share, told_percent};

const STYLE: &str = include_str!("report.css");

/// What a report is made of.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) machine: &'a Machine,
    /// When it was, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// What the disk does by itself, in words.
    pub(crate) probe: &'a str,
    /// What to know before believing the numbers.
    pub(crate) notes: &'a [String],
    pub(crate) results: &'a [(Recording, Score)],
}

impl Report<'_> {
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
            html += &card(recording, score);
        }
        html + "</div>\n"
    }

    fn pictures(&self) -> String {
        let mut html = String::from(
            "<ul class=\"legend\"><li><i class=\"dash\"></i>promised</li>\
             <li><i class=\"uncounted\"></i>in the field: all tenants together</li>\
             <li><i class=\"kept\"></i>below: has its promise</li>\
             <li><i class=\"missed\"></i>does not have it</li>\
             <li><i class=\"uncounted\"></i>others have just come or gone: not counted</li></ul>\n",
        );
        let scale = Scale::new(self.plan, self.results.iter().map(|(recording, _)| recording));
        for (recording, score) in self.results {
            let _ = writeln!(
                html,
                "<h2>({}) {}: {}</h2>\n<p class=\"means\">{}. Load of the machine before it: \
                 {:.2}.</p>\n<figure>\n{}</figure>",
                recording.control.letter(),
                escaped(recording.control.title()),
                told_seconds(score.took),
                escaped(&recording.means.join("; ")),
                recording.load_percent as f64 / 100.0,
                chart::draw(self.plan, recording, scale)
            );
        }
        html
    }

    fn what_to_see(&self) -> String {
        let mut html = String::from("<h2>What to see</h2>\n");
        for (recording, score) in self.results {
            let told = seen(recording.control, score);
            let _ = writeln!(html, "<p>{}</p>", escaped(&told));
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
            for (place, fare) in score.fares.iter().enumerate() {
                html += &row(recording.control, place, fare);
            }
            let _ = writeln!(
                html,
                "<tr class=\"all\"><td></td><td>all</td><td>{}</td><td>{}</td><td>{}</td>\
                 <td>{} % of the budget</td><td></td><td>{}</td></tr>",
                Mib(self.plan.budget),
                judged(score.budget_used),
                lowest(score.budget_used),
                told_percent(score.used_permille),
                told_seconds(score.took)
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
            let commands: Vec<&str> =
                recording.courses.iter().map(|course| course.command.as_str()).collect();
            let _ = writeln!(
                html,
                "<p>({}) {}</p>\n<pre>{}</pre>",
                recording.control.letter(),
                escaped(recording.control.title()),
                escaped(&commands.join("\n"))
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
fn card(recording: &Recording, score: &Score) -> String {
    let shares =
        score.fares.iter().filter_map(|fare| Some((fare.promise_kept.kept_permille()?, fare.name)));
    let worst = shares.min().unwrap_or((0, "nobody"));
    let (tone, told) = match worst {
        (1000, _) => ("good", "of the time every tenant had its promise".to_owned()),
        (_, name) => ("bad", format!("of the time {name} had its promise, the worst off")),
    };
    format!(
        "<div class=\"card\"><h3>({}) {}</h3><div class=\"big {tone}\">{} %</div><p>{told}</p>\
         <p>all done after <b>{}</b></p></div>\n",
        recording.control.letter(),
        recording.control.title(),
        told_percent(worst.0),
        told_seconds(score.took)
    )
}

fn row(control: Control, place: usize, fare: &Fare) -> String {
    let title = match place {
        0 => format!("({}) {}", control.letter(), control.title()),
        _ => String::new(),
    };
    format!(
        "<tr class=\"{}\"><td>{title}</td><td><b>{}</b></td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td>{}</td><td>{}</td></tr>\n",
        class(place),
        fare.name,
        Mib(fare.promise),
        judged(fare.promise_kept),
        lowest(fare.promise_kept),
        Mib(fare.mean),
        fare.rate_with_all.map_or("-".into(), |rate| Mib(rate).to_string()),
        told_seconds(fare.took)
    )
}

fn judged(tally: Tally) -> String {
    let tone = if tally.is_kept() { "good" } else { "bad" };
    format!("<span class=\"{tone}\">{}</span>", share(tally))
}

/// What to look for in one picture, said with its own numbers.
fn seen(control: Control, score: &Score) -> String {
    let what = match control {
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
    };
    let used = told_percent(score.used_permille);
    let took = told_seconds(score.took);
    format!(
        "{what} Measured: {}; {used} % of the budget was used; all took {took}.",
        sentence(score)
    )
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
        Report { plan: &plan, machine: &machine, at_ms, probe, notes: &notes, results: &results }
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
        let voids = ["meta", "!doctype"];
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
    fn cards_tell_the_worst_share() {
        let page = page();
        let cards: Vec<&str> = page.lines().filter(|l| l.contains("class=\"card\"")).collect();
        assert!(cards[0].contains("bad") && cards[0].contains("the worst off"), "{}", cards[0]);
        assert!(cards[1].contains(">100 %<") && cards[2].contains(">100 %<"));
    }

    #[test]
    fn dates_are_the_calendars() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_320_933_000), "2026-11-22 04:15 UTC");
    }
}
