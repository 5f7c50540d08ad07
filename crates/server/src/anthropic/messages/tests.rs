use serde_json::json;

use super::*;

fn read(system: Value, messages: Value) -> Result<Vec<Message>> {
    conversation(Some(&system), messages.as_array().unwrap(), &mut Vec::new())
}

fn texts(messages: &[Message]) -> Vec<(String, String)> {
    messages.iter().map(|m| (m.role.clone(), m.plain_text())).collect()
}

fn pair(role: &str, text: &str) -> (String, String) {
    (role.to_string(), text.to_string())
}

#[test]
fn what_is_for_accounting_is_no_instruction() {
    let user = json!([{"role": "user", "content": "Hi"}]);
    let block = |text: &str| json!({"type": "text", "text": text});
    for hash in ["1", "2"] {
        let billing = format!("x-anthropic-billing-header: cc_version=2; cch={hash};");
        let blocks = json!([block(&billing), block("Be brief."), block("Be kind.")]);
        let want = [pair("system", "Be brief.\n\nBe kind."), pair("user", "Hi")];
        assert_eq!(texts(&read(blocks, user.clone()).unwrap()), want);
        let one = json!(format!("{billing}\nBe brief."));
        assert_eq!(texts(&read(one, user.clone()).unwrap())[0], pair("system", "Be brief."));
        assert_eq!(texts(&read(json!(billing), user.clone()).unwrap()).len(), 1);
    }
}

#[test]
fn sides_alternate_and_results_stand_alone() {
    let messages = json!([
        {"role": "system", "content": "First."},
        {"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": true,
             "content": [{"type": "text", "text": "no"}]},
            {"type": "text", "text": "And now?"}]},
        {"role": "developer", "content": [{"type": "text", "text": "Mind the gap."}]},
    ]);
    let mut warnings = Vec::new();
    let all = conversation(None, messages.as_array().unwrap(), &mut warnings).unwrap();
    let want = [
        pair("system", "First."),
        pair("user", "a\nb\nc"),
        pair("assistant", "I look."),
        pair("tool", "Error: no"),
        pair("user", "And now?\n<system>\nMind the gap.\n</system>"),
    ];
    assert_eq!(texts(&all), want);
    assert_eq!(all[2].tool_calls[0].arguments["x"], 1);
    assert_eq!(all[2].thinking.as_deref(), Some("hm"));
    assert_eq!(all[3].name.as_deref(), Some("f"));
    assert!(warnings.len() == 1 && warnings[0].contains("messages.3.content.3"));
}

#[test]
fn what_is_wrong_is_named() {
    let user = |content: Value| json!({"role": "user", "content": content});
    let call = json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "t1", "name": "f", "input": {}}]});
    let result = |id: &str| user(json!([{"type": "tool_result", "tool_use_id": id}]));
    let cases = [
        (json!([]), "messages"),
        (json!(["x"]), "messages.0"),
        (json!([{"content": "x"}]), "messages.0.role"),
        (json!([{"role": "king", "content": "x"}]), "messages.0.role"),
        (json!([{"role": "user"}]), "messages.0.content"),
        (json!([user(json!(""))]), "messages.0.content"),
        (json!([user(json!([]))]), "messages.0.content"),
        (json!([user(json!([{"text": "x"}]))]), "messages.0.content.0.type"),
        (json!([user(json!([{"type": "text"}]))]), "messages.0.content.0.text"),
        (json!([user(json!([{"type": "song"}]))]), "messages.0.content.0.type"),
        (
            json!([user(
                json!([{"type": "image", "source": {"type": "url", "url": "http://a/b"}}])
            )]),
            "messages.0.content.0.source.url",
        ),
        (
            json!([user(json!([{"type": "image", "source": {"type": "base64", "data": "@"}}]))]),
            "messages.0.content.0.source.data",
        ),
        (
            json!([user(json!([{"type": "document", "source": {"type": "base64"}}]))]),
            "messages.0.content.0.source",
        ),
        (json!([user(json!("x")), {"role": "assistant", "content": "y"}]), "messages"),
        (json!([user(json!("x")), result("t1")]), "messages.1"),
        (json!([user(json!("x")), call, result("t2")]), "messages.2"),
        (json!([user(json!("x")), call, user(json!("y"))]), "messages.1"),
        (
            json!([user(json!("x")), {"role": "assistant", "content": [{"type": "tool_use",
            "id": "a", "name": "f", "input": 3}]}]),
            "messages.1.content.0.input",
        ),
    ];
    for (messages, param) in cases {
        let failure = read(Value::Null, messages.clone()).unwrap_err();
        assert_eq!(failure.param.as_deref(), Some(param), "{messages}");
        assert!(failure.message.contains(param), "{failure}");
        assert_eq!(failure.status.as_u16(), 400);
    }
    assert!(read(json!(3), json!([user(json!("x"))])).is_err());
    assert!(read(json!([{"type": "image"}]), json!([user(json!("x"))])).is_err());
}
