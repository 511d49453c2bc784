//! `tidegate-lab` simulates, reproduces, measures and demonstrates. Each of its commands is a file
//! in `commands`.
#![deny(unsafe_code)]

mod bench;
mod commands;
mod experiment;
mod kv;
mod load;
mod lsm;

fn main() -> std::process::ExitCode {
    commands::main()
}
