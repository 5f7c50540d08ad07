//! The fuzz targets, one after the other, and the table of what they found.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{cargo, run};

const README: &str = "fuzz/README.md";
/// The table stands between these lines.
const BEGIN: &str = "<!-- table: written by `cargo xtask fuzz` -->";
const END: &str = "<!-- end of the table -->";
const HEAD: &str =
    "| target | minutes | executions | edges | inputs kept | found |\n|---|---|---|---|---|---|";

/// Runs targets for so many minutes each, under the address sanitizer, and writes the table. Without
/// names, all of them.
pub fn campaign(root: &Path, minutes: &str, names: &[&str]) -> Result<()> {
    let seconds = minutes.parse::<f64>().ok().filter(|m| m.is_finite() && *m > 0.0);
    let seconds = seconds.context("give a number of minutes: cargo xtask fuzz 20")? * 60.0;
    install(root)?;
    let all = targets(root)?;
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|target| target == *name)) {
        bail!("there is no target {unknown}; there are {}", all.join(", "));
    }
    let mut found = false;
    for target in all.iter().filter(|t| names.is_empty() || names.contains(&t.as_str())) {
        eprintln!("xtask: {target} for {minutes} minutes");
        let row = one(root, target, seconds)?;
        found |= !row.findings.is_empty();
        let path = root.join(README);
        let text = fs::read_to_string(&path).context(README)?;
        fs::write(&path, with_row(&text, &row)?)?;
    }
    if found {
        bail!("something was found; {README} names the inputs");
    }
    Ok(())
}

/// Builds all targets and runs none.
pub fn build(root: &Path) -> Result<()> {
    install(root)?;
    run(cargo_fuzz(root).args(["build", "--fuzz-dir", "fuzz/targets"]))
}

fn install(root: &Path) -> Result<()> {
    let is_there = cargo_fuzz(root).arg("--version").output().is_ok_and(|o| o.status.success());
    if is_there {
        return Ok(());
    }
    eprintln!("xtask: installing cargo-fuzz (a minute, once)");
    run(cargo(root).args(["install", "cargo-fuzz", "--debug", "--locked", "--quiet"]))
}

/// The sanitizer needs a nightly compiler.
fn cargo_fuzz(root: &Path) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root).env_remove("CARGO").args(["+nightly", "fuzz"]);
    command
}

