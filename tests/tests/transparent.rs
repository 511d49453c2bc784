//! The same bytes, output and exit codes with and without the shim.
//!
//! Each scenario is a script that runs twice in the same place: as it is, and under a policy that
//! limits nothing but has every request pass its gates. Its output, its exit and the files that it
//! left behind must be the same.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, ProgramOutcome};
use tidegate_tests::{tools, tree};

/// Limits that no program reaches, so that every request passes two buckets.
pub(crate) const FREE: &str =
    "[[tenant]]\nname = \"free\"\nlimit = [\"1000GiB/s\", \"1G iops\"]\nburst = \"1s\"\n";

/// A script that runs twice, and the differences that it may have.
struct Case<'a> {
    script: &'a str,
    /// Names of files whose content holds times or numbers of inodes.
    ignore: &'a dyn Fn(&str) -> bool,
    /// Brings output that holds times into a form that does not.
    rewrite: &'a dyn Fn(&str) -> String,
    /// Whether the shim sees all that the script's programs move.
    is_covered: bool,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self { script: "", ignore: &|_| false, rewrite: &|text| text.to_owned(), is_covered: true }
    }
}

/// Runs a case both ways and compares. Returns how it ended with the shim.
#[track_caller]
fn same(case: &Case<'_>) -> ProgramOutcome {
    let bed = Bed::new(FREE);
    let work = bed.path("work");
    let run = |command: &mut Command, name: &str| {
        fs::create_dir_all(&work).expect("a folder to work in");
        prepare(&work);
        let outcome = process::run(command.current_dir(&work).env("LC_ALL", "C"));
        let kept = bed.path(name);
        fs::rename(&work, &kept).expect("the folder can be put aside");
        (outcome, tree::listing(&kept, case.ignore))
    };
    let (plain, plain_files) = run(Command::new("sh").args(["-euc", case.script]), "plain");
    let mut gated = bed.tidegate(&["run", "--report", "--tenant", "free", "--"]);
    let (gated, gated_files) = run(gated.args(["sh", "-euc", case.script]), "gated");
    let shown = format!("plain: {plain:?}\ngated: {gated:?}");
    assert_eq!((case.rewrite)(&gated.stdout), (case.rewrite)(&plain.stdout), "{shown}");
    assert_eq!((case.rewrite)(&gated.own_stderr()), (case.rewrite)(&plain.stderr), "{shown}");
    assert_eq!((gated.code, gated.signal), (plain.code, plain.signal), "{shown}");
    assert_eq!(gated_files, plain_files, "{shown}");
    check_coverage(&gated, case.is_covered);
    gated
}

/// The comparison means nothing unless the shim was there and saw what was moved.
#[track_caller]
fn check_coverage(gated: &ProgramOutcome, is_covered: bool) {
    let notices = gated.notices();
    let passed = notices.split(" MiB passed the gates").next().unwrap_or_default();
    let passed: f64 = passed.rsplit(' ').next().unwrap_or_default().parse().unwrap_or(0.0);
    assert!(passed > 0.0, "nothing passed the gates: {gated:?}");
    let has_gap = notices.contains("were not seen (");
    assert!(!(is_covered && has_gap), "something was not seen: {gated:?}");
    assert!(!notices.contains("failure:"), "the shim has failed: {gated:?}");
}

/// Files of every kind, the same each time.
fn prepare(work: &Path) {
    let noise = |seed: u64, length: usize| {
        let mut dice = tidegate_tests::fuzz::mutate::Dice::new(seed);
        let words = (0..length.div_ceil(8)).flat_map(|_| dice.roll().to_le_bytes());
        words.take(length).collect::<Vec<u8>>()
    };
    let data = work.join("data");
    fs::create_dir_all(data.join("deep/deeper")).unwrap();
    fs::create_dir_all(data.join("empty folder")).unwrap();
    fs::write(data.join("large"), noise(1, 3_000_000)).unwrap();
    fs::write(data.join("odd"), noise(2, 4_097)).unwrap();
    fs::write(data.join("nothing"), "").unwrap();
    fs::write(data.join("deep/text"), "one line\nand another\n".repeat(2_000)).unwrap();
    fs::write(data.join("deep/deeper/ümläut 文"), "name").unwrap();
    symlink("../odd", data.join("deep/link")).unwrap();
    symlink("nowhere", data.join("dangling")).unwrap();
    fs::hard_link(data.join("odd"), data.join("hard")).unwrap();
    // A hole of four megabytes between two pieces.
    let sparse = fs::File::create(data.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"begin", 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 4 << 20).unwrap();
}

