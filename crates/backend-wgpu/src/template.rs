//! Turns a shader template into WGSL.
//!
//! Kernels are written once and unrolled for a layout, a tile and a device. Directives, each on a
//! line of its own, and one substitution are enough for that:
//!
//! - `#include NAME` stands for another file;
//! - `#if EXPR` … `#else` … `#endif` keeps lines if the expression is not zero;
//! - `#for NAME FROM TO` … `#endfor` repeats lines with `NAME` = `FROM` .. `TO`, the end excluded;
//! - `$(EXPR)` becomes the value.
//!
//! Expressions are integers, names, `( )`, `!`, `* / %`, `+ -`, comparisons, `&&` and `||`.
//! A name that is not defined is 0 after `#if`, so that switches need not be named to be off.

use std::collections::HashMap;

/// What names stand for.
pub(crate) type Defines = HashMap<String, i64>;

/// Where included files come from.
pub(crate) type Files<'f> = &'f dyn Fn(&str) -> Option<&'static str>;

/// Expands a file, or says what is wrong with it.
pub(crate) fn expand(stem: &str, files: Files<'_>, defines: &Defines) -> Result<String, String> {
    let mut out = String::new();
    let mut expander = Expander { files, defines: defines.clone(), out: &mut out, depth: 0 };
    expander.file(stem)?;
    Ok(out)
}

/// No file includes others so deep.
const MAX_DEPTH: usize = 8;

struct Expander<'a> {
    files: Files<'a>,
    defines: Defines,
    out: &'a mut String,
    depth: usize,
}

impl Expander<'_> {
    fn file(&mut self, stem: &str) -> Result<(), String> {
        let told = |what: String| format!("shader `{stem}`: {what}");
        let text = (self.files)(stem).ok_or_else(|| told("there is no such file".to_string()))?;
        if self.depth == MAX_DEPTH {
            return Err(told("it includes itself".to_string()));
        }
        let lines: Vec<_> = text.lines().enumerate().map(|(i, line)| (i + 1, line)).collect();
        self.depth += 1;
        self.lines(&lines).map_err(told)?;
        self.depth -= 1;
        Ok(())
    }

    fn lines(&mut self, lines: Lines<'_>) -> Result<(), String> {
        let mut at = 0;
        while let Some(&(number, line)) = lines.get(at) {
            at += 1;
            let Some(directive) = line.trim_start().strip_prefix('#') else {
                self.substitute(line, number)?;
                self.out.push('\n');
                continue;
            };
            if let Some(name) = directive.strip_prefix("include ") {
                self.file(name.trim())?;
                continue;
            }
            let (body, otherwise, next) = inside(lines, at, number)?;
            if let Some(condition) = directive.strip_prefix("if ") {
                let holds = Parser::value(condition, number, &self.defines, Some(0))? != 0;
                self.lines(if holds { body } else { otherwise })?;
            } else if let Some(range) = directive.strip_prefix("for ") {
                self.repeat(range, number, body)?;
            } else {
                return Err(fault(number, "an unknown directive"));
            }
            at = next;
        }
        Ok(())
    }

    fn repeat(&mut self, range: &str, number: usize, body: Lines<'_>) -> Result<(), String> {
        let words: Vec<_> = range.split_whitespace().collect();
        let [name, from, to] = words[..] else {
            return Err(fault(number, "`#for` needs a name and two bounds without spaces"));
        };
        let bound = |text| Parser::value(text, number, &self.defines, None);
        let (from, to) = (bound(from)?, bound(to)?);
        let before = self.defines.get(name).copied();
        for i in from..to {
            self.defines.insert(name.to_string(), i);
            self.lines(body)?;
        }
        match before {
            Some(old) => self.defines.insert(name.to_string(), old),
            None => self.defines.remove(name),
        };
        Ok(())
    }

    fn substitute(&mut self, line: &str, number: usize) -> Result<(), String> {
        let mut rest = line;
        while let Some(start) = rest.find("$(") {
            self.out.push_str(&rest[..start]);
            let inner = &rest[start + 2..];
            let end = closing(inner).ok_or_else(|| fault(number, "no `)`"))?;
            let value = Parser::value(&inner[..end], number, &self.defines, None)?;
            self.out.push_str(&value.to_string());
            rest = &inner[end + 1..];
        }
        self.out.push_str(rest);
        Ok(())
    }
}

