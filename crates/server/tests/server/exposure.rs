//! Rows X1 to X9: who may reach what.

use lapidary_server::http::FILES;
use lapidary_server::{Config, documented};
use serde_json::{Value, json};

use crate::client::{Reply, exchange, get, post, post_as, request};
use crate::{CHAT, config, shared, source, start, story, until, weather, with};

fn from(host: &str, origin: Option<&str>) -> Reply {
    let body = story(1).to_string();
    let mut headers = vec![("host", host)];
    headers.extend(origin.map(|origin| ("origin", origin)));
    exchange(shared(), &request("POST", CHAT, &headers, body.as_bytes()))
}

#[test]
fn x1_other_names_and_other_pages_are_refused() {
    let own = format!("127.0.0.1:{}", shared().port());
    let page = format!("http://{own}");
    assert_eq!(from(&own, None).status, 200);
    assert_eq!(from(&own, Some(&page)).status, 200);
    assert_eq!(from("localhost", None).status, 200);
    for host in ["evil.com", "evil.com:8080", "localhost.evil.com", "192.168.0.1"] {
        let reply = from(host, None);
        assert_eq!((reply.status, reply.error("code")), (403, "forbidden".into()), "{host}");
        let read = exchange(shared(), &request("GET", "/v1/models", &[("host", host)], b""));
        assert_eq!(read.status, 403);
        let page = exchange(shared(), &request("GET", "/", &[("host", host)], b""));
        assert_eq!(page.status, 403);
    }
    for origin in ["http://evil.com", "null", "https://localhost", "http://127.0.0.1:1"] {
        assert_eq!(from(&own, Some(origin)).status, 403, "{origin}");
    }
    // No page is told that it may.
    let reply = from(&own, Some("http://evil.com"));
    assert_eq!(reply.header("access-control-allow-origin"), None);
    let asked = [("origin", "http://evil.com"), ("access-control-request-method", "POST")];
    let reply = exchange(shared(), &request("OPTIONS", CHAT, &asked, b""));
    assert_eq!(reply.status, 403);
}

#[test]
fn x1_pages_that_were_named_may_ask() {
    let config = Config {
        allow_origin: vec!["https://chat.example".into()],
        allow_host: vec!["models.example".into()],
        ..config()
    };
    let server = start(&config, vec![source("pebble")]);
    let asked = [("origin", "https://chat.example"), ("access-control-request-method", "POST")];
    let reply = exchange(server.at, &request("OPTIONS", CHAT, &asked, b""));
    assert_eq!(reply.status, 204);
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://chat.example"));
    assert_eq!(reply.header("access-control-allow-credentials"), None);
    let body = story(1).to_string();
    let headers = [("origin", "https://chat.example"), ("host", "models.example")];
    let reply = exchange(server.at, &request("POST", CHAT, &headers, body.as_bytes()));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("access-control-allow-origin"), Some("https://chat.example"));
}

#[test]
fn x2_every_route_needs_a_key() {
    let config = Config { api_key: vec!["sk-right".into(), "sk-other".into()], ..config() };
    let server = start(&config, vec![source("pebble")]);
    let (_, api) = documented();
    let public = ["/health", "/ready"];
    let mut n = 0;
    let api = serde_json::to_value(&api).unwrap();
    for (path, methods) in api["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            let path = path.replace("{id}", "x").replace("{owner}", "y");
            let call = |headers: &[(&str, &str)]| {
                exchange(server.at, &request(&method, &path, headers, b"{}"))
            };
            let expected = |reply: &Reply| match public.contains(&path.as_str()) {
                true => assert_ne!(reply.status, 401, "{path}"),
                false => assert_eq!(reply.status, 401, "{method} {path}: {}", reply.text()),
            };
            expected(&call(&[]));
            let wrong = ["sk-righ", "sk-right2", "SK-RIGHT", "", "sk-", "sk-right,sk-other"];
            for key in wrong {
                expected(&call(&[("authorization", &format!("Bearer {key}"))]));
                expected(&call(&[("x-api-key", key)]));
            }
            expected(&call(&[("authorization", "Basic c2stcmlnaHQ=")]));
            expected(&call(&[("authorization", "sk-right")]));
            assert_ne!(call(&[("authorization", "Bearer sk-right")]).status, 401);
            assert_ne!(call(&[("x-api-key", "sk-other")]).status, 401);
            // Anthropic's clients send two keys if they have a token of another server, too.
            let both = [("authorization", "Bearer another"), ("x-api-key", "sk-other")];
            assert_ne!(call(&both).status, 401);
            n += 1;
        }
    }
    assert!(n >= 17, "{n}");
    for path in ["/nothing", "/v1/nothing", "/api/nothing", "/v1/messages"] {
        assert_eq!(get(server.at, path).status, 401, "{path}");
    }
    // The page itself is public, and asks for a key.
    for file in FILES {
        assert_eq!(get(server.at, file.path).status, 200, "{}", file.path);
    }
    let reply = get(server.at, "/v1/models");
    assert_eq!(reply.error("type"), "authentication_error");
    assert!(reply.header("www-authenticate").is_some());
}

