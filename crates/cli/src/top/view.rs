//! The screen as a picture: what is drawn where. It draws what it is given, and decides nothing
//! else.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span as Piece, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};
use tidegate_model::Span;
use tidegate_model::gate::Unit;
use tidegate_proto::controller::status::{StageStatus, Status};

use super::history::{History, Row};
use super::marks::{Bar, Marks};
use crate::amounts;
use crate::fare;
use crate::output::{Tone, on_one_line};

/// As wide as the widest level, `1023.9 MiB/s`.
const LEVEL: u16 = 12;

/// What stands before the promise of a tenant that has only a limit: `max `.
const MAX: u16 = 4;

/// The widest name; longer ones are cut.
const NAME: u16 = 24;

/// Below this width there is no room for a sparkline, then none for the mean wait, then none for
/// what is allocated.
const SPARKLINE_FROM: u16 = 110;
const MEAN_FROM: u16 = 100;
const ALLOCATED_FROM: u16 = 86;

/// The most warnings on the screen; `tidegate status` has them all.
const WARNINGS_MAX: usize = 3;

/// Below this height there is no room for blank lines, nor for more than one warning.
const LOW: u16 = 16;

/// By what the tenants are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    /// As they stand in the policy.
    #[default]
    Policy,
    Name,
    Rate,
    Promise,
    Waiting,
}

impl Order {
    /// The order that a key stands for.
    pub(super) fn of_key(key: char) -> Option<Self> {
        match key {
            'o' => Some(Self::Policy),
            'n' => Some(Self::Name),
            'r' => Some(Self::Rate),
            'p' => Some(Self::Promise),
            'w' => Some(Self::Waiting),
            _ => None,
        }
    }

    /// `rows` in this order: names from a to z, numbers from the largest; or the other way round.
    fn sorted(self, rows: &[Row], is_reversed: bool) -> Vec<&Row> {
        let mut sorted: Vec<_> = rows.iter().collect();
        let down = |value: fn(&Row) -> u64| move |row: &&Row| std::cmp::Reverse(value(row));
        match self {
            Self::Policy => {}
            Self::Name => sorted.sort_by(|one, other| one.name.cmp(&other.name)),
            Self::Rate => sorted.sort_by_key(down(|row| row.rate)),
            Self::Promise => sorted.sort_by_key(down(|row| row.promise().unwrap_or(0))),
            Self::Waiting => sorted.sort_by_key(down(|row| row.waiting_permille)),
        }
        if is_reversed {
            sorted.reverse();
        }
        sorted
    }
}

/// What is on the screen.
#[derive(Debug)]
pub(super) struct View {
    pub(super) history: History,
    /// Where the controller is.
    pub(super) socket: String,
    /// The time of the last look.
    pub(super) time: String,
    /// Why the last look failed, if it did.
    pub(super) fault: Option<String>,
    pub(super) order: Order,
    pub(super) is_reversed: bool,
    /// How many tenants are scrolled away above.
    pub(super) offset: usize,
    pub(super) is_colored: bool,
    pub(super) marks: Marks,
}

