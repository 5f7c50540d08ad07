//! Parts of responses that more than one route has.

use lapidary::{Logprobs, Model, Stats};
use serde_json::{Value, json};

use crate::service::{End, Reason, round};

/// OpenAI's word for how an answer ended.
pub(super) fn finish_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop | Reason::StopString(_) => "stop",
        Reason::Length => "length",
        Reason::Calls => "tool_calls",
    }
}

/// Tokens of all answers to one prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub prompt: usize,
    pub cached: usize,
    pub new: usize,
    pub thinking: usize,
}

impl Usage {
    /// Adds an answer.
    pub fn add(&mut self, end: &End) {
        let Stats { prompt_tokens, reused_tokens, new_tokens, .. } = end.finish.stats;
        self.prompt = self.prompt.max(prompt_tokens);
        self.cached = self.cached.max(reused_tokens);
        self.new += new_tokens;
        self.thinking += end.thinking_tokens;
    }

    /// Adds the first answer to one more prompt.
    pub fn add_prompt(&mut self, end: &End) {
        let Stats { prompt_tokens, reused_tokens, new_tokens, .. } = end.finish.stats;
        self.prompt += prompt_tokens;
        self.cached += reused_tokens;
        self.new += new_tokens;
        self.thinking += end.thinking_tokens;
    }

    /// Adds a further answer to a prompt that is counted with its first, whichever ends sooner.
    pub fn add_more(&mut self, end: &End) {
        self.new += end.finish.stats.new_tokens;
        self.thinking += end.thinking_tokens;
    }

    pub fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.new,
            "total_tokens": self.prompt + self.new,
            "prompt_tokens_details": {"cached_tokens": self.cached, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.thinking,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        })
    }
}

/// How long an answer took, in llama-server's words.
pub(super) fn timings(stats: &Stats) -> Value {
    let read = stats.prompt_tokens.saturating_sub(stats.reused_tokens);
    let (prompt_ms, predicted_ms) = (stats.prefill_s * 1e3, stats.decode_s * 1e3);
    let per = |ms: f64, n: usize| if n > 0 { round(ms / n as f64) } else { 0.0 };
    let after_first = stats.new_tokens.saturating_sub(1);
    json!({
        "cache_n": stats.reused_tokens,
        "prompt_n": read,
        "prompt_ms": round(prompt_ms),
        "prompt_per_token_ms": per(prompt_ms, read),
        "prompt_per_second": stats.prefill_tokens_per_s().map(round),
        "predicted_n": stats.new_tokens,
        "predicted_ms": round(predicted_ms),
        "predicted_per_token_ms": per(predicted_ms, after_first),
        "predicted_per_second": stats.decode_tokens_per_s().map(round),
        "encode_ms": round(stats.encode_s * 1e3),
        "first_token_ms": stats.first_token_s.map(|s| round(s * 1e3)),
    })
}

/// How likely the tokens of a text were. Special tokens are no part of a text.
pub(crate) fn logprobs(model: &Model, tokens: &[(u32, Logprobs)]) -> Value {
    let Ok(tokenizer) = model.tokenizer() else { return Value::Null };
    let one = |id: u32, logprob: f32| {
        let text = tokenizer.decode(&[id], true);
        // Half a letter has no text of its own; its bytes say what it is.
        let bytes = match tokenizer.token(id).and_then(byte_of) {
            Some(byte) => vec![byte],
            None => text.clone().into_bytes(),
        };
        json!({"token": text, "logprob": finite(logprob), "bytes": bytes})
    };
    let said = tokens.iter().filter(|(id, _)| !tokenizer.is_special(*id));
    let said = said.map(|(id, logprobs)| {
        let mut shown = one(*id, logprobs.logprob);
        let top: Vec<Value> = logprobs.top.iter().map(|(id, l)| one(*id, *l)).collect();
        shown["top_logprobs"] = top.into();
        shown
    });
    json!({"content": said.collect::<Vec<Value>>(), "refusal": null})
}

/// The byte of a token that is spelled `<0x0A>`.
pub(super) fn byte_of(spelling: &str) -> Option<u8> {
    let hex = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 2)
}

/// JSON has no infinity; OpenAI writes this for what can't be.
pub(super) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
