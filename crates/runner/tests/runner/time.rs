//! Times are of the clock that a runner is given. That the time between two tokens stays bounded is
//! tested in `conformance/tests/sharing`.

use std::sync::Arc;
use std::time::Duration;

use lapidary_mock_engine::{Mock, VirtualClock};
use lapidary_runner::{CancelToken, Clock, Runner, RunnerOptions};
use lapidary_text::PromptBuilder;

use crate::greedy;

struct Virtual(VirtualClock);

impl Clock for Virtual {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

pub(crate) fn runner(mock: &Mock) -> Runner {
    let prompts = PromptBuilder::new(&mock.program()).unwrap();
    let options = RunnerOptions::new(Arc::new(Virtual(mock.clock.clone())));
    Runner::with_options(mock.engine(), prompts, options).unwrap()
}

#[test]
fn statistics_are_of_the_clock_that_was_given() {
    let mock = Mock::default().sized(64, 8, 1);
    let mock = Mock { cost: (Duration::from_secs(1), Duration::ZERO), ..mock };
    let mut runner = runner(&mock);
    let finish = runner.generate(greedy(&[1; 20], 5), &CancelToken::new(), |_| {}).unwrap();
    // Three chunks, then four more tokens.
    assert_eq!(finish.stats.prefill_s, 3.0);
    assert_eq!(finish.stats.decode_s, 4.0);
    assert_eq!(finish.stats.first_token_s, Some(3.0));
}
