//! The file of a scenario: its text, its model, and the display of its errors.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use tidegate_netsim::e2e::Input;
use tidegate_sim::scenario::ScenarioError;

use super::Model;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::text_file;

/// The largest file that is read as a scenario, in bytes: that of 10,000 applications has some
/// three megabytes. A larger file is a recording, or a mistake.
const LARGEST: u64 = 16 << 20;

/// Keys that only scenarios of papers have, which another command runs, and that command.
const OTHERS: [(&str, &str); 5] = [
    ("bricks", "tidegate-lab repro dsfq"),
    ("cards", "tidegate-lab repro haechi"),
    ("client", "tidegate-lab repro haechi"),
    ("nodes", "tidegate-lab repro pshift"),
    ("tenants", "tidegate-lab repro pshift"),
];

/// A scenario's file.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    name: String,
    pub(super) text: String,
}

impl Source {
    pub(super) fn read(path: &Path, model: Model) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let text = text(path, &name)?;
        let source = Self { path: path.to_owned(), name, text };
        // The scenario's own reader refuses a text that is no TOML, and names the line.
        if let Ok(table) = toml::from_str(&source.text) {
            source.expect(model, &table)?;
        }
        Ok(source)
    }

    /// Refuses a scenario that is one of another model: in its own words, and not by the first key
    /// that this one does not know.
    fn expect(&self, model: Model, table: &toml::Table) -> Result<(), Failure> {
        let has = |model: Model| model.keys().iter().find(|key| table.contains_key(**key));
        let other = if model == Model::Dtm { Model::Packets } else { Model::Dtm };
        let refused = |what: &str, key: &str, remedy: &str| {
            let message = format!("{} is a scenario of {what}: it has {key:?}", self.name);
            Err(Failure::new(Code::Invalid, message).help(remedy))
        };
        match (has(model), has(other)) {
            (Some(_), _) => Ok(()),
            (None, Some(key)) => {
                let [name, remedy] = other.name_and_remedy();
                refused(name, key, remedy)
            }
            (None, None) => match OTHERS.iter().find(|(key, _)| table.contains_key(*key)) {
                Some((key, command)) => {
                    refused("a paper", key, &format!("repeat that paper with {command}"))
                }
                None => Ok(()),
            },
        }
    }

    /// The failure for an error in the scenario, with its location in the text.
    pub(super) fn wrong(&self, error: ScenarioError) -> Failure {
        let error = error.located(&self.text);
        text_file::wrong(&self.name, &self.text, &error.message(), error.span())
    }

    /// The failure for an error at a point of a sweep. An error of the scenario itself (`own`) has
    /// a location in the text; an error of the sweep's values has none.
    pub(super) fn wrong_at_point(
        &self,
        error: ScenarioError,
        own: Option<&ScenarioError>,
    ) -> Failure {
        match own.filter(|own| error.message().ends_with(&own.message())) {
            Some(own) => self.wrong(own.clone()),
            None => text_file::wrong(&self.name, "", &error.message(), None),
        }
    }

    /// Its text as a table, in which a sweep sets keys.
    pub(super) fn table(&self) -> Result<toml::Table, Failure> {
        toml::from_str(&self.text).map_err(|error: toml::de::Error| {
            let message = error.message().trim_end().replace('\n', ", ");
            text_file::wrong(&self.name, &self.text, &message, error.span())
        })
    }

    /// Opens a recording, to be read in pieces that are large beside what a system call costs. Its
    /// name is one beside the scenario, wherever that is run from.
    pub(super) fn open(&self, file: &str) -> io::Result<Input> {
        let path = self.path.parent().unwrap_or(Path::new("")).join(file);
        let kind = fs::metadata(&path)?.file_type();
        if kind.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Box::new(BufReader::with_capacity(256 << 10, File::open(path)?)))
    }
}

fn text(path: &Path, name: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
    // Of a file that was cut, the last letter may be a half.
    let is_large = || fs::metadata(path).is_ok_and(|data| data.len() > LARGEST);
    match read {
        Ok(read) if read as u64 <= LARGEST => Ok(text),
        Err(error) if !is_large() => Err(text_file::unreadable("scenario", name, &error)),
        _ => {
            let message = format!("{name} has more than {} MiB", LARGEST >> 20);
            let help = "name a scenario; a recording is named in one, as load.trace.file";
            Err(Failure::new(Code::Invalid, message).help(help))
        }
    }
}
