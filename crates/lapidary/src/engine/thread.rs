//! The thread that owns the runner.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lapidary_runner::{CancelToken, Event as Told, FinishReason, GenerationId, Runner};
use lapidary_text::CallDelta;

use super::channel::{Sender, Sent};
use super::inbox::{Inbox, Job, Number, Taken, Tells, Wanted};
use super::metrics::Counters;
use crate::error::Error;
use crate::event::{Event, ToolCall};

/// One answer under way.
struct Open {
    number: Number,
    cancel: CancelToken,
    sender: Sender,
    tells: Tells,
    call_prefix: String,
    /// Tokens of the prompt that were told as read.
    read: usize,
    is_slow: bool,
}

/// Works until the inbox is closed, then lets go of the model. Whatever happens, nobody is left
/// waiting.
pub(super) fn run(runner: Runner, inbox: &Inbox, counters: &Counters) {
    let mut open = HashMap::new();
    let worked = catch_unwind(AssertUnwindSafe(|| {
        let mut runner = runner;
        work(&mut runner, inbox, &mut open, counters)
    }));
    let why = worked.unwrap_or_else(|panic| Error::Stopped { what: said(panic.as_ref()) });
    inbox.close(&why);
    for (_, Open { sender, .. }) in open {
        sender.end(Err(why.clone()));
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_string()
}

fn work(
    runner: &mut Runner,
    inbox: &Inbox,
    open: &mut HashMap<GenerationId, Open>,
    counters: &Counters,
) -> Error {
    // Jobs that wait until the runner is alone with one of them, in order.
    let mut waiting: VecDeque<Job> = VecDeque::new();
    loop {
        let idle = runner.n_generations() == 0;
        match inbox.take(idle && waiting.is_empty()) {
            Taken::Closed(why) => {
                for job in waiting {
                    if let Job::Answer(wanted) = job {
                        wanted.sender.end(Err(why.clone()));
                    }
                }
                return why;
            }
            Taken::Jobs(jobs) => waiting.extend(jobs),
        }
        while let Some(job) = waiting.pop_front() {
            match job {
                Job::Answer(wanted) => submit(runner, inbox, open, *wanted, counters),
                Job::Alone(work) if runner.n_generations() == 0 => work(runner),
                alone => {
                    waiting.push_front(alone);
                    break;
                }
            }
        }
        if runner.n_generations() > 0 {
            step(runner, inbox, open, counters);
        }
        counters.note(runner);
    }
}

fn submit(
    runner: &mut Runner,
    inbox: &Inbox,
    open: &mut HashMap<GenerationId, Open>,
    wanted: Wanted,
    counters: &Counters,
) {
    let Wanted { number, request, cancel, sender, tells, call_prefix } = wanted;
    // Whoever went before it was their turn is not answered.
    if cancel.is_cancelled() {
        counters.cancelled();
        inbox.done(number);
        sender.end(Err(inbox.closed().unwrap_or(lapidary_runner::Error::Cancelled.into())));
        return;
    }
    match runner.submit(request, &cancel) {
        Ok(id) => {
            let new = Open { number, cancel, sender, tells, call_prefix, read: 0, is_slow: false };
            open.insert(id, new);
        }
        Err(e) => {
            counters.failed();
            inbox.done(number);
            sender.end(Err(e.into()));
        }
    }
}

fn step(
    runner: &mut Runner,
    inbox: &Inbox,
    open: &mut HashMap<GenerationId, Open>,
    counters: &Counters,
) {
    let mut ended: Vec<(GenerationId, Result<Event, Error>)> = Vec::new();
    runner.step(&mut |id, told| {
        let Some(answer) = open.get_mut(&id) else { return };
        match told {
            Told::Finished(finish) => {
                let end = match finish.reason {
                    FinishReason::Cancelled if answer.is_slow => {
                        Err(Error::SlowReader { waited: answer.sender.waited() })
                    }
                    // Closing cancels too, and whoever waits is told which it was.
                    FinishReason::Cancelled => match inbox.closed() {
                        Some(why) => Err(why),
                        None => Ok(Event::Finished(finish.clone())),
                    },
                    _ => Ok(Event::Finished(finish.clone())),
                };
                counters.finished(finish);
                ended.push((id, end));
            }
            Told::Failed(e) => {
                counters.failed();
                ended.push((id, Err(e.clone().into())));
            }
            told => answer.tell(told),
        }
    });
    for (id, end) in ended {
        if let Some(Open { number, sender, .. }) = open.remove(&id) {
            inbox.done(number);
            sender.end(end);
        }
    }
    for (id, answer) in open.iter_mut().filter(|(_, a)| a.tells.progress) {
        if let Some((done, total)) = runner.prompt_progress(*id)
            && done > answer.read
        {
            answer.read = done;
            answer.send(Event::Progress { done, total });
        }
    }
}

impl Open {
    fn tell(&mut self, told: Told<'_>) {
        let event = match told {
            Told::Token { .. } if !self.tells.tokens => return,
            Told::Token { id, logprobs } => Event::Token { id, logprobs: logprobs.cloned() },
            Told::PromptLogprobs { first, tokens } => {
                Event::PromptLogprobs { first, tokens: tokens.to_vec() }
            }
            Told::Embedding { mean } => Event::Embedding(mean.to_vec()),
            Told::Text { text } => Event::Text(text.to_string()),
            Told::Thinking { text } => Event::Thinking(text.to_string()),
            Told::Call(call) => self.call(call),
            Told::Finished(_) | Told::Failed(_) => return,
        };
        self.send(event);
    }

    fn call(&self, call: CallDelta<'_>) -> Event {
        match call {
            CallDelta::Begin { index, name } => {
                Event::ToolCallBegin { index, name: name.to_string() }
            }
            CallDelta::Arguments { index, json } => {
                Event::ToolCallArguments { index, json: json.to_string() }
            }
            CallDelta::End { index, name, arguments, .. } => Event::ToolCall(ToolCall {
                index,
                id: format!("{}call_{index}", self.call_prefix),
                name: name.to_string(),
                // The parser writes objects, so there is always one.
                arguments: serde_json::from_str(arguments).unwrap_or_default(),
            }),
            CallDelta::Failed { index } => Event::ToolCallFailed { index },
        }
    }

    fn send(&mut self, event: Event) {
        // What was cancelled says nothing more, so nobody is waited for twice.
        if self.cancel.is_cancelled() {
            return;
        }
        match self.sender.send(event) {
            Sent::Taken => {}
            Sent::Gone => self.cancel.cancel(),
            Sent::TooSlow => {
                self.is_slow = true;
                self.cancel.cancel();
            }
        }
    }
}

/// Starts the thread.
pub(super) fn spawn(
    runner: Runner,
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("lapidary".into());
    thread.spawn(move || run(runner, &inbox, &counters))
}