impl View {
    /// Draws everything.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let status = self.history.status();
        let area = frame.area();
        let is_low = area.height < LOW;
        let warnings = self.warnings(if is_low { 1 } else { WARNINGS_MAX });
        let stages = match status.stages.len() {
            0 => 0,
            count => (count + 1).min(usize::from(area.height / 3)),
        };
        let height = |rows: usize| Constraint::Length(u16::try_from(rows).unwrap_or(u16::MAX));
        let blank = usize::from(!is_low);
        // Tenants get what the rest leaves, but no more than they fill.
        let fixed = 2 + 2 * blank + stages + warnings.len() + 1;
        let room = usize::from(area.height).saturating_sub(fixed);
        let tenants = (self.history.rows().len() + 1).min(room);
        let [head, _, tenants, _, stage_list, _, warning_list, foot] = Layout::vertical([
            height(2),
            height(blank),
            height(tenants),
            height(blank),
            height(stages),
            Constraint::Fill(1),
            height(warnings.len()),
            height(1),
        ])
        .areas(area);
        frame.render_widget(self.head(status), head);
        self.draw_tenants(frame, tenants);
        if stages > 0 {
            self.draw_stages(&status.stages, frame, stage_list);
        }
        frame.render_widget(Text::from(warnings), warning_list);
        frame.render_widget(self.foot(), foot);
    }

    fn style(&self, tone: Tone) -> Style {
        let color = |color| if self.is_colored { Style::new().fg(color) } else { Style::new() };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Bold => Style::new().add_modifier(Modifier::BOLD),
            Tone::Faint => Style::new().add_modifier(Modifier::DIM),
            Tone::Good => color(Color::Green),
            Tone::Warn => color(Color::Yellow),
            Tone::Bad => color(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    fn head(&self, status: &Status) -> Paragraph<'static> {
        let totals = &status.totals;
        let policy = match status.revision {
            0 => "no policy".to_owned(),
            revision => format!("policy revision {revision}"),
        };
        let what = format!(
            " {}  {policy}, {}, {}, up {}  {} UTC",
            self.socket,
            amounts::plural(totals.stages, "stage"),
            amounts::plural(totals.processes, "process"),
            amounts::age(status.uptime_ns),
            self.time,
        );
        let sums = [
            (Unit::Bytes, totals.period_bytes_per_second, status.budget_bytes_per_second),
            (
                Unit::Operations,
                totals.period_operations_per_second,
                status.budget_operations_per_second,
            ),
        ];
        let sum = |(unit, measured, budget): (Unit, u64, Option<u64>)| match budget {
            None => fare::level(unit, measured),
            Some(budget) => {
                let share = u128::from(measured) * 1000 / u128::from(budget.max(1));
                let share = amounts::permille(u64::try_from(share).unwrap_or(u64::MAX));
                format!(
                    "{} of {} ({share})",
                    fare::level(unit, measured),
                    fare::level(unit, budget)
                )
            }
        };
        let sums = sums.map(sum).join("   ");
        let title = Piece::styled("tidegate top", self.style(Tone::Bold));
        Paragraph::new(vec![Line::from(vec![title, what.into()]), Line::from(sums)])
    }

    fn draw_tenants(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.order.sorted(self.history.rows(), self.is_reversed);
        if rows.is_empty() {
            let text = match self.history.status().revision {
                0 => "No policy is in force; apply one with `tidegate apply FILE`.",
                _ => "The policy names no tenant.",
            };
            frame.render_widget(text, area);
            return;
        }
        let columns = Columns::of(area.width, &rows);
        let visible = usize::from(area.height.saturating_sub(1));
        // However far somebody scrolls, the last row stays in sight.
        let offset = self.offset.min(rows.len().saturating_sub(visible.max(1)));
        let shown = rows.iter().skip(offset).take(visible);
        let body: Vec<_> = shown.map(|row| self.tenant(row, &columns)).collect();
        let table = Table::new(body, columns.constraints())
            .header(TableRow::new(columns.heads()).style(self.style(Tone::Faint)))
            .column_spacing(Columns::GAP);
        frame.render_widget(table, area);
    }

    fn tenant(&self, row: &Row, columns: &Columns) -> TableRow<'static> {
        let level =
            |value: Option<u64>| value.map_or("-".into(), |value| fare::level(row.unit, value));
        let allocated = row.allocated.map_or("no bound".into(), |_| level(row.allocated));
        let promise = match row.reservation {
            Some(_) => level(row.reservation),
            None => row.limit.map_or("-".into(), |_| format!("max {}", level(row.limit))),
        };
        let mut cells = vec![
            Cell::from(row.name.clone()),
            right(level(Some(row.rate))),
            right(promise),
            Cell::from(self.bar(row, columns.bar)),
        ];
        if columns.has_allocated {
            cells.push(right(allocated));
        }
        let wait = |wait: Option<Span>| wait.map_or("-".into(), |wait| amounts::span(wait.0));
        cells.push(right(amounts::permille(row.waiting_permille)));
        if columns.has_mean {
            cells.push(right(wait(row.wait)));
        }
        cells.push(right(wait(row.wait_p99)));
        cells.push(Cell::from(row.met.word()).style(self.style(row.met.tone())));
        if columns.sparkline > 0 {
            let peak = row.trail.iter().map(|(_, rate)| *rate).max().unwrap_or(0);
            let scale = peak.max(row.promise().unwrap_or(0));
            cells.push(self.marks.sparkline(&row.trail, scale, columns.sparkline).into());
        }
        TableRow::new(cells)
    }

    /// The rate against the promise: the whole bar is the most of what flows, what is promised and
    /// what is allocated.
    fn bar(&self, row: &Row, width: usize) -> Line<'static> {
        let promise = row.promise();
        let scale = row.rate.max(promise.unwrap_or(0)).max(row.allocated.unwrap_or(0));
        let [before, mark, after] = self.marks.bar(Bar { value: row.rate, promise, scale }, width);
        let tone = self.style(row.met.tone());
        Line::from(vec![
            Piece::styled(before, tone),
            Piece::styled(mark, self.style(Tone::Bold)),
            Piece::styled(after, tone),
        ])
    }

    fn draw_stages(&self, stages: &[StageStatus], frame: &mut Frame<'_>, area: Rect) {
        let heads = ["STAGE", "PID", "TENANT", "PROCESSES", "RATE", "COVERED", "COMMAND"];
        let is_right = |place: usize| !matches!(place, 2 | 6);
        let heads = heads.iter().enumerate().map(|(place, head)| match is_right(place) {
            true => right((*head).into()),
            false => Cell::from(*head),
        });
        let visible = usize::from(area.height.saturating_sub(1));
        let rows = stages.iter().take(visible).map(|stage| {
            let covered = fare::covered(stage).permille();
            let tenant = if stage.tenant.is_empty() { "(rules)" } else { &stage.tenant };
            TableRow::new(vec![
                right(stage.id.to_string()),
                right(stage.pid.to_string()),
                Cell::from(tenant.to_owned()),
                right(stage.processes.to_string()),
                right(amounts::bandwidth(stage.interval_bytes_per_second)),
                right(covered.map_or("-".into(), amounts::permille)),
                Cell::from(on_one_line(&stage.command)),
            ])
        });
        let widths = [
            Constraint::Length(5),
            Constraint::Length(7),
            Constraint::Length(NAME.min(area.width / 6)),
            Constraint::Length(9),
            Constraint::Length(LEVEL),
            Constraint::Length(7),
            Constraint::Fill(1),
        ];
        let table = Table::new(rows, widths)
            .header(TableRow::new(heads).style(self.style(Tone::Faint)))
            .column_spacing(Columns::GAP);
        frame.render_widget(table, area);
    }

    /// What somebody should look at, in at most `room` lines.
    fn warnings(&self, room: usize) -> Vec<Line<'static>> {
        if let Some(fault) = &self.fault {
            return vec![Line::styled(fault.clone(), self.style(Tone::Bad))];
        }
        let warnings = fare::warnings(self.history.status());
        let line = |text: String| Line::styled(format!("warning: {text}"), self.style(Tone::Warn));
        let shown = if warnings.len() > room { room - 1 } else { room };
        let mut lines: Vec<_> =
            warnings.iter().take(shown).map(|warning| line(warning.text.clone())).collect();
        match warnings.len().saturating_sub(shown) {
            0 => {}
            hidden if shown == 0 => {
                let count = amounts::plural(hidden as u64, "warning");
                let text = format!("{count}; see `tidegate status`");
                lines.push(Line::styled(text, self.style(Tone::Warn)));
            }
            hidden => lines.push(line(format!("{hidden} more; see `tidegate status`"))),
        }
        lines
    }

    fn foot(&self) -> Line<'static> {
        let keys = [
            ('q', "quit", None),
            ('o', "policy's order", Some(Order::Policy)),
            ('n', "name", Some(Order::Name)),
            ('r', "rate", Some(Order::Rate)),
            ('p', "promise", Some(Order::Promise)),
            ('w', "waiting", Some(Order::Waiting)),
        ];
        let mut pieces = Vec::new();
        for (key, what, order) in keys {
            let is_chosen = order == Some(self.order);
            let tone = if is_chosen { Tone::Bold } else { Tone::Faint };
            let arrow = match (is_chosen, self.is_reversed) {
                (true, true) => " reversed",
                _ => "",
            };
            pieces.push(Piece::styled(key.to_string(), self.style(Tone::Bold)));
            pieces.push(Piece::styled(format!(" {what}{arrow}   "), self.style(tone)));
        }
        Line::from(pieces)
    }
}

