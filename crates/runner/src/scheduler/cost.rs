//! How long a step takes: so much for each step, and so much for each token of it, as measured.

use std::time::Duration;

/// What one step adds to the memory of those before it.
const DECAY: f64 = 0.95;
/// Tokens of a step before anything was measured.
const FIRST: usize = 64;

/// Seconds of a step as `a + b · tokens`, from steps that were measured; the newest count most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cost {
    weight: f64,
    tokens: f64,
    seconds: f64,
    squares: f64,
    products: f64,
    /// `b`, from when steps of different lengths were last measured.
    per_token: Option<f64>,
}

impl Cost {
    /// Notes that a step of so many tokens took so long.
    pub(crate) fn note(&mut self, tokens: usize, took: Duration) {
        let (t, s) = (tokens as f64, took.as_secs_f64());
        self.weight = self.weight * DECAY + 1.0;
        self.tokens = self.tokens * DECAY + t;
        self.seconds = self.seconds * DECAY + s;
        self.squares = self.squares * DECAY + t * t;
        self.products = self.products * DECAY + t * s;
        let (mean_t, mean_s) = self.means();
        let spread = self.squares / self.weight - mean_t * mean_t;
        // Lengths that hardly differ say nothing about a token.
        if spread > 1.0 + 1e-3 * mean_t * mean_t {
            let slope = (self.products / self.weight - mean_t * mean_s) / spread;
            // A step is not dearer than all its tokens, and no token is free.
            let most = mean_s / mean_t.max(1.0);
            self.per_token = Some(slope.clamp(most * 1e-3, most.max(f64::MIN_POSITIVE)));
        }
    }

    fn means(&self) -> (f64, f64) {
        (self.tokens / self.weight, self.seconds / self.weight)
    }

    /// Tokens that a step may have in which `answers` wait for one each. A step takes no longer than
    /// `bound`; but where answers alone take about as long or longer, others still get a third of
    /// the time.
    pub(crate) fn tokens_within(&self, bound: Duration, answers: usize) -> usize {
        if self.weight == 0.0 {
            return FIRST;
        }
        let (fixed, per_token) = self.line();
        let bound = bound.as_secs_f64().max(1.5 * (fixed + per_token * answers as f64));
        ((bound - fixed) / per_token).max(0.0) as usize
    }

    /// `a` and `b`.
    fn line(&self) -> (f64, f64) {
        let (mean_t, mean_s) = self.means();
        // Not knowing better, all time was the tokens': that errs towards short steps where answers
        // were measured, which have few.
        let per_token = self.per_token.unwrap_or(mean_s / mean_t.max(1.0)).max(1e-12);
        ((mean_s - per_token * mean_t).max(0.0), per_token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found() {
        let mut cost = Cost::default();
        let bound = Duration::from_millis(100);
        assert_eq!(cost.tokens_within(bound, 7), FIRST);
        let took = |tokens: usize| Duration::from_micros(20_000 + 500 * tokens as u64);
        cost.note(7, took(7));
        let careful = cost.tokens_within(bound, 7);
        assert!((1..160).contains(&careful), "{careful}");
        cost.note(careful, took(careful));
        assert!(cost.tokens_within(bound, 7).abs_diff(160) < 3, "{}", cost.tokens_within(bound, 7));
        // Many answers later it is still known.
        (0..1000).for_each(|_| cost.note(7, took(7)));
        assert!(cost.tokens_within(bound, 7).abs_diff(160) < 3, "{}", cost.tokens_within(bound, 7));
        // And a machine that has become slower is believed.
        (0..50).for_each(|i| cost.note(7 + i, took(7 + i) * 4));
        assert!(cost.tokens_within(bound, 7) < 40);
    }

    #[test]
    fn prompts_go_on_where_answers_alone_take_too_long() {
        let mut cost = Cost::default();
        // A second for a step, and ten milliseconds a token: answers take 1070.
        let took = |tokens: usize| Duration::from_millis(1000 + 10 * tokens as u64);
        [7, 20, 50, 7].into_iter().for_each(|tokens| cost.note(tokens, took(tokens)));
        let tokens = cost.tokens_within(Duration::from_millis(100), 7);
        assert!((55..65).contains(&tokens), "{tokens}");
    }

    #[test]
    fn no_time_is_no_panic() {
        let mut cost = Cost::default();
        (0..9).for_each(|i| cost.note(i, Duration::ZERO));
        assert!(cost.tokens_within(Duration::from_millis(1), 1) > 1000);
    }
}
