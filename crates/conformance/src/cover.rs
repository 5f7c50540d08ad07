//! Chooses cases by the kernels that they run, for a device that takes long to compile one.
//!
//! A kernel has switches and constants, and there are too many products of them to try all. Errors
//! come from one of them or from two that meet, so a choice of cases is good if every two that meet in
//! some case meet in a chosen one. The same holds for the words by which weights are described: bits,
//! group, kind of scales.

use std::collections::HashSet;

/// Two things that meet, or one alone.
type Feature = (String, String, String);

/// What one case runs: kernels and weights, as words of which the first is the name.
pub(crate) struct Covered {
    features: HashSet<Feature>,
}

impl Covered {
    pub(crate) fn new(labels: impl Iterator<Item = String>) -> Self {
        let mut features = HashSet::new();
        for label in labels {
            let mut words = label.split_whitespace().map(str::to_string);
            let name = words.next().unwrap_or_default();
            let words: Vec<String> = words.collect();
            // All switches together, too: there are few sets of them.
            let on: Vec<&str> =
                words.iter().map(String::as_str).filter(|word| !word.contains('=')).collect();
            features.insert((name.clone(), on.join(" "), String::new()));
            for (i, a) in words.iter().enumerate() {
                let meets = words[i..].iter().map(|b| (name.clone(), a.clone(), b.clone()));
                features.extend(meets);
            }
        }
        Covered { features }
    }
}

/// Numbers of cases that cover what all cover, in their order: the one that adds most, again and
/// again.
pub(crate) fn choose(cases: &[Covered]) -> Vec<usize> {
    let mut missing: Vec<HashSet<&Feature>> =
        cases.iter().map(|case| case.features.iter().collect()).collect();
    let mut chosen = Vec::new();
    loop {
        // Among equals the first.
        let best = (0..cases.len()).rev().max_by_key(|i| missing[*i].len());
        let Some(best) = best.filter(|best| !missing[*best].is_empty()) else { break };
        let covered = std::mem::take(&mut missing[best]);
        missing.iter_mut().for_each(|rest| rest.retain(|feature| !covered.contains(feature)));
        chosen.push(best);
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::{Covered, choose};

    fn chosen(cases: &[&[&str]]) -> Vec<usize> {
        let covered = |labels: &&[&str]| Covered::new(labels.iter().map(|l| l.to_string()));
        choose(&cases.iter().map(covered).collect::<Vec<_>>())
    }

    #[test]
    fn every_two_words_that_meet_are_covered() {
        // The last adds nothing: its words meet in the cases before it.
        let all: [&[&str]; 4] =
            [&["dot A=1 B=1 C=2"], &["dot A=1 B=2 C=1"], &["dot A=2 B=2 C=2"], &["dot A=1 B=1"]];
        assert_eq!(chosen(&all), [0, 1, 2]);
    }

    #[test]
    fn each_kernel_and_each_set_of_switches_has_a_case() {
        assert_eq!(chosen(&[&["a"], &["b"], &["a", "b"]]), [2]);
        assert_eq!(chosen(&[&["a X"], &["a Y"], &["a X Y"], &["a X"]]), [0, 1, 2]);
    }
}
