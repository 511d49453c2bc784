//! Summaries of recordings: `cargo run --release -p tidegate-sim --example trace -- FILE…`, where
//! `-` is the standard input, or `like NAME` for a published workload, made here.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::process::ExitCode;

use tidegate_sim::trace::{Problem, Reader, Summary};
use tidegate_sim::workload::WorkloadPlan;

/// Errors that are shown of a recording; the others are counted.
const SHOWN: u64 = 5;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let shown = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["like", name] => like(name),
        ref paths => paths.iter().try_for_each(|path| {
            println!("{path}");
            let opened: Box<dyn BufRead> = match *path {
                "-" => Box::new(io::stdin().lock()),
                _ => Box::new(BufReader::with_capacity(1 << 16, File::open(path)?)),
            };
            show(opened).map_err(|error| format!("{path}: {error}").into())
        }),
    };
    if let Err(error) = shown {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn show(source: Box<dyn BufRead>) -> Result<(), Box<dyn Error>> {
    let mut reader = Reader::new(source);
    let (mut summary, mut wrong) = (Summary::default(), 0);
    for read in reader.by_ref() {
        match read {
            Ok(record) => summary.add(&record),
            Err(error) if matches!(error.problem, Problem::Unknown { .. }) => {
                return Err(error.into());
            }
            Err(error) => {
                wrong += 1;
                if wrong <= SHOWN {
                    eprintln!("{error}");
                }
            }
        }
    }
    if let Some(format) = reader.format() {
        println!("{format}: {} lines without a request, {wrong} wrong", reader.skipped());
    }
    println!("{}", summary.table());
    Ok(())
}

fn like(name: &str) -> Result<(), Box<dyn Error>> {
    let text = format!(
        "name = '{name}'\nlike = '{name}'\nspace = '64GiB'\nrequests = 100000\n\
         load = {{ open = {{ rate = '50k iops', arrivals = 'poisson' }} }}"
    );
    let mut source = WorkloadPlan::parse(&text)?.source(1, 0);
    let mut summary = Summary::default();
    while let Some(request) = source.arrival() {
        summary.add_request(&request);
    }
    println!("{}", summary.table());
    Ok(())
}