#[track_caller]
fn script(script: &str) -> ProgramOutcome {
    same(&Case { script, ..Case::default() })
}

#[test]
fn cp() {
    tools::need("cp");
    script(
        "cp -a data copy; cp --reflink=never data/large never; cp --sparse=always data/large s
         cp --sparse=never data/sparse full; cp -l data/large linked; cp -s $PWD/data/odd symbolic
         mv copy moved; ln data/odd again; install -m 600 data/odd installed; cmp data/large never",
    )
    .success();
}

#[test]
fn tar() {
    tools::need("tar");
    script(
        "tar cf all.tar --mtime=@0 --sort=name data; mkdir out; tar xf all.tar -C out
         tar tvf all.tar; tar czf all.tgz --mtime=@0 data; tar df all.tar --warning=none || true
         tar cf - --mtime=@0 data | (mkdir piped; cd piped; tar xf -)
         tar cf sparse.tar --mtime=@0 --sparse data/sparse; rm all.tgz",
    )
    .success();
}

#[test]
fn dd() {
    tools::need("dd");
    let case = Case {
        script: "
            dd if=data/large of=one bs=1 count=4096
            dd if=data/large of=small bs=512
            dd if=data/large of=odd bs=4097 conv=fsync
            dd if=data/large of=large bs=4M
            dd if=data/odd of=large bs=1k seek=3 skip=1 conv=notrunc,fdatasync
            dd if=/dev/zero of=zeros bs=64k count=16 oflag=sync
            dd if=data/large of=appended oflag=append conv=notrunc bs=100k
            dd if=data/large bs=30000 iflag=fullblock 2> /dev/null | \
                dd of=piped bs=777 2> /dev/null
            dd if=data/large of=parted ibs=3000 obs=70000 conv=swab,sync",
        rewrite: &|text| text.lines().filter(|line| !line.contains(" copied, ")).collect(),
        ..Case::default()
    };
    same(&case).success();
}

#[test]
fn rsync() {
    tools::need("rsync");
    script(
        "rsync -aHS data/ copy/; rsync -a --checksum --itemize-changes data/ copy/
         echo more >> data/odd; rm data/nothing; touch -d @1000000000 data data/odd
         rsync -a --delete --inplace --no-whole-file --itemize-changes data/ copy/
         rsync -a --dry-run -n data/ copy/; diff -r --no-dereference data copy",
    )
    .success();
}

#[test]
fn sqlite3() {
    tools::need("sqlite3");
    let common = "
        create table t (id integer primary key, body blob);
        begin; with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000)
        insert into t select i, zeroblob(i % 97) from n; commit;
        begin; update t set body = 'x' || id where id % 3 = 0; rollback;
        begin; delete from t where id % 2 = 0; commit;
        select count(*), sum(id), sum(length(body)) from t;
        pragma integrity_check;";
    let script = format!(
        "sqlite3 a.db \"{common} vacuum;\"
         sqlite3 b.db \"pragma journal_mode = wal; {common}\"
         sqlite3 c.db \"pragma journal_mode = truncate; pragma synchronous = full; {common}\"
         sqlite3 a.db .dump > a.sql; sqlite3 d.db < a.sql
         sqlite3 a.db 'select * from missing;' || echo refused"
    );
    same(&Case { script: &script, ..Case::default() }).success();
}

