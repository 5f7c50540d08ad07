use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message of a conversation, as OpenAI and Hugging Face write it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What was said; nothing beside tool calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Tools that the assistant calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Which call a tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the assistant thought.
    #[serde(default, alias = "reasoning_content", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Whatever else the template may know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Text, or text and media in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Text alone.
    Text(String),
    /// Parts in order.
    Parts(Vec<Part>),
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text.
    #[serde(alias = "input_text", alias = "output_text")]
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    #[serde(alias = "image_url", alias = "input_image")]
    Image {
        /// Where it comes from; templates don't see it.
        #[serde(flatten)]
        source: Map<String, Value>,
    },
    /// Audio.
    #[serde(alias = "audio_url", alias = "input_audio")]
    Audio {
        /// Where it comes from; templates don't see it.
        #[serde(flatten)]
        source: Map<String, Value>,
    },
    /// Moving images.
    #[serde(alias = "video_url", alias = "input_video")]
    Video {
        /// Where it comes from; templates don't see it.
        #[serde(flatten)]
        source: Map<String, Value>,
    },
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the tool's answer refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// The function.
    pub function: FunctionCall,
}

/// A function's name and arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// Its name.
    pub name: String,
    /// An object, or its JSON text as OpenAI sends it.
    #[serde(default)]
    pub arguments: Value,
}

impl Message {
    /// A message of text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Message {
            role: role.into(),
            content: Some(Content::Text(text.into())),
            ..Message::default()
        }
    }

    /// What a template sees.
    pub(super) fn to_value(&self) -> Value {
        let mut map = self.extra.clone();
        map.insert("role".into(), self.role.as_str().into());
        match &self.content {
            Some(Content::Text(text)) => {
                map.insert("content".into(), text.as_str().into());
            }
            Some(Content::Parts(parts)) => {
                map.insert("content".into(), parts.iter().map(Part::to_value).collect());
            }
            None => {}
        }
        if let Some(calls) = &self.tool_calls {
            map.insert("tool_calls".into(), calls.iter().map(ToolCall::to_value).collect());
        }
        let texts = [
            ("tool_call_id", &self.tool_call_id),
            ("name", &self.name),
            // Templates are divided over the name.
            ("reasoning", &self.reasoning),
            ("reasoning_content", &self.reasoning),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                map.insert(key.into(), text.as_str().into());
            }
        }
        Value::Object(map)
    }
}

impl Part {
    fn to_value(&self) -> Value {
        match self {
            Part::Text { text } => serde_json::json!({"type": "text", "text": text}),
            Part::Image { .. } => serde_json::json!({"type": "image"}),
            Part::Audio { .. } => serde_json::json!({"type": "audio"}),
            Part::Video { .. } => serde_json::json!({"type": "video"}),
        }
    }
}

impl ToolCall {
    /// Templates want arguments as an object; OpenAI sends them as text.
    fn to_value(&self) -> Value {
        let arguments = match &self.function.arguments {
            Value::String(text) => match serde_json::from_str(text) {
                Ok(Value::Object(object)) => Value::Object(object),
                _ => Value::String(text.clone()),
            },
            other => other.clone(),
        };
        let mut map = Map::new();
        if let Some(id) = &self.id {
            map.insert("id".into(), id.as_str().into());
        }
        map.insert("type".into(), self.kind.as_str().into());
        let function = serde_json::json!({"name": self.function.name, "arguments": arguments});
        map.insert("function".into(), function);
        Value::Object(map)
    }
}

fn function() -> String {
    "function".to_string()
}
