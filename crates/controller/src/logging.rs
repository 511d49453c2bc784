//! The log on standard error: its filter and its format.

use std::io;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::error::ServeError;

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: time, level, module, message, and fields as `name=value`.
    #[default]
    Text,
    /// For programs: one JSON object per line, with `timestamp`, `level`, `target` (the module) and
    /// `fields`, in which `message` is the text.
    Json,
}

/// The log of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// The levels and modules that are logged: `warn`, or `warn,tidegate_node=debug`.
    pub filter: String,
    /// Their format.
    pub format: LogFormat,
}

impl Default for Logging {
    fn default() -> Self {
        Self { filter: "info".into(), format: LogFormat::Text }
    }
}

impl Logging {
    /// Logs to standard error from now on. A program that has a logger keeps it.
    ///
    /// # Errors
    /// If the filter cannot be parsed.
    pub fn to_stderr(&self) -> Result<(), ServeError> {
        let filter = &self.filter;
        let targets = filter.parse::<Targets>().map_err(|error| ServeError::Log {
            filter: filter.clone(),
            error: error.to_string(),
        })?;
        // Without colours, whichever features other crates ask for: logs are searched.
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(io::stderr);
        let lines = match self.format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().boxed(),
        };
        let _ = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
        Ok(())
    }
}