#[test]
fn git() {
    tools::need("git");
    let case = Case {
        script: "
            export GIT_AUTHOR_DATE='@1000000000 +0000' GIT_COMMITTER_DATE='@1000000000 +0000'
            export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
            export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a
            export GIT_COMMITTER_EMAIL=a@b HOME=$PWD
            git init -q -b main repo; cp -a data repo; cd repo
            git config pack.threads 1
            git add -A; git commit -q -m one
            echo more >> data/odd; git commit -q -a -m two
            git branch other HEAD~1; git checkout -q other; git mv data/odd data/even
            git commit -q -m three; git checkout -q main; git merge -q -m four other
            cd ..; git clone -q repo copy; cd repo
            git gc -q; git fsck --strict --no-progress; git log --stat; git status --short
            git archive HEAD | tar tf -; git rev-parse HEAD; git -C ../copy log --oneline",
        // The index holds numbers of inodes and times of changes.
        ignore: &|name| name.ends_with(".git/index"),
        ..Case::default()
    };
    same(&case).success();
}

#[test]
fn python3() {
    tools::need("python3");
    let source = tools::source("files.py");
    let script = format!("python3 -u {}", source.display());
    same(&Case { script: &script, ..Case::default() }).success();
}

#[test]
fn java() {
    if tools::want("java").is_none() {
        return;
    }
    let script = format!("java -Xshare:auto {}", tools::source("Files.java").display());
    same(&Case { script: &script, is_covered: false, ..Case::default() }).success();
}

#[test]
fn node() {
    if tools::want("node").is_none() {
        return;
    }
    let script = format!("node {}", tools::source("files.js").display());
    same(&Case { script: &script, is_covered: false, ..Case::default() }).success();
}

#[test]
fn qemu_img() {
    tools::need("qemu-img");
    let case = Case {
        script: "
            qemu-img create -q -f raw disk.raw 8M; cp data/large disk.raw; truncate -s 8M disk.raw
            qemu-img convert -f raw -O qcow2 disk.raw disk.qcow2
            qemu-img convert -c -f qcow2 -O qcow2 disk.qcow2 small.qcow2
            qemu-img convert -t none -T none -f qcow2 -O raw small.qcow2 back.raw || \
                qemu-img convert -f qcow2 -O raw small.qcow2 back.raw
            qemu-img compare disk.raw back.raw; qemu-img check disk.qcow2; cmp disk.raw back.raw
            qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 layer.qcow2
            qemu-img compare layer.qcow2 disk.raw; qemu-img info --output=json small.qcow2",
        ..Case::default()
    };
    same(&case).success();
}

#[test]
fn db_bench() {
    tools::need("db_bench");
    let case = Case {
        script: "
            common='--num=20000 --db=db --seed=1 --threads=1 --compression_type=none'
            exec 2> /dev/null
            db_bench $common --benchmarks=fillseq,readrandom,readseq,compact > first
            db_bench $common --use_existing_db=1 --benchmarks=readseq,readreverse > second
            grep -o '([0-9]* of [0-9]* found)' first; grep -c readseq second
            rm -r db first second",
        ..Case::default()
    };
    same(&case).success();
}

/// A job that writes, reads back and verifies, by one of fio's engines.
fn fio(engine: &str, more: &str) -> String {
    format!(
        "fio --name=job --filename=file-{engine} --size=4M --rw=randrw --bs=4k --ioengine={engine} \
         --iodepth=8 --verify=pattern --verify_pattern=0x5a --do_verify=1 --end_fsync=1 \
         --randrepeat=1 --output-format=terse {more} > terse\n\
         cut -d ';' -f 3-6 terse; rm terse\n"
    )
}

#[test]
fn fio_by_system_calls() {
    tools::need("fio");
    let engines = ["sync", "psync", "vsync", "pvsync", "pvsync2"];
    let script: String = engines.iter().map(|engine| fio(engine, "")).collect();
    same(&Case { script: &script, ..Case::default() }).success();
}

#[test]
fn fio_by_asynchronous_calls() {
    tools::need("fio");
    let script = fio("libaio", "") + &fio("posixaio", "") + &fio("libaio", "--numjobs=4");
    same(&Case { script: &script, ..Case::default() }).success();
}

#[test]
fn fio_past_the_shim() {
    tools::need("fio");
    // Accesses that the shim cannot see must work as well; where the kernel forbids rings, it does
    // so both times.
    let script = fio("mmap", "") + &fio("psync", "--thread") + "set +e\n" + &fio("io_uring", "");
    let outcome = same(&Case { script: &script, is_covered: false, ..Case::default() });
    assert!(outcome.notices().contains("mapping"), "{outcome:?}");
}

