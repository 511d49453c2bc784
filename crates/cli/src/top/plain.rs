//! One line for each tenant and look, for scripts and logs.

use tidegate_proto::controller::status::Status;

use super::history::{History, Row};
use super::marks::time_of_day;
use crate::amounts;
use crate::fare;
use crate::output::{Paint, Tone};
use crate::table::{Align, Cell, Table};

/// As wide as the widest level, `1023.9 MiB/s`, so that the lines of all looks are aligned.
const LEVEL: usize = 12;

/// As wide as most names, and as what stands there where there is no tenant.
const NAME: usize = 12;

/// Lines under construction.
#[derive(Debug, Default)]
pub(super) struct Lines {
    history: History,
    /// The width of the names when the heads were printed; none before.
    names: Option<usize>,
}

impl Lines {
    /// The lines of one look; before the first and where a longer name has come, the heads.
    pub(super) fn told(&mut self, status: &Status, unix_ms: u64) -> String {
        self.history.take(status.clone());
        let rows = self.history.rows();
        let longest = rows.iter().map(|row| row.name.len()).fold(NAME, usize::max);
        let is_new = self.names.is_none_or(|width| width < longest);
        let width = longest.max(self.names.unwrap_or(0));
        self.names = Some(width);
        let mut table = Table::new()
            .left("TIME (UTC)")
            .column("TENANT", Align::Left, width)
            .column("RATE", Align::Right, LEVEL)
            .column("RESERVED", Align::Right, LEVEL)
            .column("LIMIT", Align::Right, LEVEL)
            .column("ALLOCATED", Align::Right, LEVEL)
            .column("WAITING", Align::Right, 0)
            .column("MEAN WAIT", Align::Right, 0)
            .left("MET");
        let time = time_of_day(unix_ms);
        rows.iter().for_each(|row| table.row(cells(time.clone(), row)));
        if rows.is_empty() {
            let why = if status.revision == 0 { "(no policy)" } else { "(no tenants)" };
            let no = || Cell::from("-");
            let (time, why) = (Cell::toned(Tone::Faint, time), why.into());
            table.row([time, why, no(), no(), no(), no(), no(), no(), no()]);
        }
        let paint = Paint::stdout();
        let head = if is_new { table.head(paint) } else { String::new() };
        head + &table.body(paint, usize::MAX)
    }
}

fn cells(time: String, row: &Row) -> [Cell; 9] {
    let level = |value: Option<u64>, none: &str| {
        Cell::from(value.map_or(none.to_owned(), |value| fare::level(row.unit, value)))
    };
    [
        Cell::toned(Tone::Faint, time),
        row.name.as_str().into(),
        level(Some(row.rate), ""),
        level(row.reservation, "-"),
        level(row.limit, "-"),
        level(row.allocated, "no bound"),
        amounts::permille(row.waiting_permille).into(),
        row.wait.map_or("-".into(), |wait| amounts::span(wait.0)).into(),
        Cell::toned(row.met.tone(), row.met.word()),
    ]
}

#[cfg(test)]
mod tests {
    use tidegate_proto::controller::status::TenantStatus;

    use super::*;

    #[test]
    fn lines_are_aligned_from_look_to_look() {
        let tenant = |name: &str, mib: u64| TenantStatus {
            name: name.into(),
            reservation_bytes_per_second: (name == "oltp").then_some(350 << 20),
            allocated_bytes_per_second: Some(1023 << 20),
            period_bytes_per_second: (mib << 20) + 200_000,
            waiting_permille: mib,
            ..TenantStatus::default()
        };
        let tenants = vec![tenant("oltp", 348), tenant("b", 7)];
        let status = Status { revision: 1, tenants, ..Status::default() };
        let mut lines = Lines::default();
        let told = lines.told(&Status::default(), 0)
            + &lines.told(&status, 1_000)
            + &lines.told(&status, 2_000);
        insta::assert_snapshot!(told);
    }
}
