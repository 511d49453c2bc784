//! One client of the load: it keeps as many operations under way as it may, checks what comes
//! back, and reports once a second what it has done.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use hdrhistogram::Histogram;
use tidegate_model::{Iops, Span, Time};
use tidegate_stage::memory::{
    Answer, Connection, Error, OperationOutcome, Period, Refused, Settings,
};

use super::report::{ClientLine, ReportRow, histogram};
use super::wish::{Wanted, Wish};
use crate::load::schedule::{Choice, Dice};
use tidegate_console::data_node::{self, DataNodeAddress};
use tidegate_console::failure::Failure;

#[derive(Clone, Debug)]
pub(super) struct ClientWork {
    pub(super) settings: Settings,
    pub(super) keys: Choice,
    /// Bytes of a value, at least 8.
    pub(super) value: usize,
    /// Of a hundred operations, how many are gets.
    pub(super) read_percent: u64,
    pub(super) wish: Wish,
    /// The demand of the client after the parent process changes it, in operations per second.
    pub(super) later: Option<Iops>,
    pub(super) duration: Span,
    pub(super) spins: bool,
    pub(super) seed: u64,
    pub(super) fills: bool,
}

/// After so long a row ends with the next period: a second, but for what a period can be shorter
/// by the clock of the process that reads it.
const ROW: Span = Span(Span::SECOND.0 / 10 * 9);

/// The wait before throttled puts are tried again. Chosen by hand, below the rest of a block.
const REFILL: Span = Span(50 * Span::MILLISECOND.0);

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key:            ";
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The period that runs; where there are none, the second of the machine's clock, which is the same
/// for all clients.
fn period(connection: &Connection) -> Period {
    connection.period().unwrap_or_else(|| {
        let second = connection.now().0 / Span::SECOND.0;
        let begun = Time(second * Span::SECOND.0);
        Period { epoch: second, begun, length: Span::SECOND }
    })
}

/// Something under way.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    key: u64,
    begun: Time,
}

struct KvClient {
    work: ClientWork,
    connection: Connection,
    dice: Dice,
    value: Vec<u8>,
    tasks: Vec<Task>,
    idle: Vec<usize>,
    outcomes: Vec<OperationOutcome>,
    /// Keys whose puts were throttled while the store is being filled.
    throttled: Vec<u64>,
    is_filling: bool,
    row: ReportRow,
    latency: Histogram<u64>,
    /// When the row began, and what the engine had counted then.
    begun: Time,
    counted: Counted,
    /// The demand of the current period.
    wanted: Wanted,
    /// The first period with the later demand; the last possible period until the parent process
    /// sends one.
    switch_period: Arc<AtomicU64>,
    /// The engine's count at the beginning of the current period, if the client saw the beginning,
    /// and the reserved part of the period's demand.
    period: Option<(u64, u64)>,
}

/// The one-sided operations that the engine has counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    data: u64,
    control: u64,
}

/// Does the work at the data node at this address, and reports on standard output. The work begins
/// with the first byte on standard input.
///
/// # Errors
/// If there is no route to the address, or standard output is gone. All other errors are reported
/// on standard output.
pub(super) fn run(at: &DataNodeAddress, work: ClientWork) -> Result<(), Failure> {
    let opened = at.connection(work.settings.clone())?;
    let done = opened.and_then(|connection| KvClient::new(work, connection).run());
    if let Err(error) = done {
        let (code, error) = data_node::sentence(at.name(), &error);
        let exit_code = Failure::quoted(code, &error).number();
        send(&ClientLine::Failed { exit_code, error })?;
    }
    Ok(())
}

