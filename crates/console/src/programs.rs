//! The files that a command needs beside its own program: the shim, the library for C, and the
//! command `tidegate`.

use std::env;
use std::path::{Path, PathBuf};

use crate::failure::{Code, Failure};

/// The shim's file.
const SHIM: &str = "libtidegate_preload.so";

/// The shim: the path in TIDEGATE_SHIM, else where it lies beside this program, installed or just
/// built.
///
/// # Errors
/// If it is at none of these paths.
pub fn shim() -> Result<PathBuf, Failure> {
    if let Some(path) = env::var_os("TIDEGATE_SHIM").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let program = env::current_exe().unwrap_or_default();
    let here = program.parent().unwrap_or(Path::new("."));
    let candidates = [here.join("../lib/tidegate").join(SHIM), here.join(SHIM)];
    let found = candidates.iter().find(|path| path.is_file());
    found.cloned().ok_or_else(|| {
        let [installed, built] = candidates.map(|path| path.display().to_string());
        Failure::new(Code::Failure, format!("there is no shim at {installed} or {built}")).help(
            "build it with `cargo build -p tidegate-preload`, or say where it is with \
             TIDEGATE_SHIM",
        )
    })
}

/// The command `tidegate`, which is installed and built beside `tidegate-lab`.
///
/// # Errors
/// If it is not there.
pub fn tidegate() -> Result<PathBuf, Failure> {
    beside("tidegate").map_err(|missing| {
        missing.help("build it with `cargo build -p tidegate`, or install both programs together")
    })
}

/// The library for C, which is built beside this program.
///
/// # Errors
/// If it is not there.
pub fn library() -> Result<PathBuf, Failure> {
    let built = "build it with `cargo build --release -p tidegate-capi`";
    beside("libtidegate.so").map_err(|missing| missing.help(built))
}

/// The file of that name in the folder of this program.
fn beside(name: &str) -> Result<PathBuf, Failure> {
    let path = env::current_exe().unwrap_or_default().with_file_name(name);
    match path.is_file() {
        true => Ok(path),
        false => Err(Failure::new(Code::Failure, format!("there is no {}", path.display()))),
    }
}
