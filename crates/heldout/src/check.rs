//! Whether an answer is right. The rules are those of `pebble/checks.py`, which scored the training.

use lapidary::text::Answer;
use lapidary_gemma::answer_format;

use crate::item::Check;

/// Whose calls the sets expect.
const ARCHITECTURE: &str = "gemma4";

/// Whether a reply, special tokens spelled out and its end left out, is right.
pub fn passes(check: &Check, reply: &str) -> bool {
    match check {
        Check::Equals { answers } => {
            let said = normal(reply);
            answers.iter().any(|answer| normal(answer) == said)
        }
        Check::Contains { words } => {
            let said = normal(reply);
            words.iter().all(|word| said.split(' ').any(|w| w == word))
        }
        Check::Number { number } => last_number(reply) == Some(*number),
        Check::ToolCall { name, arguments } => {
            let Some(format) = answer_format(ARCHITECTURE) else { return false };
            let answer = Answer::read(reply, &format);
            let alone = answer.text.trim().is_empty() && answer.thinking.is_empty();
            match answer.calls.as_slice() {
                [call] => alone && call.name == *name && call.arguments == *arguments,
                _ => false,
            }
        }
    }
}

/// Lower case, letters, digits and `-` alone, single spaces.
fn normal(text: &str) -> String {
    let kept = text.to_lowercase();
    let kept: String = kept
        .chars()
        .filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "- ".contains(*c))
        .collect();
    kept.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The last run of digits, with the `-` before it.
fn last_number(text: &str) -> Option<i64> {
    let end = text.rfind(|c: char| c.is_ascii_digit())? + 1;
    let head = &text[..end];
    let digits = head.trim_end_matches(|c: char| c.is_ascii_digit());
    let start = if digits.ends_with('-') { digits.len() - 1 } else { digits.len() };
    head[start..].parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(value: serde_json::Value) -> Check {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn answers_are_compared_without_case_and_punctuation() {
        let one = check(json!({"check": "equals", "answers": ["It is an oval.", "Oval"]}));
        for right in ["it is  an oval", "It is an OVAL!", " oval\n"] {
            assert!(passes(&one, right), "{right}");
        }
        for wrong in ["It is an oval shape", "", "It isan oval"] {
            assert!(!passes(&one, wrong), "{wrong}");
        }
    }

    #[test]
    fn words_are_whole_words() {
        let two = check(json!({"check": "contains", "words": ["red", "circle"]}));
        assert!(passes(&two, "A Red circle, on white."));
        assert!(!passes(&two, "A reddish circle."));
        assert!(!passes(&two, "Two red circles."));
    }

    #[test]
    fn the_last_number_counts() {
        let sum = check(json!({"check": "number", "number": 85}));
        assert!(passes(&sum, "47 + 38 = 85."));
        assert!(!passes(&sum, "85 = 47 + 38"));
        assert!(!passes(&sum, "eighty-five"));
        assert!(!passes(&sum, "-85"));
        assert!(!passes(&sum, "99999999999999999999"));
        assert!(passes(&check(json!({"check": "number", "number": -3})), "é: -3é"));
    }

    #[test]
    fn a_tool_call_is_valid_right_and_alone() {
        let arguments = json!({"room": "hall", "on": false});
        let call =
            check(json!({"check": "tool_call", "name": "turn_light", "arguments": arguments}));
        let said = "<|tool_call>call:turn_light{on:false,room:<|\"|>hall<|\"|>}<tool_call|>";
        assert!(passes(&call, said));
        assert!(!passes(&call, &said.replace("false", "true")));
        assert!(!passes(&call, &said.replace("turn_light", "turn_lights")));
        assert!(!passes(&call, &said.replace("on:false,", "")));
        assert!(!passes(&call, &format!("{said}{said}")));
        assert!(!passes(&call, &format!("Yes. {said}")));
    }
}
