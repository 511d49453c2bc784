//! Runs of a figure that is not done: they are kept in a file beside its picture, so that a command
//! that was interrupted goes on with the run that it was at. With the paper's times each takes
//! twenty minutes.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_console::failure::{Code, Failure};
use tidegate_model::Rate;

use super::plan::LsmSystem;
use super::runs::LsmRun;
use crate::experiment::kept::{self, Origin};

/// The runs so far, and their file.
pub(super) struct KeptRuns {
    path: PathBuf,
    content: KeptContent,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptContent {
    origin: Origin,
    /// The rate of the disk, from which all runs have their budget.
    disk_rate: Option<Rate>,
    runs: Vec<KeptRun>,
}

#[derive(Debug, Serialize, Deserialize)]
struct KeptRun {
    /// The key of its system.
    system: String,
    round: u16,
    run: LsmRun,
}

impl KeptRuns {
    /// The runs in this file, if they are of this origin and wanted; otherwise none.
    pub(super) fn read(path: PathBuf, origin: &Origin, is_wanted: bool) -> Self {
        let read = || serde_json::from_slice::<KeptContent>(&fs::read(&path).ok()?).ok();
        let content = if is_wanted { read() } else { None };
        let content = content.filter(|content| content.origin == *origin);
        let none = || KeptContent { origin: origin.clone(), disk_rate: None, runs: Vec::new() };
        Self { content: content.unwrap_or_else(none), path }
    }

    pub(super) fn disk_rate(&self) -> Option<Rate> {
        self.content.disk_rate
    }

    /// Sets the rate of the disk. It is written with the next run.
    pub(super) fn set_disk_rate(&mut self, rate: Rate) {
        self.content.disk_rate = Some(rate);
    }

    /// The run of a system in a round, if it is there.
    pub(super) fn run(&self, system: LsmSystem, round: u16) -> Option<&LsmRun> {
        let is_it = |kept: &&KeptRun| kept.system == system.key() && kept.round == round;
        self.content.runs.iter().find(is_it).map(|kept| &kept.run)
    }

    /// Adds a run, and writes the file, unless the run is there already.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn push(
        &mut self,
        system: LsmSystem,
        round: u16,
        run: &LsmRun,
    ) -> Result<(), Failure> {
        if self.run(system, round).is_some() {
            return Ok(());
        }
        let (system, run) = (system.key().to_owned(), run.clone());
        self.content.runs.push(KeptRun { system, round, run });
        let text = serde_json::to_vec(&self.content)
            .map_err(|error| Failure::new(Code::Failure, "cannot write JSON").cause(error))?;
        kept::replace(&self.path, &text)
    }

    /// Removes the file: the result of the figure has all that is kept.
    pub(super) fn remove(self) {
        // A file that stays is of this origin, and shortens a repetition at worst.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::super::score::tests::run;
    use super::*;
    use crate::experiment::kept::tests::result;

    #[test]
    fn runs_are_there_again_for_the_same_origin_until_the_figure_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("figure-8-runs.json");
        let origin = result("repro paio 8").origin;
        let read = |origin: &Origin, is_wanted| KeptRuns::read(path.clone(), origin, is_wanted);
        let mut kept = read(&origin, true);
        assert!(kept.run(LsmSystem::RocksDb, 1).is_none() && kept.disk_rate().is_none());
        let (first, second) = (run(&[(1, 2)]), run(&[(3, 4)]));
        kept.set_disk_rate(Rate(7));
        kept.push(LsmSystem::RocksDb, 1, &first).unwrap();
        kept.push(LsmSystem::Silk, 1, &second).unwrap();
        kept.push(LsmSystem::RocksDb, 1, &second).unwrap();
        let again = read(&origin, true);
        assert_eq!(again.disk_rate(), Some(Rate(7)));
        assert_eq!(again.run(LsmSystem::RocksDb, 1), Some(&first));
        assert_eq!(again.run(LsmSystem::Silk, 1), Some(&second));
        assert_eq!(again.run(LsmSystem::RocksDb, 2), None);
        let other = Origin { command: "repro paio 9".into(), ..origin.clone() };
        assert!(read(&other, true).run(LsmSystem::Silk, 1).is_none());
        assert!(read(&origin, false).run(LsmSystem::Silk, 1).is_none());
        again.remove();
        assert!(!path.exists());
        assert!(read(&origin, true).run(LsmSystem::Silk, 1).is_none());
    }
}
