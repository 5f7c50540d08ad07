//! `lapidary chat --url`: a conversation with a server, over OpenAI's API.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::HumanBytes;
use lapidary::program::out_file::{Existing, OutFile};
use lapidary::{Event, Modality};
use lapidary_measure::{Events, ServerError, ServerUrl};
use lapidary_server::service::base64;
use serde_json::{Map, Value, json};

use super::command::{Command, HELP};
use super::{Line, full, instructions, may_save, talk};
use crate::args::ChatArgs;
use crate::exit::Usage;
use crate::interrupt::Interrupt;
use crate::media;
use crate::screen;
use crate::show::Shown;
use crate::target;
use crate::tell::tell;

/// The largest file that is sent: what is longer than any server takes.
const MAX_MEDIA: u64 = 256 << 20;

/// Talks until the user leaves.
pub fn run(args: &ChatArgs, url: &str) -> Result<()> {
    if let Some(path) = &args.save {
        target::check(path, args.force)?;
    }
    // `serve` takes several keys from the variable; any of them will do.
    let key = args.api_key.as_deref().and_then(|keys| keys.split(',').next());
    let url = ServerUrl::new(url, key.map(String::from)).map_err(|e| Usage(e.to_string()))?;
    let model = match &args.model.model {
        Some(name) => name.to_string_lossy().into_owned(),
        None => url.first_model()?,
    };
    let mut chat = Chat {
        url,
        model,
        messages: vec![],
        pending: vec![],
        system: args.system.clone(),
        settings: settings(args),
        think: args.think.then_some(true),
        last: None,
        interrupt: Interrupt::listen()?,
        plain: args.plain,
    };
    let name = chat.model.clone();
    talk(&name, |line| chat.line(line))?;
    match &args.save {
        Some(path) => chat.save(path),
        None => Ok(()),
    }
}

