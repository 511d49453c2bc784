//! Lists below the tenants: stages, nodes and gateways.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::widgets::{Cell, Row as TableRow, Table};
use tidegate_proto::cluster::status::{ClusterStatus, DataNodeStatus, GatewayStatus, NodeStatus};
use tidegate_proto::controller::status::{StageStatus, Status};

use super::super::glyphs::Bar;
use super::{GAP, LEVEL, NAME, Page, SPARKLINE_FROM, View, right};
use crate::health::resources::{self, Promise};
use crate::health::{self, Met, PeerHealth};
use tidegate_console::amounts;
use tidegate_console::output::{Tone, on_one_line};

/// A list below the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Resources,
    Stages,
    Nodes,
    DataNodes,
    Gateways,
}

impl List {
    pub(super) fn rows(self, status: &Status) -> usize {
        let cluster = status.cluster.as_ref();
        match self {
            Self::Resources => resources::promises(status).count(),
            Self::Stages => status.stages.len(),
            Self::Nodes => cluster.map_or(0, |cluster| cluster.nodes.len()),
            Self::DataNodes => cluster.map_or(0, |cluster| cluster.data_nodes.len()),
            Self::Gateways => cluster.map_or(0, |cluster| cluster.gateways.len()),
        }
    }
}

#[derive(Clone, Copy)]
struct Column {
    head: &'static str,
    is_right: bool,
    /// None for a part of what the others leave.
    width: Option<u16>,
}

const fn left(head: &'static str, width: u16) -> Column {
    Column { head, is_right: false, width: Some(width) }
}

const fn flush(head: &'static str, width: u16) -> Column {
    Column { head, is_right: true, width: Some(width) }
}

const fn flexible(head: &'static str) -> Column {
    Column { head, is_right: false, width: None }
}

/// How wide each of these is on a screen.
fn widths(columns: &[Column], screen: u16) -> Vec<u16> {
    let fixed: u16 = columns.iter().filter_map(|column| column.width).sum();
    let gaps = columns.len().saturating_sub(1) as u16 * GAP;
    let shares = columns.iter().filter(|column| column.width.is_none()).count() as u16;
    let share = screen.saturating_sub(fixed + gaps).checked_div(shares).unwrap_or(0);
    columns.iter().map(|column| column.width.unwrap_or(share)).collect()
}

/// As wide as the longest of these names, but not wider than names may be.
fn name_width<'a>(names: impl Iterator<Item = &'a String>, screen: u16) -> u16 {
    let longest = names.map(String::len).max().unwrap_or(0);
    u16::try_from(longest).unwrap_or(NAME).clamp(7, NAME.min(screen / 6).max(7))
}

impl View {
    /// The lists below the main table that are not empty.
    pub(super) fn lists(&self) -> Vec<List> {
        let lists: &[List] = match self.page() {
            Page::Tenants => {
                &[List::Resources, List::Stages, List::Nodes, List::DataNodes, List::Gateways]
            }
            Page::Nodes => &[List::DataNodes, List::Gateways],
        };
        let status = self.history.status();
        lists.iter().copied().filter(|list| list.rows(status) > 0).collect()
    }

    pub(super) fn draw_list(&self, list: List, frame: &mut Frame<'_>, area: Rect) {
        let status = self.history.status();
        match (list, &status.cluster) {
            (List::Resources, _) => self.draw_resources(status, frame, area),
            (List::Stages, _) => self.draw_stages(&status.stages, frame, area),
            (List::Nodes, Some(cluster)) => self.draw_nodes(cluster, 0, frame, area),
            (List::DataNodes, Some(cluster)) => {
                self.draw_data_nodes(&cluster.data_nodes, frame, area);
            }
            (List::Gateways, Some(cluster)) => self.draw_gateways(&cluster.gateways, frame, area),
            (_, None) => {}
        }
    }

