//! The clients' processes: it starts them, sends the signal to begin, receives their reports, and
//! ends them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use tidegate_fabric::tether;

use super::report::{ClientLine, ReportRow};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// The interval of checks whether the user ends the command.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The clients. Dropped, they end.
pub(crate) struct ClientProcesses {
    children: Vec<Child>,
    lines: Receiver<(usize, Option<ClientLine>)>,
    /// How many have not ended.
    running: usize,
}

impl ClientProcesses {
    /// Starts so many clients, by the command for each.
    ///
    /// # Errors
    /// If one cannot be started. None is left then.
    pub(crate) fn start(clients: u64, command: impl Fn(u64) -> Command) -> Result<Self, Failure> {
        let fail = |error| Failure::new(Code::Failure, "cannot start clients").cause(error);
        let (sender, lines) = channel();
        let mut processes = Self { children: Vec::new(), lines, running: 0 };
        for (index, client) in (0..clients).enumerate() {
            // In a group of its own: signals of the terminal go to this process only. This process
            // ends the client, or the kernel does if this process is killed.
            let mut command = command(client);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
            tether::tie(&mut command);
            let mut child = command.spawn().map_err(fail)?;
            let out = child.stdout.take();
            processes.children.push(child);
            processes.running += 1;
            let sender = sender.clone();
            thread::spawn(move || {
                let received = out.into_iter().flat_map(|out| BufReader::new(out).lines());
                for line in received.map_while(Result::ok) {
                    let line = serde_json::from_str(&line).ok();
                    if line.is_none() || sender.send((index, line)).is_err() {
                        break;
                    }
                }
                // The receiver is gone if this fails.
                let _ = sender.send((index, None));
            });
        }
        Ok(processes)
    }

    pub(crate) fn clients(&self) -> usize {
        self.children.len()
    }

    /// Waits until all clients have a session slot and their keys.
    ///
    /// # Errors
    /// The reason why a client failed; if the user ends the command.
    pub(crate) fn wait_until_ready(&mut self, interrupt: &Interrupt) -> Result<(), Failure> {
        for _ in 0..self.children.len() {
            match self.receive(interrupt)? {
                (_, Some(ClientLine::Ready)) => {}
                _ => return Err(ended()),
            }
        }
        Ok(())
    }

    pub(crate) fn go(&mut self) {
        (0..self.clients()).for_each(|client| self.send(client, "\n"));
    }

    /// Switches a client to its later demand, from the period with this number on.
    pub(crate) fn switch_demand(&mut self, client: usize, period: u64) {
        self.send(client, &format!("{period}\n"));
    }

    fn send(&mut self, client: usize, line: &str) {
        // A client that is gone shows by the end of its output.
        let _ = self.children[client].stdin.as_mut().map(|pipe| pipe.write_all(line.as_bytes()));
    }

    /// The next row of any client; none after all have ended.
    ///
    /// # Errors
    /// The reason why a client could not go on; if the user ends the command.
    pub(crate) fn next(
        &mut self,
        interrupt: &Interrupt,
    ) -> Result<Option<(usize, ReportRow)>, Failure> {
        while self.running > 0 {
            match self.receive(interrupt)? {
                (client, Some(ClientLine::Row(row))) => return Ok(Some((client, row))),
                (_, None) => self.running -= 1,
                _ => {}
            }
        }
        Ok(None)
    }

    /// The rows that clients have sent since the last call, without waiting for more.
    ///
    /// # Errors
    /// If a client has ended, with its reason.
    pub(crate) fn take(&mut self) -> Result<Vec<ReportRow>, Failure> {
        let mut rows = Vec::new();
        while let Ok((_, line)) = self.lines.try_recv() {
            match line {
                Some(ClientLine::Row(row)) => rows.push(row),
                Some(ClientLine::Failed { exit_code, error }) => {
                    return Err(Failure::quoted(Code::Other(exit_code), &error));
                }
                Some(ClientLine::Ready) => {}
                None => return Err(ended()),
            }
        }
        Ok(rows)
    }

    fn receive(&mut self, interrupt: &Interrupt) -> Result<(usize, Option<ClientLine>), Failure> {
        loop {
            interrupt.check()?;
            match self.lines.recv_timeout(POLL_INTERVAL) {
                Ok((_, Some(ClientLine::Failed { exit_code, error }))) => {
                    return Err(Failure::quoted(Code::Other(exit_code), &error));
                }
                Ok(received) => return Ok(received),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            }
        }
    }
}

/// A client is gone.
pub(super) fn ended() -> Failure {
    Failure::new(Code::Failure, "a client ended before its time").help("its own error is above")
}

impl Drop for ClientProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended by itself cannot be ended.
            let _ = child.kill();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}
