//! `tidegate top` as text: one line for each tenant at each poll, for scripts and logs.

use tidegate_model::Span;
use tidegate_proto::controller::status::Status;

use super::glyphs::time_of_day;
use super::history::{History, TenantRow};
use tidegate_console::amounts;
use tidegate_console::output::{Paint, Tone, on_one_line};
use tidegate_console::table::{Align, Cell, Table};

/// As wide as the widest level, `1023.9 MiB/s`, so that the lines of all looks are aligned.
const LEVEL: usize = 12;

/// As wide as the longest wait that is shown, `2 min 17 s`.
const WAIT: usize = 10;

/// As wide as most names, and as what stands there where there is no tenant.
const NAME: usize = 12;

#[derive(Debug, Default)]
pub(super) struct Lines {
    history: History,
    /// The width of the names when the heads were printed; none before.
    names: Option<usize>,
    /// Stages that did not take their rules, and why, as of the last look.
    refusals: Vec<(u64, String)>,
}

impl Lines {
    /// New warnings beside the lines, each once: stages that do not take their rules any more. A
    /// table of tenants would not show them, and they hardly ever mend themselves.
    pub(super) fn complaints(&mut self, status: &Status) -> Vec<String> {
        let refusals = status.stages.iter().filter_map(|stage| {
            let reason = on_one_line(stage.error.as_deref()?);
            Some((stage.id, reason))
        });
        let before = std::mem::replace(&mut self.refusals, refusals.collect());
        let news = self.refusals.iter().filter(|refusal| !before.contains(refusal));
        let line = |(stage, reason): &(u64, String)| {
            format!("warning: stage {stage} did not take the last rules: {reason}")
        };
        news.map(line).collect()
    }

    /// The lines of one look; before the first and where a longer name has come, the heads.
    pub(super) fn render(&mut self, status: &Status, unix_ms: u64) -> String {
        self.history.take(status.clone());
        let rows = self.history.rows();
        let longest = rows.iter().map(|row| row.name.len()).fold(NAME, usize::max);
        let is_new = self.names.is_none_or(|width| width < longest);
        let width = longest.max(self.names.unwrap_or(0));
        self.names = Some(width);
        // A controller has a cluster for its whole run or never, so all lines have the same
        // columns.
        let has_nodes = status.cluster.is_some();
        let mut table = Table::new()
            .left("TIME (UTC)")
            .column("TENANT", Align::Left, width)
            .column("RATE", Align::Right, LEVEL)
            .column("RESERVED", Align::Right, LEVEL)
            .column("LIMIT", Align::Right, LEVEL)
            .column("ALLOCATED", Align::Right, LEVEL)
            .column("WAITING", Align::Right, 0)
            .column("MEAN WAIT", Align::Right, 0)
            .column("P99 WAIT", Align::Right, WAIT);
        if has_nodes {
            table = table.column("QUEUED", Align::Right, 0);
        }
        table = table.left("MET");
        let time = time_of_day(unix_ms);
        rows.iter().for_each(|row| table.row(cells(time.clone(), row, has_nodes)));
        if rows.is_empty() {
            let why = if status.revision == 0 { "(no policy)" } else { "(no tenants)" };
            let mut cells = vec![Cell::toned(Tone::Faint, time), why.into()];
            cells.resize(if has_nodes { 11 } else { 10 }, Cell::from("-"));
            table.row(cells);
        }
        let paint = Paint::stdout();
        let head = if is_new { table.head(paint) } else { String::new() };
        head + &table.body(paint, usize::MAX)
    }
}

fn cells(time: String, row: &TenantRow, has_nodes: bool) -> Vec<Cell> {
    let wait = |wait: Option<Span>| wait.map_or("-".into(), |wait| amounts::span(wait.0));
    let level = |value: Option<u64>, none: &str| {
        Cell::from(value.map_or(none.to_owned(), |value| amounts::rate(row.unit, value)))
    };
    let allocated = if row.is_only_at_nodes { "-" } else { "no bound" };
    let mut cells = vec![
        Cell::toned(Tone::Faint, time),
        row.name.as_str().into(),
        level(Some(row.rate), ""),
        level(row.reservation, "-"),
        level(row.limit, "-"),
        level(row.allocated, allocated),
        amounts::permille(row.waiting_permille).into(),
        wait(row.wait).into(),
        wait(row.wait_p99).into(),
    ];
    if has_nodes {
        cells.push(amounts::count(row.queued).into());
    }
    cells.push(Cell::toned(row.met.tone(), row.met.word()));
    cells
}

#[cfg(test)]
mod tests {
    use tidegate_proto::controller::status::{StageStatus, TenantStatus};

    use super::*;

    #[test]
    fn a_refusal_is_reported_once() {
        let status = |errors: &[&str]| {
            let stage = |(id, error): (u64, &&str)| StageStatus {
                id,
                error: (!error.is_empty()).then(|| (*error).into()),
                ..StageStatus::default()
            };
            Status { stages: (1..).zip(errors).map(stage).collect(), ..Status::default() }
        };
        let mut lines = Lines::default();
        let render = "warning: stage 2 did not take the last rules: more than 128 channels";
        assert_eq!(lines.complaints(&status(&["", "more than 128 \nchannels"])), [render]);
        assert_eq!(lines.complaints(&status(&["", "more than 128 channels"])), [""; 0]);
        assert_eq!(lines.complaints(&status(&["", ""])), [""; 0]);
        assert_eq!(lines.complaints(&status(&["", "more than 128 channels"])), [render]);
    }

    #[test]
    fn lines_are_aligned_from_poll_to_poll() {
        let tenant = |name: &str, mib: u64| TenantStatus {
            name: name.into(),
            reservation_bytes_per_second: (name == "oltp").then_some(350 << 20),
            allocated_bytes_per_second: Some(1023 << 20),
            period_bytes_per_second: (mib << 20) + 200_000,
            waiting_permille: mib,
            wait_p99_ns: (name == "oltp").then_some(1_310_720),
            ..TenantStatus::default()
        };
        let tenants = vec![tenant("oltp", 348), tenant("b", 7)];
        let status = Status { revision: 1, tenants, ..Status::default() };
        let mut lines = Lines::default();
        let render = lines.render(&Status::default(), 0)
            + &lines.render(&status, 1_000)
            + &lines.render(&status, 2_000);
        insta::assert_snapshot!(render);
    }
}
