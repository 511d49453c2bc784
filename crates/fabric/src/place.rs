//! Where things are unless somebody says otherwise: the same answer for the controller that makes
//! them and for whoever looks for them.

use std::env;
use std::path::PathBuf;

/// The controller's socket: `TIDEGATE_SOCKET`, else `/run/tidegate/controller.sock` for root, else
/// `tidegate/controller.sock` in `XDG_RUNTIME_DIR` or, without that, in [`default_state`].
pub fn default_socket() -> PathBuf {
    if let Some(path) = env::var_os("TIDEGATE_SOCKET").filter(|path| !path.is_empty()) {
        return path.into();
    }
    if rustix::process::geteuid().is_root() {
        return "/run/tidegate/controller.sock".into();
    }
    let runtime = absolute("XDG_RUNTIME_DIR").map(|base| base.join("tidegate"));
    runtime.unwrap_or_else(default_state).join("controller.sock")
}

/// The controller's directory of policies, token and lock: `/var/lib/tidegate` for root, else
/// `tidegate` in `XDG_STATE_HOME` or in `~/.local/state`.
pub fn default_state() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/var/lib/tidegate".into();
    }
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = absolute("XDG_STATE_HOME").or_else(home).unwrap_or_else(env::temp_dir);
    base.join("tidegate")
}

/// A directory that a variable names; a relative one is to be ignored, as the XDG base directory
/// specification says.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}
