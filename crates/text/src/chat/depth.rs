//! How deeply the syntax of a template is nested, found without recursion, before anything that
//! recurses sees it.

use minijinja::Error as JinjaError;
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use crate::error::{Error, Result};

/// Tokens of a template; the longest published ones have some five thousand.
const MAX_TOKENS: usize = 100_000;

/// Operators, brackets and links of a chain that may stand inside one another in one expression.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesting {
    /// Levels of an expression.
    pub(super) expression: usize,
    /// Levels of blocks; an `elif` is a level of its own.
    pub(super) blocks: usize,
}

/// Refuses a template that is longer or nested deeper than it may be.
pub(super) fn check(source: &str, syntax: SyntaxConfig, limit: Nesting) -> Result<()> {
    let mut tag = Tag::default();
    // For each open block, how many levels it has: one and one more for each `elif`.
    let mut blocks: Vec<usize> = Vec::new();
    let mut open = 0usize;
    let too_deep = Error::TemplateLimit { what: "depth" };
    for (n, token) in tokenize(source, false, syntax).enumerate() {
        let (token, _) = token.map_err(template_error)?;
        if n >= MAX_TOKENS {
            return Err(Error::TemplateLimit { what: "its own size" });
        }
        match token {
            Token::TemplateData(_) => {}
            Token::VariableStart => tag = Tag::default(),
            Token::BlockStart => tag = Tag { statement: true, ..Tag::default() },
            Token::VariableEnd => {}
            Token::BlockEnd => {
                match tag.keyword.as_str() {
                    "elif" => {
                        open += 1;
                        if let Some(levels) = blocks.last_mut() {
                            *levels += 1;
                        }
                    }
                    word if word.starts_with("end") => {
                        open = open.saturating_sub(blocks.pop().unwrap_or(0));
                    }
                    "set" if tag.assigns => {}
                    "for" | "if" | "with" | "set" | "autoescape" | "filter" | "block" | "macro"
                    | "call" => {
                        blocks.push(1);
                        open += 1;
                    }
                    _ => {}
                }
                if open > limit.blocks {
                    return Err(too_deep);
                }
            }
            token => {
                tag.take(&token);
                if tag.depth() > limit.expression {
                    return Err(too_deep);
                }
            }
        }
    }
    Ok(())
}

pub(super) fn template_error(e: JinjaError) -> Error {
    Error::Template(std::sync::Arc::new(e))
}

/// One `{{ … }}` or `{% … %}`.
#[derive(Default)]
struct Tag {
    statement: bool,
    keyword: String,
    assigns: bool,
    /// Levels in each bracket that is open, the tag itself first.
    chains: Vec<usize>,
    outer: usize,
    here: usize,
}

impl Tag {
    fn depth(&self) -> usize {
        self.outer + self.here
    }

    fn take(&mut self, token: &Token<'_>) {
        if self.statement && self.keyword.is_empty() {
            if let Token::Ident(word) = token {
                self.keyword = (*word).to_string();
            }
            return;
        }
        match token {
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                self.here += 1;
                self.chains.push(self.here);
                self.outer += self.here;
                self.here = 0;
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                self.here = self.chains.pop().unwrap_or(0);
                self.outer = self.outer.saturating_sub(self.here);
            }
            Token::Comma => self.here = 0,
            Token::Assign => {
                self.assigns |= self.chains.is_empty();
                self.here = 0;
            }
            Token::Ident("not" | "and" | "or" | "in" | "is" | "if" | "else") => self.here += 1,
            Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Dot
            | Token::Tilde
            | Token::Pipe
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte => self.here += 1,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(source: &str) -> Result<()> {
        let limit = Nesting { expression: 40, blocks: 10 };
        check(source, SyntaxConfig::default(), limit)
    }

    #[test]
    fn f19_syntax_is_measured_before_it_is_parsed() {
        let deep = [
            format!("{{{{ {}1 }}}}", "-".repeat(60)),
            format!("{{{{ {}1 }}}}", "not ".repeat(60)),
            format!("{{{{ {}1{} }}}}", "[".repeat(60), "]".repeat(60)),
            format!("{{{{ a{} }}}}", ".b".repeat(60)),
            format!("{{{{ a{} }}}}", "|f".repeat(60)),
            format!("{{{{ a{} }}}}", "()".repeat(60)),
            format!("{{{{ 1{} }}}}", " + 1".repeat(60)),
            format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(60)),
            format!("{{% if {}1 %}}", "(".repeat(60)),
            "{% if x %}".repeat(11),
            format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(11)),
            "{% set x %}".repeat(11),
        ];
        for source in deep {
            let found = checked(&source);
            assert!(matches!(found, Err(Error::TemplateLimit { what: "depth" })), "{source}");
        }
        let wide = [
            format!("{{{{ [{}] }}}}", "a.b, ".repeat(1000)),
            "{% if a %}{% elif b %}{% endif %}".repeat(100),
            "{% set x = (1, 2) %}{% set y %}{% endset %}".repeat(100),
            "{{ f(a=1, b=[2]) }}".repeat(100),
        ];
        for source in wide {
            checked(&source).unwrap();
        }
        let long = "{{ 1 }}".repeat(40_000);
        assert!(matches!(checked(&long), Err(Error::TemplateLimit { what: "its own size" })));
    }
}
