//! Default paths: the same answer for the controller that makes the files and for programs that
//! look for them.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The controller's socket: `TIDEGATE_SOCKET`, else `/run/tidegate/controller.sock` for root, else
/// `tidegate/controller.sock` in `XDG_RUNTIME_DIR` or, without that, in [`default_state`].
pub fn default_socket() -> PathBuf {
    Surroundings::here().socket()
}

/// The controller's directory of policies, token and lock: `/var/lib/tidegate` for root, else
/// `tidegate` in `XDG_STATE_HOME` or in `~/.local/state`.
pub fn default_state() -> PathBuf {
    Surroundings::here().state()
}

/// Where root's controller listens by default.
const ROOTS_SOCKET: &str = "/run/tidegate/controller.sock";

/// The socket of root's controller, if there is one and a process of another user has tried
/// another socket. Messages name this socket, because that user probably means this controller.
pub fn roots_socket_instead_of(tried: &Path) -> Option<&'static Path> {
    let roots = Path::new(ROOTS_SOCKET);
    Surroundings::here().means_another(tried, roots).then_some(roots)
}

/// The properties of the process on which the defaults depend.
struct Surroundings<F> {
    is_root: bool,
    /// The value of an environment variable.
    variable: F,
}

impl Surroundings<fn(&str) -> Option<OsString>> {
    fn here() -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { is_root, variable: |name| env::var_os(name) }
    }
}

impl<F: Fn(&str) -> Option<OsString>> Surroundings<F> {
    fn socket(&self) -> PathBuf {
        if let Some(path) = (self.variable)("TIDEGATE_SOCKET").filter(|path| !path.is_empty()) {
            return path.into();
        }
        if self.is_root {
            return ROOTS_SOCKET.into();
        }
        let runtime = self.absolute("XDG_RUNTIME_DIR").map(|base| base.join("tidegate"));
        runtime.unwrap_or_else(|| self.state()).join("controller.sock")
    }

    fn means_another(&self, tried: &Path, roots: &Path) -> bool {
        !self.is_root && tried != roots && roots.exists()
    }

    fn state(&self) -> PathBuf {
        if self.is_root {
            return "/var/lib/tidegate".into();
        }
        let home = || Some(PathBuf::from((self.variable)("HOME")?).join(".local/state"));
        let base = self.absolute("XDG_STATE_HOME").or_else(home).unwrap_or_else(env::temp_dir);
        base.join("tidegate")
    }

    /// A directory that a variable names; a relative one is to be ignored, as the XDG base
    /// directory specification says.
    fn absolute(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(is_root: bool, variables: &[(&str, &str)]) -> [String; 2] {
        let value = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let here = Surroundings { is_root, variable: value };
        [here.socket(), here.state()].map(|path| path.display().to_string())
    }

    #[test]
    fn another_user_without_a_controller_may_mean_that_of_root() {
        let folder = tempfile::tempdir().unwrap();
        let [roots, own] = ["roots.sock", "own.sock"].map(|name| folder.path().join(name));
        let means = |is_root: bool, tried: &Path| {
            let variable = |_: &str| None;
            Surroundings { is_root, variable }.means_another(tried, &roots)
        };
        assert!(!means(false, &own), "there is none");
        std::fs::write(&roots, "").unwrap();
        assert!(means(false, &own));
        assert!(!means(false, &roots), "the user has named it");
        assert!(!means(true, &own), "root's own default is that one");
    }

    #[test]
    fn the_controllers_path_follows_the_user_and_the_variables() {
        let (run, lib) = ("/run/tidegate/controller.sock", "/var/lib/tidegate");
        let home = ("HOME", "/home/ann");
        let [runtime, state] = [("XDG_RUNTIME_DIR", "/run/user/7"), ("XDG_STATE_HOME", "/state")];
        let in_state = "/home/ann/.local/state/tidegate/controller.sock";
        for (is_root, variables, wanted) in [
            (true, &[home, runtime, state][..], [run, lib]),
            (true, &[("TIDEGATE_SOCKET", "/a.sock")], ["/a.sock", lib]),
            (true, &[("TIDEGATE_SOCKET", "")], [run, lib]),
            (false, &[home], [in_state, "/home/ann/.local/state/tidegate"]),
            (
                false,
                &[home, runtime, state],
                ["/run/user/7/tidegate/controller.sock", "/state/tidegate"],
            ),
            (false, &[home, state], ["/state/tidegate/controller.sock", "/state/tidegate"]),
            (
                false,
                &[home, ("XDG_RUNTIME_DIR", "run"), ("XDG_STATE_HOME", "state")],
                [in_state, "/home/ann/.local/state/tidegate"],
            ),
        ] {
            assert_eq!(defaults(is_root, variables), wanted, "{is_root} {variables:?}");
        }
        assert!(default_state().ends_with("tidegate"));
        assert_eq!(default_socket(), Surroundings::here().socket());
    }
}
