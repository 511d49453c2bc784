//! The scenarios of a paper, and the tables beside them.

use std::fs;
use std::path::{Path, PathBuf};

/// A folder under `scenarios/`.
pub(crate) struct Folder(pub(crate) &'static str);

impl Folder {
    /// Where something in it is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(self.0).join(name)
    }

    /// Reads a scenario.
    pub(crate) fn read<S, E: std::fmt::Display>(
        &self,
        name: &str,
        parse: fn(&str) -> Result<S, E>,
    ) -> S {
        let path = self.path(&format!("{name}.toml"));
        let text = fs::read_to_string(&path).unwrap();
        parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Compares what came out of a scenario with the table beside it, or writes that anew.
    #[track_caller]
    pub(crate) fn golden(&self, name: &str, title: &str, table: &str) {
        let table = format!("# {title}\n{table}");
        let path = self.path(&format!("{name}.golden"));
        if std::env::var_os("TIDEGATE_ACCEPT").is_some() {
            fs::write(&path, &table).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(table, expected, "{} is out of date: see the head of this test", path.display());
    }
}
