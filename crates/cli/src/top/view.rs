//! The layout and drawing of the screen of `tidegate top`. It draws the rows of the history and
//! decides nothing about them but their order.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span as StyledText, Text};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};
use tidegate_model::Span;
use tidegate_model::gate::Unit;
use tidegate_proto::controller::status::Status;
use unicode_width::UnicodeWidthStr;

use super::glyphs::{Bar, Glyphs};
use super::history::{History, TenantRow};
use crate::health::{self, DataPlanes};
use tidegate_console::amounts;
use tidegate_console::output::Tone;

mod lists;

use lists::List;

/// As wide as the widest level, `1023.9 MiB/s`.
pub(super) const LEVEL: u16 = 12;

/// The width of the prefix of a promise that is only a limit: `max `.
const MAX: u16 = 4;

/// The widest name; longer ones are cut.
pub(super) const NAME: u16 = 24;

/// Blanks between two columns.
pub(super) const GAP: u16 = 2;

/// Below this width there is no space for a sparkline, then none for the mean wait, then none for
/// what is allocated or the limit; with the columns of stages, and of nothing else.
pub(super) const SPARKLINE_FROM: u16 = 110;
const MEAN_FROM: u16 = 100;
const LEVEL_FROM: u16 = 86;

/// The most warnings on the screen; `tidegate status` has them all.
const WARNINGS_MAX: usize = 3;

/// Below this height there is no space for blank lines, nor for more than one warning.
const LOW: u16 = 16;

/// By what the tenants are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortKey {
    /// As they stand in the policy.
    #[default]
    Policy,
    Name,
    Rate,
    Promise,
    Waiting,
}

impl SortKey {
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
    fn sorted(self, rows: &[TenantRow], is_reversed: bool) -> Vec<&TenantRow> {
        let mut sorted: Vec<_> = rows.iter().collect();
        let down =
            |value: fn(&TenantRow) -> u64| move |row: &&TenantRow| std::cmp::Reverse(value(row));
        match self {
            Self::Policy => {}
            Self::Name => sorted.sort_by(|one, other| one.name.cmp(&other.name)),
            Self::Rate => sorted.sort_by_key(down(|row| row.rate)),
            Self::Promise => sorted.sort_by_key(down(|row| row.promise().unwrap_or(0))),
            Self::Waiting => {
                sorted.sort_by_key(|row| std::cmp::Reverse((row.waiting_permille, row.queued)))
            }
        }
        if is_reversed {
            sorted.reverse();
        }
        sorted
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    /// Tenants, and the beginning of everything else.
    #[default]
    Tenants,
    /// Nodes and gateways.
    Nodes,
}

impl Page {
    /// The one that comes after it.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Tenants => Self::Nodes,
            Self::Nodes => Self::Tenants,
        }
    }
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct View {
    pub(super) history: History,
    /// Where the controller is.
    pub(super) socket: String,
    /// The time of the last look.
    pub(super) time: String,
    /// Why the last look failed, if it did.
    pub(super) fault: Option<String>,
    pub(super) order: SortKey,
    pub(super) is_reversed: bool,
    /// How many rows are scrolled away above.
    pub(super) offset: usize,
    pub(super) page: Page,
    pub(super) is_colored: bool,
    pub(super) glyphs: Glyphs,
}