/// Lines with their numbers.
type Lines<'a> = &'a [(usize, &'a str)];

/// The lines of a directive that starts before `from`, those after its `#else`, and the index
/// after its end.
fn inside<'a>(
    lines: Lines<'a>,
    from: usize,
    number: usize,
) -> Result<(Lines<'a>, Lines<'a>, usize), String> {
    let (mut depth, mut middle) = (0, None);
    for (i, (_, line)) in lines.iter().enumerate().skip(from) {
        let line = line.trim_start();
        if line.starts_with("#if ") || line.starts_with("#for ") {
            depth += 1;
        } else if line.starts_with("#else") && depth == 0 {
            middle = Some(i);
        } else if line.starts_with("#end") {
            if depth == 0 {
                let split = middle.unwrap_or(i);
                let rest = (split + 1).min(i);
                return Ok((&lines[from..split], &lines[rest..i], i + 1));
            }
            depth -= 1;
        }
    }
    Err(fault(number, "no end of it"))
}

fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(i),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn fault(line: usize, message: impl AsRef<str>) -> String {
    format!("line {line}: {}", message.as_ref())
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
    defines: &'a Defines,
    /// What a name without a value is, if it may be.
    unknown: Option<i64>,
}

/// Operators with their strength; longer ones first.
const OPERATORS: [(&str, u8); 13] = [
    ("||", 1),
    ("&&", 2),
    ("==", 3),
    ("!=", 3),
    ("<=", 3),
    (">=", 3),
    ("<", 3),
    (">", 3),
    ("+", 4),
    ("-", 4),
    ("*", 5),
    ("/", 5),
    ("%", 5),
];

impl Parser<'_> {
    fn value(
        text: &str,
        line: usize,
        defines: &Defines,
        unknown: Option<i64>,
    ) -> Result<i64, String> {
        let mut parser = Parser { rest: text, line, defines, unknown };
        let value = parser.binary(0)?;
        if parser.rest.trim().is_empty() {
            Ok(value)
        } else {
            Err(fault(line, format!("what is `{}`?", parser.rest)))
        }
    }

    fn binary(&mut self, strength: u8) -> Result<i64, String> {
        let mut left = self.unary()?;
        loop {
            self.rest = self.rest.trim_start();
            let found = OPERATORS.iter().find(|(op, _)| self.rest.starts_with(op));
            let Some(&(op, own)) = found.filter(|(_, own)| *own > strength) else {
                return Ok(left);
            };
            self.rest = &self.rest[op.len()..];
            let right = self.binary(own)?;
            let result = match op {
                "||" => Some(i64::from(left != 0 || right != 0)),
                "&&" => Some(i64::from(left != 0 && right != 0)),
                "==" => Some(i64::from(left == right)),
                "!=" => Some(i64::from(left != right)),
                "<=" => Some(i64::from(left <= right)),
                ">=" => Some(i64::from(left >= right)),
                "<" => Some(i64::from(left < right)),
                ">" => Some(i64::from(left > right)),
                "+" => left.checked_add(right),
                "-" => left.checked_sub(right),
                "*" => left.checked_mul(right),
                "/" => left.checked_div(right),
                _ => left.checked_rem(right),
            };
            left = result.ok_or_else(|| fault(self.line, format!("`{op}` has no result")))?;
        }
    }

    fn unary(&mut self) -> Result<i64, String> {
        self.rest = self.rest.trim_start();
        if let Some(rest) = self.rest.strip_prefix('!') {
            self.rest = rest;
            return Ok(i64::from(self.unary()? == 0));
        }
        if let Some(rest) = self.rest.strip_prefix('(') {
            self.rest = rest;
            let value = self.binary(0)?;
            self.rest = self.rest.trim_start();
            let rest = self.rest.strip_prefix(')').ok_or_else(|| fault(self.line, "no `)`"))?;
            self.rest = rest;
            return Ok(value);
        }
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.parse() {
            Ok(number) => Ok(number),
            Err(_) => self
                .defines
                .get(word)
                .copied()
                .or(self.unknown)
                .ok_or_else(|| fault(self.line, format!("`{word}` is not defined"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Defines, expand};

    fn made(text: &'static str, defines: &[(&str, i64)]) -> Result<String, String> {
        let files = |stem: &str| match stem {
            "main" => Some(text),
            "other" => Some("other $(N)"),
            "again" => Some("#include again"),
            _ => None,
        };
        let defines: Defines = defines.iter().map(|(n, v)| ((*n).to_string(), *v)).collect();
        expand("main", &files, &defines)
    }

    #[test]
    fn unrolls_and_chooses() {
        let text = "#for I 0 N\n#if I % 2 == 0\na_$(I) = $(I*(4+1));\n#else\nb\n#endif\n#endfor\nz";
        assert_eq!(made(text, &[("N", 3)]).unwrap(), "a_0 = 0;\nb\na_2 = 10;\nz\n");
    }

    #[test]
    fn includes_know_the_same_names() {
        assert_eq!(made("#include other", &[("N", 7)]).unwrap(), "other 7\n");
        assert!(made("#include none", &[]).unwrap_err().contains("no such file"));
        assert!(made("#include again", &[]).unwrap_err().contains("includes itself"));
    }

    #[test]
    fn switches_need_no_name_to_be_off() {
        assert_eq!(made("#if OFF\na\n#else\nb\n#endif", &[]).unwrap(), "b\n");
        let told = made("x\n$(OFF)", &[]).unwrap_err();
        assert_eq!(told, "shader `main`: line 2: `OFF` is not defined");
    }

    #[test]
    fn faults_are_told() {
        assert!(made("#if 1\nx", &[]).unwrap_err().contains("no end"));
        assert!(made("#what\n#endif", &[]).unwrap_err().contains("unknown directive"));
        assert!(made("$(1/0)", &[]).unwrap_err().contains("has no result"));
        assert!(made("$(1 2)", &[]).unwrap_err().contains("what is"));
    }

    #[test]
    fn operators_bind_as_usual() {
        assert_eq!(made("$(1+2*3-4/2)", &[]).unwrap(), "5\n");
        assert_eq!(made("$(10-3-2)", &[]).unwrap(), "5\n");
        assert_eq!(made("$(!(1 < 2) || 3 >= 3 && 1 != 1)", &[]).unwrap(), "0\n");
    }
}
