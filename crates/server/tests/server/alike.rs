//! Same seed, same answer, through whichever API.

use serde_json::{Value, json};

use crate::client::post;
use crate::{CHAT, shared};

fn three(question: &str, system: Option<&str>, seed: u64) -> [String; 3] {
    let user = json!({"role": "user", "content": question});
    let mut messages = vec![user.clone()];
    if let Some(system) = system {
        messages.insert(0, json!({"role": "system", "content": system}));
    }
    let text = |path: &str, body: Value, at: &str| {
        let reply = post(shared(), path, &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json().pointer(at).unwrap().as_str().unwrap().to_string()
    };
    let (temperature, n) = (0.9, 32);
    let openai = json!({"model": "pebble", "messages": messages, "temperature": temperature,
        "seed": seed, "max_tokens": n});
    let anthropic = json!({"model": "pebble", "messages": [user], "system": system,
        "temperature": temperature, "seed": seed, "max_tokens": n});
    let ollama = json!({"model": "pebble", "messages": messages, "stream": false,
        "options": {"temperature": temperature, "seed": seed, "num_predict": n}});
    [
        text(CHAT, openai, "/choices/0/message/content"),
        text("/v1/messages", anthropic, "/content/0/text"),
        text("/api/chat", ollama, "/message/content"),
    ]
}

#[test]
fn the_same_seed_gives_the_same_answer_through_all_three() {
    let mut said = Vec::new();
    for seed in [1, 2, 3] {
        let question = "Tell me a story about a brave fox.";
        let [a, b, c] = three(question, (seed == 2).then_some("Be brief."), seed);
        assert_eq!(a, b);
        assert_eq!(a, c);
        said.push(a);
    }
    // Seeds matter.
    assert_ne!(said[0], said[2]);
}
