use serde::Serialize;

/// How a generation went.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Seconds to load the program, as told to the runner.
    pub load_s: Option<f64>,
    /// Seconds from the request to its first token, waiting included.
    pub first_token_s: Option<f64>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them were in the caches already.
    pub reused_tokens: usize,
    /// Seconds that images and audio took to become soft tokens.
    pub encode_s: f64,
    /// Seconds from the first chunk to the first token, those left out.
    pub prefill_s: f64,
    /// Tokens that were sampled, the one that stopped it included.
    pub new_tokens: usize,
    /// Seconds from the first token to the last.
    pub decode_s: f64,
    /// The key of the draw.
    pub seed: u64,
    /// Calls that brought guesses of the next tokens along.
    pub draft_calls: usize,
    /// Tokens that were guessed.
    pub drafted_tokens: usize,
    /// How many of them were right.
    pub accepted_tokens: usize,
}

impl Stats {
    /// Prompt tokens that were run, per second.
    pub fn prefill_tokens_per_s(&self) -> Option<f64> {
        per_second(self.prompt_tokens.saturating_sub(self.reused_tokens), self.prefill_s)
    }

    /// Tokens after the first, per second.
    pub fn decode_tokens_per_s(&self) -> Option<f64> {
        per_second(self.new_tokens.saturating_sub(1), self.decode_s)
    }

    /// Tokens that a call with guesses gave, on average: those that were right, and the one after them.
    pub fn tokens_per_draft(&self) -> Option<f64> {
        let n = (self.accepted_tokens + self.draft_calls) as f64;
        (self.draft_calls > 0).then(|| n / self.draft_calls as f64)
    }
}

fn per_second(n: usize, seconds: f64) -> Option<f64> {
    (n > 0 && seconds > 0.0).then(|| n as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_leave_out_what_was_not_run() {
        let stats = Stats {
            prompt_tokens: 30,
            reused_tokens: 10,
            prefill_s: 2.0,
            new_tokens: 5,
            decode_s: 0.5,
            ..Stats::default()
        };
        assert_eq!(stats.prefill_tokens_per_s(), Some(10.0));
        assert_eq!(stats.decode_tokens_per_s(), Some(8.0));
        assert_eq!(Stats::default().decode_tokens_per_s(), None);
    }
}
