//! A daemon's trust in files that another user prepared, stores that were damaged, and policies of
//! other runs. The tests attack a daemon of root as the user `nobody`; where they do not run as
//! root, they cannot become another user, and those scenarios end at once.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tidegate_tests::bed::Bed;
use tidegate_tests::cluster::{self, Cluster};
use tidegate_tests::process::{self, ProgramOutcome};

/// The user `nobody`.
const OTHER_USER: u32 = 65_534;

const POLICY: &str = "[[tenant]]\nname = \"oltp\"\n";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder of `nobody`'s in the bed.
fn prepared(bed: &Bed) -> PathBuf {
    let folder = bed.subfolder("prepared");
    chown(&folder, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    folder
}

/// Runs a shell script as `nobody`.
#[track_caller]
fn as_other_user(script: &str) {
    let mut shell = Command::new("/bin/sh");
    process::run(shell.args(["-euc", script]).uid(OTHER_USER).gid(OTHER_USER)).success();
}

/// Starts a controller with this state, and expects it to refuse.
#[track_caller]
fn refused(bed: &Bed, state: &Path) -> ProgramOutcome {
    let mut command = bed.tidegate(&["--json", "up", "--no-http", "--state"]);
    process::run(command.arg(state)).failure(1)
}

#[test]
fn a_folder_that_another_user_prepared_is_no_state() {
    if !is_root() {
        return;
    }
    let bed = Bed::empty();
    let folder = prepared(&bed);
    let precious = bed.path("precious");
    fs::write(&precious, "precious").unwrap();
    let (at, target) = (folder.display(), precious.display());
    let token = "0123456789abcdef0123456789abcdef";
    as_other_user(&format!(
        "mkdir {at}/state; ln -s {target} {at}/state/lock; echo {token} > {at}/state/token; \
         ln -s {target} {at}/link"
    ));
    for state in ["", "state", "new", "state/deeper", "link"] {
        let output = refused(&bed, &folder.join(state)).stderr;
        assert!(output.contains("belongs to nobody (uid 65534)"), "{state}: {output}");
        assert!(output.contains(&folder.display().to_string()), "{state}: {output}");
        assert!(output.contains("change its owner (chown 0 "), "{state}: {output}");
    }
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert!(!folder.join("new").exists());
    // The operator may trust that user, and a planted link is refused all the same.
    let mut command = bed.tidegate(&["up", "--no-http", "--trust-owner", "nobody", "--state"]);
    let output = process::run(command.arg(folder.join("state"))).failure(1).complaint();
    assert!(output.contains("state/lock is a symbolic link"), "{output}");
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

#[test]
fn nothing_that_another_user_planted_in_the_state_is_believed() {
    if !is_root() {
        return;
    }
    let bed = Bed::empty();
    let state = bed.subfolder("state");
    let plant = |name: &str| {
        fs::write(state.join(name), "0123456789abcdef0123456789abcdef\n").unwrap();
        chown(state.join(name), Some(OTHER_USER), None).unwrap();
    };
    for name in ["lock", "token", "policies.redb"] {
        plant(name);
        let output = refused(&bed, &state).stderr;
        let wanted = format!("{} belongs to nobody (uid 65534)", state.join(name).display());
        assert!(output.contains(&wanted), "{name}: {output}");
        fs::remove_file(state.join(name)).unwrap();
        symlink("/dev/null", state.join(name)).unwrap();
        let output = refused(&bed, &state).stderr;
        assert!(output.contains(&format!("{name} is a symbolic link")), "{name}: {output}");
        fs::remove_file(state.join(name)).unwrap();
    }
    fs::set_permissions(&state, Permissions::from_mode(0o777)).unwrap();
    let output = refused(&bed, &state).stderr;
    assert!(output.contains("has mode 0777") && output.contains("(chmod go-w "), "{output}");
}

#[test]
fn what_a_controller_writes_is_its_users_alone() {
    let mut bed = Bed::empty();
    // Whatever the umask lets through.
    let words = ["-euc", "umask 0; exec \"$@\"", "sh"];
    let mut command = process::around("/bin/sh", words, &bed.controller_command());
    bed.up_with(&mut command);
    bed.apply(POLICY).success();
    let state = bed.path("state");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&state), 0o700);
    let mut names = Vec::new();
    for entry in fs::read_dir(&state).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        names.push(path.file_name().unwrap().to_string_lossy().into_owned());
    }
    names.sort();
    assert_eq!(names, ["lock", "policies.redb", "policies.redb.generation", "token"]);
}

