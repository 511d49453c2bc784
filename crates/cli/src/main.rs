//! `tidegate`, the operator's command. Each of its commands is a file in `commands`.
#![forbid(unsafe_code)]

mod calibrate;
mod commands;
mod components;
mod guards;
mod health;
mod inputs;
mod memory_demand;
mod private_controller;
mod profiles;
mod top;
mod volumes;

fn main() -> std::process::ExitCode {
    commands::main()
}
