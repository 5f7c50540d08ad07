//! Requests and their answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lapidary_mock_engine::VirtualClock;
use lapidary_runner::{
    CancelToken, Clock, Event, GenerationId, Request, Runner, RunnerOptions, SamplingParams,
};
use lapidary_text::PromptBuilder;

use crate::engines::{Meter, On, Room, Use};

/// A token that no [`text`] has.
pub const STRANGE: u32 = 9;

/// A text of so many tokens that has nothing in common with those of other numbers.
pub fn text(n: usize, which: u32) -> Vec<u32> {
    let mix = |i: u32| (i ^ which.wrapping_mul(0x9E37_79B9)).wrapping_mul(2_654_435_761);
    let token = |i: u32| 10 + (mix(mix(i) >> 7) >> 16) % 200;
    // No two of the first numbers begin alike.
    std::iter::once(10 + which % 200).chain((1..n as u32).map(token)).take(n).collect()
}

/// Tokens of an answer, and how likely each was.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<f32>,
}

/// A request for so many tokens, drawn with a seed.
pub fn request(prompt: &[u32], max_new: usize, seed: u64) -> Request {
    let params = SamplingParams {
        temperature: 0.9,
        top_k: 40,
        seed: Some(seed),
        ..SamplingParams::default()
    };
    let request = Request::new(prompt.to_vec(), params);
    Request { max_new, ignore_eos: true, logprobs: Some(0), ..request }
}

struct Virtual(VirtualClock);

impl Clock for Virtual {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

/// A runner over an engine, in the time of its work.
pub fn runner(on: &On, room: Room) -> (Runner, Meter) {
    runner_of(on, room, Use::Tested)
}

pub fn runner_of(on: &On, room: Room, used: Use) -> (Runner, Meter) {
    let (engine, meter) = on.engine(room, used);
    let metadata = engine.program().metadata().clone();
    let prompts = PromptBuilder::with_parts(metadata, None, None);
    let options = RunnerOptions::new(Arc::new(Virtual(meter.clock.clone())));
    (Runner::with_options(engine, prompts, options).unwrap(), meter)
}

/// Each answer in a runner that knows nothing.
pub struct Fresh<'a> {
    on: &'a On,
    runner: Runner,
}

impl<'a> Fresh<'a> {
    pub fn new(on: &'a On, context: usize) -> Self {
        Fresh { on, runner: runner_of(on, Room::one(context), Use::Fresh).0 }
    }

    pub fn answer(&mut self, request: Request) -> Answer {
        self.runner.forget();
        answer(&mut self.runner, request)
    }

    /// Fails unless an answer is the one of a fresh run.
    pub fn check(&mut self, request: Request, got: &Answer, what: &str) {
        let wanted = self.answer(request);
        assert_same(got, &wanted, self.on.tolerance, what);
    }
}

pub fn assert_same(got: &Answer, wanted: &Answer, tolerance: f32, what: &str) {
    assert_eq!(got.tokens, wanted.tokens, "{what}");
    let pairs = got.logprobs.iter().zip(&wanted.logprobs);
    let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{what}: log-probabilities differ by {worst}");
}

/// One answer.
pub fn answer(runner: &mut Runner, request: Request) -> Answer {
    let mut answer = Answer::default();
    let finish = runner.generate(request, &CancelToken::new(), |event| answer.add(&event));
    assert_eq!(finish.unwrap().stats.new_tokens, answer.tokens.len());
    answer
}

impl Answer {
    pub fn add(&mut self, event: &Event<'_>) {
        if let Event::Token { id, logprobs } = event {
            self.tokens.push(*id);
            self.logprobs.push(logprobs.unwrap().logprob);
        }
    }
}

/// All answers in one runner at once.
pub fn together(runner: &mut Runner, requests: &[Request]) -> Vec<Answer> {
    let mut answers: BTreeMap<GenerationId, Answer> = BTreeMap::new();
    let cancel = CancelToken::new();
    let ids: Vec<GenerationId> =
        requests.iter().map(|r| runner.submit(r.clone(), &cancel).unwrap()).collect();
    while runner.step(&mut |id, event| {
        assert!(!matches!(event, Event::Failed(_)), "{event:?}");
        answers.entry(id).or_default().add(&event);
    }) {}
    ids.into_iter().map(|id| answers.remove(&id).unwrap()).collect()
}