/// Which columns there is room for, and how wide the flexible ones are.
#[derive(Debug)]
struct Columns {
    name: u16,
    bar: usize,
    has_allocated: bool,
    has_mean: bool,
    /// Zero for none.
    sparkline: usize,
}

impl Columns {
    const GAP: u16 = 2;
    /// What these say is short; the longest wait that is told apart is `2 min 17 s`.
    const WAITING: u16 = 7;
    const MEAN: u16 = 9;
    const P99: u16 = 10;
    const MET: u16 = 4;

    fn of(width: u16, rows: &[&Row]) -> Self {
        let longest = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let name = u16::try_from(longest).unwrap_or(NAME).clamp(6, NAME);
        let has_allocated = width >= ALLOCATED_FROM;
        let has_mean = width >= MEAN_FROM;
        let has_sparkline = width >= SPARKLINE_FROM;
        let levels = if has_allocated { 3 } else { 2 };
        let mean = if has_mean { Self::MEAN } else { 0 };
        let short = Self::WAITING + mean + Self::P99 + Self::MET;
        let fixed = name + levels * LEVEL + MAX + short;
        let gaps = levels + 5 + u16::from(has_mean) + u16::from(has_sparkline) - 1;
        let left = width.saturating_sub(fixed + gaps * Self::GAP);
        let sparkline = if has_sparkline { (left / 2).min(60) } else { 0 };
        Self {
            name,
            bar: usize::from(left - sparkline),
            has_allocated,
            has_mean,
            sparkline: usize::from(sparkline),
        }
    }

