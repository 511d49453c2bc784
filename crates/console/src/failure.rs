//! Failures of commands: a message for people or as JSON for programs, and the exit code. If the
//! reader of the output has closed the pipe, the command ends with success and without a message.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource};
use miette::{SourceCode, ThemeCharacters, ThemeStyles};
use serde::Serialize;

use crate::terminal;

/// How wide a report is where the width of the terminal is unknown.
const COLUMNS: usize = 100;

/// The exit codes of every command. Usage errors (2) are the argument parser's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// 1: it did not work.
    Failure,
    /// 2: the command line makes no sense.
    Usage,
    /// 3: a policy or another input is invalid.
    Invalid,
    /// 4: more is promised than there is.
    Infeasible,
    /// 5: no controller answers.
    Unreachable,
    /// 99: a promised level was missed.
    Missed,
    /// The exit code of a program that we ran, or of a controller's reply.
    Other(u8),
}

impl Code {
    fn number(self) -> u8 {
        match self {
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Invalid => 3,
            Self::Infeasible => 4,
            Self::Unreachable => 5,
            Self::Missed => 99,
            Self::Other(number) => number,
        }
    }

    /// In one word, for programs.
    fn word(self) -> &'static str {
        match self.number() {
            2 => "usage",
            3 => "invalid",
            4 => "infeasible",
            5 => "unreachable",
            99 => "missed",
            _ => "failure",
        }
    }
}

/// Why a command ends early: an exit code, and a problem to report, unless it was reported already.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    problem: Option<Box<Problem>>,
    /// The other failures, where the command looked for all of them.
    more: Vec<Failure>,
}

#[derive(Debug)]
struct Problem {
    message: String,
    help: Option<String>,
    cause: Option<Box<dyn Error + Send + Sync>>,
    text: Option<Text>,
}

/// The text that a problem is about, and the places in it.
#[derive(Debug)]
struct Text {
    source: NamedSource<String>,
    labels: Vec<LabeledSpan>,
}

impl Failure {
    /// A failure with this `message`: what is wrong, and where.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let (message, help, cause, text) = (message.into(), None, None, None);
        let problem = Some(Box::new(Problem { message, help, cause, text }));
        Self { code, problem, more: Vec::new() }
    }

    /// A failure with a ready message: the fault, and after a semicolon the remedy, as all messages
    /// of this project are written.
    pub fn quoted(code: Code, sentence: &str) -> Self {
        match sentence.rsplit_once("; ") {
            Some((message, help)) => Self::new(code, message).help(help),
            None => Self::new(code, sentence),
        }
    }

    /// A failure without a message.
    pub fn silent(code: Code) -> Self {
        Self { code, problem: None, more: Vec::new() }
    }

    /// All of these as one, with the code of the first; none if there is none.
    pub fn all(failures: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut failures = failures.into_iter();
        let mut first = failures.next()?;
        for mut other in failures {
            let more = std::mem::take(&mut other.more);
            first.more.push(other);
            first.more.extend(more);
        }
        Some(first)
    }

    /// The same without its problem, which was reported already.
    pub fn already_reported(self) -> Self {
        Self::silent(self.code)
    }

    /// The same, with another code to exit with.
    pub fn coded(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// The same, of this one among several.
    #[must_use]
    pub fn at(mut self, location: &str) -> Self {
        if let Some(problem) = &mut self.problem {
            problem.message = format!("{location}: {}", problem.message);
        }
        self
    }

    /// Adds how to mend it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        if let Some(problem) = &mut self.problem {
            problem.help = Some(help.into());
        }
        self
    }

    /// Adds what lies behind it.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        if let Some(problem) = &mut self.problem {
            problem.cause = Some(cause.into());
        }
        self
    }

    /// Adds the text of the file `name` and the places in it that the failure is about, the main
    /// one first.
    #[must_use]
    pub fn source(mut self, name: &str, text: &str, labels: Vec<LabeledSpan>) -> Self {
        if let Some(problem) = &mut self.problem {
            let source = NamedSource::new(name, text.to_owned());
            problem.text = Some(Text { source, labels });
        }
        self
    }

    /// Prints the failure on standard error and gives the code to exit with.
    pub fn print(&self, json: bool) -> ExitCode {
        if let Some(problem) = &self.problem {
            let report = match serde_json::to_string(&self.to_json()) {
                Ok(text) if json => text + "\n",
                _ => problem.render() + &self.render_more(),
            };
            // Where standard error is gone too, only the exit code is left.
            let _ = io::stderr().write_all(report.as_bytes());
        }
        ExitCode::from(self.code.number())
    }

    /// Renders the other failures, and the number of all failures.
    fn render_more(&self) -> String {
        let problems = self.more.iter().filter_map(|failure| failure.problem.as_ref());
        let report: String = problems.map(|problem| problem.render()).collect();
        match self.more.len() {
            0 => report,
            more => format!("{report}{} errors\n", more + 1),
        }
    }

    /// The failure in one line of a log: where, what, why, and how to mend it.
    pub fn to_line(&self) -> String {
        let FailureReport { error, help, cause, file, line, column, .. } = self.to_json();
        let mut text = match (file, line, column) {
            (Some(file), Some(line), Some(column)) => format!("{file}:{line}:{column}: "),
            _ => String::new(),
        };
        text += error.unwrap_or(self.word());
        for (between, more) in [(": ", cause.as_deref()), ("; ", help)] {
            if let Some(more) = more {
                text += between;
                text += more;
            }
        }
        text
    }

    /// The code to exit with.
    pub fn number(&self) -> u8 {
        self.code.number()
    }

    /// The failure in one word, as verdicts have it.
    pub fn word(&self) -> &'static str {
        self.code.word()
    }

    /// The failure for programs.
    pub fn to_json(&self) -> FailureReport<'_> {
        let mut report =
            FailureReport { exit_code: self.code.number(), ..FailureReport::default() };
        report.more = self.more.iter().map(Self::to_json).collect();
        let Some(problem) = &self.problem else { return report };
        report.error = Some(&problem.message);
        report.help = problem.help.as_deref();
        report.cause = problem.cause.as_ref().map(|cause| cause.to_string());
        if let Some(Text { source, labels }) = &problem.text {
            report.file = Some(source.name());
            if let Some(first) = labels.first()
                && let Ok(location) = source.inner().read_span(first.inner(), 0, 0)
            {
                report.line = Some(location.line() + 1);
                report.column = Some(location.column() + 1);
            }
        }
        report
    }
}

