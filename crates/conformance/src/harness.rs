//! Runs suites as tests with names: each case can be listed, filtered and run alone.
//!
//! A name is `suite/op/case`, `suite/graphs/seed` or `suite/models/model/property`, as in
//! `cpu/linear/q4-g32-affine-bf16_33x192_1_3_41_tokens/fast`.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use lapidary_backend::Backend;
use libtest_mimic::{Arguments, Failed, Trial};

/// Has tests that take so many seconds or more told with the time that they took.
const TIMES: &str = "LAPIDARY_TEST_TIMES";

/// What a test found.
pub type Checked = Result<(), String>;

/// One test, before it has the name of its suite.
pub struct Test {
    /// Without the suite's name.
    pub name: String,
    /// Fails with what went wrong.
    pub check: Box<dyn FnOnce() -> Checked + Send>,
}

impl Test {
    /// A test of a name that is made of `parts`, each in characters that a shell leaves alone.
    pub fn new(parts: &[&str], check: impl FnOnce() -> Checked + Send + 'static) -> Self {
        let parts: Vec<String> = parts.iter().map(|part| slug(part)).collect();
        Test { name: parts.join("/"), check: Box::new(check) }
    }
}

/// Tests of one backend.
pub struct Group {
    /// What the names of its tests begin with.
    pub name: &'static str,
    /// Why none of them can run here, if so.
    pub absent: Option<String>,
    /// Beginnings of names that are listed as ignored.
    pub ignored: &'static [&'static str],
    /// The tests.
    pub tests: Vec<Test>,
}

/// The name that the command line asks for with `--exact`, if it does: cases of other suites need
/// not be made.
pub fn wanted() -> Option<String> {
    let arguments = Arguments::from_args();
    arguments.filter.filter(|_| arguments.exact)
}

/// Whether a test whose name begins with `prefix` may be asked for.
pub fn is_wanted(wanted: Option<&str>, prefix: &str) -> bool {
    wanted.is_none_or(|name| name.starts_with(prefix))
}

/// Why a backend can't be tested here, if it has no device.
pub fn absence(backend: &dyn Backend) -> Option<String> {
    match backend.devices() {
        Ok(devices) if devices.is_empty() => Some("it has no device here".into()),
        Ok(_) => None,
        Err(e) => Some(e.to_string()),
    }
}

/// Runs what the command line asks for.
pub fn run(groups: Vec<Group>) -> ExitCode {
    let arguments = Arguments::from_args();
    let binary: Arc<str> = binary().into();
    let mut names = BTreeSet::new();
    let mut trials = Vec::new();
    for group in groups {
        if let Some(why) = group.absent.as_ref().filter(|_| !arguments.list) {
            eprintln!("SKIPPED {}: {why}", group.name);
        }
        for test in group.tests {
            let name = unique(&mut names, format!("{}/{}", group.name, test.name));
            let ignored = group.absent.is_some()
                || group.ignored.iter().any(|prefix| name.starts_with(prefix));
            trials.push(trial(name, &binary, test.check).with_ignored_flag(ignored));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A name that no test before has: the same with a number, if need be. Shapes that are told apart by
/// digits which a name leaves out come in the same order each time.
fn unique(names: &mut BTreeSet<String>, name: String) -> String {
    let numbered = (2..).map(|i| format!("{name}_{i}"));
    let name = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
    let name = name.expect("numbers do not end");
    names.insert(name.clone());
    name
}

fn trial(
    name: String,
    binary: &Arc<str>,
    check: impl FnOnce() -> Checked + Send + 'static,
) -> Trial {
    let command = format!("cargo test -p lapidary-conformance --test {binary} -- --exact '{name}'");
    let shown = name.clone();
    let least_told = std::env::var(TIMES).ok().and_then(|least| least.parse::<f64>().ok());
    Trial::test(name, move || {
        let start = Instant::now();
        let checked = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|e| Err(words(&*e)));
        let took = start.elapsed().as_secs_f64();
        if least_told.is_some_and(|least| took >= least) {
            eprintln!("{took:.3} s {shown}");
        }
        checked.map_err(|e| Failed::from(format!("{e}\nto run it alone: {command}")))
    })
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("without a word"))
}

/// The name of this test binary, as `cargo test --test` has it.
fn binary() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    let stem = exe.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.rsplit_once('-').map_or(stem.clone(), |(name, _hash)| name.to_string())
}

/// A part of a name: letters, digits and `.-+=`, whatever else is between them one `_`.
fn slug(part: &str) -> String {
    let mut out = String::new();
    for c in part.chars() {
        match c {
            '×' => out.push('x'),
            c if c.is_ascii_alphanumeric() || ".-+=_".contains(c) => out.push(c),
            _ if out.ends_with('_') || out.is_empty() => {}
            _ => out.push('_'),
        }
    }
    out.truncate(out.trim_end_matches('_').len());
    out
}

#[cfg(test)]
mod tests {
    use super::slug;

    #[test]
    fn names_need_no_quotes() {
        assert_eq!(slug("q4 g32, 33×192, [1, 3] tokens"), "q4_g32_33x192_1_3_tokens");
        assert_eq!(slug("[7] of 1e-3 (−1)"), "7_of_1e-3_1");
    }
}