    /// The promises of named resources: those that are not met first.
    fn draw_resources(&self, status: &Status, frame: &mut Frame<'_>, area: Rect) {
        let mut promises: Vec<Promise<'_>> = resources::promises(status).collect();
        promises.sort_by_key(|promise| promise.met() != Met::No);
        let resource = name_width(status.resources.iter().map(|it| &it.name), area.width).max(8);
        let columns = [
            left("RESOURCE", resource),
            flexible("PROMISED TO"),
            flush("RESERVED", 2 * LEVEL),
            flush("MEASURED", 2 * LEVEL),
            left("MET", 4),
            flexible("HELD BY"),
        ];
        let row = |promise: &Promise<'_>, _: &[u16]| {
            let met = promise.met();
            vec![
                Cell::from(on_one_line(&promise.resource.name)),
                Cell::from(on_one_line(&promise.name())),
                right(promise.reserved()),
                right(promise.measured()),
                Cell::from(met.word()).style(self.style(met.tone())),
                Cell::from(promise.held()),
            ]
        };
        self.draw_rows(&columns, &promises, row, frame, area);
    }

    fn draw_stages(&self, stages: &[StageStatus], frame: &mut Frame<'_>, area: Rect) {
        let columns = [
            flush("STAGE", 5),
            flush("PID", 7),
            left("TENANT", NAME.min(area.width / 6)),
            flush("PROCESSES", 9),
            flush("RATE", LEVEL),
            flush("COVERED", 7),
            flexible("COMMAND"),
        ];
        let row = |stage: &StageStatus, _: &[u16]| {
            let covered = health::covered(stage).permille();
            let tenant = if stage.tenant.is_empty() { "(rules)" } else { &stage.tenant };
            vec![
                right(stage.id.to_string()),
                right(stage.pid.to_string()),
                Cell::from(tenant.to_owned()),
                right(stage.processes.to_string()),
                right(amounts::bandwidth(stage.interval_bytes_per_second)),
                right(covered.map_or("-".into(), amounts::permille)),
                Cell::from(on_one_line(&stage.command)),
            ]
        };
        self.draw_rows(&columns, stages, row, frame, area);
    }

    /// Nodes from the one at `offset` on: what each serves of what it can.
    pub(super) fn draw_nodes(
        &self,
        cluster: &ClusterStatus,
        offset: usize,
        frame: &mut Frame<'_>,
        area: Rect,
    ) {
        let name = name_width(cluster.nodes.iter().map(|node| &node.name), area.width);
        let mut columns = vec![
            left("NODE", name),
            left("STATE", 6),
            flush("SERVED", LEVEL),
            flush("CAPACITY", LEVEL),
            flexible(""),
            flush("QUEUED", 6),
            flush("AT STORE", 10),
        ];
        let is_wide = area.width >= SPARKLINE_FROM;
        if is_wide {
            columns.insert(4, flush("DECLARED", LEVEL));
        }
        let has_past = is_wide || self.page() == Page::Nodes;
        if has_past {
            columns.push(flexible(if is_wide { "LAST MINUTE" } else { "MINUTE" }));
        }
        let row = |node: &NodeStatus, widths: &[u16]| {
            let state = PeerHealth::of_node(node);
            let capacity = health::capacity(cluster, node);
            let declared = node.declared_operations_per_second;
            let served = node.served_operations_per_second;
            let most = capacity.or(declared).unwrap_or(0).max(served);
            let bar = Bar { value: served, promise: None, scale: most };
            let level = |level: Option<u64>| right(level.map_or("-".into(), amounts::iops));
            let index = if is_wide { 5 } else { 4 };
            let mut cells = vec![
                Cell::from(node.name.clone()),
                Cell::from(state.word()).style(self.style(state.tone())),
                level(Some(served)),
                level(capacity),
                Cell::from(self.drawn(bar, Tone::Plain, widths[index].into())),
                right(amounts::count(node.waiting_operations)),
                right(health::at_store(node)),
            ];
            if is_wide {
                cells.insert(4, level(declared));
            }
            if has_past {
                let trail = self.history.of_node(&node.name);
                let width = widths[cells.len()].into();
                cells.push(self.glyphs.sparkline(&trail, most, width).into());
            }
            cells
        };
        let visible = usize::from(area.height.saturating_sub(1));
        let offset = offset.min(cluster.nodes.len().saturating_sub(visible.max(1)));
        self.draw_rows(&columns, &cluster.nodes[offset..], row, frame, area);
    }

    fn draw_data_nodes(&self, nodes: &[DataNodeStatus], frame: &mut Frame<'_>, area: Rect) {
        let name = name_width(nodes.iter().map(|node| &node.name), area.width).max(9);
        let mut columns = vec![
            left("DATA NODE", name),
            left("STATE", 6),
            flush("MEASURED", LEVEL),
            flush("PROMISED", LEVEL),
            flush("CAPACITY", LEVEL),
            flush("CLIENTS", 7),
            flexible("IN USE"),
        ];
        let is_wide = area.width >= SPARKLINE_FROM;
        if is_wide {
            columns.push(flexible("LAST MINUTE"));
        }
        let row = |node: &DataNodeStatus, widths: &[u16]| {
            let state = PeerHealth::of_data_node(node);
            let mut cells = vec![
                Cell::from(node.name.clone()),
                Cell::from(state.word()).style(self.style(state.tone())),
                right(amounts::iops(node.operations_per_second)),
                right(amounts::iops(node.promised_operations_per_second)),
                right(amounts::iops(node.capacity_operations_per_second)),
                right(node.clients.to_string()),
                Cell::from(health::memory(node)),
            ];
            if is_wide {
                let trail = self.history.of_data_node(&node.name);
                let most = node.capacity_operations_per_second;
                cells.push(self.glyphs.sparkline(&trail, most, widths[7].into()).into());
            }
            cells
        };
        self.draw_rows(&columns, nodes, row, frame, area);
    }

    fn draw_gateways(&self, gateways: &[GatewayStatus], frame: &mut Frame<'_>, area: Rect) {
        let name = name_width(gateways.iter().map(|gateway| &gateway.name), area.width);
        let mut columns = vec![
            left("GATEWAY", name),
            left("STATE", 6),
            flush("CLIENTS", 7),
            flush("REQUESTS", 9),
            flush("THROUGHPUT", LEVEL),
            flush("FAILED", 6),
            flexible("ADDRESS"),
        ];
        let is_wide = area.width >= SPARKLINE_FROM;
        if is_wide {
            columns.push(flexible("LAST MINUTE"));
        }
        let row = |gateway: &GatewayStatus, widths: &[u16]| {
            let state = PeerHealth::of_gateway(gateway);
            let mut cells = vec![
                Cell::from(gateway.name.clone()),
                Cell::from(state.word()).style(self.style(state.tone())),
                right(gateway.clients.to_string()),
                right(format!("{}/s", amounts::count(gateway.requests_per_second))),
                right(amounts::bandwidth(gateway.bytes_per_second)),
                right(amounts::count(gateway.errors)),
                Cell::from(on_one_line(&health::addresses(gateway))),
            ];
            if is_wide {
                let trail = self.history.of_gateway(&gateway.name);
                let peak = trail.iter().map(|(_, rate)| *rate).max().unwrap_or(0);
                cells.push(self.glyphs.sparkline(&trail, peak, widths[7].into()).into());
            }
            cells
        };
        self.draw_rows(&columns, gateways, row, frame, area);
    }

    /// As many of these as there is space for, a line each.
    fn draw_rows<T>(
        &self,
        columns: &[Column],
        things: &[T],
        row: impl Fn(&T, &[u16]) -> Vec<Cell<'static>>,
        frame: &mut Frame<'_>,
        area: Rect,
    ) {
        let widths = widths(columns, area.width);
        let heads = columns.iter().map(|column| match column.is_right {
            true => right(column.head.into()),
            false => Cell::from(column.head),
        });
        let visible = usize::from(area.height.saturating_sub(1));
        let rows = things.iter().take(visible).map(|thing| TableRow::new(row(thing, &widths)));
        let table = Table::new(rows, widths.iter().copied().map(Constraint::Length))
            .header(TableRow::new(heads).style(self.style(Tone::Faint)))
            .column_spacing(GAP);
        frame.render_widget(table, area);
    }
}
