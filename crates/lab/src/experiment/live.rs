//! The live table of a running experiment: redrawn in place on a terminal, one line a
//! second elsewhere.

use std::io::{self, IsTerminal};

use tidegate_model::{Rate, Span, Time};

use super::plan::{ExperimentPlan, KEPT_PERMILLE, Mib, SETTLING, grouped};
use super::recording::{Control, Recording, SAMPLE_INTERVAL, Sample, WINDOW, per_second};
use tidegate_console::amounts;
use tidegate_console::failure::Failure;
use tidegate_console::output::{self, Paint, Tone};

/// A bar is at most this wide.
const BAR_MAX: usize = 50;
/// Columns of text before a bar.
const BEFORE_BAR: usize = 34;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// In place, on a terminal.
    Screen,
    /// One line a second.
    Lines,
    /// Not at all.
    Silent,
}

impl Form {
    /// The form that fits standard output, unless an option asks for another.
    pub(crate) fn wanted(plain: bool, json: bool) -> Self {
        match (json, plain || !io::stdout().is_terminal()) {
            (true, _) => Self::Silent,
            (false, true) => Self::Lines,
            (false, false) => Self::Screen,
        }
    }
}

/// Shows how set-ups go.
#[derive(Debug)]
pub(crate) struct Live {
    form: Form,
    paint: Paint,
    /// Which set-up was announced last.
    announced: Option<Control>,
    /// Lines on the screen that the next frame replaces.
    drawn: usize,
    /// When the last line was printed.
    printed: Option<Time>,
}

/// When a tenant has started and ended, so far.
pub(crate) type RunTimes = (Time, Option<Time>);

impl Live {
    pub(crate) fn new(form: Form) -> Self {
        let paint = Paint::stdout();
        Self { form, paint, announced: None, drawn: 0, printed: None }
    }

    /// Says something once.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        match self.form {
            Form::Silent => Ok(()),
            Form::Screen | Form::Lines => output::print(&format!("{text}\n")),
        }
    }

    pub(crate) fn show(
        &mut self,
        plan: &ExperimentPlan,
        control: Control,
        samples: &[Sample],
        states: &[RunTimes],
    ) -> Result<(), Failure> {
        let Some(view) = View::new(plan, samples, states) else { return Ok(()) };
        if self.form == Form::Silent {
            return Ok(());
        }
        let mut text = String::new();
        if self.announced != Some(control) {
            self.announced = Some(control);
            (self.drawn, self.printed) = (0, None);
            let head = format!("\n({}) {}", control.label(), control.title());
            text += &self.paint.tone(Tone::Bold, &head);
            text.push('\n');
            if self.form == Form::Lines {
                text += &view.heads(self.paint);
            }
        }
        if self.form == Form::Screen {
            let table = view.table(self.paint, output::columns());
            // Up to where the last frame began, and each line anew.
            if self.drawn > 0 {
                text += &format!("\x1b[{}A", self.drawn);
            }
            self.drawn = table.len();
            table.iter().for_each(|line| text += &format!("\x1b[2K{line}\n"));
        } else if self
            .printed
            .is_none_or(|at| view.at.since(at).0 + SAMPLE_INTERVAL.0 / 2 >= WINDOW.0)
        {
            self.printed = Some(view.at);
            text += &view.line(self.paint);
        }
        if text.is_empty() { Ok(()) } else { output::print(&text) }
    }

    /// Says what held a set-up that has run, and how long it took.
    pub(crate) fn ended(&self, recording: &Recording) -> Result<(), Failure> {
        let took = amounts::span(recording.took().0);
        let description = format!("    {}; took {took}", recording.means.join("; "));
        self.print(&self.paint.tone(Tone::Faint, &description))
    }
}

#[derive(Debug)]
struct View {
    at: Time,
    rows: Vec<LiveRow>,
    budget: Rate,
    disk: Rate,
}

#[derive(Debug)]
struct LiveRow {
    name: &'static str,
    promise: Rate,
    /// None before it starts and after it ended.
    rate: Option<Rate>,
    /// Whether it has run for long enough to have its promise.
    is_settled: bool,
    /// How long it ran, once it has ended.
    took: Option<Span>,
}

impl View {
    fn new(plan: &ExperimentPlan, samples: &[Sample], states: &[RunTimes]) -> Option<Self> {
        let last = samples.last()?;
        // The sample one second ago; at first, less than a second ago.
        let before = samples
            .iter()
            .rev()
            .find(|sample| last.at.since(sample.at).0 + SAMPLE_INTERVAL.0 / 2 >= WINDOW.0);
        let before = before.or(samples.first())?;
        let rows = plan.tenants.iter().enumerate().map(|(index, tenant)| {
            let state = states.get(index);
            let rate =
                per_second(last.bytes(index) - before.bytes(index), last.at.since(before.at));
            let is_running = state.is_some_and(|(_, ended)| ended.is_none());
            let took = state.and_then(|(started, ended)| Some((*ended)?.since(*started)));
            let (name, promise) = (tenant.name, tenant.promise);
            let is_settled = state.is_some_and(|(started, _)| last.at.since(*started) > SETTLING);
            LiveRow { name, promise, rate: is_running.then_some(rate), is_settled, took }
        });
        Some(Self { at: last.at, rows: rows.collect(), budget: plan.budget, disk: plan.disk })
    }

