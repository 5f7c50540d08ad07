//! What a suite found.

/// One case or property.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// `linear/q4 g32 affine bf16, 33×257, 3 tokens`.
    pub name: String,
    /// What went wrong, if anything.
    pub failure: Option<String>,
}

/// All outcomes of a suite.
#[derive(Clone, Debug, Default)]
pub struct Report {
    outcomes: Vec<Outcome>,
}

impl Report {
    /// All outcomes in order.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Panics with every failure whose name does not start with an entry of `ignored`. Ignored
    /// cases are told on standard error, and so is an entry that nothing needs any more.
    pub fn assert(&self, ignored: &[&str]) {
        assert!(!self.outcomes.is_empty(), "the suite ran nothing");
        let mut failures = Vec::new();
        for outcome in &self.outcomes {
            let Some(failure) = &outcome.failure else { continue };
            let told = format!("{}: {failure}", outcome.name);
            if ignored.iter().any(|prefix| outcome.name.starts_with(prefix)) {
                eprintln!("IGNORED {told}");
            } else {
                failures.push(told);
            }
        }
        let n = self.outcomes.len();
        assert!(failures.is_empty(), "{} of {n} failed:\n{}", failures.len(), failures.join("\n"));
    }
}

impl FromIterator<Outcome> for Report {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        Report { outcomes: outcomes.into_iter().collect() }
    }
}

impl IntoIterator for Report {
    type Item = Outcome;
    type IntoIter = std::vec::IntoIter<Outcome>;

    fn into_iter(self) -> Self::IntoIter {
        self.outcomes.into_iter()
    }
}
