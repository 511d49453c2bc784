//! The common part of the two command lines, `tidegate` and `tidegate-lab`: options and exit codes,
//! the files that operators write, the link to a controller, and the output for people and for
//! programs.
#![forbid(unsafe_code)]

pub mod address;
pub mod certificate;
pub mod cluster_file;
pub mod command_line;
pub mod completions;
pub mod data_node;
pub mod failure;
pub mod interrupt;
pub mod manual;
pub mod operator;
pub mod output;
pub mod policy_file;
mod policy_paths;
pub mod programs;
pub mod table;
mod terminal;
pub mod text_file;

pub use tidegate_fabric::clock;
pub use tidegate_model::amounts;