#[test]
fn the_root_is_a_page_for_people_and_a_word_for_programs() {
    let ask = |at, method: &str, headers: &[(&str, &str)]| {
        exchange(at, &request(method, "/", headers, b""))
    };
    let is_page = |reply: &Reply| {
        reply.status == 200 && reply.header("content-type") == Some("text/html; charset=utf-8")
    };
    let at = shared();
    for accept in ["text/html,application/xhtml+xml,*/*;q=0.8", "*/*"] {
        assert!(is_page(&ask(at, "GET", &[("accept", accept)])), "{accept}");
    }
    for headers in [
        vec![("accept", "application/json")],
        vec![("accept", "text/plain")],
        vec![("accept", "*/*"), ("user-agent", "ollama/0.13.0 (amd64 linux) Go/go1.25")],
    ] {
        let reply = ask(at, "GET", &headers);
        assert_eq!(
            (reply.status, reply.text().as_str()),
            (200, "Ollama is running"),
            "{headers:?}"
        );
    }
    assert_eq!(ask(at, "HEAD", &[]).status, 200);
    let posted = ask(at, "POST", &[]);
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET,HEAD")));
    // Ollama's own program asks this before everything else.
    let bare = start(&Config { no_page: true, ..config() }, vec![source("pebble")]);
    assert_eq!(ask(bare.at, "HEAD", &[]).status, 200);
    assert_eq!(ask(bare.at, "GET", &[("accept", "text/html")]).text(), "Ollama is running");
    assert_eq!(get(bare.at, "/app.js").status, 404);
}

#[test]
fn x3_others_are_not_served_without_a_key() {
    let open = Config { host: "0.0.0.0".parse().unwrap(), ..config() };
    let said = open.check().unwrap_err();
    assert!(said.contains("--api-key") && said.contains("--insecure"), "{said}");
    assert!(Config { host: "::".parse().unwrap(), ..config() }.check().is_err());
    assert!(Config { insecure: true, ..open.clone() }.check().is_ok());
    assert!(Config { api_key: vec!["x".into()], ..open.clone() }.check().is_ok());
    assert!(Config { api_key: vec![String::new()], ..open }.check().is_err());
    assert!(Config { host: "::1".parse().unwrap(), ..config() }.check().is_ok());
}

#[test]
fn x4_paths_lead_nowhere_else() {
    let paths = [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/app.js/../../../etc/passwd",
        "//etc/passwd",
        "/etc/passwd",
        "/index.html%00.js",
        "/Cargo.toml",
        "/v1/models/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/models/%2fetc%2fpasswd",
        "/v1/models/%ff%fe",
        "/v1/responses/..%2f..%2fetc%2fpasswd",
    ];
    for path in paths {
        let reply = get(shared(), path);
        assert!(matches!(reply.status, 400 | 404), "{path}: {}", reply.status);
        assert!(!String::from_utf8_lossy(&reply.body).contains("root:"), "{path}");
    }
}

#[test]
fn x5_only_names_that_are_served_are_models() {
    let names = [
        "/etc/passwd",
        "../pebble",
        "./pebble",
        "pebble/",
        "http://example.com/model.gguf",
        "file:///etc/passwd",
        "PEBBLE",
        "",
        "hf.co/google/gemma",
    ];
    for name in names {
        let reply = post(shared(), CHAT, &with(story(1), json!({"model": name})));
        assert_eq!((reply.status, reply.error("code")), (404, "model_not_found".into()), "{name}");
    }
    assert_eq!(post(shared(), CHAT, &with(story(1), json!({"model": "pebble"}))).status, 200);
}