/// A failure for programs. Fields without a value are left out.
#[derive(Debug, Default, Serialize)]
pub struct FailureReport<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    exit_code: u8,
    /// The other failures, each in this form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    more: Vec<FailureReport<'a>>,
}

/// In one line, without the help.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Some(problem) => problem.fmt(f),
            None => f.write_str(self.word()),
        }
    }
}

/// Writing to standard output failed. A reader that has seen enough (`| head`) is no failure to
/// report, and not one that a script should trip over.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::silent(Code::Other(0)),
            _ => Self::new(Code::Failure, "cannot write to standard output").cause(error),
        }
    }
}

impl Problem {
    fn render(&self) -> String {
        let stderr = io::stderr();
        let characters = match terminal::is_unicode() {
            true => ThemeCharacters::unicode(),
            false => ThemeCharacters::ascii(),
        };
        let styles = match terminal::is_colored(&stderr) {
            true => ThemeStyles::ansi(),
            false => ThemeStyles::none(),
        };
        let width = if stderr.is_terminal() { terminal::columns() } else { COLUMNS };
        let theme = GraphicalTheme { characters, styles };
        let mut text = String::new();
        let handler = GraphicalReportHandler::new_themed(theme).with_width(width);
        match handler.render_report(&mut text, self) {
            Ok(()) => text,
            // It can only fail on places outside of the text, which are a mistake of ours.
            Err(_) => format!("{self}\n"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Problem {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

impl Diagnostic for Problem {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.text.as_ref().map(|text| &text.source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let text = self.text.as_ref()?;
        Some(Box::new(text.labels.iter().cloned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_has_location_error_cause_and_remedy() {
        let failure = Failure::new(Code::Invalid, "cannot read the policy p.toml")
            .cause("No such file or directory")
            .help("check the path");
        let line = "cannot read the policy p.toml: No such file or directory; check the path";
        assert_eq!(failure.to_line(), line);
        let labels = vec![LabeledSpan::at_offset(6, "here")];
        let failure = Failure::new(Code::Invalid, "a mistake").source("p.toml", "a = 1\nb", labels);
        assert_eq!(failure.to_line(), "p.toml:2:1: a mistake");
        assert_eq!(Failure::silent(Code::Unreachable).to_line(), "unreachable");
    }
}
