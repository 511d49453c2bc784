//! Results of figures that are kept in files: a command that was interrupted goes on where it was,
//! and the report shows results of earlier commands.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::machine;
use super::unwritable;
use super::verdict::{Claim, Verdict};
use tidegate_console::failure::{Code, Failure};

/// The source of a result. Another source may have another result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The release, and the size and time of the executable.
    pub(crate) program: String,
    pub(crate) machine: String,
    /// The command that repeats it, with all options that matter.
    pub(crate) command: String,
}

impl Origin {
    /// Results of this program on this machine, by a command that is still to be named.
    ///
    /// # Errors
    /// If the program's file cannot be found.
    pub(crate) fn here() -> Result<Self, Failure> {
        let executable = std::env::current_exe().and_then(fs::metadata);
        let changed = executable.and_then(|file| Ok((file.len(), file.modified()?)));
        let (bytes, modified) = changed.map_err(|error| {
            Failure::new(Code::Failure, "cannot find this program's file").cause(error)
        })?;
        let ns = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let program = format!("{} ({bytes} bytes, {ns})", env!("CARGO_PKG_VERSION"));
        Ok(Self { program, machine: machine::summary(), command: String::new() })
    }
}

/// The commit of the sources from which this program was built, if they are still there.
pub(crate) fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--exclude=*"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The result of a figure in one world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptResult {
    pub(crate) origin: Origin,
    pub(crate) commit: Option<String>,
    /// When it was begun, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) seconds: f64,
    /// The printed tables.
    pub(crate) text: String,
    /// SVG.
    pub(crate) pictures: Vec<String>,
    claims: Vec<KeptClaim>,
}

/// A claim with the part of it that programs do not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct KeptClaim {
    #[serde(flatten)]
    claim: Claim,
    is_explained: bool,
}

impl KeptResult {
    /// A result without content, of work that begins now.
    pub(crate) fn new(origin: Origin, commit: Option<String>, at_ms: u64) -> Self {
        let (text, pictures, claims) = (String::new(), Vec::new(), Vec::new());
        Self { origin, commit, at_ms, seconds: 0.0, text, pictures, claims }
    }

    pub(crate) fn set_claims(&mut self, claims: Vec<Claim>) {
        let kept = |claim: Claim| KeptClaim {
            is_explained: claim.is_explained,
            claim: Claim { is_explained: false, ..claim },
        };
        self.claims = claims.into_iter().map(kept).collect();
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = Claim> {
        self.claims.iter().map(|KeptClaim { claim, is_explained }| Claim {
            is_explained: *is_explained,
            ..claim.clone()
        })
    }

    /// The result in a file, whatever its source is; none if there is no such file.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Whether work from this source need not be done again. A claim that was disturbed or skipped
    /// may fare better next time.
    pub(crate) fn is_of(&self, origin: &Origin) -> bool {
        let is_open =
            |one: &KeptClaim| matches!(one.claim.verdict, Verdict::Disturbed | Verdict::Skipped);
        self.origin == *origin && !self.claims.iter().any(is_open)
    }

    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_vec(self)
            .map_err(|error| Failure::new(Code::Failure, "cannot write JSON").cause(error))?;
        replace(path, &text)
    }
}

/// Writes a whole file or leaves it as it was, also if the command is killed meanwhile.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let beside = path.with_extension("new");
    let written = fs::write(&beside, content).and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| unwritable(path, error))
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::experiment::paper::{ClaimSource, SIMULATED};
    use crate::experiment::verdict::near;

    /// A result with two claims, the first of which differs for a known reason.
    pub(crate) fn result(command: &str) -> KeptResult {
        let source = ClaimSource {
            paper: "dsfq",
            figure: "9",
            world: SIMULATED,
            seed: Some(7),
            seconds: 1.5,
        };
        let claim = |text, value: f64| {
            source.claim(text, json!({ "ms": value }), [near("", "ms", 1.0, 0.1, value)])
        };
        let origin = Origin {
            program: "0.1.0".into(),
            machine: "2 x <cores>".into(),
            command: command.into(),
        };
        let mut result = KeptResult::new(origin, Some("abc123".into()), 0);
        result.set_claims(vec![claim("one & one", 1.5).because("rounded"), claim("two", 1.0)]);
        result.pictures.push("<svg></svg>".into());
        result
    }

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("figure-9.json");
        assert_eq!(KeptResult::read(&path), None);
        let result = result("repro dsfq 9");
        result.write(&path).unwrap();
        let read = KeptResult::read(&path).unwrap();
        assert_eq!(read, result);
        let claims: Vec<Claim> = read.claims().collect();
        assert!(claims[0].is_explained && !claims[0].is_bad());
        assert_eq!((claims[0].verdict, claims[1].verdict), (Verdict::Differs, Verdict::Reproduced));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        fs::write(&path, "{\"origin\"").unwrap();
        assert_eq!(KeptResult::read(&path), None, "half a file is none");
    }

    #[test]
    fn a_result_is_used_again_for_the_same_source_and_if_it_says_something() {
        let mut result = result("repro dsfq 9");
        let origin = result.origin.clone();
        assert!(result.is_of(&origin));
        assert!(
            !result.is_of(&Origin { command: "repro dsfq 9 --seed 8".into(), ..origin.clone() })
        );
        assert!(!result.is_of(&Origin { program: "0.2.0".into(), ..origin.clone() }));
        let claims = result.claims().map(|claim| claim.disturbed(Some("busy"))).collect();
        result.set_claims(claims);
        assert!(!result.is_of(&origin));
    }
}