impl View {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let status = self.history.status();
        let area = frame.area();
        let is_low = area.height < LOW;
        let warnings = self.warnings(if is_low { 1 } else { WARNINGS_MAX });
        let lists = self.lists();
        let height = |rows: usize| Constraint::Length(u16::try_from(rows).unwrap_or(u16::MAX));
        let blank = usize::from(!is_low);
        // The lists below have a part of the screen at most; the main table gets what they leave,
        // but no more than it fills.
        let part = usize::from(area.height) / if lists.len() > 1 { 5 } else { 3 };
        let tall = |list: &List| (list.rows(status) + 1).min(part);
        let below: usize = lists.iter().map(|list| tall(list) + blank).sum();
        let fixed = 2 + blank + below + warnings.len() + 1;
        let available = usize::from(area.height).saturating_sub(fixed);
        let main = (self.rows() + 1).min(available);
        let mut heights = vec![height(2), height(blank), height(main)];
        heights.extend(lists.iter().flat_map(|list| [height(blank), height(tall(list))]));
        heights.extend([Constraint::Fill(1), height(warnings.len()), height(1)]);
        let areas = Layout::vertical(heights).split(area);
        frame.render_widget(self.head(status, usize::from(area.width)), areas[0]);
        match (self.page(), &status.cluster) {
            (Page::Nodes, Some(cluster)) => self.draw_nodes(cluster, self.offset, frame, areas[2]),
            _ => self.draw_tenants(frame, areas[2]),
        }
        for (index, list) in lists.iter().enumerate() {
            self.draw_list(*list, frame, areas[4 + 2 * index]);
        }
        frame.render_widget(Text::from(warnings), areas[areas.len() - 2]);
        frame.render_widget(self.foot(), areas[areas.len() - 1]);
    }

    /// The page that is shown: without a cluster there is only one.
    pub(super) fn page(&self) -> Page {
        match self.history.status().cluster {
            Some(_) => self.page,
            None => Page::Tenants,
        }
    }

    /// The rows that can be scrolled.
    pub(super) fn rows(&self) -> usize {
        match (self.page(), &self.history.status().cluster) {
            (Page::Nodes, Some(cluster)) => cluster.nodes.len(),
            _ => self.history.rows().len(),
        }
    }

    pub(super) fn style(&self, tone: Tone) -> Style {
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

    fn head(&self, status: &Status, width: usize) -> Paragraph<'static> {
        let totals = &status.totals;
        let policy = match status.revision {
            0 => "no policy".to_owned(),
            revision => format!("policy revision {revision}"),
        };
        let mut components = Vec::new();
        if health::data_planes(status).stages {
            components.push(amounts::plural(totals.stages, "stage"));
            components.push(amounts::plural(totals.processes, "process"));
        }
        components.extend(status.cluster.as_ref().map(health::components));
        let (components, up) = (components.join(", "), amounts::age(status.uptime_ns));
        let what = format!("  {policy}, {components}, up {up}  {} UTC", self.time);
        let title = "tidegate top";
        // Where it listens is what a narrow screen can do without.
        let socket = format!(" {}", self.socket);
        let fits = title.len() + socket.width() + what.width() <= width;
        let what = if fits { socket + &what } else { what };
        let gateways = status.cluster.iter().flat_map(|cluster| &cluster.gateways);
        let at_gateways = gateways.map(|gateway| gateway.bytes_per_second).sum();
        let at_nodes = health::tenants(status).map(|tenant| tenant.at_nodes()).sum();
        let bytes = (totals.period_bytes_per_second, at_gateways);
        let operations = (totals.period_operations_per_second, at_nodes);
        let sums = [
            (Unit::Bytes, bytes, status.budget_bytes_per_second),
            (Unit::Operations, operations, status.budget_operations_per_second),
        ];
        let sum = |(unit, (measured, beside), budget): (Unit, (u64, u64), Option<u64>)| match budget
        {
            None => amounts::rate(unit, measured.saturating_add(beside)),
            // A budget is what stages share.
            Some(budget) => {
                let share = u128::from(measured) * 1000 / u128::from(budget.max(1));
                let share = amounts::permille(u64::try_from(share).unwrap_or(u64::MAX));
                format!(
                    "{} of {} ({share})",
                    amounts::rate(unit, measured),
                    amounts::rate(unit, budget)
                )
            }
        };
        let sums = sums.map(sum).join("   ");
        let title = StyledText::styled(title, self.style(Tone::Bold));
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
        let columns = Columns::of(area.width, &rows, health::data_planes(self.history.status()));
        let visible = usize::from(area.height.saturating_sub(1));
        // However far the user scrolls, the last row stays visible.
        let offset = self.offset.min(rows.len().saturating_sub(visible.max(1)));
        let shown = rows.iter().skip(offset).take(visible);
        let body: Vec<_> = shown.map(|row| self.tenant(row, &columns)).collect();
        let table = Table::new(body, columns.constraints())
            .header(TableRow::new(columns.heads()).style(self.style(Tone::Faint)))
            .column_spacing(GAP);
        frame.render_widget(table, area);
    }

    fn tenant(&self, row: &TenantRow, columns: &Columns) -> TableRow<'static> {
        let level =
            |value: Option<u64>| value.map_or("-".into(), |value| amounts::rate(row.unit, value));
        let allocated = match (row.allocated, row.is_only_at_nodes) {
            (None, false) => "no bound".into(),
            (allocated, _) => level(allocated),
        };
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
        if columns.has_level {
            cells.push(right(if columns.data_planes.stages {
                allocated
            } else {
                level(row.limit)
            }));
        }
        if columns.data_planes.nodes {
            cells.push(right(amounts::count(row.queued)));
        }
        let wait = |wait: Option<Span>| wait.map_or("-".into(), |wait| amounts::span(wait.0));
        if columns.data_planes.stages {
            cells.push(right(amounts::permille(row.waiting_permille)));
            if columns.has_mean {
                cells.push(right(wait(row.wait)));
            }
            cells.push(right(wait(row.wait_p99)));
        }
        cells.push(Cell::from(row.met.word()).style(self.style(row.met.tone())));
        if columns.sparkline > 0 {
            let peak = row.trail.iter().map(|(_, rate)| *rate).max().unwrap_or(0);
            let scale = peak.max(row.promise().unwrap_or(0));
            cells.push(self.glyphs.sparkline(&row.trail, scale, columns.sparkline).into());
        }
        TableRow::new(cells)
    }

    /// The rate against the promise: the whole bar is the most of what flows, what is promised and
    /// what is allocated, or at nodes the limit.
    fn bar(&self, row: &TenantRow, width: usize) -> Line<'static> {
        let promise = row.promise();
        let most = if row.is_only_at_nodes { row.limit } else { row.allocated };
        let scale = row.rate.max(promise.unwrap_or(0)).max(most.unwrap_or(0));
        self.drawn(Bar { value: row.rate, promise, scale }, row.met.tone(), width)
    }

    pub(super) fn drawn(&self, bar: Bar, tone: Tone, width: usize) -> Line<'static> {
        let [before, mark, after] = self.glyphs.bar(bar, width);
        let tone = self.style(tone);
        Line::from(vec![
            StyledText::styled(before, tone),
            StyledText::styled(mark, self.style(Tone::Bold)),
            StyledText::styled(after, tone),
        ])
    }

    /// The warnings, in at most `available` lines.
    fn warnings(&self, available: usize) -> Vec<Line<'static>> {
        if let Some(fault) = &self.fault {
            return vec![Line::styled(fault.clone(), self.style(Tone::Bad))];
        }
        let warnings = health::warnings(self.history.status());
        let line = |text: String| Line::styled(format!("warning: {text}"), self.style(Tone::Warn));
        let shown = if warnings.len() > available { available - 1 } else { available };
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
            ('o', "policy's order", SortKey::Policy),
            ('n', "name", SortKey::Name),
            ('r', "rate", SortKey::Rate),
            ('p', "promise", SortKey::Promise),
            ('w', "waiting", SortKey::Waiting),
        ];
        let mut spans = Vec::new();
        let other = match self.page().next() {
            Page::Tenants => "tenants",
            Page::Nodes => "nodes",
        };
        let has_pages = self.history.status().cluster.is_some();
        for (key, what) in [("q", "quit"), ("tab", other)].iter().take(1 + usize::from(has_pages)) {
            spans.push(StyledText::styled(*key, self.style(Tone::Bold)));
            spans.push(StyledText::styled(format!(" {what}   "), self.style(Tone::Faint)));
        }
        if self.page() == Page::Nodes {
            return Line::from(spans);
        }
        for (key, what, order) in keys {
            let is_chosen = order == self.order;
            let tone = if is_chosen { Tone::Bold } else { Tone::Faint };
            let arrow = match (is_chosen, self.is_reversed) {
                (true, true) => " reversed",
                _ => "",
            };
            spans.push(StyledText::styled(key.to_string(), self.style(Tone::Bold)));
            spans.push(StyledText::styled(format!(" {what}{arrow}   "), self.style(tone)));
        }
        Line::from(spans)
    }
}

