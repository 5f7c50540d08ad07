//! Tiny random checkpoints of every family against what transformers computed, as tests that the
//! runner of a backend adds to its suite.

mod media;
mod text;

use std::path::{Path, PathBuf};

use lapidary_backend::Backend;
use lapidary_conformance::Class;
use lapidary_conformance::harness::Test;

/// What names of these tests begin with.
const NAME: &str = "checkpoints";

/// What is tested, and how much.
#[derive(Clone, Copy)]
pub struct On {
    pub backend: &'static dyn Backend,
    pub class: Class,
    pub extent: Extent,
}

/// How many of the files a backend sees.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each runner uses one")]
pub enum Extent {
    /// All, in every spelling: for backends that are fast to load.
    Everything,
    /// Those that hold other numbers. Spellings of one checkpoint make one program, which is for
    /// `gemma` and a fast backend to see; software takes its time to compile the kernels again.
    Numbers,
    /// Those that hold other graphs: for the second suite of a backend, whose kernels ops have tested.
    Least,
}

/// Every test of the checkpoints.
pub fn tests(on: On) -> Vec<Test> {
    let mut tests = text::tests(on);
    tests.extend(media::tests(on));
    tests
}

fn test(parts: &[&str], check: impl FnOnce() + Send + 'static) -> Test {
    Test::new(&[&[NAME], parts].concat(), move || {
        check();
        Ok(())
    })
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

fn tiny(family: &str) -> PathBuf {
    testdata().join("tiny").join(family)
}