/// The targets by their corpora, which each of them has.
fn targets(root: &Path) -> Result<Vec<String>> {
    let folders = fs::read_dir(root.join("fuzz/corpus"))?;
    let mut names: Vec<String> =
        folders.flatten().map(|f| f.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// What a run of a target says at its end.
#[derive(Debug, Default, PartialEq)]
struct Row {
    target: String,
    minutes: f64,
    executions: u64,
    edges: u64,
    kept: usize,
    findings: Vec<String>,
}

fn one(root: &Path, target: &str, seconds: f64) -> Result<Row> {
    // What is found goes to the first corpus and stays there for the next run; the second one is the
    // project's.
    let grown = root.join("target/fuzz-corpus").join(target);
    fs::create_dir_all(&grown)?;
    let artifacts = root.join("fuzz/targets/artifacts").join(target);
    let before = names(&artifacts);
    let started = Instant::now();
    let output = cargo_fuzz(root)
        .args(["run", "--fuzz-dir", "fuzz/targets", target])
        .args([grown.as_path(), &root.join("fuzz/corpus").join(target)])
        .args(["--", "-timeout=10", "-rss_limit_mb=4096", "-max_len=65536", "-print_final_stats=1"])
        .arg(format!("-max_total_time={}", seconds.ceil()))
        .output()
        .context("cargo fuzz")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let (executions, edges) = read(&said);
    let mut findings: Vec<String> =
        names(&artifacts).into_iter().filter(|name| !before.contains(name)).collect();
    if !output.status.success() && findings.is_empty() {
        let last: Vec<&str> = said.lines().rev().take(20).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        if executions == 0 {
            bail!("{target} does not run:\n{}", last.join("\n"));
        }
        findings.push(output.status.to_string());
    }
    Ok(Row {
        target: target.to_string(),
        minutes: started.elapsed().as_secs_f64() / 60.0,
        executions,
        edges,
        kept: names(&grown).len(),
        findings,
    })
}

fn names(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| file.file_name().to_string_lossy().into_owned()).collect()
}

/// Executions and edges, of what libFuzzer prints.
fn read(said: &str) -> (u64, u64) {
    let (mut executions, mut edges) = (0, 0);
    for line in said.lines() {
        if let Some(n) = line.strip_prefix("stat::number_of_executed_units:") {
            executions = n.trim().parse().unwrap_or(executions);
        }
        let Some(rest) = line.strip_prefix('#') else { continue };
        let mut words = rest.split_whitespace();
        if let Some(n) = words.next().and_then(|n| n.parse::<u64>().ok()) {
            executions = executions.max(n);
        }
        let after = words.skip_while(|word| *word != "cov:").nth(1);
        if let Some(n) = after.and_then(|n| n.parse::<u64>().ok()) {
            edges = edges.max(n);
        }
    }
    (executions, edges)
}

/// The text with a target's row in place of the one that was there.
fn with_row(text: &str, row: &Row) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).context("fuzz/README.md has no table")?;
    let (table, after) = rest.split_once(END).context("the table in fuzz/README.md has no end")?;
    let own = format!("| `{}` |", row.target);
    let mut rows: Vec<String> = table
        .lines()
        .filter(|line| line.starts_with("| `") && !line.starts_with(&own))
        .map(String::from)
        .collect();
    let found = match row.findings.is_empty() {
        true => "nothing".to_string(),
        false => row.findings.join(", "),
    };
    rows.push(format!(
        "{own} {:.0} | {} | {} | {} | {found} |",
        row.minutes, row.executions, row.edges, row.kept
    ));
    rows.sort();
    Ok(format!("{before}{BEGIN}\n{HEAD}\n{}\n{END}{after}", rows.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_is_read() {
        let said = "INFO: seed\n#2\tINITED cov: 40 ft: 41 corp: 1/1b\n\
            #4096\tpulse  cov: 512 ft: 900 corp: 30/1Kb exec/s: 2048\n\
            Done 5000 runs in 2 second(s)\nstat::number_of_executed_units: 5000\n";
        assert_eq!(read(said), (5000, 512));
        assert_eq!(read("==1== ERROR"), (0, 0));
    }

    #[test]
    fn a_row_replaces_the_one_of_its_target() {
        let row = |target: &str, executions| Row {
            target: target.into(),
            minutes: 20.0,
            executions,
            edges: 7,
            ..Row::default()
        };
        let text = format!("before\n{BEGIN}\n{HEAD}\n{END}\nafter\n");
        let text = with_row(&text, &row("b", 1)).unwrap();
        let text = with_row(&text, &row("a", 2)).unwrap();
        let text = with_row(&text, &row("b", 3)).unwrap();
        let rows = "| `a` | 20 | 2 | 7 | 0 | nothing |\n| `b` | 20 | 3 | 7 | 0 | nothing |";
        assert_eq!(text, format!("before\n{BEGIN}\n{HEAD}\n{rows}\n{END}\nafter\n"));
    }

    #[test]
    fn every_corpus_has_a_target_and_the_readme_says_what_it_is() {
        let root = crate::root();
        let manifest = fs::read_to_string(root.join("fuzz/targets/Cargo.toml")).unwrap();
        let readme = fs::read_to_string(root.join(README)).unwrap();
        let code = fs::read_to_string(root.join("fuzz/src/lib.rs")).unwrap();
        for target in targets(&root).unwrap() {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
            assert!(code.contains(&format!("(\"{target}\", {target})")), "{target}");
            assert!(readme.contains(&format!("- `{target}`")), "{target}");
        }
        assert!(readme.contains(BEGIN) && readme.contains(END));
    }
}
