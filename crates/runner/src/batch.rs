//! One `forward` call: its inputs, its run, and the search for what made it fail.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lapidary_backend::{Engine, Feed, Largest, Outputs};
use lapidary_program::{input, method};

use crate::error::{Error, Result};
use crate::sampler::all_finite;

/// The tokens of one call, of one or of many slots. Keeps its memory from call to call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tokens: Vec<i32>,
    slots: Vec<i32>,
    positions: Vec<i32>,
    horizons: Vec<i32>,
    rows: Vec<i32>,
    soft_index: Vec<i32>,
    soft: Vec<f32>,
    /// Soft rows in `soft`.
    n_soft: usize,
}

/// The output that holds the logits.
const LOGITS: &str = "logits";

impl Batch {
    pub(crate) fn with_capacity(tokens: usize) -> Self {
        Batch {
            tokens: Vec::with_capacity(tokens),
            slots: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            horizons: Vec::with_capacity(tokens),
            rows: Vec::with_capacity(tokens),
            soft_index: Vec::with_capacity(tokens),
            soft: Vec::new(),
            n_soft: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.slots.clear();
        self.positions.clear();
        self.horizons.clear();
        self.rows.clear();
        self.soft_index.clear();
        self.soft.clear();
        self.n_soft = 0;
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// Adds tokens of a slot from a position on.
    pub(crate) fn push(&mut self, slot: usize, position: usize, tokens: &[u32]) {
        // Ids, slots and positions were checked against limits that are far below 2³¹.
        self.tokens.extend(tokens.iter().map(|t| *t as i32));
        self.slots.extend(tokens.iter().map(|_| slot as i32));
        let positions = position..position + tokens.len();
        self.positions.extend(positions.clone().map(|p| p as i32));
        // Without a block every token sees up to itself.
        self.horizons.extend(positions.map(|p| p as i32));
        self.soft_index.extend(tokens.iter().map(|_| -1));
    }

    /// Lets a token see up to a later position.
    pub(crate) fn see_to(&mut self, token: usize, horizon: usize) {
        self.horizons[token] = horizon as i32;
    }

    /// Puts soft rows in the place of tokens from `token` on.
    pub(crate) fn put_soft(&mut self, token: usize, rows: &[f32], n: usize) {
        for (i, index) in self.soft_index[token..token + n].iter_mut().enumerate() {
            *index = (self.n_soft + i) as i32;
        }
        self.soft.extend_from_slice(rows);
        self.n_soft += n;
    }

    /// Asks for the logits of the newest token; returns the row they will have.
    pub(crate) fn ask_last(&mut self) -> usize {
        self.ask(self.tokens.len() - 1)
    }

    /// Asks for the logits of a token; returns the row they will have.
    pub(crate) fn ask(&mut self, token: usize) -> usize {
        self.rows.push(token as i32);
        self.rows.len() - 1
    }

    /// Runs the call. A panic of the engine is an error here.
    pub(crate) fn run(&self, engine: &mut dyn Engine, outputs: &mut Outputs) -> Result<()> {
        let call = AssertUnwindSafe(|| engine.run(method::FORWARD, &self.feeds(), outputs));
        match catch_unwind(call) {
            Ok(done) => Ok(done?),
            Err(panic) => Err(panicked(method::FORWARD, panic.as_ref())),
        }
    }

    /// The same, but of each row of logits only the `k` largest come back.
    pub(crate) fn run_largest(
        &self,
        engine: &mut dyn Engine,
        k: usize,
        largest: &mut Largest,
    ) -> Result<()> {
        let feeds = self.feeds();
        let run = || engine.run_largest(method::FORWARD, &feeds, LOGITS, k, largest);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(done) => Ok(done?),
            Err(panic) => Err(panicked(method::FORWARD, panic.as_ref())),
        }
    }

    /// Runs the call again, slowly, and names the first node that makes a number that is not
    /// finite.
    pub(crate) fn first_non_finite(&self, engine: &mut dyn Engine) -> Option<String> {
        let mut found = None;
        let mut sink = |node: usize, values: &[f32]| {
            if found.is_none() && !all_finite(values) {
                found = Some(node);
            }
        };
        let call = AssertUnwindSafe(|| engine.trace(method::FORWARD, &self.feeds(), &mut sink));
        // A failure of this second run changes nothing: the first failure is what is reported.
        let _ = catch_unwind(call);
        let forward = engine.program().method(method::FORWARD).ok()?;
        forward.graph.nodes.get(found?).map(|n| n.name.clone())
    }

    /// All inputs that a call may need; a method takes those it declares.
    fn feeds(&self) -> [Feed<'_>; 7] {
        [
            Feed::i32(input::TOKENS, &self.tokens),
            Feed::i32(input::SLOTS, &self.slots),
            Feed::i32(input::POSITIONS, &self.positions),
            Feed::i32(input::HORIZONS, &self.horizons),
            Feed::i32(input::ROWS, &self.rows),
            Feed::i32(input::SOFT_INDEX, &self.soft_index),
            Feed::f32(input::SOFT, &self.soft),
        ]
    }
}

/// The logits of a call, row after row.
pub(crate) fn logits(outputs: &Outputs) -> Result<(&[f32], usize)> {
    match outputs.get(LOGITS) {
        Some(t) if t.channels > 0 => Ok((&t.data, t.channels)),
        _ => Err(Error::Program(format!("method `forward` has no output `{LOGITS}`"))),
    }
}

pub(crate) fn panicked(method: &'static str, panic: &(dyn std::any::Any + Send)) -> Error {
    let what = panic
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it panicked".to_string());
    Error::EnginePanicked { method, what }
}