#[test]
fn x7_the_page_runs_no_foreign_script() {
    let reply = get(shared(), "/");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = reply.header("content-security-policy").unwrap();
    for rule in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
    {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    let page = reply.text();
    assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
    // Every script has a file of its own.
    for script in page.split("<script").skip(1) {
        assert!(script.split('>').next().unwrap().contains("src="), "{script}");
    }
    // What is known is not sent again; what can be compressed is.
    let tag = reply.header("etag").unwrap();
    let again = exchange(shared(), &request("GET", "/", &[("if-none-match", tag)], b""));
    assert_eq!((again.status, again.body.len()), (304, 0));
    for file in FILES {
        let headers = [("accept-encoding", "gzip, br")];
        let small = exchange(shared(), &request("GET", file.path, &headers, b""));
        assert_eq!(small.header("content-encoding"), Some("br"), "{}", file.path);
        assert!(small.body.len() < file.plain.len());
        assert_eq!(get(shared(), file.path).body, file.plain);
    }
    let sum: usize = FILES.iter().map(|f| f.brotli.map_or(f.plain.len(), <[u8]>::len)).sum();
    assert!(sum < 200_000, "{sum}");
}

/// Rows X8 and X9 (see also `c6_…`).
#[test]
fn x8_nothing_that_was_said_is_logged() {
    let config = Config { api_key: vec!["sk-zanzibar".into()], ..config() };
    let server = start(&config, vec![source("pebble")]);
    let secret = "zanzibar";
    let tool = {
        let mut tool = weather();
        tool["function"]["name"] = "zanzibar_tool".into();
        tool
    };
    let body = json!({
        "messages": [{"role": "user", "content": secret}, {"role": "zanzibar", "content": "x"}],
        "stop": [secret], "user": secret, "tools": [tool], "metadata": {secret: secret},
    });
    assert_eq!(post_as(server.at, CHAT, "sk-zanzibar", &body).status, 400);
    let mut body = body;
    body["messages"] =
        json!([{"role": "system", "content": secret}, {"role": "user", "content": secret}]);
    assert_eq!(post_as(server.at, CHAT, "sk-zanzibar", &body).status, 200);
    assert_eq!(
        post_as(server.at, CHAT, "sk-zanzibar", &with(body.clone(), json!({"stream": true})))
            .status,
        200
    );
    let path = "/v1/models/zanzibar?key=zanzibar";
    let headers =
        [("x-api-key", "sk-zanzibar"), ("referer", "http://zanzibar"), ("user-agent", secret)];
    assert_eq!(exchange(server.at, &request("GET", path, &headers, b"")).status, 404);
    assert_eq!(post_as(server.at, CHAT, "zanzibar-wrong", &body).status, 401);
    assert_eq!(
        post_as(server.at, CHAT, "sk-zanzibar", &with(body, json!({"model": secret}))).status,
        404
    );
    until("all is logged", || server.log().matches("\"message\":\"request\"").count() == 6);
    let log = server.log();
    assert!(!log.to_lowercase().contains(secret), "{log}");
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["message"] == "request" {
            assert!(
                line["id"].is_string() && line["status"].is_u64() && line["ms"].is_f64(),
                "{line}"
            );
        }
    }
    assert!(
        log.contains("\"path\":\"/v1/models/{id}\"") && log.contains("\"new_tokens\""),
        "{log}"
    );
    let headers = [("x-api-key", "sk-zanzibar")];
    let metrics = exchange(server.at, &request("GET", "/metrics", &headers, b"")).text();
    assert!(!metrics.to_lowercase().contains(secret), "{metrics}");
}

#[test]
fn x9_requests_have_a_name() {
    let reply = get(shared(), "/health");
    assert!(reply.header("x-request-id").unwrap().starts_with("req_"));
    let named = |id: &str| {
        let reply = exchange(shared(), &request("GET", "/nothing", &[("x-request-id", id)], b""));
        assert_eq!(reply.json()["request_id"], reply.header("x-request-id").unwrap());
        reply.header("x-request-id").unwrap().to_string()
    };
    assert_eq!(named("my-own.1"), "my-own.1");
    assert_ne!(named("a b"), "a b");
    assert_ne!(named(&"x".repeat(200)), "x".repeat(200));
    assert_ne!(named("{\"x\":1}"), "{\"x\":1}");
}
