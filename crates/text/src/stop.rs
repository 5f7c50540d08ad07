//! Stop strings: found across token boundaries, never shown.

use crate::error::{Error, Result};

/// The most stop strings of one request.
const MAX_STOPS: usize = 16;

/// The longest stop string, in bytes.
const MAX_STOP_BYTES: usize = 1024;

/// Watches a stream of text for stop strings.
///
/// The stop that is complete first counts; among those the longest. So the cut does not depend on
/// how the text was split into tokens.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop.
    held: String,
}

impl StopMatcher {
    /// Refuses what is too many, too long or empty.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if stops.len() > MAX_STOPS {
            let n = stops.len();
            return Err(Error::param("stop", format!("{n} strings, the limit is {MAX_STOPS}")));
        }
        for stop in &stops {
            if stop.is_empty() {
                return Err(Error::param("stop", "an empty string can't be a stop"));
            }
            if stop.len() > MAX_STOP_BYTES {
                let n = stop.len();
                return Err(Error::param(
                    "stop",
                    format!("a string of {n} bytes, the limit is {MAX_STOP_BYTES}"),
                ));
            }
        }
        Ok(StopMatcher { stops, held: String::with_capacity(256) })
    }

    /// Takes text, appends to `out` what can't be part of a stop, and returns which stop is
    /// complete.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        if let Some((start, stop)) = self.first_complete() {
            out.push_str(&self.held[..start]);
            self.held.clear();
            return Some(stop);
        }
        let keep = self.longest_beginning();
        let safe = self.held.len() - keep;
        out.push_str(&self.held[..safe]);
        self.held.drain(..safe);
        None
    }

    /// Appends what was held back: nothing more will come.
    pub fn flush(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Where the stop begins that ends first, and which it is.
    fn first_complete(&self) -> Option<(usize, usize)> {
        self.stops
            .iter()
            .enumerate()
            .filter_map(|(i, s)| self.held.find(s.as_str()).map(|at| (at + s.len(), at, i)))
            .min()
            .map(|(_, at, i)| (at, i))
    }

    /// Bytes at the end of `held` that begin a stop.
    fn longest_beginning(&self) -> usize {
        let held = self.held.as_bytes();
        let longest = |stop: &String| {
            let most = held.len().min(stop.len() - 1);
            (1..=most).rev().find(|n| held.ends_with(&stop.as_bytes()[..*n])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut m = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect()).unwrap();
        let mut out = String::new();
        for piece in pieces {
            if let Some(stop) = m.push(piece, &mut out) {
                return (out, Some(stop));
            }
        }
        m.flush(&mut out);
        (out, None)
    }

    #[test]
    fn stops_are_cut_exactly() {
        assert_eq!(run(&["END"], &["abcENDdef"]), ("abc".into(), Some(0)));
        assert_eq!(run(&["END"], &["abE", "N", "D"]), ("ab".into(), Some(0)));
        assert_eq!(run(&["END"], &["abE", "N", "x"]), ("abENx".into(), None));
        assert_eq!(run(&["END"], &["EN"]), ("EN".into(), None));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some(0)));
        assert_eq!(run(&["é!"], &["caf", "é", "!"]), ("caf".into(), Some(0)));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
        // What is complete first counts, whatever begins first.
        assert_eq!(run(&["abcd", "bc"], &["abcd"]), ("a".into(), Some(1)));
        assert_eq!(run(&["bc", "abc"], &["abc"]), ("".into(), Some(1)));
    }

    #[test]
    fn text_is_held_back_no_longer_than_needed() {
        let mut m = StopMatcher::new(vec!["\n\nQ".into()]).unwrap();
        let mut out = String::new();
        assert_eq!(m.push("one\n", &mut out), None);
        assert_eq!(out, "one");
        assert_eq!(m.push("two", &mut out), None);
        assert_eq!(out, "one\ntwo");
    }

    #[test]
    fn abuse_is_refused() {
        let bad: [Vec<String>; 3] =
            [vec![String::new()], vec!["x".into(); 17], vec!["x".repeat(1025)]];
        for stops in bad {
            let e = StopMatcher::new(stops).unwrap_err();
            assert!(matches!(e, Error::Param { param: "stop", .. }), "{e}");
        }
    }

    proptest! {
        #[test]
        fn the_cut_does_not_depend_on_the_pieces(
            text in "[abc]{0,40}",
            stops in prop::collection::vec("[abc]{1,4}", 0..4),
            cuts in prop::collection::vec(0usize..40, 0..10),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|c| *c <= text.len()).collect();
            cuts.push(0);
            cuts.push(text.len());
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let whole = run(&stops, &[&text]);
            let (out, stop) = run(&stops, &pieces);
            prop_assert_eq!(&out, &whole.0);
            prop_assert_eq!(stop.is_some(), whole.1.is_some());
            prop_assert!(text.starts_with(&out));
            prop_assert!(!stops.iter().any(|s| out.contains(s)));
        }
    }
}