/// Which columns there is space for, and how wide the flexible ones are.
#[derive(Debug)]
struct Columns {
    /// Whether stages and nodes have columns.
    data_planes: DataPlanes,
    name: u16,
    bar: usize,
    /// Whether there is space for the allocated level; without stages for the limit.
    has_level: bool,
    has_mean: bool,
    /// Zero for none.
    sparkline: usize,
}

impl Columns {
    /// Widths of short values; the longest wait that is shown is `2 min 17 s`.
    const QUEUED: u16 = 6;
    const WAITING: u16 = 7;
    const MEAN: u16 = 9;
    const P99: u16 = 10;
    const MET: u16 = 4;

    fn of(width: u16, rows: &[&TenantRow], data_planes: DataPlanes) -> Self {
        let longest = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        let name = u16::try_from(longest).unwrap_or(NAME).clamp(6, NAME);
        // As if it were only about stages.
        let available = match (data_planes.stages, data_planes.nodes) {
            (true, true) => width.saturating_sub(Self::QUEUED + GAP),
            (true, false) => width,
            (false, _) => (width + Self::WAITING + Self::P99 + GAP).saturating_sub(Self::QUEUED),
        };
        let has_sparkline = available >= SPARKLINE_FROM;
        let mut columns = Self {
            data_planes,
            name,
            bar: 0,
            has_level: available >= LEVEL_FROM,
            has_mean: data_planes.stages && available >= MEAN_FROM,
            sparkline: usize::from(has_sparkline),
        };
        // The width that is left when all other columns have theirs.
        let widths = columns.widths();
        let gaps = (widths.len() as u16 - 1) * GAP;
        let fixed: u16 = widths.iter().sum::<u16>() - u16::from(has_sparkline);
        let left = width.saturating_sub(fixed + gaps);
        let sparkline = if has_sparkline { (left / 2).min(60) } else { 0 };
        (columns.bar, columns.sparkline) = ((left - sparkline).into(), sparkline.into());
        columns
    }