#[test]
fn a_daemon_of_root_reads_no_file_that_another_user_can_change() {
    if !is_root() {
        return;
    }
    let mut cluster = Cluster::new(
        &format!(
            "{}{}",
            cluster::directories(&["a"]),
            cluster::volume("v", "oltp", "4MiB", &["a"])
        ),
        POLICY,
    );
    let up = |cluster: &Cluster| process::run(&mut cluster.command(&["--json"])).failure(1).stderr;
    let (file, policy) = (cluster.file(), cluster.file().with_file_name("first.toml"));
    for path in [&file, &policy] {
        chown(path, Some(OTHER_USER), None).unwrap();
        let output = up(&cluster);
        let wanted = format!("{} belongs to nobody", path.display());
        assert!(output.contains(&wanted) && output.contains("cannot trust the "), "{output}");
        chown(path, Some(0), None).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
        let output = up(&cluster);
        assert!(output.contains("has mode 0666"), "{output}");
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }
    // A command that only reads may read any file.
    chown(&file, Some(OTHER_USER), None).unwrap();
    let mut check = cluster.bed().tidegate(&["check", "--cluster"]);
    process::run(check.arg(&file)).success();
}

#[test]
fn a_socket_is_not_made_in_a_folder_of_another_user() {
    if !is_root() {
        return;
    }
    let bed = Bed::empty();
    let folder = prepared(&bed);
    let mut command = bed.controller_command();
    command.env("TIDEGATE_SOCKET", folder.join("controller.sock"));
    let output = process::run(&mut command).failure(1).complaint();
    assert!(
        output.contains("cannot listen on ") && output.contains("belongs to nobody"),
        "{output}"
    );
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_volume_does_not_lie_where_another_user_could_swap_it() {
    if !is_root() {
        return;
    }
    let file = |store: &str| {
        format!(
            "[[node]]\nname = \"a\"\n{store}\n[[gateway]]\nname = \"front\"\n\
             nbd = \"unix:front.sock\"\n"
        )
    };
    let mut cluster = Cluster::new(&file("directory = \"../prepared/volumes\""), POLICY);
    let folder = prepared(cluster.bed());
    let elsewhere = cluster.bed().subfolder("elsewhere");
    as_other_user(&format!("ln -s {} {}/volumes", elsewhere.display(), folder.display()));
    let up = |cluster: &Cluster| process::run(&mut cluster.command(&["--json"])).failure(1).stderr;
    let output = up(&cluster);
    assert!(output.contains("a: ") && output.contains("prepared belongs to nobody"), "{output}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    fs::write(elsewhere.join("disk"), vec![0; 1 << 20]).unwrap();
    as_other_user(&format!("ln -s {}/disk {}/disk", elsewhere.display(), folder.display()));
    cluster.write(&file("device = \"../prepared/disk\""));
    let output = up(&cluster);
    assert!(output.contains("prepared belongs to nobody"), "{output}");
    cluster.write(&file("device = \"../elsewhere/disk\""));
    fs::set_permissions(elsewhere.join("disk"), Permissions::from_mode(0o666)).unwrap();
    let output = up(&cluster);
    assert!(output.contains("elsewhere/disk has mode 0666"), "{output}");
}

#[test]
fn a_controller_with_a_damaged_store_names_the_remedy() {
    let mut bed = Bed::new(POLICY);
    bed.down();
    let store = bed.path("state/policies.redb");
    for damage in ["", "something else, long enough to be looked at"] {
        fs::write(&store, damage).unwrap();
        let output = process::run(&mut bed.controller_command()).failure(1).complaint();
        assert!(output.contains(&store.display().to_string()), "{output}");
        assert!(
            output.contains("--forget-policy") && output.contains("restore the file"),
            "{output}"
        );
        assert!(!output.contains("panicked"), "{output}");
    }
    let mut command = bed.controller_command();
    bed.up_with(command.arg("--forget-policy"));
    assert!(bed.controller().stdout().contains("no policy yet"));
    bed.apply(POLICY).success();
    bed.down();
    bed.up();
    assert!(bed.controller().stdout().contains("policy revision 1 with 1 tenant from "));
}

#[test]
fn a_policy_of_another_run_is_announced() {
    let file =
        format!("{}{}", cluster::directories(&["a"]), cluster::volume("v", "oltp", "4MiB", &["a"]));
    let mut cluster = Cluster::new(&file, POLICY);
    cluster.up();
    let named = cluster.file().with_file_name("first.toml");
    let output = cluster.bed().controller().stdout();
    let from = format!("policy revision 1 with 1 tenant from {}", named.display());
    assert!(output.contains(&from) && !output.contains("warning:"), "{output}");
    cluster.bed().apply("[[tenant]]\nname = \"oltp\"\n[[tenant]]\nname = \"web\"\n").success();
    cluster.bed().down();
    cluster.up();
    let output = cluster.bed().controller().stdout();
    assert!(output.contains("policy revision 2 with 2 tenants from "), "{output}");
    let (start, end) = ("warning: revision 2 from ", "stays in force, and not ");
    let report = format!("{end}{}, which the cluster names", named.display());
    assert!(output.contains(start) && output.contains(&report), "{output}");
    cluster.bed().down();
    // Programs get the same report, and a policy on the command line is put in force.
    let mut command = cluster.command(&["--json"]);
    let mut running = process::spawn(&mut command);
    running.wait_for_output("\n");
    let report: Value = serde_json::from_str(running.stdout().lines().next().unwrap()).unwrap();
    assert_eq!(report["warnings"].as_array().unwrap().len(), 1);
    assert!(report["policy_source"].as_str().unwrap().contains("policy-"), "{report}");
    assert!(running.is_running());
    running.signal(rustix::process::Signal::TERM);
    running.finish().success();
    let mut command = cluster.command(&["--policy", &named.display().to_string()]);
    cluster.bed().up_with(&mut command);
    let output = cluster.bed().controller().stdout();
    assert!(output.contains("policy revision 3 with 1 tenant from "), "{output}");
    assert!(!output.contains("warning:"), "{output}");
}

#[test]
fn all_errors_of_a_policy_and_a_cluster_are_reported_in_one_run() {
    let cluster = Cluster::new("scheduler = \"best\"\n[[node]]\nname = \"a\"\n", POLICY);
    let (file, policy) = (cluster.file(), cluster.file().with_file_name("first.toml"));
    fs::write(&policy, "budget = 5\n[[tenant]]\nname = \"a\"\nweight = 0\ncolour = \"red\"\n")
        .unwrap();
    let bed = Bed::empty();
    let check = ["--json", "check", "--cluster"].as_slice();
    let up = ["--json", "up", "--no-http", "--state"].as_slice();
    let state = bed.path("state").display().to_string();
    for (arguments, more) in [(check, None), (up, Some(state.as_str()))] {
        let mut command = bed.tidegate(arguments);
        let outcome = process::run(command.args(more).arg(&file)).failure(3);
        let text = if outcome.stdout.is_empty() { &outcome.stderr } else { &outcome.stdout };
        let report: Value = serde_json::from_str(text).unwrap();
        let more = report["more"].as_array().unwrap();
        let errors: Vec<_> = std::iter::once(&report).chain(more).collect();
        let locations = errors.iter().map(|error| {
            let name = Path::new(error["file"].as_str().unwrap()).file_name().unwrap();
            (name.to_str().unwrap(), error["line"].as_u64().unwrap())
        });
        let wanted = [
            ("cluster.toml", 2),
            ("cluster.toml", 4),
            ("first.toml", 1),
            ("first.toml", 4),
            ("first.toml", 5),
        ];
        assert_eq!(locations.collect::<Vec<_>>(), wanted, "{report:#}");
    }
    assert!(!bed.path("state").exists(), "nothing was begun");
    let people = process::run(bed.tidegate(&["apply"]).arg(&policy)).failure(3);
    for word in ["budget", "weight: 0", "colour", "3 errors"] {
        assert!(people.stderr.contains(word), "{people:?}");
    }
}

#[test]
fn what_cannot_mean_anything_is_a_warning_with_its_line() {
    let bed = Bed::new(POLICY);
    let policy = "[[tenant]]\nname = \"oltp\"\nusers = \"nosuchuser\"\n\
                  [[match]]\ntenant = \"oltp\"\npath = \"data/**\"\nsize = \"64KiB..4KiB\"\n";
    fs::write(bed.path("odd.toml"), policy).unwrap();
    let wanted = [
        "odd.toml: line 3, column 9: users: this machine has no user \"nosuchuser\"",
        "odd.toml: line 6, column 8: path: \"data/**\" matches no file",
        "odd.toml: line 7, column 8: size: \"64KiB..4KiB\" is no size at all",
    ];
    let warned = |outcome: &ProgramOutcome| {
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let warnings = report["warnings"].as_array().unwrap().clone();
        let warnings: Vec<_> = warnings.iter().map(|it| it.as_str().unwrap().to_owned()).collect();
        for wanted in wanted {
            assert!(warnings.iter().any(|warning| warning.contains(wanted)), "{warnings:#?}");
        }
    };
    let tidegate = |command: &str| {
        let mut run = bed.tidegate(&["--json", command]);
        process::run(run.arg(bed.path("odd.toml"))).success()
    };
    warned(&tidegate("check"));
    warned(&tidegate("apply"));
    let file = "[[node]]\nname = \"a\"\nmemory = true\ncapacity = \"20k iops\"\n\
                model = { rate = \"1k iops\" }\n";
    fs::write(bed.path("cluster.toml"), file).unwrap();
    let mut run = bed.tidegate(&["check"]);
    run.arg(bed.path("odd.toml")).arg("--cluster").arg(bed.path("cluster.toml"));
    let output = process::run(&mut run).success().stdout;
    assert!(
        output.contains("cluster.toml: line 4: capacity: a cannot do 20k iops behind"),
        "{output}"
    );
}

/// Examples are what people copy.
#[test]
fn no_example_has_its_state_where_every_user_makes_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut examples = Vec::new();
    for name in ["README.md", "Makefile", "docs", "examples", "policies", "scripts", "jobs"] {
        collect(&root.join(name), &mut examples);
    }
    assert!(examples.len() > 30, "the examples are found: {examples:?}");
    for path in examples {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let words = text.split([' ', '\n', '=', '"', '`']).collect::<Vec<_>>();
        for pair in words.windows(2) {
            let is_state = pair[0] == "--state" || pair[0].ends_with("TIDEGATE_STATE");
            let is_shared =
                ["/tmp", "/var/tmp", "/dev/shm"].iter().any(|it| pair[1].starts_with(it));
            assert!(!(is_state && is_shared), "{}: {} {}", path.display(), pair[0], pair[1]);
        }
    }
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) {
    if !path.is_dir() {
        return found.push(path.into());
    }
    for entry in fs::read_dir(path).unwrap() {
        collect(&entry.unwrap().path(), found);
    }
}
