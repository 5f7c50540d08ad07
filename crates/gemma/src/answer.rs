//! How the members of the family write their answers.

use lapidary_program::{
    AnswerFormat, CallFormat, CallSyntax, Program, ThinkingFormat, ToolsInText,
};

use crate::error::Result;

/// How Gemma 3, whose template knows no tools, is told of them.
const GEMMA3_TOOLS: &str = "\
You can call tools. To call one, write nothing but a block of this form, with one JSON object on a \
line of its own for each call:
```tool_code
{\"name\": \"NAME\", \"parameters\": {\"KEY\": VALUE}}
```
What the tools return is shown to you in a ```tool_output block. Call a tool only if it helps to \
answer; otherwise answer in words. The tools:
";

/// The answer format of an architecture, by its word in a checkpoint; `None` for one that is not
/// known here.
pub fn answer_format(architecture: &str) -> Option<AnswerFormat> {
    if architecture.starts_with("gemma4") {
        return Some(gemma4());
    }
    architecture.starts_with("gemma3").then(gemma3)
}

/// Adds the answer format to a program whose file was written before files had one.
pub fn add_answer_format(program: &mut Program) -> Result<()> {
    let metadata = program.metadata();
    match answer_format(&metadata.architecture) {
        Some(format) if metadata.answer.is_none() => Ok(program.set_answer_format(format)?),
        _ => Ok(()),
    }
}

/// `<|channel>thought\n…\n<channel|>` and `<|tool_call>call:NAME{key:value,…}<tool_call|>`, strings
/// between `<|"|>`.
fn gemma4() -> AnswerFormat {
    AnswerFormat {
        thinking: Some(ThinkingFormat {
            open: "<|channel>".into(),
            header: "thought\n".into(),
            footer: "\n".into(),
            close: "<channel|>".into(),
            trim_history: true,
        }),
        calls: Some(CallFormat {
            open: "<|tool_call>".into(),
            close: "<tool_call|>".into(),
            syntax: CallSyntax::Braces { prefix: "call:".into(), quote: "<|\"|>".into() },
            told: None,
        }),
    }
}

/// A fence with a call in it, as the makers' guide has it. There is no thinking.
fn gemma3() -> AnswerFormat {
    AnswerFormat {
        thinking: None,
        calls: Some(CallFormat {
            open: "```tool_code\n".into(),
            close: "\n```".into(),
            syntax: CallSyntax::Code,
            told: Some(ToolsInText {
                instruction: GEMMA3_TOOLS.into(),
                open: "```tool_output\n".into(),
                close: "\n```".into(),
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_released_model_has_a_format_and_only_the_fourth_thinks() {
        for released in crate::RELEASED {
            let program = released.skeleton().unwrap();
            let metadata = program.metadata();
            let format = metadata.answer.as_ref().unwrap();
            assert!(format.calls.is_some(), "{}", metadata.name);
            let thinks = metadata.architecture.starts_with("gemma4");
            assert_eq!(format.thinking.is_some(), thinks, "{}", metadata.name);
        }
        assert_eq!(answer_format("llama"), None);
    }

    #[test]
    fn formats_are_kept_in_files_as_they_are() {
        for format in [gemma3(), gemma4()] {
            let json = serde_json::to_string(&format).unwrap();
            assert_eq!(serde_json::from_str::<AnswerFormat>(&json).unwrap(), format, "{json}");
        }
    }
}