    fn constraints(&self) -> Vec<Constraint> {
        self.widths().into_iter().map(Constraint::Length).collect()
    }

    fn widths(&self) -> Vec<u16> {
        let flexible = |width: usize| u16::try_from(width).unwrap_or(u16::MAX);
        let DataPlanes { stages, nodes } = self.data_planes;
        let columns = [
            (true, self.name),
            (true, LEVEL),
            (true, LEVEL + MAX),
            (true, flexible(self.bar)),
            (self.has_level, LEVEL),
            (nodes, Self::QUEUED),
            (stages, Self::WAITING),
            (self.has_mean, Self::MEAN),
            (stages, Self::P99),
            (true, Self::MET),
            (self.sparkline > 0, flexible(self.sparkline)),
        ];
        columns.into_iter().filter(|(is_there, _)| *is_there).map(|(_, width)| width).collect()
    }

    fn heads(&self) -> Vec<Cell<'static>> {
        let head = |text: &str| Cell::from(text.to_owned());
        let right = |text: &str| right(text.to_owned());
        let mut heads = vec![head("TENANT"), right("RATE"), right("PROMISE"), head("")];
        if self.has_level {
            heads.push(right(if self.data_planes.stages { "ALLOCATED" } else { "LIMIT" }));
        }
        if self.data_planes.nodes {
            heads.push(right("QUEUED"));
        }
        if self.data_planes.stages {
            heads.push(right("WAITING"));
            if self.has_mean {
                heads.push(right("MEAN WAIT"));
            }
            heads.push(right("P99 WAIT"));
        }
        heads.push(head("MET"));
        if self.sparkline > 0 {
            heads.push(head("LAST MINUTE"));
        }
        heads
    }
}