/// What the user chose; all else is the server's to choose.
fn settings(args: &ChatArgs) -> Map<String, Value> {
    let sampling = &args.sampling;
    // As it was typed: 0.7 is no 0.699999988.
    let real = |x: Option<f32>| x.and_then(|x| x.to_string().parse::<f64>().ok()).map(Value::from);
    let all = [
        ("temperature", real(sampling.temperature)),
        ("top_k", sampling.top_k.map(Value::from)),
        ("top_p", real(sampling.top_p)),
        ("min_p", real(sampling.min_p)),
        ("repetition_penalty", real(sampling.repetition_penalty)),
        ("seed", sampling.seed.map(Value::from)),
        ("max_tokens", Some(args.max_tokens.into())),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
}

struct Chat {
    url: ServerUrl,
    model: String,
    messages: Vec<Value>,
    /// What will be shown with the next message.
    pending: Vec<Value>,
    system: Option<String>,
    settings: Map<String, Value>,
    think: Option<bool>,
    /// How the last answer went.
    last: Option<Told>,
    interrupt: Interrupt,
    /// Whether answers are shown as they are.
    plain: bool,
}

impl Chat {
    /// Takes a line; whether the chat goes on.
    fn line(&mut self, line: &str) -> Result<bool> {
        if line.trim().is_empty() && self.pending.is_empty() {
            return Ok(true);
        }
        match Line::read(line) {
            Line::Command(command) => return self.command(command),
            Line::Wrong(what) => tell(format_args!("{what}")),
            Line::Said(text, files) => {
                for file in files {
                    if let Some(kind) = media::kind(&file) {
                        self.show(kind, &file)?;
                    }
                }
                if !text.is_empty() {
                    self.say(&text)?;
                }
            }
        }
        Ok(true)
    }

    fn command(&mut self, command: Command) -> Result<bool> {
        match command {
            Command::Help => tell(format_args!("{HELP}")),
            Command::Leave => return Ok(false),
            Command::Clear => {
                self.messages.clear();
                self.pending.clear();
                tell(format_args!("forgotten; this is a new conversation"));
            }
            Command::Drop(n) => self.drop_oldest(n),
            Command::Compact => {
                tell(format_args!("the server has the model; /drop forgets the oldest turns"));
            }
            Command::Stats => match &self.last {
                Some(told) => tell(format_args!("{}", told.statistics())),
                None => tell(format_args!("nothing was answered yet")),
            },
            Command::System(text) => {
                tell(format_args!("{}", instructions(text.as_deref())));
                self.system = text;
            }
            Command::Show(kind, path) => self.show(kind, &path)?,
            Command::Save(path) => {
                if may_save(&path) {
                    self.save(&path)?;
                }
            }
            Command::Set(None) => {
                let shown = self.settings.iter().map(|(name, value)| format!("{name} {value}"));
                let think = self.think.map(|on| format!("think {}", if on { "on" } else { "off" }));
                let all: Vec<String> = shown.chain(think).collect();
                tell(format_args!("{}", all.join(" · ")));
            }
            Command::Set(Some((name, value))) => match self.set(&name.replace('-', "_"), &value) {
                Ok(()) => tell(format_args!("{name} is {value}")),
                Err(what) => tell(format_args!("{what}")),
            },
        }
        Ok(true)
    }

    /// Sets one by its name. Ranges are the server's to check.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = || format!("{value} is not a value of {name}");
        let set = match name {
            "think" => {
                self.think = Some(match value {
                    "on" | "true" | "yes" => true,
                    "off" | "false" | "no" => false,
                    _ => return Err("think is on or off".into()),
                });
                return Ok(());
            }
            "seed" if value == "random" => {
                self.settings.remove(name);
                return Ok(());
            }
            "temperature" | "top_p" | "min_p" | "repetition_penalty" => {
                let x: f64 = value.parse().map_err(|_| wrong())?;
                // JSON has no other numbers.
                if !x.is_finite() {
                    return Err(wrong());
                }
                Value::from(x)
            }
            "max_tokens" if value.parse() == Ok(0u64) => {
                return Err("max_tokens must be 1 or more".into());
            }
            "top_k" | "seed" | "max_tokens" => {
                Value::from(value.parse::<u64>().map_err(|_| wrong())?)
            }
            _ => return Err(format!("there is no {name} to set; /help lists what there is")),
        };
        self.settings.insert(name.to_string(), set);
        Ok(())
    }

    fn show(&mut self, kind: Modality, path: &Path) -> Result<()> {
        let bytes = lapidary::program::read_at_most(path, MAX_MEDIA)
            .with_context(|| format!("can't read {}", path.display()))?;
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let ending = ending.to_ascii_lowercase();
        self.pending.push(part(kind, &ending, &base64::encode(&bytes)));
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let (name, what, size) = (screen::name(&name), kind.name(), HumanBytes(bytes.len() as u64));
        tell(format_args!("note: {name}: {what} of {size} goes with what you say next"));
        Ok(())
    }

    /// Says something and streams the answer. What fails before a word was said is taken back.
    fn say(&mut self, text: &str) -> Result<()> {
        let content = match self.pending.is_empty() {
            true => Value::from(text),
            false => {
                let said = json!({"type": "text", "text": text});
                self.pending.iter().cloned().chain([said]).collect()
            }
        };
        self.messages.push(json!({"role": "user", "content": content}));
        match self.answer() {
            Ok(told) => {
                self.pending.clear();
                match told.text.is_empty() && told.stopped.load(Ordering::SeqCst) {
                    true => _ = self.messages.pop(),
                    false => {
                        let said = json!({"role": "assistant", "content": told.text});
                        self.messages.push(said);
                    }
                }
                if told.is_cut {
                    tell(format_args!("note: {}", full::CUT));
                } else if told.stopped.load(Ordering::SeqCst) {
                    tell(format_args!("note: {}", full::STOPPED));
                }
                self.last = Some(told);
                Ok(())
            }
            Err(e) => {
                self.messages.pop();
                Err(e)
            }
        }
    }

    fn body(&self) -> Value {
        let mut body = self.settings.clone();
        body.insert("model".into(), self.model.as_str().into());
        body.insert("messages".into(), self.with_system());
        body.insert("stream".into(), true.into());
        body.insert("stream_options".into(), json!({"include_usage": true}));
        if let Some(on) = self.think {
            // What llama-server and vLLM take, too.
            body.insert("chat_template_kwargs".into(), json!({"enable_thinking": on}));
        }
        body.into()
    }

    fn with_system(&self) -> Value {
        let system = self.system.as_ref().map(|s| json!({"role": "system", "content": s}));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    fn answer(&mut self) -> Result<Told> {
        let begun = Instant::now();
        let events = self.url.events("/v1/chat/completions", &self.body().to_string())?;
        let (stopper, gone) = (events.stopper()?, events.stopper()?);
        let stopped = Arc::new(AtomicBool::new(false));
        let is_stopped = stopped.clone();
        self.interrupt.arm(move || {
            is_stopped.store(true, Ordering::SeqCst);
            stopper.stop();
        });
        let mut answer = Answer { events, begun, told: Told::new(stopped), is_over: false };
        let shown = Shown::rendered(self.plain).each(&mut answer, || gone.stop());
        self.interrupt.disarm();
        shown?;
        answer.told.whole = begun.elapsed();
        Ok(answer.told)
    }

    /// Forgets the oldest turns: what was said, with its answer.
    fn drop_oldest(&mut self, n: usize) {
        let is_user = |m: &Value| m["role"] == "user";
        let begins = self.messages.iter().enumerate().filter(|(_, m)| is_user(m)).map(|(i, _)| i);
        let begins: Vec<usize> = begins.collect();
        let from = begins.get(n).copied().unwrap_or(self.messages.len());
        self.messages.drain(..from);
        tell(format_args!("{}", full::dropped(n.min(begins.len()), begins.len())));
    }

    /// Writes the conversation, with its media.
    fn save(&mut self, path: &Path) -> Result<()> {
        let messages = self.with_system();
        let n = messages.as_array().map_or(0, Vec::len);
        let text = serde_json::to_string_pretty(&json!({"messages": messages}))?;
        let written = OutFile::create(path, Existing::Replace).and_then(|mut out| {
            out.write_all(text.as_bytes())?;
            out.finish()
        });
        written.with_context(|| format!("can't write {}", path.display()))?;
        tell(format_args!("saved {n} messages"));
        Ok(())
    }
}

/// A file as a part of a message.
fn part(kind: Modality, ending: &str, data: &str) -> Value {
    let mime = match ending {
        "jpg" => "jpeg",
        other => other,
    };
    match kind {
        Modality::Image => {
            let url = format!("data:image/{mime};base64,{data}");
            json!({"type": "image_url", "image_url": {"url": url}})
        }
        Modality::Audio => {
            json!({"type": "input_audio", "input_audio": {"data": data, "format": ending}})
        }
        Modality::Video => {
            let url = format!("data:video/{mime};base64,{data}");
            json!({"type": "video_url", "video_url": {"url": url}})
        }
    }
}

/// What was told, and how long it took.
struct Told {
    text: String,
    /// Tokens of the prompt, of them cached, and of the answer, as the server counts them.
    usage: Option<[u64; 3]>,
    n_pieces: u64,
    first: Option<Duration>,
    whole: Duration,
    /// Whether the server cut the answer.
    is_cut: bool,
    /// Whether the user ended it.
    stopped: Arc<AtomicBool>,
}

impl Told {
    fn new(stopped: Arc<AtomicBool>) -> Self {
        let (text, whole) = (String::new(), Duration::ZERO);
        Told { text, usage: None, n_pieces: 0, first: None, whole, is_cut: false, stopped }
    }

    /// How it went, in a line.
    fn statistics(&self) -> String {
        let first = self.first.unwrap_or(self.whole);
        let [prompt, cached, new] = self.usage.unwrap_or([0, 0, self.n_pieces]);
        let seconds = (self.whole - first).as_secs_f64();
        let rate = match new > 1 && seconds > 0.0 {
            true => format!("{:.1} tok/s", (new - 1) as f64 / seconds),
            false => "–".to_string(),
        };
        format!(
            "first token {:.2} s · prompt {prompt} ({cached} kept) · answer {new} ({rate})",
            first.as_secs_f64()
        )
    }
}

/// An answer while it comes.
struct Answer {
    events: Events,
    begun: Instant,
    told: Told,
    is_over: bool,
}

impl Iterator for Answer {
    type Item = Result<Event, ServerError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            let event = match self.events.next() {
                Some(Ok(data)) if data.trim() == "[DONE]" => Ok(None),
                Some(Ok(data)) => self.told.read(&data, self.begun),
                // Whoever ended it knows why.
                None | Some(Err(_)) if self.told.stopped.load(Ordering::SeqCst) => Ok(None),
                Some(Err(e)) => Err(e),
                // Some servers end without the last word.
                None => Ok(None),
            };
            match event {
                Ok(Some(Some(event))) => return Some(Ok(event)),
                Ok(Some(None)) => {}
                Ok(None) => self.is_over = true,
                Err(e) => {
                    self.is_over = true;
                    return Some(Err(e));
                }
            }
        }
        None
    }
}

