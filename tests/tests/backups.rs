//! The commands of the page about backups work as they stand there: with another database in the
//! place of PostgreSQL, and other folders.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, Running};
use tidegate_tests::{built, eventually, tools};

/// The file of the policy that the page shows.
const POLICY: &str = "policies/backups.toml";

/// A database that reads a row, again and again, until it is ended: a program with the name and the
/// arguments of the page, in which another one does the work.
const DATABASE: &str = "#!/bin/sh\n\
    [ \"$1\" = -D ] || exit 2\n\
    while sqlite3 -readonly \"$2/rows\" 'SELECT count(*) FROM rows' >>\"$2/replies\"; do :; done\n";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The lines of the page's first block in this language.
fn block(language: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/src/backups.md")).unwrap();
    let fence = format!("```{language}");
    let lines = page.lines().skip_while(|line| *line != fence).skip(1);
    lines.take_while(|line| *line != "```").map(str::to_owned).collect()
}

/// Lines of a policy that mean something.
fn meaningful(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn the_page_shows_the_policy_of_its_file() {
    let shown = block("toml").join("\n");
    let file = fs::read_to_string(root().join(POLICY)).unwrap();
    assert_eq!(meaningful(&shown), meaningful(&file));
    assert!(meaningful(&shown).len() <= 12, "a dozen lines");
}

/// A folder with a database, a snapshot of it, and the policy for both.
fn prepare(bed: &Bed) {
    let [database, snapshot] = ["srv/database", "srv/snapshot"].map(|name| bed.subfolder(name));
    let rows = database.join("rows");
    let mut fill = Command::new("sqlite3");
    fill.arg(&rows).arg(
        "CREATE TABLE rows (content); WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL \
         SELECT n + 1 FROM number LIMIT 2000) INSERT INTO rows SELECT randomblob(500) FROM number",
    );
    process::run(&mut fill).success();
    fs::copy(rows, snapshot.join("rows")).unwrap();
    bed.subfolder("mnt");
    bed.subfolder("policies");
    let policy = fs::read_to_string(root().join(POLICY)).unwrap();
    fs::write(bed.path(POLICY), inside(bed, &policy)).unwrap();
    bed.subfolder("bin");
    let program = bed.path("bin/postgres");
    fs::write(&program, DATABASE).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A text with the page's folders, which are inside of the bed here.
fn inside(bed: &Bed, text: &str) -> String {
    let folder = bed.folder().canonicalize().unwrap();
    let folder = folder.display();
    let moved = |text: String, name: &str| text.replace(name, &format!("{folder}{name}"));
    ["/srv/", "/mnt/"].into_iter().fold(text.to_owned(), moved)
}

/// A shell in the bed, in which the programs of the page are found.
fn shell(bed: &Bed, script: &str) -> Running {
    built::shim();
    let programs = built::tidegate();
    let own = [bed.path("bin"), programs.parent().unwrap().to_owned()];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut shell = process::around("bash", ["-euc", script], &bed.tidegate(&[]));
    shell.env("PATH", path).env("TIDEGATE_STATE", bed.path("state"));
    shell.env("TIDEGATE_NO_HTTP", "true").current_dir(bed.folder());
    process::spawn(shell.stdin(Stdio::piped()))
}

#[test]
fn the_commands_of_the_page_back_up_beside_a_database() {
    for program in ["bash", "sqlite3", "tar"] {
        tools::need(program);
    }
    let bed = Bed::empty();
    prepare(&bed);
    let lines = block("sh");
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let [up, apply, database, backup, status] = lines[..] else { panic!("{lines:?}") };
    // A reader types one line after the other: the controller answers by then, and the database
    // works.
    let script = [
        up,
        "until tidegate status >/dev/null 2>&1; do :; done",
        apply,
        database,
        "until [ -s /srv/database/replies ]; do :; done",
        backup,
        status,
        "echo is backed up; read -r _ || :; kill %2; wait %2 || :; kill %1; wait %1",
    ];
    let mut shell = shell(&bed, &inside(&bed, &script.join("\n")));
    shell.wait_for_output("is backed up");
    let size = fs::metadata(bed.path("srv/snapshot/rows")).unwrap().len();
    for tenant in ["database", "backup"] {
        eventually("requests of each tenant pass gates", || {
            bed.tenant(tenant)["bytes"].as_u64() >= Some(size)
        });
    }
    assert!(shell.is_running(), "the database goes on");
    let output = shell.finish().success().stdout;
    assert!(output.contains("database") && output.contains("backup"), "{output}");
    let mut list = Command::new("tar");
    list.arg("-xOf").arg(bed.path("mnt/backup.tar")).arg("./rows");
    let archived = list.output().unwrap().stdout;
    assert!(archived == fs::read(bed.path("srv/snapshot/rows")).unwrap(), "it is another file");
}