#[test]
fn failures_keep_their_messages_and_codes() {
    script(
        "set +e
         cp data/large enough
         cat missing; echo $?; cp data missing/there; echo $?; tar xf missing; echo $?
         dd if=missing of=x; echo $?; rm missing; echo $?; ls -d missing; echo $?
         cat data; echo $?; mkdir data; echo $?; rmdir data; echo $?; ln data/odd data/hard; echo $?
         (: > data/odd/below); echo $?; cat < missing; echo $?; missing-program; echo $?
         ./data/odd; echo $?; cp data/large /dev/full; echo $?; echo x > /dev/full; echo $?
         (ulimit -f 100; cat data/large data/large > limited); echo $?
         head -c 10 data/deep/text | cat; yes | head -n 2; echo $?
         exit 42",
    )
    .failure(42);
}

#[test]
fn signals_end_programs_as_ever() {
    let outcome = script(
        "set +e
         cp data/large enough
         sh -c 'kill -9 $$'; echo $?; sh -c 'kill -TERM $$'; echo $?; sh -c 'kill -SEGV $$'; echo $?
         sh -c 'trap \"echo caught; exit 3\" USR1; kill -USR1 $$; echo no'; echo $?
         yes > /dev/null & kill $!; wait $!; echo $?
         timeout -s INT 0.2 sleep 60; echo $?
         (cat data/large data/large | head -c 5 > five); echo $?",
    );
    outcome.success();
    // The program itself: the supervisor says what a shell would.
    let bed = Bed::new(FREE);
    let mut killed = bed.run_script("free", "kill -KILL $$");
    assert_eq!(process::run(&mut killed).code, Some(128 + 9));
}

/// Alarms, signals and limits are the program's also where `tidegate run` itself cannot use them.
#[test]
fn alarms_ignored_signals_and_limits_of_files_are_the_programs_own() {
    let bed = Bed::new(FREE);
    let wrapped = |wrapper: [&str; 3], program: &[&str]| {
        let [outer, words @ ..] = wrapper;
        let mut outer = process::around(outer, words, &bed.run("free", program[0]));
        process::run(outer.args(&program[1..]).current_dir(bed.folder()))
    };
    let ignored = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                   os.execvp(sys.argv[1], sys.argv[1:])";
    // SIGCHLD is the lowest bit of the fifth digit from the right.
    let asks = ["grep", "-q", "SigIgn:.*[13579bdf]....$", "/proc/self/status"];
    wrapped(["python3", "-c", ignored], &asks).success();
    wrapped(["python3", "-c", ignored], &["sh", "-c", "exit 7"]).failure(7);

    let alarm = "import os, signal, sys; signal.alarm(1); os.execvp(sys.argv[1], sys.argv[1:])";
    let ended = wrapped(["python3", "-c", alarm], &["sleep", "600"]);
    assert_eq!(ended.code, Some(128 + 14), "{ended:?}");

    let small = "ulimit -f 4; exec \"$0\" \"$@\"";
    let refused = wrapped(["sh", "-c", small], &["true"]).failure(1).complaint();
    assert!(refused.contains("cannot make a segment in /dev/shm"), "{refused}");
}

#[test]
fn standard_streams_are_the_programs_own() {
    script(
        "cat data/large | cat > a; cat < data/large > b; cat data/odd >> b
         exec 7<> data/odd; cat <&7 > c; exec 7>&-
         (cat data/deep/text; echo error >&2) 2>&1 | sort | uniq -c > d
         cp data/odd e 0<&- ; cp data/odd f 0<&- 1>&-; cp data/odd g 0<&- 1>&- 2>&-
         (exec >&-; echo lost) 2>/dev/null || echo closed
         echo done",
    )
    .success();
}

#[test]
fn input_from_a_pipe_arrives() {
    let bed = Bed::new(FREE);
    let text = "line\n".repeat(10_000);
    for program in [vec!["cat"], vec!["sh", "-c", "cat; wc -c >&2"]] {
        let mut command = bed.run("free", program[0]);
        let mut running = process::spawn(command.args(&program[1..]).stdin(Stdio::piped()));
        running.write_input(&text);
        let outcome = running.finish().success();
        assert_eq!(outcome.stdout, text);
    }
}
