//! `tidegate-lab` simulates, reproduces, measures and demonstrates. Each of its commands is a file
//! in `commands`.
#![forbid(unsafe_code)]

mod bench;
mod commands;
mod experiment;
mod kv;
mod load;

fn main() -> std::process::ExitCode {
    commands::main()
}
