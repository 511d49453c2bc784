//! `tidegate record`: the load of a running cluster, into a file for `tidegate-lab sim`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_model::{Span, Time};
use tidegate_proto::message::OperatorRequest;
use tidegate_proto::recording::collector::RecordingPart;

use tidegate_console::amounts;
use tidegate_console::clock::Clock;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::operator::Operator;
use tidegate_console::output;

use crate::inputs::duration;

/// How often the controller is asked for what has come. Buffers of gateways are made for that.
const INTERVAL: Span = Span(200 * Span::MILLISECOND.0);

/// Record the requests of a cluster's tenants, for `tidegate-lab sim`
///
/// Writes a line for each request that the cluster's gateways answer: when it came and how long it
/// took, its tenant, operation and size, and the stripe that determines its node. The file has no
/// content and no names of files. Requests to pools are not recorded. Ends after --duration, or
/// with Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate record --duration 30s --output monday.recording
  tidegate-lab sim --policy new.toml --cluster cluster.toml --load monday.recording")]
pub(crate) struct Args {
    /// The file to write, which must not exist yet
    #[arg(short, long, value_name = "FILE", env = "TIDEGATE_OUTPUT", hide_env_values = true)]
    output: PathBuf,

    /// How long to record, such as 30s; by default until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[arg(env = "TIDEGATE_DURATION", hide_env_values = true)]
    duration: Option<Span>,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::listen()?;
    let operator = Operator::connect(&common.socket())?;
    let file = create(&args.output)?;
    // Without a gateway there is nothing to record, and no file is left.
    let mut recording = OngoingRecording::begin(operator, (file, &args.output))
        .inspect_err(|_| drop(fs::remove_file(&args.output)))?;
    let clock = Clock::start();
    let end = args.duration.map_or(Time::MAX, |duration| clock.now().after(duration));
    while clock.now() < end {
        let next = clock.now().after(INTERVAL).min(end);
        let is_over = interrupt.sleep_until(clock, next).is_err();
        recording.go_on(false)?;
        if is_over {
            break;
        }
    }
    // The gateways' answers to the last question are still to come.
    clock.sleep_until(clock.now().after(INTERVAL));
    let part = recording.go_on(true)?;
    match common.json {
        true => output::print_json(&to_json(&args.output, &part))?,
        false => output::print(&formatted(&args.output, &part))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// For the caller alone: the lines say who uses the storage, when and how much.
fn create(path: &Path) -> Result<File, Failure> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        let failure = Failure::new(Code::Failure, format!("cannot create {}", path.display()));
        match error.kind() {
            io::ErrorKind::AlreadyExists => {
                failure.cause(error).help("name another file, or remove this one")
            }
            _ => failure.cause(error).help("name a file in a directory that you may write to"),
        }
    })
}

/// A recording that is under way.
struct OngoingRecording<'a> {
    operator: Operator,
    file: File,
    path: &'a Path,
    session: u64,
}

impl<'a> OngoingRecording<'a> {
    fn begin(operator: Operator, (file, path): (File, &'a Path)) -> Result<Self, Failure> {
        let mut recording = Self { operator, file, path, session: 0 };
        let part = recording.ask(false)?;
        recording.session = part.session;
        recording.write(&part)?;
        Ok(recording)
    }

    fn ask(&mut self, is_last: bool) -> Result<RecordingPart, Failure> {
        let request = OperatorRequest::Record { session: self.session, is_last };
        self.operator.call_as(&request)
    }

    /// Writes what has come since the last question. The lines that are in the file are a recording
    /// also if this fails.
    fn go_on(&mut self, is_last: bool) -> Result<RecordingPart, Failure> {
        let part = self.ask(is_last).map_err(|failure| {
            let path = self.path.display();
            failure.at(&format!("{path} is a recording up to here, without its end"))
        })?;
        self.write(&part)?;
        Ok(part)
    }

    fn write(&mut self, part: &RecordingPart) -> Result<(), Failure> {
        self.file.write_all(part.text.as_bytes()).map_err(|error| {
            // The gateways need not record what has no place.
            let _ = self.ask(true);
            Failure::new(Code::Failure, format!("cannot write {}", self.path.display()))
                .cause(error)
                .help("free some space; the file is a recording up to this time")
        })
    }
}

fn to_json(path: &Path, part: &RecordingPart) -> Value {
    let RecordingPart { requests, lost, failed, span_ns, gateways, left, .. } = part;
    json!({
        "file": path,
        "requests": requests,
        "lost": lost,
        "failed": failed,
        "span_ns": span_ns,
        "gateways": gateways,
        "left": left,
    })
}

fn formatted(path: &Path, part: &RecordingPart) -> String {
    let RecordingPart { requests, lost, failed, span_ns, gateways, left, .. } = part;
    let mut text = format!(
        "recorded {} in {} at {} to {}\n",
        amounts::plural(*requests, "request"),
        amounts::age(*span_ns),
        amounts::plural(*gateways, "gateway"),
        path.display(),
    );
    if *failed > 0 {
        let failed = amounts::plural(*failed, "request");
        text += &format!("{failed} that failed are left out\n");
    }
    if *lost > 0 {
        let lost = amounts::plural(*lost, "request");
        text += &format!("warning: {lost} are missing: buffers were full\n");
    }
    for gateway in left {
        text += &format!("warning: gateway {gateway} was away for a part of the time\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_requests_are_reported() {
        let whole = RecordingPart {
            requests: 1,
            span_ns: 30 * Span::SECOND.0,
            gateways: 2,
            ..RecordingPart::default()
        };
        let path = Path::new("monday.recording");
        let line = "recorded 1 request in 30 s at 2 gateways to monday.recording\n";
        assert_eq!(formatted(path, &whole), line);
        let left = vec!["front".to_owned()];
        let part = RecordingPart { lost: 3, failed: 2, left, ..whole };
        let more = "2 requests that failed are left out\n\
                    warning: 3 requests are missing: buffers were full\n\
                    warning: gateway front was away for a part of the time\n";
        assert_eq!(formatted(path, &part), format!("{line}{more}"));
        assert_eq!(to_json(path, &part)["left"], json!(["front"]));
    }
}
