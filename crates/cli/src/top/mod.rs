//! `tidegate top`: the health of tenants, stages, nodes and gateways, again and again.
//!
//! A *watch* asks the controller, a *history* turns the answers into rows with a past, and either a
//! *screen* draws them (`view`) or they are printed line by line (`plain`).

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use tidegate_model::Span;
use tidegate_proto::controller::status::Status;
use tidegate_proto::message::OperatorRequest;

use tidegate_console::clock::{self, Clock};
use tidegate_console::failure::Failure;
use tidegate_console::operator::{self, Operator};
use tidegate_console::output;

mod glyphs;
mod history;
mod plain;
mod screen;
mod view;

/// How long a controller may take to answer before the screen says so. Long for a controller, and
/// as long as a key may seem dead. Scripts have the patience of the other commands.
const SCREEN_PATIENCE: Span = Span::SECOND;

/// Options of the display, and its interval.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) socket: PathBuf,
    /// The time between two looks.
    pub(crate) interval: Span,
    /// How many looks to take; none for no end.
    pub(crate) count: Option<u64>,
    pub(crate) form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// On the whole terminal, until somebody quits.
    Screen,
    /// One line for each tenant and look.
    Lines,
    /// One line of JSON for each look.
    Json,
}

/// Shows it until the end.
///
/// # Errors
/// If there is no controller at first, or the terminal or the reader fails. The screen waits for a
/// controller that goes away later; lines end with it, because a script has to know.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failure> {
    let patience = match options.form {
        Form::Screen => SCREEN_PATIENCE,
        Form::Lines | Form::Json => operator::PATIENCE,
    };
    let mut watch = ControllerWatch { socket: options.socket.clone(), patience, operator: None };
    match options.form {
        Form::Screen => screen::run(options, watch),
        Form::Lines => {
            let mut lines = plain::Lines::default();
            each(options, || {
                let status = watch.poll()?;
                // The disk behind standard error may be full.
                for line in lines.complaints(&status) {
                    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
                }
                output::print(&lines.render(&status, clock::unix_ms()))
            })
        }
        Form::Json => each(options, || {
            let mut render: serde_json::Value = operator::read(&watch.request_status()?)?;
            render["at_ms"] = clock::unix_ms().into();
            output::print_json(&render)
        }),
    }
}

/// Looks as often as is wanted.
fn each(
    options: &Options,
    mut poll: impl FnMut() -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let clock = Clock::start();
    let mut due = clock.now();
    let mut polls = 0;
    loop {
        poll()?;
        polls += 1;
        if options.count.is_some_and(|count| polls >= count) {
            return Ok(ExitCode::SUCCESS);
        }
        // A look that took long is not made up for by several at once.
        due = due.after(options.interval).max(clock.now());
        clock.sleep_until(due);
    }
}

/// The way to the controller, opened anew where it was lost.
#[derive(Debug)]
struct ControllerWatch {
    socket: PathBuf,
    patience: Span,
    operator: Option<Operator>,
}

impl ControllerWatch {
    fn poll(&mut self) -> Result<Status, Failure> {
        operator::read(&self.request_status()?)
    }

    fn request_status(&mut self) -> Result<String, Failure> {
        // After a failure it is unknown which request the next answer belongs to, so the link
        // is only kept after success.
        let mut operator = match self.operator.take() {
            Some(operator) => operator,
            None => Operator::connect_for(&self.socket, self.patience)?,
        };
        let answer = operator.call(&OperatorRequest::Status)?;
        self.operator = Some(operator);
        Ok(answer)
    }
}
