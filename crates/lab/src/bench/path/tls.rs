//! The cost of TLS, beside its cost to a stock server: fio reads 4 KiB blocks at random over one
//! connection of TCP, unencrypted and encrypted, from Tidegate (all in one process) and from
//! nbdkit's memory plug-in.
//!
//! Each server serves both kinds of clients on one port, and demands a certificate of those that
//! encrypt. The four runs of a round follow each other, so that a machine that becomes slower
//! becomes slower for all of them. fio encrypts with GnuTLS, on one thread, and its work for a
//! request is the same for both servers.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    BENCH, ClusterFiles, DEPTHS, Deployment, ExportTarget, FioFigures, PEER, Server, VOLUME,
    cannot_write, memory_plugin, rounds,
};
use tidegate_model::Span;

use crate::bench::Row;
use crate::bench::window::WindowPlan;
use crate::experiment::child::{self, Child, Start};
use crate::experiment::scratch::Scratch;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

/// TLS costs at most as many times nbdkit's rate as it costs nbdkit.
const NO_MORE: f64 = 1.0;

/// A server, with the targets of its two kinds of clients.
struct Both {
    server: Server,
    plain: ExportTarget,
    encrypted: ExportTarget,
}

impl Both {
    fn start(
        name: &'static str,
        start: &Start,
        (port, export): (u16, &str),
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let is_listening = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let process = Child::start_until(start, is_listening, scratch.path(), interrupt)?;
        let target = |scheme: &str, home| ExportTarget {
            uri: format!("{scheme}://127.0.0.1:{port}/{export}").into(),
            home,
        };
        let (plain, encrypted) = (target("nbd", None), target("nbds", Some(scratch.join("home"))));
        let mut server = Server { name, processes: vec![process], target: plain.clone() };
        server.fill(scratch, interrupt)?;
        Ok(Self { server, plain, encrypted })
    }

    fn round(
        &mut self,
        depth: u32,
        length: Span,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<[FioFigures; 2], Failure> {
        let mut run = |target: &ExportTarget| {
            self.server.target = target.clone();
            self.server.run(depth, length, scratch, interrupt)
        };
        Ok([run(&self.plain)?, run(&self.encrypted)?])
    }
}

/// A port that no process listens at.
pub(in crate::bench) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Makes the cluster's certificates, and copies them to where fio and nbdkit look for them.
fn certify(files: &ClusterFiles, scratch: &Scratch) -> Result<PathBuf, Failure> {
    let mut command = Command::new(programs::tidegate()?);
    command.args(["certify".as_ref(), files.cluster.as_os_str()]);
    command.args(["--state".as_ref(), files.directory.as_os_str()]);
    child::output(&mut command, "tidegate certify failed")?;
    let made = files.directory.join("tls");
    let copy = |folder: &Path, names: [(&str, &str); 3]| {
        fs::create_dir_all(folder)?;
        names.iter().try_for_each(|(from, to)| fs::copy(made.join(from), folder.join(to)).map(drop))
    };
    let authority = ("ca-cert.pem", "ca-cert.pem");
    let [cert, key] = ["client-cert.pem", "client-key.pem"].map(|name| (name, name));
    let server = scratch.join("nbdkit-tls");
    copy(&scratch.join("home/.pki/libnbd"), [authority, cert, key])
        .and_then(|()| {
            let own = [("front-cert.pem", "server-cert.pem"), ("front-key.pem", "server-key.pem")];
            copy(&server, [authority, own[0], own[1]])
        })
        .map_err(cannot_write)?;
    Ok(server)
}

/// Measures, and reports the rows.
///
/// # Errors
/// If a program does not start, or the user interrupts the run.
pub(super) fn measure(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let scratch = Scratch::new()?;
    let ports = free_port().and_then(|ours| Ok((ours, free_port()?))).map_err(cannot_write)?;
    let kind = Deployment { name: "encrypted", ..Deployment::TOGETHER };
    let nbd = format!("127.0.0.1:{}", ports.0);
    let files = ClusterFiles::write(&kind, Some(&nbd), "[tls]\ndirectory = \"tls\"\n", &scratch)?;
    let certificates = certify(&files, &scratch)?;
    let mut ours = Both::start(kind.name, &files.up("")?, (ports.0, VOLUME), &scratch, interrupt)?;
    let mut arguments: Vec<OsString> =
        ["--tls=on", "--tls-verify-peer", "-i", "127.0.0.1", "-p"].map(OsString::from).into();
    let mut folder = OsString::from("--tls-certificates=");
    folder.push(certificates);
    arguments.extend([ports.1.to_string().into(), folder]);
    let start = memory_plugin(arguments);
    let mut peer = Both::start(PEER, &start, (ports.1, ""), &scratch, interrupt)?;
    let (rounds, length) = rounds(plan);
    for depth in DEPTHS {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            let round = |server: &mut Both| server.round(depth, length, &scratch, interrupt);
            runs.push((round(&mut ours)?, round(&mut peer)?));
        }
        rows(depth, &runs, report);
    }
    Ok(())
}

/// The runs of a round at one depth: of each server, unencrypted and encrypted.
type Round = ([FioFigures; 2], [FioFigures; 2]);

fn rows(depth: u32, runs: &[Round], report: &mut dyn FnMut(Row)) {
    let case = format!("4 KiB random reads over NBD with TLS, depth {depth}, one process");
    let rates = runs.iter().map(|(ours, peer)| (ours[1].iops, peer[1].iops));
    report(Row::more(BENCH, case, "iops", None).beside_in_turns(PEER, rates));
    let case = "the same: unencrypted rate over encrypted rate";
    let times = |[plain, encrypted]: [FioFigures; 2]| plain.iops / encrypted.iops;
    let costs = runs.iter().map(|(ours, peer)| (times(*ours), times(*peer)));
    let row = Row::less(BENCH, case, "ratio", None).beside_in_turns(PEER, costs);
    report(row.promised_times(NO_MORE));
    let case = "the same: processor time per encrypted request, one process";
    let times = runs.iter().map(|(ours, peer)| (ours[1].cpu_us, peer[1].cpu_us));
    report(Row::less(BENCH, case, "us", None).beside_in_turns(PEER, times));
}
