//! Templates that would take all memory, all time or all stack, each in a process of its own.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lapidary_text::{ChatInput, ChatTemplate, Message, TokenNames};

/// A name and a template. Each must be an error, or text.
fn hostile() -> Vec<(&'static str, String)> {
    let doubled = |start: &str, step: &str, then: &str| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}\
             {{% set ns.x = {step} %}}{{% endfor %}}{then}"
        )
    };
    let nested = |step: &str, then: &str| {
        format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(90000) %}}\
             {{% set ns.x = {step} %}}{{% endfor %}}{then}"
        )
    };
    let s = |text: &str| text.to_string();
    vec![
        // Stack: values.
        ("deep list printed", nested("[ns.x]", "{{ ns.x }}")),
        ("deep list dropped", nested("[ns.x]", "")),
        ("deep map as json", nested("{'a': ns.x}", "{{ ns.x | tojson }}")),
        ("deep tuple compared", nested("(ns.x,)", "{{ ns.x == ns.x }}")),
        ("deep list in a dict", nested("dict(a=ns.x)", "{{ ns.x | string }}")),
        ("deep by batch", nested("ns.x | batch(1) | list + [1]", "{{ ns.x }}")),
        ("deep by map", nested("[ns.x] | map('list') | list", "{{ ns.x }}")),
        ("deep list sorted", nested("[ns.x, ns.x]", "{{ [ns.x, ns.x] | sort }}")),
        (
            "a namespace in itself",
            s("{% set n = namespace() %}{% set n.n = n %}{{ n }}{{ n.n.n }}"),
        ),
        (
            "a namespace in a list in itself",
            s("{% set n = namespace() %}{% set n.n = [n] %}{{ n.n }}{{ n.n | tojson }}"),
        ),
        (
            "macros that see macros",
            nested("ns.x", "").replace(
                "{% set ns.x = ns.x %}",
                "{% set g = ns.x %}{% macro f() %}{{ g }}{% endmacro %}{% set ns.x = f %}",
            ),
        ),
        (
            "loops kept in loops",
            s("{% set ns = namespace(l=1) %}{% for i in range(90000) %}\
            {% for x in [ns.l] %}{% set ns.l = loop %}{% endfor %}{% endfor %}"),
        ),
        // Stack: syntax.
        ("unary signs", format!("{{{{ {}1 }}}}", "-".repeat(20_000))),
        ("not not", format!("{{{{ {}1 }}}}", "not ".repeat(20_000))),
        ("brackets", format!("{{{{ {}{} }}}}", "[".repeat(20_000), "]".repeat(20_000))),
        ("parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000))),
        ("braces", format!("{{{{ {} }}}}", "{1:".repeat(20_000))),
        ("attributes", format!("{{{{ a{} }}}}", ".a".repeat(20_000))),
        ("items", format!("{{{{ a{} }}}}", "[0]".repeat(20_000))),
        ("calls", format!("{{{{ a{} }}}}", "()".repeat(20_000))),
        ("filters", format!("{{{{ 1{} }}}}", "|abs".repeat(20_000))),
        ("tests", format!("{{{{ 1{} }}}}", " is defined".repeat(20_000))),
        ("sums", format!("{{{{ 1{} }}}}", "+1".repeat(20_000))),
        ("powers", format!("{{{{ 1{} }}}}", "**1".repeat(20_000))),
        ("joined", format!("{{{{ 1{} }}}}", "~1".repeat(20_000))),
        ("either or", format!("{{{{ 1{} }}}}", " or 1".repeat(20_000))),
        ("conditions", format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(10_000))),
        ("conditions without else", format!("{{{{ 1{} }}}}", " if 1".repeat(10_000))),
        ("comparisons", format!("{{{{ 1{} }}}}", " < 1".repeat(20_000))),
        ("blocks", "{% if 1 %}".repeat(20_000)),
        ("elif", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000))),
        ("loops", "{% for i in [1] %}".repeat(5000)),
        ("macros in macros", "{% macro f() %}".repeat(5000)),
        ("set blocks", "{% set x %}".repeat(5000)),
        ("targets", format!("{{% set {}x = 1 %}}", "(".repeat(20_000))),
        // Stack: calls.
        ("a macro calls itself", s("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")),
        (
            "macros call one another",
            s(
                "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
            ),
        ),
        (
            "a caller calls",
            s("{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}"),
        ),
        ("a loop calls itself", s("{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}")),
        // Memory.
        ("doubled by +", doubled("'x'", "ns.x + ns.x", "{{ ns.x | length }}")),
        ("doubled by ~", doubled("'x'", "ns.x ~ ns.x", "{{ ns.x | length }}")),
        ("doubled by format", doubled("'x'", "'%s%s' | format(ns.x, ns.x)", "")),
        ("doubled by str.format", doubled("'x'", "'{0}{0}'.format(ns.x)", "")),
        ("doubled by join", doubled("'x'", "[ns.x, ns.x] | join", "")),
        ("doubled by str.join", doubled("'x'", "ns.x.join([ns.x, ns.x])", "")),
        ("doubled by replace", doubled("'x'", "ns.x | replace('x', 'xx')", "")),
        ("doubled by str.replace", doubled("'x'", "ns.x.replace('x', 'xx')", "")),
        ("doubled by escape", doubled("'<'", "(ns.x | e) ~ ns.x", "")),
        ("doubled lists", doubled("[1]", "ns.x + ns.x", "{{ ns.x | length }}")),
        ("doubled pairs", doubled("[1]", "[ns.x, ns.x]", "{{ ns.x }}")),
        ("doubled pairs compared", doubled("[1]", "[ns.x, ns.x]", "{{ ns.x == ns.x }}")),
        ("doubled by chain", doubled("[1]", "ns.x | chain(ns.x)", "{{ ns.x | list | length }}")),
        ("doubled by zip", doubled("[1]", "ns.x | zip(ns.x) | list", "{{ ns.x }}")),
        ("doubled by sum", doubled("[1]", "[ns.x, ns.x] | sum(start=[])", "")),
        (
            "doubled by a block",
            doubled("'x'", "ns.x", "").replace(
                "{% set ns.x = ns.x %}",
                "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
            ),
        ),
        (
            "doubled by a macro",
            format!(
                "{{% macro f(x) %}}{{{{ x }}}}{{{{ x }}}}{{% endmacro %}}{}",
                doubled("'x'", "f(ns.x)", "")
            ),
        ),
        (
            "many values",
            s("{% set ns = namespace(x=[]) %}{% for i in range(99999) %}\
            {% set ns.x = ns.x + ['x' * 99999] %}{% endfor %}"),
        ),
        (
            "many names",
            s("{% for i in range(99999) %}{% for j in range(99999) %}\
            {% set x = namespace(a='x' * 9999) %}{% endfor %}{% endfor %}"),
        ),
        (
            "many loops",
            s("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
        ),
        (
            "many macros",
            s("{% for i in range(99999) %}{% for j in range(99999) %}\
            {% macro f() %}{% endmacro %}{% endfor %}{% endfor %}"),
        ),
        ("batch", s("{{ [1] | batch(10**10) }}")),
        ("batch filled", s("{{ [1] | batch(10**10, 0) }}")),
        ("batch by map", s("{{ [[1]] | map('batch', 10**10, 0) }}")),
        ("slice", s("{{ [1] | slice(10**10) }}")),
        ("slice filled", s("{{ [1] | slice(10**8, 0) | list }}")),
        ("format wide", s("{{ '%1000000000d' | format(1) }}")),
        ("format precise", s("{{ '%.1000000000f' | format(1.5) }}")),
        ("format by an argument", s("{{ '%*d' | format(1000000000, 1) }}")),
        (
            "format of many",
            format!("{{{{ '{}' | format({}) }}}}", "%999d".repeat(2000), vec!["1"; 1500].join(",")),
        ),
        ("percent", s("{{ '%1000000000d' % 1 }}")),
        ("str.format wide", s("{{ '{:1000000000}'.format(1) }}")),
        ("str.format nested", s("{{ '{:{}}'.format(1, 1000000000) }}")),
        ("str.format many", format!("{{{{ '{}'.format('x' * 99999) }}}}", "{0}".repeat(10_000))),
        ("range", s("{{ range(10**10) }}")),
        ("range backwards", s("{{ range(0, -10**18, -1) }}")),
        ("range wide", s("{{ range(-9223372036854775808, 9223372036854775807) }}")),
        ("repeat", s("{{ 'x' * 10**12 }}")),
        ("repeat constant", s("{{ 'x' * 99999999 }}")),
        ("repeat a list", s("{{ [1] * 10**12 }}")),
        ("power", s("{{ 10 ** 10 ** 10 }}")),
        ("replace nothing", s("{{ ('x' * 99999) | replace('', 'x' * 99999) }}")),
        ("indent", s("{{ ('\\n' * 99999) | indent(10**9) }}")),
        ("indent lines", s("{{ ('\\n' * 999999) | indent(999) }}")),
        ("center", s("{{ 'x' | center(10**10) }}")),
        ("wordwrap", s("{{ ('x' * 999999) | wordwrap(1, wrapstring='x' * 99999) }}")),
        ("ljust", s("{{ 'x'.ljust(10**10) }}")),
        ("zfill", s("{{ 'x'.zfill(10**10) }}")),
        ("tojson wide", s("{{ [[[[1]]]] | tojson(indent=10**10) }}")),
        ("join wide", s("{{ range(99999) | join('x' * 99999) }}")),
        ("split", s("{{ ('x ' * 4000000).split() | length }}")),
        ("letters", s("{{ ('x' * 8000000) | list | length }}")),
        ("text without end", s("{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}")),
        (
            "caught without end",
            s("{% set x %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}"),
        ),
        (
            "raw text caught",
            format!(
                "{{% set x %}}{{% for i in range(99999) %}}{}\
            {{% endfor %}}{{% endset %}}",
                "y".repeat(500_000)
            ),
        ),
        ("dates", s("{% for i in range(99999) %}{{ strftime_now('%A' * 99999) }}{% endfor %}")),
        ("a long template", "{{ 1 }}".repeat(140_000)),
        ("a wide list", format!("{{{{ [{}] | length }}}}", "1,".repeat(500_000))),
        // Time.
        (
            "lists sorted",
            s("{% set x = range(99999) | list %}{% for i in range(99999) %}\
            {{ x | sort | first }}{% endfor %}"),
        ),
        (
            "long texts searched",
            s("{% set x = 'a' * 999999 %}{% for i in range(99999) %}\
            {{ (x ~ 'b') in x }}{% endfor %}"),
        ),
        (
            "long texts counted",
            s("{% set x = 'a' * 999999 %}{% for i in range(99999) %}\
            {{ x | length }}{{ x.count('b') }}{{ x[-1] }}{% endfor %}"),
        ),
        (
            "many tests",
            s("{% set x = range(99999) | list %}{% for i in x %}\
            {{ x | select('in', x) | list | length }}{% endfor %}"),
        ),
        (
            "lookups",
            s("{% set x = range(99999) | list %}{% for i in x %}{{ -1 in x }}{% endfor %}"),
        ),
    ]
}

