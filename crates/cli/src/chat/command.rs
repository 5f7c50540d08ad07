//! What begins with a slash.

use std::path::PathBuf;

use lapidary::{Modality, SamplingParams};

use super::drag;

/// A line of a chat that is not said to the model.
#[derive(Debug, PartialEq)]
pub enum Command {
    Help,
    Clear,
    /// Forget the oldest turns: so many.
    Drop(usize),
    /// Put a summary in place of what was said.
    Compact,
    Leave,
    Stats,
    System(Option<String>),
    Show(Modality, PathBuf),
    Save(PathBuf),
    Set(Option<(String, String)>),
}

/// What `/help` prints.
pub const HELP: &str = "\
/image FILE        show an image with what you say next; so do /video and /audio
                   (or drag files into the line)
/system [TEXT]     instructions for the model; without text, none
/set [NAME VALUE]  temperature, top_k, top_p, min_p, repetition_penalty, seed, max_tokens, think
/stats             speed of the last answer
/save FILE         the conversation as JSON
/clear             begin anew
/compact           put a summary in place of what was said, when the context is full
/drop [N]          forget the oldest N turns (one turn: what you said, and its answer)
/bye               leave; so does Ctrl-D
\"\"\" begins and ends a text of several lines; so does \\ at the end of a line, for one more.
Ctrl-C stops an answer; again, it leaves.";

/// Reads a line that begins with a slash.
pub fn parse(line: &str) -> Result<Command, String> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let file = || match rest {
        "" => Err(format!("{name} takes a file")),
        path => Ok(drag::path(path)),
    };
    Ok(match name {
        "/help" | "/?" => Command::Help,
        "/clear" => Command::Clear,
        "/compact" => Command::Compact,
        "/drop" if rest.is_empty() => Command::Drop(1),
        "/drop" => match rest.parse() {
            Ok(n) if n > 0 => Command::Drop(n),
            _ => return Err("/drop takes the number of turns to forget: 1 or more".into()),
        },
        "/bye" | "/exit" | "/quit" => Command::Leave,
        "/stats" => Command::Stats,
        "/system" => Command::System((!rest.is_empty()).then(|| rest.to_string())),
        "/image" => Command::Show(Modality::Image, file()?),
        "/video" => Command::Show(Modality::Video, file()?),
        "/audio" => Command::Show(Modality::Audio, file()?),
        "/save" => Command::Save(file()?),
        "/set" if rest.is_empty() => Command::Set(None),
        "/set" => {
            let (name, value) = rest
                .split_once(char::is_whitespace)
                .ok_or_else(|| format!("/set {rest} takes a value"))?;
            Command::Set(Some((name.to_string(), value.trim().to_string())))
        }
        _ => return Err(format!("{name} is not a command; /help lists them")),
    })
}

/// What can be set while chatting.
#[derive(Clone, Debug)]
pub struct Settings {
    pub params: SamplingParams,
    pub max_tokens: usize,
    pub think: bool,
}

impl Settings {
    /// Sets one by its name; checks it as a request would.
    pub fn set(&mut self, name: &str, value: &str, vocab_size: u32) -> Result<(), String> {
        fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
            value.parse().map_err(|_| format!("{value} is not a value of {name}"))
        }
        let mut new = self.clone();
        match name.replace('-', "_").as_str() {
            "temperature" => new.params.temperature = number(name, value)?,
            "top_k" => new.params.top_k = number(name, value)?,
            "top_p" => new.params.top_p = number(name, value)?,
            "min_p" => new.params.min_p = number(name, value)?,
            "repetition_penalty" => new.params.repetition_penalty = number(name, value)?,
            "seed" if value == "random" => new.params.seed = None,
            "seed" => new.params.seed = Some(number(name, value)?),
            "max_tokens" => match number(name, value)? {
                0 => return Err("max_tokens must be 1 or more".into()),
                n => new.max_tokens = n,
            },
            "think" => {
                new.think = match value {
                    "on" | "true" | "yes" => true,
                    "off" | "false" | "no" => false,
                    _ => return Err("think is on or off".into()),
                }
            }
            _ => return Err(format!("there is no {name} to set; /help lists what there is")),
        }
        new.params.check(vocab_size).map_err(|e| e.to_string())?;
        *self = new;
        Ok(())
    }

    /// All of them in a line.
    pub fn show(&self) -> String {
        let p = &self.params;
        let seed = p.seed.map_or("random".to_string(), |s| s.to_string());
        format!(
            "temperature {} · top_k {} · top_p {} · min_p {} · repetition_penalty {} · seed {seed} \
             · max_tokens {} · think {}",
            p.temperature,
            p.top_k,
            p.top_p,
            p.min_p,
            p.repetition_penalty,
            self.max_tokens,
            if self.think { "on" } else { "off" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_and_mistakes_named() {
        assert_eq!(parse("/bye"), Ok(Command::Leave));
        assert_eq!(parse("/system  be brief "), Ok(Command::System(Some("be brief".into()))));
        assert_eq!(parse("/system"), Ok(Command::System(None)));
        let shown = Command::Show(Modality::Image, "my cat.png".into());
        assert_eq!(parse("/image my\\ cat.png"), Ok(shown));
        let set = Command::Set(Some(("top_k".into(), "5".into())));
        assert_eq!(parse("/set top_k 5"), Ok(set));
        assert_eq!(parse("/drop"), Ok(Command::Drop(1)));
        assert_eq!(parse("/drop 3"), Ok(Command::Drop(3)));
        for wrong in
            ["/image", "/save ", "/set top_k", "/nonsense", "/drop 0", "/drop -1", "/drop x"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_are_checked_before_they_are_taken() {
        let mut s = Settings { params: SamplingParams::greedy(), max_tokens: 10, think: false };
        s.set("temperature", "0.5", 100).unwrap();
        s.set("max-tokens", "7", 100).unwrap();
        s.set("think", "on", 100).unwrap();
        assert_eq!((s.params.temperature, s.max_tokens, s.think), (0.5, 7, true));
        for (name, value) in [
            ("temperature", "-1"),
            ("temperature", "nan"),
            ("top_p", "2"),
            ("seed", "x"),
            ("max_tokens", "0"),
            ("what", "1"),
        ] {
            assert!(s.set(name, value, 100).is_err(), "{name}");
        }
        assert_eq!(s.params.temperature, 0.5);
    }
}
