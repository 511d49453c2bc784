//! The terminal of `tidegate top`: it is drawn on, keys are read from it, and it is restored
//! however the command ends.

use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidegate_model::Span;

use super::glyphs::{Glyphs, time_of_day};
use super::history::History;
use super::view::{Page, SortKey, View};
use super::{ControllerWatch, Options};
use tidegate_console::clock::{self, Clock};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output;

/// How long a signal may go unnoticed.
const NOTICE: Span = Span(100 * Span::MILLISECOND.0);

/// How long the screen may take to end after a signal: several times as long as it takes to notice.
const GRACE: Span = Span(500 * Span::MILLISECOND.0);

/// The exit code of a screen whose terminal is gone: that of SIGHUP, which says the same.
const HANG_UP: u8 = 128 + 1;

/// How far the page keys scroll.
const PAGE: usize = 10;

/// A terminal that is ours until this is dropped; a panic gives it back as well.
struct Screen {
    /// Not dropped, because its own end complains to standard error, and panics where that is gone
    /// as well.
    terminal: ManuallyDrop<DefaultTerminal>,
    /// Whether keys come from standard input, as they do unless that is redirected.
    has_input: bool,
}

enum TerminalEvent {
    Nothing,
    Event(Event),
    /// The terminal is gone.
    HangUp,
}

impl Screen {
    fn open() -> io::Result<Self> {
        let has_input = io::stdin().is_terminal();
        Ok(Self { terminal: ManuallyDrop::new(ratatui::try_init()?), has_input })
    }

    /// Waits for a key or a new size, but not longer than `patience`.
    ///
    /// The terminal is looked at before crossterm is asked, because that reads nothing from a
    /// terminal that is gone, again and again, and never returns.
    fn wait(&self, patience: Span) -> io::Result<TerminalEvent> {
        let mut patience = Duration::from_nanos(patience.0);
        if self.has_input {
            let stdin = io::stdin();
            let mut looked_at = [PollFd::new(&stdin, PollFlags::IN)];
            let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
            match poll(&mut looked_at, Some(&timeout)) {
                // A signal may be that of a new size, which crossterm knows more about.
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if looked_at[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
                return Ok(TerminalEvent::HangUp);
            }
            patience = Duration::ZERO;
        }
        match event::poll(patience)? {
            true => event::read().map(TerminalEvent::Event),
            false => Ok(TerminalEvent::Nothing),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone cannot be given back, and no user can see a message.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// The exit code of the signal that has come, or zero.
type Signal = Arc<AtomicU8>;

/// Takes notice of signals that ask to end.
fn listen() -> io::Result<Signal> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let code = Signal::default();
    let noticed = code.clone();
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let code = u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128));
            noticed.store(code, Ordering::Relaxed);
            // Usually the screen ends by itself now. Where the terminal is gone it may not: waiting
            // for a key then never returns.
            thread::sleep(Duration::from_nanos(GRACE.0));
            let _ = ratatui::try_restore();
            process::exit(code.into());
        }
    });
    Ok(code)
}

/// Draws until somebody quits.
pub(super) fn run(options: &Options, mut watch: ControllerWatch) -> Result<ExitCode, Failure> {
    // Without a controller at all, an error on an untouched terminal says more than a screen.
    let first = watch.poll()?;
    let mut view = View {
        history: History::default(),
        socket: options.socket.display().to_string(),
        time: String::new(),
        fault: None,
        order: SortKey::default(),
        is_reversed: false,
        offset: 0,
        page: Page::default(),
        is_colored: output::is_colored(&io::stdout()),
        glyphs: if output::is_unicode() { Glyphs::UNICODE } else { Glyphs::ASCII },
    };
    show(&mut view, Ok(first));
    let signal = listen().map_err(unusable)?;
    let mut screen = Screen::open().map_err(unusable)?;
    watch_until_quit(options, &mut watch, &mut view, &mut screen, &signal).or_else(lost)
}

fn watch_until_quit(
    options: &Options,
    watch: &mut ControllerWatch,
    view: &mut View,
    screen: &mut Screen,
    signal: &AtomicU8,
) -> io::Result<ExitCode> {
    let clock = Clock::start();
    let mut due = clock.now().after(options.interval);
    let mut polls = 1;
    loop {
        screen.terminal.draw(|frame| view.draw(frame))?;
        match signal.load(Ordering::Relaxed) {
            0 => {}
            code => return Ok(ExitCode::from(code)),
        }
        match screen.wait(due.since(clock.now()).min(NOTICE))? {
            TerminalEvent::Nothing => {}
            TerminalEvent::Event(event) if handle(&event, view) => return Ok(ExitCode::SUCCESS),
            TerminalEvent::Event(_) => {}
            TerminalEvent::HangUp => return Ok(ExitCode::from(HANG_UP)),
        }
        if clock.now() >= due {
            if options.count.is_some_and(|count| polls >= count) {
                return Ok(ExitCode::SUCCESS);
            }
            show(view, watch.poll());
            polls += 1;
            // A look that took long is not made up for by several at once.
            due = due.after(options.interval).max(clock.now());
        }
    }
}

/// The end of a screen that cannot be used any more. A terminal that has gone refuses what is
/// drawn, maybe before its signal is noticed.
fn lost(error: io::Error) -> Result<ExitCode, Failure> {
    match Errno::from_io_error(&error) {
        Some(Errno::IO) => Ok(ExitCode::from(HANG_UP)),
        _ => Err(unusable(error)),
    }
}

/// Takes in a look, or why there is none: what was seen last stays on the screen.
fn show(view: &mut View, poll: Result<tidegate_proto::controller::status::Status, Failure>) {
    match poll {
        Ok(status) => {
            view.history.take(status);
            view.time = time_of_day(clock::unix_ms());
            view.fault = None;
        }
        Err(failure) => view.fault = Some(format!("{failure}; asking again")),
    }
}

/// Does what a key says; true if it says to quit.
fn handle(event: &Event, view: &mut View) -> bool {
    // A new size needs no answer but a new picture, which comes anyway.
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return false;
    };
    let last = view.rows().saturating_sub(1);
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Up | KeyCode::Char('k') => view.offset = view.offset.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => view.offset = (view.offset + 1).min(last),
        KeyCode::PageUp => view.offset = view.offset.saturating_sub(PAGE),
        KeyCode::PageDown => view.offset = (view.offset + PAGE).min(last),
        KeyCode::Home => view.offset = 0,
        KeyCode::End => view.offset = last,
        KeyCode::Tab => {
            view.page = view.page.next();
            view.offset = 0;
        }
        KeyCode::Char(key) => {
            if let Some(order) = SortKey::of_key(*key) {
                // The same key again turns the order round.
                view.is_reversed = view.order == order && !view.is_reversed;
                view.order = order;
                view.offset = 0;
            }
        }
        _ => {}
    }
    false
}

fn unusable(error: io::Error) -> Failure {
    Failure::new(Code::Failure, "the terminal cannot be used")
        .cause(error)
        .help("print lines instead: `tidegate top --plain`")
}