impl Told {
    /// What an event says, if it is something to show.
    fn read(&mut self, data: &str, begun: Instant) -> Result<Option<Option<Event>>, ServerError> {
        let event: Value = serde_json::from_str(data)
            .map_err(|e| ServerError::Garbage(format!("an event is not JSON ({e})")))?;
        if let Some(error) = event.get("error").filter(|e| !e.is_null()) {
            let said = error.get("message").or(Some(error)).and_then(Value::as_str);
            return Err(ServerError::Failed(said.map_or_else(|| error.to_string(), String::from)));
        }
        let count = |at: &str| event.pointer(at).and_then(Value::as_u64);
        if let Some(prompt) = count("/usage/prompt_tokens") {
            let cached = count("/usage/prompt_tokens_details/cached_tokens").unwrap_or(0);
            self.usage = Some([prompt, cached, count("/usage/completion_tokens").unwrap_or(0)]);
        }
        if event.pointer("/choices/0/finish_reason").and_then(Value::as_str) == Some("length") {
            self.is_cut = true;
        }
        let delta = event.pointer("/choices/0/delta").unwrap_or(&Value::Null);
        let text = |name: &str| {
            let text = delta.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
            text.map(String::from)
        };
        let call = delta.pointer("/tool_calls/0").unwrap_or(&Value::Null);
        let index = call.get("index").and_then(Value::as_u64).unwrap_or(0) as usize;
        let part = |at: &str| call.pointer(at).and_then(Value::as_str).map(String::from);
        let shown = if let Some(text) = text("content") {
            self.text.push_str(&text);
            Some(Event::Text(text))
        } else if let Some(thought) = text("reasoning_content").or_else(|| text("reasoning")) {
            Some(Event::Thinking(thought))
        } else if let Some(name) = part("/function/name").filter(|name| !name.is_empty()) {
            Some(Event::ToolCallBegin { index, name })
        } else {
            part("/function/arguments").map(|json| Event::ToolCallArguments { index, json })
        };
        if shown.is_some() {
            self.n_pieces += 1;
            self.first.get_or_insert(begun.elapsed());
        }
        Ok(Some(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(told: &mut Told, event: Value) -> Option<Event> {
        told.read(&event.to_string(), Instant::now()).unwrap().unwrap()
    }

    #[test]
    fn events_of_any_server_are_shown() {
        let mut told = Told::new(Arc::default());
        let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
        assert!(read(&mut told, delta(json!({"role": "assistant", "content": ""}))).is_none());
        let thought = read(&mut told, delta(json!({"reasoning": "hm", "content": null})));
        assert!(matches!(thought, Some(Event::Thinking(t)) if t == "hm"));
        let said = read(&mut told, delta(json!({"content": "Hi"})));
        assert!(matches!(said, Some(Event::Text(t)) if t == "Hi"));
        let begun =
            json!({"tool_calls": [{"index": 1, "function": {"name": "f", "arguments": ""}}]});
        let begun = read(&mut told, delta(begun));
        assert!(matches!(begun, Some(Event::ToolCallBegin { index: 1, .. })));
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}});
        assert!(read(&mut told, usage).is_none());
        assert_eq!((told.text.as_str(), told.usage), ("Hi", Some([9, 0, 2])));
        for error in [json!({"error": {"message": "no"}}), json!({"error": "no"})] {
            let failed = told.read(&error.to_string(), Instant::now());
            assert!(matches!(failed, Err(ServerError::Failed(what)) if what == "no"));
        }
        assert!(told.read("{", Instant::now()).is_err());
    }
}