fn send(line: &ClientLine) -> io::Result<()> {
    let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
    text.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Waits for the number of a period.
fn listen(switch_period: &AtomicU64) {
    let mut line = String::new();
    let _ = io::stdin().read_line(&mut line);
    // A parent process that sends no number, or is gone, leaves the demand as it is.
    if let Ok(period) = line.trim().parse() {
        switch_period.store(period, Ordering::Relaxed);
    }
}

impl KvClient {
    fn new(work: ClientWork, connection: Connection) -> Self {
        let window = connection.window() as usize;
        Self {
            dice: Dice::new(work.seed ^ work.wish.share[0].wrapping_mul(0x9e37_79b9)),
            value: vec![0; work.value],
            tasks: vec![Task::default(); window],
            idle: (0..window).rev().collect(),
            outcomes: Vec::with_capacity(window),
            throttled: Vec::new(),
            is_filling: false,
            row: ReportRow::new(),
            latency: histogram(),
            begun: Time::ZERO,
            counted: Counted::default(),
            wanted: work.wish.of(period(&connection)),
            switch_period: Arc::new(AtomicU64::new(u64::MAX)),
            period: None,
            connection,
            work,
        }
    }

    fn run(mut self) -> Result<(), Error> {
        if self.work.fills {
            self.is_filling = true;
            self.fill()?;
            self.is_filling = false;
        }
        send(&ClientLine::Ready).map_err(Error::Memory)?;
        let _ = io::stdin().lock().read(&mut [0]);
        if self.work.later.is_some() {
            let switch_period = Arc::clone(&self.switch_period);
            thread::spawn(move || listen(&switch_period));
        }
        self.goes_on(Time::ZERO)?;
        (self.begun, self.counted) = (self.connection.now(), self.count());
        self.wanted = self.work.wish.of(period(&self.connection));
        let end = self.begun.after(self.work.duration);
        (self.row, self.period) = (ReportRow::new(), None);
        self.latency.reset();
        self.connection.lateness();
        while self.connection.now() < end {
            let until = self.begin_all()?;
            if let Some(unmet) = self.wanted.unmet(self.connection.now()) {
                self.connection.note_unmet(unmet);
            }
            self.goes_on(until.min(end))?;
            self.check_period()?;
        }
        self.finish_row()
    }

    /// Gives this client's part of the keys a value.
    fn fill(&mut self) -> Result<(), Error> {
        let [first, clients] = self.work.wish.share;
        let mut keys = (first..self.work.keys.count()).step_by(clients as usize).peekable();
        while keys.peek().is_some() || self.connection.outstanding() > 0 {
            while let Some(&number) = keys.peek() {
                match self.put(number) {
                    Err(Refused::Busy) => break,
                    begun => begun?,
                }
                keys.next();
            }
            self.goes_on(Time::MAX)?;
            if self.row.full > 0 {
                return Err(Error::Full);
            }
        }
        self.fill_throttled()
    }

    /// Puts the keys again that had a value and whose puts were throttled.
    fn fill_throttled(&mut self) -> Result<(), Error> {
        while !self.throttled.is_empty() || self.connection.outstanding() > 0 {
            while let Some(number) = self.throttled.pop() {
                match self.put(number) {
                    Err(Refused::Busy) => {
                        self.throttled.push(number);
                        break;
                    }
                    begun => begun?,
                }
            }
            while self.connection.outstanding() > 0 {
                self.goes_on(Time::MAX)?;
            }
            if !self.throttled.is_empty() {
                // Blocks rest for two periods; an attempt costs one operation.
                let until = self.connection.now().after(REFILL);
                while self.connection.now() < until {
                    self.goes_on(until)?;
                }
            }
        }
        Ok(())
    }

    /// Begins what is due. Returns when there is more to begin.
    fn begin_all(&mut self) -> Result<Time, Error> {
        while !self.idle.is_empty() {
            match self.wanted.due() {
                Some(due) if due <= self.connection.now() => {}
                Some(due) => return Ok(due),
                // The next period begins when its grant has come, or with the next second.
                None if self.connection.period().is_some() => break,
                None => return Ok(self.wanted.period().end()),
            }
            let number = self.work.keys.pick(&mut self.dice);
            let begun = match self.dice.below(100) < self.work.read_percent {
                true => {
                    self.begin(number, |connection, key, token, _| connection.begin_get(key, token))
                }
                false => self.put(number),
            };
            match begun {
                Err(Refused::Busy) => break,
                begun => begun?,
            }
            self.wanted.begin();
        }
        Ok(Time::MAX)
    }

    fn put(&mut self, number: u64) -> Result<(), Refused> {
        self.value[..8].copy_from_slice(&number.to_be_bytes());
        self.begin(number, |connection, key, token, value| connection.begin_put(key, value, token))
    }

    fn begin(
        &mut self,
        number: u64,
        begin: impl Fn(&mut Connection, &[u8], u64, &[u8]) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let Some(&token) = self.idle.last() else { return Err(Refused::Busy) };
        begin(&mut self.connection, &key(number), token as u64, &self.value)?;
        self.idle.pop();
        self.tasks[token] = Task { key: number, begun: self.connection.now() };
        Ok(())
    }

    /// Takes in what has ended, and waits for something until then unless it is to spin.
    fn goes_on(&mut self, until: Time) -> Result<(), Error> {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let went = match self.work.spins {
            true => self.connection.poll(&mut outcomes),
            false => self.connection.wait_until(until, &mut outcomes),
        };
        outcomes.drain(..).for_each(|outcome| self.take(outcome));
        self.outcomes = outcomes;
        match went {
            Err(Error::Moved) => {
                self.row.moves += 1;
                self.idle = (0..self.tasks.len()).rev().collect();
                (self.counted, self.period) = (Counted::default(), None);
                Ok(())
            }
            went => went,
        }
    }

    fn take(&mut self, OperationOutcome { token, answer }: OperationOutcome) {
        let task = self.tasks[token as usize];
        self.idle.push(token as usize);
        self.row.operations += 1;
        let took = self.connection.now().since(task.begun);
        self.latency.saturating_record(took.0.max(1));
        match answer {
            Answer::Found(value) => {
                let is_right =
                    self.connection.value(&value).get(..8) == Some(&task.key.to_be_bytes()[..]);
                self.row.wrong += u64::from(!is_right);
                self.connection.release(value);
            }
            Answer::Stored | Answer::Deleted => {}
            Answer::Missing => self.row.missing += 1,
            Answer::Full | Answer::Crowded => self.row.full += 1,
            Answer::Throttled => {
                self.row.throttled += 1;
                if self.is_filling {
                    self.throttled.push(task.key);
                }
            }
            Answer::Contended => self.row.contended += 1,
            Answer::Corrupt => self.row.wrong += 1,
        }
    }

    fn count(&self) -> Counted {
        self.connection.counts().map_or_else(Counted::default, |counts| Counted {
            data: counts.operations,
            control: counts.own,
        })
    }

    /// Ends a period if another has begun, and a row after a second.
    fn check_period(&mut self) -> Result<(), Error> {
        let period = period(&self.connection);
        if period == self.wanted.period() {
            return Ok(());
        }
        if self.connection.now().since(self.begun) >= ROW {
            self.finish_row()?;
        }
        if period.epoch >= self.switch_period.load(Ordering::Relaxed) {
            self.work.wish.demand = self.work.later;
        }
        self.wanted = self.work.wish.of(period);
        if self.connection.period().is_none() {
            return Ok(());
        }
        let data = self.count().data;
        if let Some((before, wanted)) = self.period {
            self.row.periods += 1;
            // Operations under way at the beginning count in this period, and those under way now
            // in the next one.
            let slack = u64::from(self.connection.window());
            self.row.kept += u64::from(data - before + slack >= wanted);
        }
        let wanted = self.connection.reservation().min(self.wanted.count());
        self.period = Some((data, wanted));
        Ok(())
    }

    fn finish_row(&mut self) -> Result<(), Error> {
        let (now, counted) = (self.connection.now(), self.count());
        let mut row = std::mem::replace(&mut self.row, ReportRow::new());
        row.nanoseconds = now.since(self.begun).0;
        row.data = counted.data - self.counted.data;
        row.control = counted.control - self.counted.control;
        row.is_alone = self.connection.is_alone();
        row.period = self.wanted.period().epoch;
        let late = self.connection.lateness();
        (row.late, row.late_in_sum) = (late.longest.0, late.sum.0);
        row.reserved = self.connection.session_slot().map_or(0, |session_slot| {
            let count = u128::from(self.connection.reservation()) * u128::from(Span::SECOND.0);
            u64::try_from(count / u128::from(session_slot.period.0)).unwrap_or(u64::MAX)
        });
        let values = self.latency.iter_recorded();
        row.latency =
            values.map(|value| (value.value_iterated_to(), value.count_at_value())).collect();
        self.latency.reset();
        (self.begun, self.counted) = (now, counted);
        send(&ClientLine::Row(row)).map_err(Error::Memory)
    }
}
