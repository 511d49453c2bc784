//! The report of `tidegate-lab repro`, opened as its readers do: in a browser, without a network.
//! Where no Chromium is installed nothing is tested, and the output says so.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::tidegate_lab;

/// Names of the browser in distributions.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"];

/// Measures the page once it is laid out, and leaves the numbers in an element.
const MEASURE: &str = r##"<pre id="measured"></pre><script>
const all = (query) => [...document.querySelectorAll(query)];
const box = (element) => element.getBoundingClientRect();
all("details").forEach((details) => { details.open = true; });
const links = all("tbody a").map((link) => document.querySelector(link.getAttribute("href")));
document.querySelector("#measured").textContent = JSON.stringify({
  title: document.title,
  rows: all("tbody tr").length,
  links: links.filter((heading) => heading && box(heading).top > 0).length,
  pictures: all("figure svg").map((svg) => [box(svg).width, box(svg).height]),
  letters: all("figure svg text").filter((text) => box(text).width > 0).length,
  claims: all("ol.claims > li > b").map((verdict) => verdict.textContent),
  opened: all("details pre").filter((text) => box(text).height > 10).length,
  folded: all("details").length,
  loaded: performance.getEntriesByType("resource").length,
  overhang: document.documentElement.scrollWidth - document.documentElement.clientWidth,
});
</script>
"##;

fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let files = BROWSERS.iter().flat_map(|name| folders.iter().map(move |path| path.join(name)));
    files.into_iter().find(|file| file.is_file())
}

/// The measurements of a page by a browser.
fn measured(browser: &Path, page: &Path, directory: &Path) -> Value {
    let text = std::fs::read_to_string(page).unwrap();
    let (content, end) = text.rsplit_once("</html>").unwrap();
    let copy = directory.join("measured.html");
    std::fs::write(&copy, format!("{content}{MEASURE}</html>{end}")).unwrap();
    let mut command = Command::new(browser);
    // Tests run as root, in containers, and anything that is looked up is not found.
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1200,900", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", directory.join("profile").display()));
    let url = format!("file://{}", copy.display());
    let output = command.arg(url).env("HOME", directory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let dom = String::from_utf8(output.stdout).unwrap();
    let (_, numbers) = dom.rsplit_once("<pre id=\"measured\">").unwrap();
    serde_json::from_str(numbers.split("</pre>").next().unwrap()).unwrap()
}

#[test]
fn a_browser_shows_every_figure_and_every_verdict_and_loads_nothing() {
    let Some(browser) = browser() else {
        let why = "there is no Chromium; scripts/setup.sh browser installs one";
        assert!(std::env::var_os("TIDEGATE_NO_SKIP").is_none(), "not tested: {why}");
        println!("skipped: {why}");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let arguments = ["repro", "dsfq", "13", "burst", "haechi", "6", "--world", "simulated"];
    let mut command = tidegate_lab(directory);
    let output = command.args(arguments).args(["--out", "out"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = measured(&browser, &directory.join("out/repro.html"), directory);
    assert_eq!(page["title"], "Experiments of papers, repeated: Tidegate");
    assert_eq!((&page["rows"], &page["links"]), (&3.into(), &3.into()), "{page:#}");
    let pictures = page["pictures"].as_array().unwrap();
    assert_eq!(pictures.len(), 3, "{page:#}");
    for picture in pictures {
        let [width, height] = [0, 1].map(|at| picture[at].as_f64().unwrap());
        assert!(width > 300.0 && height > 100.0, "{page:#}");
    }
    assert!(page["letters"].as_u64().unwrap() > 30, "axes have numbers and names: {page:#}");
    let verdicts: Vec<&str> =
        page["claims"].as_array().unwrap().iter().map(|claim| claim.as_str().unwrap()).collect();
    let text = String::from_utf8(output.stdout).unwrap();
    let printed = text.lines().filter_map(|line| {
        let word = line.split(' ').next()?;
        ["reproduced", "holds", "differs", "not-reproduced"].contains(&word).then_some(word)
    });
    assert_eq!(verdicts, printed.collect::<Vec<_>>(), "as they were printed");
    // Each claim has its numbers, and each figure its table.
    assert_eq!(page["folded"].as_u64().unwrap(), verdicts.len() as u64 + 3, "{page:#}");
    assert_eq!(page["opened"], page["folded"], "{page:#}");
    assert_eq!((&page["loaded"], &page["overhang"]), (&0.into(), &0.into()), "{page:#}");
}
