//! `tidegate kv`: keys and values in the memory of a data node.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tidegate_model::cluster::DataNode;
use tidegate_model::{Iops, Span};
use tidegate_stage::memory::{Error, Settings, Store, VALUE_MAX};

use tidegate_console::command_line::Common;
use tidegate_console::data_node::{self, DataNodeAddress};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output;

/// Read and write keys and values in the memory of a data node
///
/// The command reads and writes the memory by itself: the data node gives it the memory once, and
/// takes no part in the operations. So the command works while the node's processes are stopped, if
/// they have given out the memory before.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate kv put greeting hello --at memory.sock
  tidegate kv get greeting --at memory.sock
  tidegate kv get greeting --at 192.0.2.1:7400 --tls tls --tenant web
  tidegate-lab kv --at memory.sock --clients 4 --tenant web")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KvCommand {
    /// Print the value of a key; exit with 1 if it has none
    Get {
        /// The key
        key: String,
        #[command(flatten)]
        at: At,
    },
    /// Give a key a value
    Put {
        /// The key
        key: String,
        /// The value, or - for what is on standard input; up to 4096 bytes, and 4144 with its key
        value: String,
        #[command(flatten)]
        at: At,
    },
    /// Take a key's value away; exit with 1 if it has none
    Delete {
        /// The key
        key: String,
        #[command(flatten)]
        at: At,
    },
}

/// Which data node, and for whom.
#[derive(Clone, Debug, clap::Args)]
struct At {
    #[command(flatten)]
    address: DataNodeAddress,

    /// Act for this tenant; by default for the one that the policy's rules say
    #[arg(long, value_name = "TENANT", env = "TIDEGATE_TENANT", hide_env_values = true)]
    tenant: Option<String>,
}

impl At {
    fn open(&self) -> Result<Store, Failure> {
        let settings = Settings {
            tenant: self.tenant.clone().unwrap_or_default(),
            // Somebody who types has no use for more, and leaves the rest to programs.
            reservation: Some(Iops(0)),
            outstanding: 1,
            locations: 0,
            // Tokens come when the next period begins, and answers then.
            patience: Span(2 * DataNode::PERIOD_MAX.0),
            ..Settings::default()
        };
        self.address.store(settings)
    }

    fn failed(&self, error: Error) -> Failure {
        data_node::failed(self.address.name(), error)
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    match args.command {
        KvCommand::Get { key, at } => get(&key, &at, common.json),
        KvCommand::Put { key, value, at } => put(&key, value, &at, common.json),
        KvCommand::Delete { key, at } => delete(&key, &at, common.json),
    }
}

fn get(key: &str, at: &At, json: bool) -> Result<ExitCode, Failure> {
    let value = at.open()?.get(key.as_bytes()).map_err(|error| at.failed(error))?;
    let Some(value) = value else { return Err(missing(key, at.address.name())) };
    if json {
        output::print(&format!("{}\n", json!({ "key": key, "value": to_json(&value) })))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = io::stdout().lock();
    out.write_all(&value)?;
    // A value is bytes and ends where it ends; only people want a new line.
    if io::IsTerminal::is_terminal(&out) && !value.ends_with(b"\n") {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Text as it is, and other bytes as numbers.
fn to_json(value: &[u8]) -> serde_json::Value {
    std::str::from_utf8(value).map_or_else(|_| json!(value), |text| json!(text))
}

fn put(key: &str, value: String, at: &At, json: bool) -> Result<ExitCode, Failure> {
    let bytes = match value.as_str() {
        "-" => read_value(io::stdin().lock())?,
        _ => value.into_bytes(),
    };
    at.open()?.put(key.as_bytes(), &bytes).map_err(|error| at.failed(error))?;
    if json {
        output::print(&format!("{}\n", json!({ "key": key, "bytes": bytes.len() })))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The value on standard input. A value that is too long for any key is not read to its end, and
/// its length is not counted.
fn read_value(input: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = input.take(VALUE_MAX as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::new(Code::Failure, "cannot read standard input").cause(error))?;
    if bytes.len() > VALUE_MAX {
        let what = format!("standard input has more than {VALUE_MAX} bytes, the most of a value");
        return Err(
            Failure::new(Code::Failure, what).help("divide it, and put each part by itself")
        );
    }
    Ok(bytes)
}

fn delete(key: &str, at: &At, json: bool) -> Result<ExitCode, Failure> {
    if !at.open()?.delete(key.as_bytes()).map_err(|error| at.failed(error))? {
        return Err(missing(key, at.address.name()));
    }
    if json {
        output::print(&format!("{}\n", json!({ "key": key, "deleted": true })))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn missing(key: &str, at: &Path) -> Failure {
    Failure::new(Code::Failure, format!("{key:?} has no value at {}", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_as_long_as_it_may_be_or_refused_without_a_wrong_count() {
        assert_eq!(read_value(io::repeat(7).take(4_096)).unwrap(), [7; 4_096]);
        for length in [4_097, 1 << 20] {
            let refused = read_value(io::repeat(7).take(length)).unwrap_err().to_string();
            assert!(refused.contains("more than 4096 bytes"), "{refused}");
            assert!(!refused.contains("4097"), "{refused}");
        }
    }
}
