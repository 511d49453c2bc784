//! The command `man` of both programs: the manual, one page for each command.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_mangen::Man;
use serde_json::json;

use crate::command_line::Common;
use crate::failure::{Code, Failure};
use crate::output;

/// Print the manual page, or write one page for each command into a directory
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to write the pages; it is made if it does not exist
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints or writes the pages for the command line that `tree` describes.
///
/// # Errors
/// If the pages cannot be written.
pub fn run(args: &Args, tree: clap::Command, common: &Common) -> Result<ExitCode, Failure> {
    let pages = pages(tree).map_err(|error| {
        Failure::new(Code::Failure, "cannot make the manual pages").cause(error)
    })?;
    let Some(directory) = &args.directory else {
        let text = pages.first().map(|(_, text)| text.as_str()).unwrap_or_default();
        match common.json {
            true => output::print_json(&json!({ "page": text }))?,
            false => output::print(text)?,
        }
        return Ok(ExitCode::SUCCESS);
    };
    let written = write(&pages, directory).map_err(|error| {
        Failure::new(Code::Failure, format!("cannot write to {}", directory.display()))
            .cause(error)
            .help("name a directory that you may write to")
    })?;
    if common.json {
        output::print_json(&json!({ "pages": written }))?;
    } else {
        output::print(&(written.join("\n") + "\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Names and texts of all pages, that of the program itself first.
fn pages(tree: clap::Command) -> io::Result<Vec<(String, String)>> {
    let mut tree = tree.disable_help_subcommand(true);
    tree.build();
    let mut pages = vec![page(tree.clone())?];
    for command in tree.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages.push(page(command.clone())?);
    }
    Ok(pages)
}

fn page(command: clap::Command) -> io::Result<(String, String)> {
    // The parser has given each command the name that its page goes by: tidegate-up for `up`.
    let name = format!("{}.1", command.get_display_name().unwrap_or(command.get_name()));
    let mut text = Vec::new();
    Man::new(command).render(&mut text)?;
    Ok((name, String::from_utf8_lossy(&text).into_owned()))
}

fn write(pages: &[(String, String)], directory: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(directory)?;
    let mut written = Vec::new();
    for (name, text) in pages {
        let path = directory.join(name);
        fs::write(&path, text)?;
        written.push(path.display().to_string());
    }
    Ok(written)
}
