//! What templates expect of Python and minijinja does otherwise: printing of values, JSON with
//! Python's spacing, Python's white space, the date.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

/// Sets up filters, functions, methods and printing.
pub(super) fn install(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, _, value| {
        print(value, out).map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    env.add_filter("string", |value: &Value| {
        let mut out = String::new();
        print(value, &mut out).map_err(|_| Error::from(ErrorKind::WriteFailure))?;
        Ok::<_, Error>(out)
    });
    env.add_filter("trim", |text: &Value, chars: Option<String>| {
        let mut out = String::new();
        print(text, &mut out).map_err(|_| Error::from(ErrorKind::WriteFailure))?;
        Ok::<_, Error>(match chars {
            Some(chars) => out.trim_matches(|c| chars.contains(c)).to_string(),
            None => out.trim_matches(is_space).to_string(),
        })
    });
    env.add_filter("tojson", tojson);
    env.add_function("strftime_now", |format: String| strftime(&format, SystemTime::now()));
}

/// White space as `str.strip()` has it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str(value)`; nothing for what is undefined.
fn print(value: &Value, out: &mut dyn Write) -> std::fmt::Result {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
        _ => repr(value, out),
    }
}

/// `repr(value)`.
fn repr(value: &Value, out: &mut dyn Write) -> std::fmt::Result {
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.write_char('[')?;
            items(value, out, repr)?;
            out.write_char(']')
        }
        ValueKind::Map => {
            out.write_char('{')?;
            pairs(value, out, repr)?;
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

type Show = fn(&Value, &mut dyn Write) -> std::fmt::Result;

fn items(value: &Value, out: &mut dyn Write, show: Show) -> std::fmt::Result {
    for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        show(&item, out)?;
    }
    Ok(())
}

fn pairs(value: &Value, out: &mut dyn Write, show: Show) -> std::fmt::Result {
    for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        show(&key, out)?;
        out.write_str(": ")?;
        show(&value.get_item(&key).unwrap_or(Value::UNDEFINED), out)?;
    }
    Ok(())
}

/// Integers as they are, floats as Python writes them: shortest digits that round-trip, an
/// exponent below 1e-4 and from 1e16 on.
fn number(value: &Value, out: &mut dyn Write) -> std::fmt::Result {
    if value.is_integer() {
        return write!(out, "{value}");
    }
    let Ok(x) = f64::try_from(value.clone()) else { return write!(out, "{value}") };
    if x.is_nan() {
        return out.write_str("nan");
    }
    if x.is_infinite() {
        return out.write_str(if x > 0.0 { "inf" } else { "-inf" });
    }
    if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, size) = match exponent.strip_prefix('-') {
            Some(size) => ('-', size),
            None => ('+', exponent),
        };
        return write!(out, "{digits}e{sign}{size:0>2}");
    }
    write!(out, "{x:?}")
}

fn quoted(text: &str, out: &mut dyn Write) -> std::fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if (c as u32) < 0x20 || c as u32 == 0x7f => write!(out, "\\x{:02x}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char(quote)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`, as `transformers` defines the filter.
fn tojson(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(n) => Some(n),
        None => kwargs.get("indent")?,
    };
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    json(value, indent.map(|n| n.min(16)), 0, &mut out)
        .map_err(|_| Error::new(ErrorKind::BadSerialization, "this value has no JSON form"))?;
    Ok(out)
}

fn json(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> std::fmt::Result {
    let separate = |first: bool, out: &mut String| match (indent, first) {
        (Some(n), _) => {
            out.push_str(if first { "\n" } else { ",\n" });
            out.extend(std::iter::repeat_n(' ', n * (depth + 1)));
        }
        (None, true) => {}
        (None, false) => out.push_str(", "),
    };
    let close = |empty: bool, bracket: char, out: &mut String| {
        if let (Some(n), false) = (indent, empty) {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', n * depth));
        }
        out.push(bracket);
    };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(value, out)?,
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for item in value.try_iter().map_err(|_| std::fmt::Error)? {
                separate(empty, out);
                empty = false;
                json(&item, indent, depth + 1, out)?;
            }
            close(empty, ']', out);
        }
        ValueKind::Map => {
            out.push('{');
            let mut empty = true;
            for key in value.try_iter().map_err(|_| std::fmt::Error)? {
                separate(empty, out);
                empty = false;
                json_string(&key.to_string(), out);
                out.push_str(": ");
                let item = value.get_item(&key).map_err(|_| std::fmt::Error)?;
                json(&item, indent, depth + 1, out)?;
            }
            close(empty, '}', out);
        }
        _ => return Err(std::fmt::Error),
    }
    Ok(())
}

fn json_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// The common fields of `strftime`, in UTC; others stay as they are written.
fn strftime(format: &str, now: SystemTime) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        let field = match (c, c == '%') {
            (_, true) => chars.next(),
            (c, false) => {
                out.push(c);
                continue;
            }
        };
        out.push_str(&match field {
            Some('Y') => format!("{year}"),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.to_string(),
            Some('b') => month_name[..3].to_string(),
            Some('d') => format!("{day:02}"),
            Some('A') => day_name.to_string(),
            Some('a') => day_name[..3].to_string(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_string(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{:02}", second % 60),
            Some('%') | None => "%".to_string(),
            Some(other) => format!("%{other}"),
        });
    }
    out
}

/// Year, month and day of a day since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let leap = |y: u64| (y.is_multiple_of(4) && !y.is_multiple_of(100)) || y.is_multiple_of(400);
    let mut rest = days % 146_097;
    let mut year = 1970 + days / 146_097 * 400;
    while rest >= 365 + u64::from(leap(year)) {
        rest -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn values_print_as_in_python() {
        let shown = |json: &str| {
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            let mut out = String::new();
            print(&Value::from(minijinja::value::Serde(value)), &mut out).unwrap();
            out
        };
        let cases = [
            ("null", "None"),
            ("true", "True"),
            ("false", "False"),
            ("-7", "-7"),
            ("1.0", "1.0"),
            ("0.1", "0.1"),
            ("1e20", "1e+20"),
            ("1.5e-7", "1.5e-07"),
            ("1e16", "1e+16"),
            ("123456789012345.6", "123456789012345.6"),
            ("\"a'b\"", "a'b"),
            ("[1, \"a\", null]", "[1, 'a', None]"),
            ("{\"a\": [true], \"b\": \"it's\"}", "{'a': [True], 'b': \"it's\"}"),
        ];
        for (json, python) in cases {
            assert_eq!(shown(json), python, "{json}");
        }
    }

    #[test]
    fn dates() {
        let at = |s| UNIX_EPOCH + Duration::from_secs(s);
        assert_eq!(strftime("%d %b %Y", at(0)), "01 Jan 1970");
        assert_eq!(
            strftime("%A, %B %d %Y %H:%M:%S", at(951_827_696)),
            "Tuesday, February 29 2000 12:34:56"
        );
        assert_eq!(
            strftime("%Y-%m-%d %I %p 100%% %Q", at(4_102_444_799)),
            "2099-12-31 11 PM 100% %Q"
        );
    }
}
