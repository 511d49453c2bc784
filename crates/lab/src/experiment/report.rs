//! The report: one HTML file that needs nothing else, neither files nor network.

use super::chart::{self, Scale, class};
use super::live::format_seconds;
use super::machine::Machine;
use super::page::{Html, HtmlPage, HtmlRow, date};
use super::plan::{ExperimentPlan, KEPT_PERMILLE, Mib, SETTLING};
use super::policies;
use super::recording::{Control, Recording};
use super::score::{Score, TenantScore, WindowCounts};
use super::summary::{format_percent, sentence};

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
        let mut page = HtmlPage::new("Four tenants, one disk", self.lead());
        for note in self.notes {
            page.paragraph("note", note.as_str());
        }
        let boxes = self.results.iter().map(|(recording, score)| result_box(recording, score));
        let boxes = boxes.fold(Html::default(), Html::and);
        page.add(Html::raw("<div class=\"cards\">\n").and(boxes).and(Html::raw("</div>")));
        self.pictures(&mut page);
        self.what_to_see(&mut page);
        self.table(&mut page);
        self.details(&mut page);
        page.finish()
    }

    fn lead(&self) -> String {
        let plan = self.plan;
        let promises = plan.tenants.iter().map(|tenant| Mib(tenant.promise).to_string());
        let promises: Vec<String> = promises.map(|one| one.replace(" MiB/s", "")).collect();
        format!(
            "Tenants I1 to I4 are promised {} MiB/s of a disk that is held at {}. Each starts at \
             another time and reads a fixed amount as fast as it may; three times over, and only \
             who shares out the disk differs.",
            promises.join(", "),
            Mib(plan.disk)
        )
    }

    fn pictures(&self, page: &mut HtmlPage) {
        page.add(Html::raw(
            "<ul class=\"legend\"><li><i class=\"dash\"></i>promised, from start to end</li>\
             <li><i class=\"kept\"></i>had it</li>\
             <li><i class=\"missed\"></i>did not have it</li>\
             <li><i class=\"uncounted\"></i>not counted: others have just come or gone</li>\
             <li><i class=\"uncounted\"></i>in the field: all together</li></ul>",
        ));
        for ((recording, score), picture) in self.results.iter().zip(self.drawn()) {
            let Recording { control, means, load_percent, .. } = recording;
            let (label, took) = (control.label(), bound(&format_seconds(score.took)));
            page.heading(format!("({label}) {}: all done after {took}", control.title()));
            page.paragraph(
                "means",
                format!(
                    "{}. Load of the machine before it: {:.2}.",
                    means.join("; "),
                    *load_percent as f64 / 100.0
                ),
            );
            page.figure(&picture);
        }
    }

    /// A picture of each set-up, on one scale.
    pub(crate) fn drawn(&self) -> Vec<String> {
        let scale = Scale::new(self.plan, self.results.iter().map(|(recording, _)| recording));
        let one = |(recording, score): &_| chart::draw(self.plan, recording, score, scale);
        self.results.iter().map(one).collect()
    }

    fn what_to_see(&self, page: &mut HtmlPage) {
        page.heading("What to expect, and what was measured");
        for (recording, score) in self.results {
            let expected = Html::from(expected(recording.control));
            let heading = Html::raw("<br/>").and(Html::element("b", "", "Measured: "));
            page.paragraph("", expected.and(heading).and(bound(&measured(score))));
        }
    }

    fn table(&self, page: &mut HtmlPage) {
        page.heading("In numbers");
        let mut rows = Vec::new();
        for (recording, score) in self.results {
            let tenants = score.tenant_scores.iter().enumerate();
            rows.extend(tenants.map(|(index, tenant)| row(recording.control, index, tenant)));
            let cells = vec![
                Html::default(),
                "all".into(),
                Mib(self.plan.budget).to_string().into(),
                judged(score.budget_used),
                percent(score.budget_used.lowest_permille).into(),
                format!("{} % of the budget", format_percent(score.used_permille)).into(),
                Html::default(),
                format_seconds(score.took).into(),
            ];
            rows.push(HtmlRow { class: "all".into(), cells });
        }
        let heads = [
            "set-up",
            "tenant",
            "promised",
            "had its promise",
            "lowest second",
            "mean",
            "with all four",
            "took",
        ];
        page.table(&heads, rows);
        page.paragraph(
            "means",
            format!(
                "A tenant has its promise in a second in which the disk reads at least {} % of it \
                 for its processes. Counted is every window of one second, four times a second, \
                 while the tenant runs; not the {} seconds after anybody starts or ends. The row \
                 \"all\" says the same of the whole budget. Bytes are those that the kernel counts \
                 in /proc/<pid>/io, in every set-up alike.",
                KEPT_PERMILLE / 10,
                SETTLING.as_seconds()
            ),
        );
    }

    fn details(&self, page: &mut HtmlPage) {
        page.heading("How it was run");
        for (recording, _) in self.results {
            let control = recording.control;
            page.paragraph("", format!("({}) {}", control.label(), control.title()));
            let commands = recording.courses.iter().map(|course| shown(&course.command));
            page.add(Html::element("pre", "", commands.fold(Html::default(), Html::and)));
        }
        page.paragraph("", "The policy of (c)");
        page.add(Html::element("pre", "", policies::shared(self.plan)));
        page.heading("The machine");
        let machine = self.machine;
        page.facts([
            ("processor", format!("{} x {}", machine.cores, machine.processor)),
            ("memory", format!("{} GiB", (machine.memory_bytes + (1 << 29)) >> 30)),
            ("kernel", machine.kernel.clone()),
            ("file system", format!("{} on {}", machine.file_system, machine.disk)),
            ("disk by itself", self.probe.to_owned()),
            ("load generator", machine.load_generator.clone()),
            ("Tidegate", machine.release.to_owned()),
            ("measured", date(self.at_ms)),
        ]);
    }
}