    fn sum(&self) -> Rate {
        Rate(self.rows.iter().filter_map(|row| row.rate).map(|rate| rate.0).sum())
    }

    fn heads(&self, paint: Paint) -> String {
        let mut line = format!("{:>6}", "s");
        for row in &self.rows {
            line += &format!("{:>12}", format!("{}/{}", row.name, mib(row.promise)));
        }
        line += &format!("{:>12}", format!("sum/{}", mib(self.budget)));
        format!("{}\n", paint.tone(Tone::Faint, &format!("{line}  MiB/s; ! below the promise")))
    }

    fn line(&self, paint: Paint) -> String {
        let mut line = format!("{:>6.0}", self.at.0 as f64 / Span::SECOND.0 as f64);
        for row in &self.rows {
            line += &match row.rate {
                None => format!("{:>12}", if row.took.is_some() { "done" } else { "-" }),
                Some(rate) if row.is_short() => {
                    paint.tone(Tone::Bad, &format!("{:>12}", format!("{}!", mib(rate))))
                }
                Some(rate) => format!("{:>12}", mib(rate)),
            };
        }
        line += &format!("{:>12}\n", mib(self.sum()));
        line
    }

    fn table(&self, paint: Paint, columns: usize) -> Vec<String> {
        let width = columns.saturating_sub(BEFORE_BAR + 1).min(BAR_MAX);
        let seconds = self.at.0 as f64 / Span::SECOND.0 as f64;
        let head = format!("{:>6} {:>12} {:>12}", "", "promised", "MiB/s");
        let mut table = vec![format!("{}  {seconds:.0} s", paint.tone(Tone::Faint, &head))];
        for row in &self.rows {
            let promise = mib(row.promise);
            let text = match (row.rate, row.took) {
                (None, None) => format!("{:>6} {promise:>12} {:>12}", row.name, "waits"),
                (None, Some(took)) => {
                    let took = format!("{:.1} s", took.as_seconds());
                    format!("{:>6} {promise:>12} {:>12}  done in {took}", row.name, "")
                }
                (Some(rate), _) => {
                    let tone = match (row.is_settled, row.is_short()) {
                        (false, _) => Tone::Faint,
                        (true, true) => Tone::Bad,
                        (true, false) => Tone::Good,
                    };
                    let bar = bar(rate, row.promise, self.disk, width);
                    let now = mib(rate);
                    format!("{:>6} {promise:>12} {now:>12}  {}", row.name, paint.tone(tone, &bar))
                }
            };
            table.push(text);
        }
        let (sum, budget) = (mib(self.sum()), mib(self.budget));
        let bar = bar(self.sum(), self.budget, self.disk, width);
        table.push(format!("{:>6} {budget:>12} {sum:>12}  {bar}", "sum"));
        table
    }
}

impl LiveRow {
    fn is_short(&self) -> bool {
        let is_less = |rate: Rate| rate.0 * 1000 < self.promise.0 * KEPT_PERMILLE;
        self.is_settled && self.rate.is_some_and(is_less)
    }
}

/// Whole MiB/s, without the unit.
fn mib(rate: Rate) -> String {
    let description = Mib(rate).to_string();
    description.trim_end_matches(" MiB/s").to_owned()
}

/// `value` of `scale` as a bar with a mark at `promise`.
fn bar(value: Rate, promise: Rate, scale: Rate, width: usize) -> String {
    let cell_of = |rate: Rate| {
        let cells = rate.0 as f64 * width as f64 / scale.0.max(1) as f64;
        (cells.round() as usize).min(width.saturating_sub(1))
    };
    let (full, mark) = if output::is_unicode() { ('█', '│') } else { ('#', '|') };
    let cell = |cell: usize| match (cell == cell_of(promise), cell < cell_of(value)) {
        (true, _) => mark,
        (false, true) => full,
        (false, false) => ' ',
    };
    (0..width).map(cell).collect::<String>().trim_end().to_owned()
}

/// Seconds with one digit, as in tables.
pub(crate) fn format_seconds(span: Span) -> String {
    format!("{} s", tenths(span.0, Span::SECOND.0))
}

/// `value / unit` with one digit after the point, rounded.
pub(crate) fn tenths(value: u64, unit: u64) -> String {
    let tenths = (value + unit / 20) / (unit / 10);
    format!("{}.{}", grouped(tenths / 10), tenths % 10)
}
