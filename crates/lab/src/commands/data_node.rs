//! A data node with the Haechi paper's rules: a hidden command, which `tidegate-lab repro haechi`
//! starts to compare these rules with the shipped ones. `tidegate up` has only the latter.

use std::path::PathBuf;
use std::process::ExitCode;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidegate_console::cluster_file::ClusterFile;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::no_signals;
use tidegate_console::text_file::Reader;
use tidegate_fabric::stream::Address;
use tidegate_model::cluster;
use tidegate_node::memory::{self, Config, TokenRules};

/// Run a data node by the rules of the Haechi paper, for its experiments
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The file of its cluster, in which it listens on a Unix socket
    cluster: PathBuf,

    /// The name of the data node
    name: String,

    /// The rules
    #[arg(long, value_enum)]
    rules: PaperRules,
}

/// The paper's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PaperRules {
    /// As the paper has them.
    Paper,
    /// Without the conversion of tokens that idle clients leave.
    Basic,
}

/// Runs the data node until a signal ends the command.
///
/// # Errors
/// If the file has no such data node, or it cannot start.
pub(crate) fn run(args: &Args, common: &Common) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(no_signals)?;
    let file = ClusterFile::read(&args.cluster, Reader::User)?;
    let node = file.cluster.data_nodes.into_iter().find(|node| node.name == args.name);
    let node = node.ok_or_else(|| {
        Failure::new(Code::Usage, format!("{} has no data node {:?}", file.name, args.name))
    })?;
    let listen = match &node.listen {
        cluster::Address::Unix(path) => Address::Unix(path.into()),
        cluster::Address::Tcp { .. } => {
            let what = format!("{} listens on no Unix socket", node.name);
            return Err(Failure::new(Code::Invalid, what));
        }
    };
    let rules = match args.rules {
        PaperRules::Paper => TokenRules::Paper,
        PaperRules::Basic => TokenRules::Basic,
    };
    let controller = Some(Address::Unix(common.socket()).into());
    let _running = memory::start(Config { node, rules, listen, guard: None, controller })
        .map_err(|error| Failure::new(Code::Failure, "the data node cannot start").cause(error))?;
    signals.forever().next();
    Ok(ExitCode::SUCCESS)
}