/// The set-up at a glance: the tenant that fared worst, and how long everything took.
fn result_box(recording: &Recording, score: &Score) -> Html {
    let shares = score
        .tenant_scores
        .iter()
        .filter_map(|tenant| Some((tenant.promise_kept.kept_permille()?, tenant.name)));
    let worst = shares.min().unwrap_or((0, "nobody"));
    let (tone, formatted) = match worst {
        (1000, _) => ("good", "of the time every tenant had its promise".to_owned()),
        (_, name) => ("bad", format!("of the time {name} had its promise, the worst off")),
    };
    let (control, took) = (recording.control, bound(&format_seconds(score.took)));
    let share = bound(&format!("{} %", format_percent(worst.0)));
    let content = Html::element("h3", "", format!("({}) {}", control.label(), control.title()))
        .and(Html::element("div", &format!("big {tone}"), share))
        .and(Html::element("p", "", formatted))
        .and(Html::element("p", "", format!("all done after {took}")));
    Html::element("div", "card", content).and("\n")
}

fn row(control: Control, index: usize, tenant: &TenantScore) -> HtmlRow {
    let title = match index {
        0 => format!("({}) {}", control.label(), control.title()),
        _ => String::new(),
    };
    let cells = vec![
        title.into(),
        Html::element("b", "", tenant.name),
        Mib(tenant.promise).to_string().into(),
        judged(tenant.promise_kept),
        percent(tenant.promise_kept.lowest_permille).into(),
        Mib(tenant.mean).to_string().into(),
        tenant.rate_with_all.map_or("-".into(), |rate| Mib(rate).to_string()).into(),
        format_seconds(tenant.took).into(),
    ];
    HtmlRow { class: class(index), cells }
}

fn judged(windows: WindowCounts) -> Html {
    let tone = if windows.is_kept() { "good" } else { "bad" };
    Html::element("span", tone, percent(windows.kept_permille()))
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

/// A command, in which lines end between words and nowhere else: not at the hyphens of `--size`.
fn shown(command: &str) -> Html {
    let words = command.split(' ').map(|word| Html::element("span", "", word).and(" "));
    Html::element("code", "", words.fold(Html::default(), Html::and))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::page::tests::assert_whole;
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
            load_generator: "fio-3.33".into(),
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
        assert_whole(&page);
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("SCALED &amp; so on") && page.contains("A &lt;fast&gt; one"));
        if let Some(path) = std::env::var_os("TIDEGATE_TEST_REPORT") {
            std::fs::write(path, page).unwrap();
        }
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
}