pub(super) fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tidegate_proto::cluster::status::{
        ClusterStatus, ClusterTenant, GatewayStatus, NodeStatus,
    };
    use tidegate_proto::controller::status::{CoverageStatus, StageStatus, TenantStatus, Totals};

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
            order: SortKey::Policy,
            is_reversed: false,
            offset: 0,
            page: Page::Tenants,
            is_colored: false,
            glyphs: Glyphs::UNICODE,
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
        let view = View { order: SortKey::Waiting, is_reversed: true, ..view() };
        insta::assert_snapshot!(drawn(&view, 72, 10));
    }

    /// Two tenants on three nodes, one of which is away, behind a gateway.
    fn cluster(second: u64) -> ClusterStatus {
        let tenant = |name: &str, reserved, served, is_met| ClusterTenant {
            name: name.into(),
            reserved_operations: reserved,
            last_served_operations: served,
            waiting_operations: served / 100,
            is_met,
            ..ClusterTenant::default()
        };
        let node = |name: &str, is_connected, served| NodeStatus {
            name: name.into(),
            is_connected,
            declared_operations_per_second: Some(20_000),
            capacity_operations: 18_000,
            reported_ns: is_connected.then_some(7),
            served_operations_per_second: served,
            waiting_operations: served / 100,
            in_flight_requests: 31,
            depth_requests: if is_connected { 32 } else { 0 },
            ..NodeStatus::default()
        };
        let front = GatewayStatus {
            name: "front".into(),
            is_connected: true,
            nbd: vec!["127.0.0.1:10809".into()],
            clients: 3,
            errors: 2,
            requests_per_second: 14_000 + 1_000 * (second % 7),
            bytes_per_second: 60 << 20,
            ..GatewayStatus::default()
        };
        ClusterStatus {
            period_ns: Span::SECOND.0,
            tenants: vec![tenant("oltp", 30_000, 15_300, false), tenant("backup", 0, 4_000, true)],
            nodes: vec![
                node("a", true, 12_000 + 500 * (second % 5)),
                node("b", true, 7_300),
                node("c", false, 0),
            ],
            gateways: vec![front],
            ..ClusterStatus::default()
        }
    }

    fn cluster_view(has_stages: bool) -> View {
        let operations = |name: &str, reservation, limit| TenantStatus {
            name: name.into(),
            reservation_operations_per_second: reservation,
            limit_operations_per_second: limit,
            allocated_operations_per_second: Some(60_000),
            ..TenantStatus::default()
        };
        let oltp = operations("oltp", Some(30_000), Some(60_000));
        let backup = operations("backup", None, Some(10_000));
        let mut history = History::default();
        for second in 0..40 {
            let tenants = vec![oltp.clone(), backup.clone()];
            let cluster = Some(cluster(second));
            let mut status = Status { tenants, cluster, ..status(second) };
            status.budget_bytes_per_second = None;
            if has_stages {
                status.tenants[0].stages = 1;
                status.tenants[0].period_operations_per_second = 2_000;
            } else {
                (status.stages, status.totals) = (Vec::new(), Totals::default());
            }
            history.take(status);
        }
        View { history, ..view() }
    }

    #[test]
    fn a_cluster_fits_a_usual_terminal() {
        insta::assert_snapshot!(drawn(&cluster_view(false), 80, 24));
    }

    #[test]
    fn nodes_have_a_page_of_their_own() {
        let view = View { page: Page::Nodes, ..cluster_view(false) };
        insta::assert_snapshot!(drawn(&view, 80, 24));
    }

    #[test]
    fn a_wide_screen_shows_stages_and_nodes() {
        insta::assert_snapshot!(drawn(&cluster_view(true), 140, 30));
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        for page in [Page::Tenants, Page::Nodes] {
            for view in [view(), cluster_view(false), cluster_view(true)] {
                let view = View { offset: 7, page, ..view };
                for (width, height) in [(1, 1), (5, 3), (30, 4), (79, 5), (300, 100)] {
                    drawn(&view, width, height);
                }
            }
        }
        let mut view = view();
        view.history = History::default();
        drawn(&view, 80, 24);
    }

    #[test]
    fn orders_are_by_their_key() {
        let view = view();
        let rows = view.history.rows();
        let names = |order: SortKey, is_reversed| {
            let sorted = order.sorted(rows, is_reversed);
            sorted.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(SortKey::Policy, false), "backup oltp web");
        assert_eq!(names(SortKey::Name, true), "web oltp backup");
        assert_eq!(names(SortKey::Rate, false), "oltp backup web");
        assert_eq!(names(SortKey::Promise, false), "oltp backup web");
        assert_eq!(names(SortKey::Waiting, false), "web oltp backup");
    }
}
