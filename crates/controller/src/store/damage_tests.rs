//! A store that was damaged: an error that names the file and the remedy, or all that was stored.

use std::fs;

use super::*;

/// A small generator, so that a failure can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

fn draft(text: String) -> Draft {
    Draft { text, source: "test".into(), applied_at_ms: 7 }
}

/// A store with some history, as bytes, and what it holds.
fn original(path: &Path) -> (Vec<u8>, Vec<PolicyText>, BTreeMap<String, Discipline>) {
    let mut store = Redb::open(path).unwrap();
    for revision in 1..=12 {
        let text = format!("# revision {revision}\n{}", "[[tenant]]\nname = \"t\"\n".repeat(9));
        store.put(0, draft(text)).unwrap();
    }
    store.choose(&["a".into(), "b".into()], Some(Discipline::Sfq)).unwrap();
    let held = (store.history(100).unwrap(), store.schedulers().unwrap());
    drop(store);
    (fs::read(path).unwrap(), held.0, held.1)
}

/// Damages a file in one of the ways in which files are damaged.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) -> &'static str {
    let at = random.below(bytes.len());
    // Most of a file is empty; what is not is hit more often than by chance.
    let at = match random.below(3) {
        0 => at,
        1 => random.below(512),
        _ => bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte != 0)
            .nth(at % 3_000)
            .map_or(at, |it| it.0),
    };
    match random.below(6) {
        0 => {
            bytes[at] ^= 1 << random.below(8);
            "a flipped bit"
        }
        1 => {
            bytes[at] = bytes[at].wrapping_add(1 + random.below(255) as u8);
            "another byte"
        }
        2 => {
            bytes.truncate(at);
            "cut off"
        }
        3 => {
            let end = (at + 4096).min(bytes.len());
            bytes[at..end].fill(0);
            "a page of zeros"
        }
        4 => {
            let end = (at + 64).min(bytes.len());
            bytes[at..end].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
            "garbage"
        }
        _ => {
            let page = at / 4096 * 4096;
            let from = random.below(bytes.len() / 4096) * 4096;
            let to = page.min(bytes.len() - 4096);
            bytes.copy_within(from..from + 4096, to);
            "a misplaced page"
        }
    }
}

#[test]
fn a_damaged_store_is_an_error_with_a_remedy_or_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.redb");
    let (bytes, policies, schedulers) = original(&path);
    let note = directory.path().join("policies.redb.generation");
    let noted = fs::read(&note).unwrap();
    let trials = std::env::var("TIDEGATE_DAMAGES").ok().and_then(|text| text.parse().ok());
    let mut refused = 0;
    for seed in 0..trials.unwrap_or(200) {
        let mut damaged = bytes.clone();
        let kind = damage(&mut damaged, &mut Random(seed));
        fs::write(&path, damaged).unwrap();
        fs::write(&note, &noted).unwrap();
        match Redb::open(&path) {
            Ok(store) => {
                assert_eq!(store.history(100).unwrap(), policies, "seed {seed}: {kind}");
                assert_eq!(store.schedulers().unwrap(), schedulers, "seed {seed}: {kind}");
            }
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                assert!(error.contains("policies.redb: it "), "seed {seed}: {kind}: {error}");
                assert!(error.contains("--forget-policy"), "seed {seed}: {kind}: {error}");
            }
        }
    }
    assert!(refused > 20, "the damages do damage: {refused}");
}

fn refusal(path: &Path) -> String {
    let error = Redb::open(path).expect_err("the store is refused").to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
    assert!(error.contains("--forget-policy"), "{error}");
    error
}

#[test]
fn an_empty_store_is_never_no_policy_yet() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.redb");
    fs::write(&path, "").unwrap();
    assert!(refusal(&path).contains("it is empty"));
    let kept = Redb::forget(&path).unwrap().unwrap();
    assert!(kept.display().to_string().contains("policies.redb.forgotten-") && kept.exists());
    assert_eq!(Redb::open(&path).unwrap().latest().unwrap(), None);
}

#[test]
fn a_store_that_went_back_in_time_or_away_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.redb");
    let mut store = Redb::open(&path).unwrap();
    store.put(0, draft("one".into())).unwrap();
    drop(store);
    let older = fs::read(&path).unwrap();
    let mut store = Redb::open(&path).unwrap();
    store.put(0, draft("two".into())).unwrap();
    store.put(0, draft("three".into())).unwrap();
    drop(store);
    fs::write(&path, older).unwrap();
    let refused = refusal(&path);
    assert!(refused.contains("lost its last 2 of 3 changes"), "{refused}");
    fs::remove_file(&path).unwrap();
    assert!(refusal(&path).contains("it is missing"));
    assert_eq!(Redb::forget(&path).unwrap(), None);
    assert_eq!(Redb::open(&path).unwrap().latest().unwrap(), None);
}

#[test]
fn an_older_copy_is_accepted_by_removing_its_note() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.redb");
    drop(Redb::open(&path).unwrap());
    let older = fs::read(&path).unwrap();
    Redb::open(&path).unwrap().put(0, draft("one".into())).unwrap();
    fs::write(&path, older).unwrap();
    assert!(refusal(&path).contains("lost its last 1 of 1 changes"));
    fs::remove_file(directory.path().join("policies.redb.generation")).unwrap();
    assert_eq!(Redb::open(&path).unwrap().latest().unwrap(), None);
}

#[test]
fn a_note_that_cannot_be_trusted_is_an_error_and_no_missing_note() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.redb");
    drop(Redb::open(&path).unwrap());
    let note = directory.path().join("policies.redb.generation");
    fs::remove_file(&note).unwrap();
    std::os::unix::fs::symlink("elsewhere", &note).unwrap();
    let error = Redb::open(&path).expect_err("the note is a link").to_string();
    assert!(error.contains("policies.redb.generation"), "{error}");
    assert!(note.is_symlink(), "it is left as it was found");
}

#[test]
fn a_store_of_an_earlier_release_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.redb");
    let database = Database::create(&path).unwrap();
    let writing = database.begin_write().unwrap();
    let policy = PolicyText { revision: 4, text: "x".into(), source: "y".into(), applied_at_ms: 1 };
    let bytes = serde_json::to_vec(&policy).unwrap();
    writing.open_table(POLICIES).unwrap().insert(4, bytes.as_slice()).unwrap();
    writing.commit().unwrap();
    drop(database);
    let mut store = Redb::open(&path).unwrap();
    assert_eq!(store.latest().unwrap(), Some(policy));
    assert_eq!(store.put(4, draft("five".into())).unwrap(), 5);
    drop(store);
    assert_eq!(Redb::open(&path).unwrap().latest().unwrap().unwrap().revision, 5);
}

#[test]
fn a_database_of_another_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policies.redb");
    let database = Database::create(&path).unwrap();
    let writing = database.begin_write().unwrap();
    writing.open_table(TableDefinition::<u64, u64>::new("wallet")).unwrap();
    writing.commit().unwrap();
    drop(database);
    assert!(refusal(&path).contains("another program, with the table \"wallet\""));
}
