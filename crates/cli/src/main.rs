//! `tidegate`: the one binary. Each command is a file in `commands`; what they share is here.
#![forbid(unsafe_code)]

mod amounts;
mod bench;
mod clock;
mod cluster_file;
mod commands;
mod experiment;
mod failure;
mod fare;
mod guards;
mod inputs;
mod kv;
mod load;
mod operator;
mod output;
mod parts;
mod policy_file;
mod table;
mod text_file;
mod top;
mod volumes;

fn main() -> std::process::ExitCode {
    commands::main()
}
