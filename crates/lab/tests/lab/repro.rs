//! `tidegate-lab repro`, as far as it takes no more than a moment.

use std::path::Path;

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::Value;

use crate::tidegate_lab;

#[test]
fn a_figure_that_cannot_be_repeated_is_distinguished() {
    let directory = tempfile::tempdir().unwrap();
    let output = tidegate_lab(directory.path()).args(["repro", "pshift", "11"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("figure 11") && stderr.contains("3, 4, 5, 6, 7, 8, 9, 10"), "{stderr}");
}

#[test]
fn a_word_that_is_no_paper_is_refused_with_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let output = tidegate_lab(directory.path()).args(["repro", "paxos"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("\"paxos\" is no paper"), "{stderr}");
    assert!(stderr.contains("paio, pshift, dsfq, e2e, haechi"), "{stderr}");
}

#[test]
fn the_list_has_every_figure_with_its_recorded_verdicts() {
    let directory = tempfile::tempdir().unwrap();
    let output = tidegate_lab(directory.path()).args(["repro", "list"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let text: String = text.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    insta::assert_snapshot!("repro-list", text);
    let output = tidegate_lab(directory.path()).args(["repro", "list", "--json"]).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let figures = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let burst = figures.into_iter().find(|line| line["figure"] == "burst").unwrap();
    assert_eq!(burst["worlds"], serde_json::json!(["simulated"]));
    assert_eq!(burst["recorded"], serde_json::json!({ "holds": 1, "reproduced": 2 }));
}

#[test]
fn several_papers_have_folders_of_their_own_and_a_table_of_verdicts() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["repro", "dsfq", "burst", "haechi", "6", "--out", "pictures"];
    let output = tidegate_lab(directory.path()).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let table = text.rsplit("\nPAPER").next().unwrap();
    assert!(table.contains("1 holds, 2 reproduced") && table.contains("haechi"), "{text}");
    for picture in ["dsfq/figure-burst.svg", "haechi/figure-6.svg"] {
        assert!(directory.path().join("pictures").join(picture).is_file(), "{picture}");
    }
}

#[test]
fn claims_are_lines_of_json_and_pictures_are_written_to_out() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["repro", "pshift", "7", "--json", "--out", "pictures"];
    let output = tidegate_lab(directory.path()).args(arguments).output().unwrap();
    // How fast it is here says nothing about the claim.
    assert!([Some(0), Some(99)].contains(&output.status.code()), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let claims: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(claims.len(), 3);
    for claim in claims {
        let keys: Vec<&String> = claim.as_object().unwrap().keys().collect();
        let mut expected = [
            "claim",
            "distance",
            "figure",
            "measured",
            "ours",
            "paper",
            "reason",
            "regression",
            "seconds",
            "seed",
            "verdict",
            "world",
        ];
        expected.sort_unstable();
        let mut keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!((&claim["paper"], &claim["figure"]), (&"pshift".into(), &"7".into()));
        assert!(claim["measured"].as_object().is_some_and(|measured| !measured.is_empty()));
    }
    let picture = std::fs::read_to_string(directory.path().join("pictures/figure-7.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("pShift"));
}

#[test]
fn a_figure_that_is_simulated_is_the_same_again() {
    let directory = tempfile::tempdir().unwrap();
    let claims_by = |seed: &[&str]| {
        let arguments = ["repro", "dsfq", "burst", "--json", "--out", "pictures", "--again"];
        let output = tidegate_lab(directory.path()).args(arguments).args(seed).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let lines = String::from_utf8(output.stdout).unwrap();
        let claims = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let shown = |claim: Value| {
            let wanted_seed = seed.last().map(|seed| seed.parse::<u64>().unwrap());
            assert!(wanted_seed.is_none_or(|wanted_seed| claim["seed"] == wanted_seed), "{claim}");
            // Numbers are recorded for the scenario's own seed.
            assert_eq!(
                claim["regression"],
                if seed.is_empty() { "ok".into() } else { Value::Null }
            );
            (claim["measured"].clone(), claim["verdict"].clone())
        };
        claims.map(shown).collect::<Vec<_>>()
    };
    let claims = || claims_by(&[]);
    let (one, picture) = (claims(), directory.path().join("pictures/figure-burst.svg"));
    let drawn = std::fs::read(&picture).unwrap();
    assert_eq!(one.len(), 3);
    let verdicts = |claims: &[(Value, Value)]| {
        claims.iter().map(|(_, verdict)| verdict.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&one), ["reproduced", "reproduced", "holds"]);
    assert_eq!(claims(), one);
    assert_eq!(std::fs::read(&picture).unwrap(), drawn);
    let another = claims_by(&["--seed", "7"]);
    assert_eq!(verdicts(&another), verdicts(&one));
    assert_ne!(another, one, "the seed is not looked at");
}

/// Results of both figures, as they are kept, and the verdicts of the report's sections.
fn kept_and_reported(pictures: &Path) -> ([Value; 2], Vec<Vec<String>>) {
    let kept = ["figure-13.json", "figure-burst.json"].map(|name| {
        let text = std::fs::read_to_string(pictures.join(name)).unwrap();
        serde_json::from_str(&text).unwrap()
    });
    let page = std::fs::read_to_string(pictures.join("repro.html")).unwrap();
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let page = Document::parse_with_options(&page, options).unwrap();
    let elements = |name| page.descendants().filter(move |node| node.has_tag_name(name));
    let svg = ("http://www.w3.org/2000/svg", "svg");
    assert_eq!(page.descendants().filter(|node| node.has_tag_name(svg)).count(), 2);
    assert_eq!(elements("tbody").next().unwrap().children().filter(Node::is_element).count(), 2);
    let verdict = |claim: Node<'_, '_>| claim.first_element_child().unwrap().text().unwrap().into();
    let claims =
        |list: Node<'_, '_>| list.children().filter(Node::is_element).map(verdict).collect();
    (kept, elements("ol").map(claims).collect())
}

#[test]
fn the_report_holds_every_verdict_and_results_that_are_there_are_not_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let pictures = directory.path().join("pictures");
    let run = |options: &[&str]| {
        let arguments = ["repro", "dsfq", "13", "burst", "--out", "pictures"];
        let mut command = tidegate_lab(directory.path());
        let output = command.args(arguments).args(options).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let [text, log] = run(&[]);
    assert!(text.contains("Report: pictures/repro.html"), "{text}");
    assert!(log.contains("dsfq 13 (1 of 2)\ndsfq burst (2 of 2, about "), "{log}");
    let (mut kept, reported) = kept_and_reported(&pictures);
    let verdicts = |result: &Value| -> Vec<String> {
        let claims = result["claims"].as_array().unwrap().iter();
        claims.map(|claim| claim["verdict"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(reported, kept.each_ref().map(verdicts));
    assert_eq!(reported[1], ["reproduced", "reproduced", "holds"]);

    // A result that could not be measured shows that it is not made again.
    kept[0]["text"] = "MARKED".into();
    std::fs::write(pictures.join("figure-13.json"), kept[0].to_string()).unwrap();
    std::fs::remove_file(pictures.join("figure-burst.json")).unwrap();
    let [text, log] = run(&[]);
    assert!(text.contains("MARKED"), "{text}");
    assert!(!log.contains("dsfq 13") && log.contains("dsfq burst (2 of 2)\n"), "{log}");
    assert_eq!(kept_and_reported(&pictures).1, reported);
    // Nothing is left to do, but for users who want it.
    assert_eq!(run(&[])[1], "");
    assert!(!run(&["--again"])[0].contains("MARKED"));
}

#[test]
fn a_figure_that_breaks_down_is_no_end_of_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let mut command = tidegate_lab(directory.path());
        // There is no fio then, nor any other program.
        command.env("PATH", directory.path()).args(["repro", "paio", "10"]).args(words);
        let output = command.args(["--out", "out"]).output().unwrap();
        let [text, log] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        (output.status.code(), text, log)
    };
    let (code, text, log) = run(&["dsfq", "burst"]);
    assert_eq!(code, Some(1), "{text}{log}");
    assert!(text.contains("skipped        paio 10: four tenants share a disk\n"), "{text}");
    assert!(text.contains("cannot start fio"), "{text}");
    assert!(text.contains("1 holds, 2 reproduced"), "the other figure is there: {text}");
    let page = std::fs::read_to_string(directory.path().join("out/repro.html")).unwrap();
    assert!(page.contains("cannot start fio") && page.contains("dsfq burst"), "{page}");
    let kept = |name: &str| directory.path().join("out").join(name).exists();
    assert!(!kept("paio/figure-10.json") && kept("dsfq/figure-burst.json"));
    // Alone it is the failure of the command.
    let (code, text, log) = run(&[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(log.contains("cannot start fio"), "{log}");
}

/// How fast this machine is and what else it does says nothing here: what is claimed is judged, and
/// the verdict is whatever it is.
#[test]
fn a_live_figure_runs_processes_and_leaves_none() {
    let directory = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let arguments = ["repro", "haechi", "8", "--world", "live", "--periods", "1", "--json"];
    let mut command = tidegate_lab(directory.path());
    let output = command.args(arguments).env("TMPDIR", scratch.path()).output().unwrap();
    assert!([Some(0), Some(1), Some(99)].contains(&output.status.code()), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let claims: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let figures: Vec<&str> = claims.iter().filter_map(|claim| claim["figure"].as_str()).collect();
    assert_eq!(figures, ["8a", "8b", "8c", "8"]);
    for claim in &claims {
        assert_eq!((&claim["world"], &claim["seed"]), (&"live".into(), &20_210_707.into()));
        assert!(claim["measured"]["periods"].as_u64() >= Some(1), "{claim}");
    }
    let read = |claim: &Value| claim["measured"]["numbers"][0]["live"].as_f64();
    assert!(claims[..3].iter().all(|claim| read(claim) > Some(0.0)), "{claims:?}");
    let picture = directory.path().join("out/repro-haechi/figure-8-live.svg");
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg"));
    // The data node has ended, and no process has its socket open any more.
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}