const CHILD: &str = "LAPIDARY_HOSTILE_TEMPLATE";

/// Bytes of this process that were in memory at most.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|n| n.trim().parse().ok());
    kib.unwrap_or(0usize) * 1024
}

/// Renders on a thread of 2 MiB and says how it ended.
fn child(name: &str) {
    let (_, source) = hostile().into_iter().find(|(n, _)| *n == name).unwrap();
    let before = peak();
    let rendered = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        let template = match ChatTemplate::new(&source, TokenNames::default()) {
            Ok(template) => template,
            Err(e) => return e.to_string(),
        };
        let messages = [Message::new("user", "hi")];
        let input = ChatInput { messages: &messages, ..ChatInput::default() };
        match template.render(&input, None) {
            Ok(text) => format!("{} bytes", text.text().len()),
            Err(e) => e.to_string(),
        }
    });
    let said = rendered.unwrap().join().unwrap();
    let said: String = said.chars().take(200).collect();
    std::fs::write(
        std::env::var_os("LAPIDARY_HOSTILE_OUT").unwrap(),
        format!("{}\n{said}", peak() - before),
    )
    .unwrap();
}

#[test]
fn f19_hostile_templates_end_soon_and_take_little() {
    if let Ok(name) = std::env::var(CHILD) {
        child(&name);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, _) in hostile() {
        let out = folder.path().join("out");
        let started = Instant::now();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "f19_hostile_templates_end_soon_and_take_little"])
            .env(CHILD, name)
            .env("LAPIDARY_HOSTILE_OUT", &out)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // One second is the limit; this machine may be slow, and the build without optimisation.
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > Duration::from_secs(30) {
                _ = child.kill();
                panic!("{name}: it does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{name}: {status}");
        let said = std::fs::read_to_string(&out).unwrap();
        let (bytes, said) = said.split_once('\n').unwrap();
        let bytes: usize = bytes.parse().unwrap();
        if std::env::var_os("LAPIDARY_TEST_TIMES").is_some() {
            println!("{name}: {} MiB, {:?}: {said}", bytes >> 20, started.elapsed());
        }
        assert!(bytes < 64 << 20, "{name}: {} MiB: {said}", bytes >> 20);
        assert!(!said.is_empty(), "{name}");
        std::fs::remove_file(&out).unwrap();
    }
}
