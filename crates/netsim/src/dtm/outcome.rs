//! Results of the discrete-time model.

use core::ops::Range;
use std::fmt::Write as _;
use std::io;

use super::DtmPlan;
use tidegate_sim::time::Picoseconds;

/// The link in one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeSlot {
    /// When it began. Packets come from 0, the first slot begins after a bare round trip.
    pub at: Picoseconds,
    /// `R`, in nanoseconds.
    pub length: f64,
    /// `p`: which part of the packets was marked.
    pub marked: f64,
    /// `B` at its end, in packets.
    pub queue: f64,
}

/// One flow in one slot; packets of which there are parts, as the model has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DtmFlow {
    /// `W`, in packets.
    pub window: f64,
    /// `alpha`.
    pub alpha: f64,
    /// `Q`.
    pub quality: f64,
    /// `q` at the end of the slot, in packets.
    pub queue: f64,
    /// `W'`: packets that it sent.
    pub sent: f64,
    /// Packets of its that the link served.
    pub served: f64,
}

/// Results of a run of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct DtmReport {
    /// The flows' names.
    pub names: Vec<String>,
    /// The promise to each flow, in percent of the link; none for a flow that is promised a
    /// latency.
    pub promised: Vec<Option<f64>>,
    /// All slots.
    pub slots: Vec<TimeSlot>,
    /// Packets that the link carries in a nanosecond.
    capacity: f64,
    flows: Vec<DtmFlow>,
}

impl DtmReport {
    pub(super) fn new(plan: &DtmPlan) -> Self {
        let sum: f64 = plan.flow.iter().map(|flow| f64::from(flow.share)).sum();
        let promised = plan
            .flow
            .iter()
            .map(|flow| flow.latency.is_none().then(|| f64::from(flow.share) * 100.0 / sum));
        Self {
            names: plan.flow.iter().map(|flow| flow.name.clone()).collect(),
            promised: promised.collect(),
            slots: Vec::with_capacity(plan.slots as usize),
            capacity: plan.capacity.0 as f64 / plan.packet.0 as f64 / 1e9,
            flows: Vec::with_capacity(plan.slots as usize * plan.flow.len()),
        }
    }

    pub(super) fn push(&mut self, slot: TimeSlot, flows: impl Iterator<Item = DtmFlow>) {
        self.slots.push(slot);
        self.flows.extend(flows);
    }

    /// The flows in one slot.
    pub fn flows(&self, slot: usize) -> &[DtmFlow] {
        let count = self.names.len();
        &self.flows[slot * count..(slot + 1) * count]
    }

    /// The service of each flow in these slots, in percent of the link's capacity in that time.
    pub fn shares(&self, slots: Range<usize>) -> Vec<f64> {
        let time: f64 = self.slots[slots.clone()].iter().map(|slot| slot.length).sum();
        let served =
            |flow: usize| -> f64 { slots.clone().map(|slot| self.flows(slot)[flow].served).sum() };
        (0..self.names.len()).map(|flow| served(flow) * 100.0 / (time * self.capacity)).collect()
    }

    /// The mean of something of each flow in these slots.
    pub fn means(&self, slots: Range<usize>, of: fn(&DtmFlow) -> f64) -> Vec<f64> {
        let count = slots.len().max(1) as f64;
        let sum =
            |flow: usize| -> f64 { slots.clone().map(|slot| of(&self.flows(slot)[flow])).sum() };
        (0..self.names.len()).map(|flow| sum(flow) / count).collect()
    }

    /// The mean, the least and the greatest queue in these slots, in packets.
    pub fn queue(&self, slots: Range<usize>) -> [f64; 3] {
        let queues = self.slots[slots.clone()].iter().map(|slot| slot.queue);
        let mean = queues.clone().sum::<f64>() / slots.len().max(1) as f64;
        [mean, queues.clone().fold(f64::INFINITY, f64::min), queues.fold(0.0, f64::max)]
    }

    /// The slot from which on all flows that are promised a share have it within a tenth, as means
    /// of four slots; none if that is so only in the last quarter of the run or never.
    pub fn settled(&self) -> Option<usize> {
        let count = self.slots.len();
        let good = |from: usize| {
            let shares = self.shares(from..from + 4);
            shares.iter().zip(&self.promised).all(|(share, promised)| {
                promised.is_none_or(|promised| (share / promised - 1.0).abs() <= 0.1)
            })
        };
        let last_bad = (0..count.saturating_sub(3)).rev().find(|from| !good(*from));
        let settled = last_bad.map_or(0, |bad| bad + 1);
        (settled < count * 3 / 4).then_some(settled)
    }

    /// A table for people and golden files: `lines` lines, each the mean of as many slots. Shares
    /// are in percent of the link.
    ///
    /// # Panics
    /// If there are no lines, or more than slots.
    pub fn table(&self, lines: usize) -> String {
        let each = self.slots.len() / lines;
        assert!(each > 0, "{lines} lines of {} slots", self.slots.len());
        let mut text = format!("{:>6} {:>9} {:>7}", "slot", "us", "queue");
        let columns = |name: &String| ["%", "Q", "alpha"].map(|what| format!("{name} {what}"));
        let titles: Vec<String> = self.names.iter().flat_map(columns).collect();
        titles.iter().for_each(|title| _ = write!(text, " {title:>8}"));
        text.push('\n');
        for line in 0..lines {
            let slots = line * each..(line + 1) * each;
            let [queue, _, _] = self.queue(slots.clone());
            let at = self.slots[slots.start].at.0 as f64 / 1e6;
            _ = write!(text, "{:>6} {at:>9.1} {queue:>7.1}", slots.start);
            let shares = self.shares(slots.clone());
            let quality = self.means(slots.clone(), |flow| flow.quality);
            let alpha = self.means(slots, |flow| flow.alpha);
            for (index, title) in titles.iter().enumerate() {
                let (width, flow) = (title.chars().count().max(8), index / 3);
                _ = match index % 3 {
                    0 => write!(text, " {:>width$.1}", shares[flow]),
                    1 => write!(text, " {:>width$.3}", quality[flow]),
                    _ => write!(text, " {:>width$.4}", alpha[flow]),
                };
            }
            text.push('\n');
        }
        text
    }

    /// Writes every slot and flow, for a spreadsheet: a line of each slot for each flow, after one
    /// of names with units, row by row.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write_csv(&self, to: &mut dyn io::Write) -> io::Result<()> {
        let heads = "slot,at_ps,round_trip_ns,marked,queue_packets,flow,window_packets,alpha,\
                     quality,flow_queue_packets,sent_packets,served_packets";
        writeln!(to, "{heads}")?;
        for (at, slot) in self.slots.iter().enumerate() {
            for (name, flow) in self.names.iter().zip(self.flows(at)) {
                let TimeSlot { at: Picoseconds(begun), length, marked, queue } = *slot;
                let DtmFlow { window, alpha, quality, queue: own, sent, served } = *flow;
                // A name may have a comma, or a quotation mark, which is doubled.
                let name = name.replace('"', "\"\"");
                writeln!(
                    to,
                    "{at},{begun},{length},{marked},{queue},\"{name}\",{window},{alpha},{quality},\
                     {own},{sent},{served}"
                )?;
            }
        }
        Ok(())
    }
}