    fn constraints(&self) -> Vec<Constraint> {
        let flexible = |width: usize| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX));
        let mut widths = vec![
            Constraint::Length(self.name),
            Constraint::Length(LEVEL),
            Constraint::Length(LEVEL + MAX),
            flexible(self.bar),
        ];
        if self.has_allocated {
            widths.push(Constraint::Length(LEVEL));
        }
        let mean = self.has_mean.then_some(Self::MEAN);
        let short = [Self::WAITING].into_iter().chain(mean).chain([Self::P99, Self::MET]);
        widths.extend(short.map(Constraint::Length));
        if self.sparkline > 0 {
            widths.push(flexible(self.sparkline));
        }
        widths
    }

    fn heads(&self) -> Vec<Cell<'static>> {
        let head = |text: &str| Cell::from(text.to_owned());
        let right = |text: &str| right(text.to_owned());
        let mut heads = vec![head("TENANT"), right("RATE"), right("PROMISE"), head("")];
        if self.has_allocated {
            heads.push(right("ALLOCATED"));
        }
        heads.push(right("WAITING"));
        if self.has_mean {
            heads.push(right("MEAN WAIT"));
        }
        heads.extend([right("P99 WAIT"), head("MET")]);
        if self.sparkline > 0 {
            heads.push(head("LAST MINUTE"));
        }
        heads
    }
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tidegate_proto::controller::status::{CoverageStatus, TenantStatus, Totals};

    use super::*;

    fn tenant(name: &str, reserved_mib: u64, mib: u64, waiting: u64) -> TenantStatus {
        TenantStatus {
            name: name.into(),
            reservation_bytes_per_second: (reserved_mib > 0).then_some(reserved_mib << 20),
            limit_bytes_per_second: (reserved_mib == 0).then_some(200 << 20),
            allocated_bytes_per_second: Some(400 << 20),
            period_bytes_per_second: mib << 20,
            waiting_permille: waiting,
            wait_p99_ns: (mib > 0).then_some(waiting * 2_500),
            ..TenantStatus::default()
        }
    }

    fn status(second: u64) -> Status {
        let coverage = CoverageStatus {
            seen_bytes: 900 << 20,
            syscall_bytes: 1000 << 20,
            ..CoverageStatus::default()
        };
        let stage = StageStatus {
            id: 3,
            pid: 4242,
            tenant: "oltp".into(),
            command: "fio jobs/oltp.fio".into(),
            processes: 5,
            interval_bytes_per_second: 348 << 20,
            coverage,
            ..StageStatus::default()
        };
        Status {
            revision: 4,
            period_ns: Span::SECOND.0,
            uptime_ns: (second + 100) * Span::SECOND.0,
            budget_bytes_per_second: Some(1000 << 20),
            totals: Totals {
                stages: 1,
                processes: 5,
                period_bytes_per_second: 500 << 20,
                ..Totals::default()
            },
            tenants: vec![
                tenant("backup", 0, 20 * (second % 8), 0),
                tenant("oltp", 350, 348, 300),
                tenant("web", 100, 50, 900),
            ],
            stages: vec![stage],
            ..Status::default()
        }
    }

    fn view() -> View {
        let mut history = History::default();
        (0..40).for_each(|second| history.take(status(second)));
        View {
            history,
            socket: "/run/tidegate/controller.sock".into(),
            time: "04:15:33".into(),
            fault: None,
            order: Order::Policy,
            is_reversed: false,
            offset: 0,
            is_colored: false,
            marks: Marks::UNICODE,
        }
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let text = terminal.backend().to_string();
        // Without the quotes that the backend puts around every line.
        let lines = text.lines().map(|line| line.trim_matches('"').trim_end());
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_wide_screen_shows_everything() {
        insta::assert_snapshot!(drawn(&view(), 140, 18));
    }

    #[test]
    fn a_narrow_screen_shows_what_matters() {
        let view = View { order: Order::Waiting, is_reversed: true, ..view() };
        insta::assert_snapshot!(drawn(&view, 72, 10));
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        let mut view = View { offset: 7, ..view() };
        for (width, height) in [(1, 1), (5, 3), (30, 4), (79, 5), (300, 100)] {
            drawn(&view, width, height);
        }
        view.history = History::default();
        drawn(&view, 80, 24);
    }

    #[test]
    fn orders_are_by_what_their_key_says() {
        let view = view();
        let rows = view.history.rows();
        let names = |order: Order, is_reversed| {
            let sorted = order.sorted(rows, is_reversed);
            sorted.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(Order::Policy, false), "backup oltp web");
        assert_eq!(names(Order::Name, true), "web oltp backup");
        assert_eq!(names(Order::Rate, false), "oltp backup web");
        assert_eq!(names(Order::Promise, false), "oltp backup web");
        assert_eq!(names(Order::Waiting, false), "web oltp backup");
    }
}
