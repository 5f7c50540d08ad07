//! What templates expect of Python and minijinja does otherwise: printing of values, JSON with
//! Python's spacing, Python's white space, the date.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::Value;
use minijinja::value::ValueKind;

use super::value::List;

/// White space as `str.strip()` has it.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str(value)`; nothing for what is undefined.
pub(super) fn print(value: &Value, out: &mut dyn Write) -> std::fmt::Result {
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
            let tuple = value.downcast_object_ref::<List>().is_some_and(|list| list.tuple);
            out.write_char(if tuple { '(' } else { '[' })?;
            let n = items(value, out)?;
            if tuple && n == 1 {
                out.write_char(',')?;
            }
            out.write_char(if tuple { ')' } else { ']' })
        }
        ValueKind::Map => {
            out.write_char('{')?;
            pairs(value, out)?;
            out.write_char('}')
        }
        _ => write!(out, "{value}"),
    }
}

fn items(value: &Value, out: &mut dyn Write) -> Result<usize, std::fmt::Error> {
    let mut n = 0;
    for item in value.try_iter().into_iter().flatten() {
        if n > 0 {
            out.write_str(", ")?;
        }
        repr(&item, out)?;
        n += 1;
    }
    Ok(n)
}

fn pairs(value: &Value, out: &mut dyn Write) -> std::fmt::Result {
    for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        repr(&key, out)?;
        out.write_str(": ")?;
        repr(&value.get_item(&key).unwrap_or(Value::UNDEFINED), out)?;
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
pub(super) fn json(
    value: &Value,
    indent: Option<usize>,
    depth: usize,
    out: &mut dyn Write,
) -> std::fmt::Result {
    let separate = |first: bool, out: &mut dyn Write| match (indent, first) {
        (Some(n), _) => {
            out.write_str(if first { "\n" } else { ",\n" })?;
            write!(out, "{:1$}", "", n * (depth + 1))
        }
        (None, true) => Ok(()),
        (None, false) => out.write_str(", "),
    };
    let close = |empty: bool, bracket: char, out: &mut dyn Write| {
        if let (Some(n), false) = (indent, empty) {
            write!(out, "\n{:1$}", "", n * depth)?;
        }
        out.write_char(bracket)
    };
    match value.kind() {
        ValueKind::None => out.write_str("null"),
        ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => json_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.write_char('[')?;
            let mut empty = true;
            for item in value.try_iter().map_err(|_| std::fmt::Error)? {
                separate(empty, out)?;
                empty = false;
                json(&item, indent, depth + 1, out)?;
            }
            close(empty, ']', out)
        }
        ValueKind::Map => {
            out.write_char('{')?;
            let mut empty = true;
            for key in value.try_iter().map_err(|_| std::fmt::Error)? {
                separate(empty, out)?;
                empty = false;
                let mut name = String::new();
                print(&key, &mut name)?;
                json_string(&name, out)?;
                out.write_str(": ")?;
                let item = value.get_item(&key).map_err(|_| std::fmt::Error)?;
                json(&item, indent, depth + 1, out)?;
            }
            close(empty, '}', out)
        }
        _ => Err(std::fmt::Error),
    }
}

fn json_string(text: &str, out: &mut dyn Write) -> std::fmt::Result {
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\u{8}' => out.write_str("\\b")?,
            '\u{c}' => out.write_str("\\f")?,
            c if (c as u32) < 0x20 => write!(out, "\\u{:04x}", c as u32)?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

/// The common fields of `strftime`, in UTC; others stay as they are written.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
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
