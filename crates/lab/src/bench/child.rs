//! Peers of a bench that run as separate programs; the bench compiles or writes them on demand.
//!
//! Such a program reads lines and answers each with one: a length in nanoseconds and the numbers of
//! the cores to use, for nanoseconds per call and thread, or `-` if the window was disturbed.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use tidegate_model::Span;

use super::window::Contestant;
use crate::experiment::scratch::Scratch;

/// A program that was compiled, or is a script, in a directory that is removed with it.
#[derive(Clone, Debug)]
pub(super) struct CompiledProgram {
    directory: Arc<Scratch>,
}

fn directory() -> Result<Arc<Scratch>, String> {
    Scratch::new().map(Arc::new).map_err(|failure| failure.to_string())
}

/// Compiles `source`: the compiler reads it after the `flags`, and then gets the `libraries`.
pub(super) fn compile(
    compiler: &str,
    source: &str,
    flags: &[&str],
    libraries: &[&str],
) -> Result<CompiledProgram, String> {
    let directory = directory()?;
    let failed = |error: std::io::Error| format!("{}: {error}", directory.path().display());
    let mut command = Command::new(compiler);
    command.args(flags).arg("-").arg("-o").arg(directory.join("program")).args(libraries);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = command.spawn().map_err(|error| format!("{compiler}: {error}"))?;
    if let Some(mut input) = running.stdin.take() {
        // A compiler that has seen enough says why below.
        let _ = input.write_all(source.as_bytes());
    }
    let output = running.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(CompiledProgram { directory });
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let errors = stderr.lines().find(|line| line.contains("error")).unwrap_or("it failed");
    Err(format!("{compiler}: {errors}"))
}

/// Keeps `source` for an interpreter, which is found like by a shell.
pub(super) fn script(interpreter: &str, source: &str) -> Result<CompiledProgram, String> {
    let directory = directory()?;
    let path = directory.join("program");
    let written = fs::write(&path, format!("#!/usr/bin/env {interpreter}\n{source}"))
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o700)));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(CompiledProgram { directory })
}

impl CompiledProgram {
    /// Where it is, for a starter that is not this bench.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join("program")
    }

    /// Runs the program to its end with these arguments, and returns its output.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let program = Command::new(self.path()).args(arguments).output();
        let output = program.map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Starts it, with these arguments and environment.
    pub(super) fn start(
        &self,
        arguments: &[&OsStr],
        environment: &[(&str, &OsStr)],
    ) -> Result<Child, String> {
        let mut command = Command::new(self.path());
        command.args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let input = process.stdin.take();
        let output = process.stdout.take().map(BufReader::new);
        Ok(Child { process, input, output, _program: self.clone() })
    }
}

/// A program that runs. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    input: Option<std::process::ChildStdin>,
    output: Option<BufReader<std::process::ChildStdout>>,
    _program: CompiledProgram,
}

impl Child {
    /// Sends a line and receives one; none if it has ended.
    pub(super) fn query(&mut self, line: &str) -> Option<String> {
        self.input.as_mut()?.write_all(format!("{line}\n").as_bytes()).ok()?;
        let mut answer = String::new();
        self.output.as_mut()?.read_line(&mut answer).ok()?;
        Some(answer.trim().to_owned())
    }
}

impl Contestant for Child {
    fn window(&mut self, length: Span, cores: &[usize]) -> Option<f64> {
        let cores = cores.iter().map(|core| format!(" {core}")).collect::<String>();
        self.query(&format!("{}{cores}", length.0))?.parse().ok()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECHO: &str = "#include <stdio.h>\nint main(void) { char line[99];\n\
                        while (fgets(line, 99, stdin)) { puts(line[0] == '7' ? \"1.5\" : \"-\"); \
                        fflush(stdout); } return 0; }";

    #[test]
    fn a_program_answers_line_by_line() {
        let program = compile("cc", ECHO, &["-x", "c"], &[]).unwrap();
        let mut child = program.start(&[], &[]).unwrap();
        assert_eq!(child.window(Span(7), &[0, 1]), Some(1.5));
        assert_eq!(child.window(Span(8), &[0]), None);
        assert_eq!(child.window(Span(7), &[]), Some(1.5));
        let directory = program.directory.path().to_owned();
        drop((child, program));
        assert!(!directory.exists());
    }

    #[test]
    fn a_compiler_error_is_reported() {
        let error = compile("cc", "int main(void) { return x; }", &["-x", "c"], &[]).unwrap_err();
        assert!(error.contains("error"), "{error}");
        assert!(compile("no such compiler", "", &[], &[]).is_err());
    }
}
