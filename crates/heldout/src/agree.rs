//! Where two engines part ways.

use lapidary::runner::Rows;
use lapidary::{Engine, Prompt};
use serde::Serialize;

use crate::ask::Answer;
use crate::error::Result;

/// The first token that two engines choose differently, everything before it being the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Tokens of the answer that are the same.
    pub same: usize,
    /// What each of the two chose.
    pub sides: [Side; 2],
}

/// What one engine chose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The token; `None` where an answer has no more, because it may not be longer.
    pub token: Option<u32>,
    /// Its spelling.
    pub text: String,
    /// By how much this engine's logit of its own token is above that of the other's token: how
    /// little it would take to change its mind.
    pub margin: Option<f32>,
}

/// Compares the answers of two engines to the same prompt.
pub fn compare(
    engines: [&Engine; 2],
    prompt: &Prompt,
    answers: [&Answer; 2],
) -> Result<Option<Difference>> {
    let [a, b] = answers.map(|answer| answer.tokens.as_slice());
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let next = [a.get(same).copied(), b.get(same).copied()];
    if next == [None, None] {
        return Ok(None);
    }
    let mut fed = prompt.tokens.clone();
    fed.extend(&a[..same]);
    let [first, second] = engines;
    let sides = [
        side(first, (&fed, prompt), next[0], next[1])?,
        side(second, (&fed, prompt), next[1], next[0])?,
    ];
    Ok(Some(Difference { same, sides }))
}

fn side(
    engine: &Engine,
    (fed, prompt): (&[u32], &Prompt),
    own: Option<u32>,
    other: Option<u32>,
) -> Result<Side> {
    let text = match (own, engine.model().tokenizer()) {
        (Some(id), Ok(tokenizer)) => tokenizer.token(id).unwrap_or_default().to_string(),
        _ => String::new(),
    };
    let mut margin = None;
    if let (Some(own), Some(other)) = (own, other) {
        let (fed, soft) = (fed.to_vec(), prompt.soft.clone());
        let found = engine.with_runner(move |runner| {
            let mut margin = None;
            runner.logits_with(&fed, &soft, Rows::Last, None, &mut |_, row| {
                margin = row.get(own as usize).zip(row.get(other as usize)).map(|(a, b)| a - b);
            })?;
            Ok::<_, lapidary::runner::Error>(margin)
        })?;
        margin = found.map_err(lapidary::Error::from)?;
    }
    Ok(Side { token: own, text, margin })
}
