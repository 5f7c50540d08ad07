//! Embeddings of texts.

use super::Engine;
use crate::error::{Error, Result};
use crate::request::Request;

/// What a text is to a model, as numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// The mean of the last hidden rows of its tokens.
    pub values: Vec<f32>,
    /// Tokens that it has.
    pub tokens: usize,
}

impl Embedding {
    /// Makes its length 1, as search engines want it.
    pub fn normalise(&mut self) {
        let square: f64 = self.values.iter().map(|x| f64::from(*x).powi(2)).sum();
        if square > 0.0 {
            let factor = 1.0 / square.sqrt();
            self.values.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
        }
    }
}

impl Engine {
    /// Embeddings of what requests say, in order: the mean of the last hidden rows over their tokens.
    /// They are computed in calls of their own, in turns with answers, several at once.
    ///
    /// ```no_run
    /// # let engine = lapidary::Model::pebble()?.load(lapidary::Load::default())?;
    /// use lapidary::Request;
    /// let embeddings = engine.embed([Request::text("a fox"), Request::text("a bear")])?;
    /// assert_eq!(embeddings.len(), 2);
    /// # Ok::<(), lapidary::Error>(())
    /// ```
    pub fn embed(&self, requests: impl IntoIterator<Item = Request>) -> Result<Vec<Embedding>> {
        let asked = requests.into_iter().map(|request| self.answer(request.embedding()));
        let answers = asked.collect::<Result<Vec<_>>>()?;
        answers
            .into_iter()
            .map(|answer| {
                let reply = answer.reply()?;
                let tokens = reply.finish.map_or(0, |finish| finish.stats.prompt_tokens);
                let missing = || Error::Stopped { what: "no embedding was made".into() };
                Ok(Embedding { values: reply.embedding.ok_or_else(missing)?, tokens })
            })
            .collect()
    }
}
