//! Ordered rules, of which the first whose pattern matches a weight's whole name decides.

use lapidary_program::{DType, Encoding, Program, QuantLayout, ScaleFormat, WeightDecl};
use regex::Regex;
use serde::Deserialize;

use crate::error::{Error, Result};

/// How each weight is written.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// For people.
    pub name: String,
    rules: Vec<(Regex, Action)>,
}

/// What is done to a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// It stays as it is.
    Keep,
    /// Its numbers are rounded to a float type.
    Dense(DType),
    /// It is quantised.
    Quantise(Quantise),
}

/// How a weight is quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantise {
    /// Bits of one code.
    pub bits: u8,
    /// Codes that share a scale.
    pub group: Group,
    /// Whether there is no bias.
    pub symmetric: bool,
    /// Type of scales and biases.
    pub scale: DType,
    /// How codes are found.
    pub method: Method,
}

/// Codes that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A number of them; rows that it does not divide take the largest divisor below it.
    Size(u32),
    /// A whole row.
    Row,
}

/// How codes are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The range of a group is divided evenly.
    MinMax,
    /// Half-quadratic: the bias is moved to where the error counts least.
    Hqq,
}

impl Recipe {
    /// A recipe from a TOML file.
    pub fn from_toml(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).map_err(Box::new)?;
        let mut rules = Vec::new();
        for rule in file.rule {
            let action = rule.action()?;
            rules.push((rule.matches, action));
        }
        Self::new(&file.name, rules)
    }

    /// A recipe of patterns, each of which must match a weight's whole name, and what is then done.
    pub fn new(name: &str, rules: impl IntoIterator<Item = (String, Action)>) -> Result<Self> {
        let mut compiled = Vec::new();
        for (pattern, action) in rules {
            let whole = Regex::new(&format!("^(?:{pattern})$"))
                .map_err(|e| Error::Rule { rule: pattern.clone(), what: e.to_string() })?;
            compiled.push((whole, action));
        }
        Ok(Recipe { name: name.to_string(), rules: compiled })
    }

    /// What is done to a weight, and the declaration that it then has. Vectors and index tables
    /// stay as they are; so does what is quantised already.
    pub fn of(&self, name: &str, decl: &WeightDecl) -> (Action, WeightDecl) {
        let keep = (Action::Keep, decl.clone());
        let Encoding::Dense(dtype) = decl.encoding else { return keep };
        if decl.shape.len() < 2 || !dtype.is_float() {
            return keep;
        }
        match self.rules.iter().find(|(pattern, _)| pattern.is_match(name)).map(|(_, a)| *a) {
            None | Some(Action::Keep) => keep,
            Some(Action::Dense(to)) => {
                (Action::Dense(to), WeightDecl { encoding: Encoding::Dense(to), ..decl.clone() })
            }
            Some(Action::Quantise(q)) => {
                let layout = q.layout(decl.cols());
                let encoding = Encoding::Quant(layout);
                (Action::Quantise(q), WeightDecl { encoding, ..decl.clone() })
            }
        }
    }

    /// Bytes of a program's weights under this recipe.
    pub fn size_bytes(&self, program: &Program) -> u64 {
        program.weights().iter().map(|(name, decl)| self.of(name, decl).1.size_bytes()).sum()
    }
}

impl Quantise {
    /// The layout of a row of `cols` numbers.
    pub fn layout(&self, cols: usize) -> QuantLayout {
        let group = match self.group {
            Group::Row => cols,
            Group::Size(n) => {
                let n = (n as usize).min(cols).max(1);
                (1..=n).rev().find(|g| cols.is_multiple_of(*g)).unwrap_or(1)
            }
        };
        QuantLayout {
            bits: self.bits,
            group: group as u32,
            offset: if self.symmetric { 1 << (self.bits - 1) } else { 0 },
            scale: ScaleFormat::Plain { dtype: self.scale },
            affine: !self.symmetric,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    rule: Vec<FileRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    #[serde(rename = "match")]
    matches: String,
    #[serde(default)]
    keep: bool,
    dtype: Option<DType>,
    bits: Option<u8>,
    /// A number, or 0 for whole rows.
    group: Option<u32>,
    symmetric: Option<bool>,
    scale: Option<DType>,
    method: Option<Method>,
}

impl FileRule {
    fn action(&self) -> Result<Action> {
        let wrong = |what: &str| Error::Rule { rule: self.matches.clone(), what: what.to_string() };
        match (self.keep, self.dtype, self.bits) {
            (true, None, None) => Ok(Action::Keep),
            (false, Some(dtype), None) if dtype.is_float() => Ok(Action::Dense(dtype)),
            (false, Some(_), None) => Err(wrong("dtype must be f32, f16 or bf16")),
            (false, None, Some(bits)) => {
                if !(2..=8).contains(&bits) {
                    return Err(wrong("bits must be 2 to 8"));
                }
                let symmetric = self.symmetric.unwrap_or(bits == 8);
                let method = self.method.unwrap_or(Method::MinMax);
                if symmetric && method == Method::Hqq {
                    return Err(wrong("hqq moves the bias, which symmetric weights have none of"));
                }
                let scale = self.scale.unwrap_or(DType::F16);
                if !scale.is_float() {
                    return Err(wrong("scale must be f32, f16 or bf16"));
                }
                let group = match self.group.unwrap_or(32) {
                    0 => Group::Row,
                    n => Group::Size(n),
                };
                Ok(Action::Quantise(Quantise { bits, group, symmetric, scale, method }))
            }
            _ => Err(wrong("give one of keep, dtype and bits")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decl(shape: &[u64]) -> WeightDecl {
        WeightDecl::dense(shape, DType::Bf16)
    }

    #[test]
    fn the_first_rule_that_matches_the_whole_name_decides() {
        let recipe = Recipe::from_toml(
            r#"
            name = "mine"
            [[rule]]
            match = 'a\.weight'
            bits = 8
            group = 0
            [[rule]]
            match = '.*weight'
            bits = 4
            group = 64
            method = "hqq"
            "#,
        )
        .unwrap();
        let (_, a) = recipe.of("a.weight", &decl(&[4, 128]));
        assert_eq!(a.encoding, Encoding::Quant(QuantLayout::symmetric(8, 128, DType::F16)));
        let (_, b) = recipe.of("xa.weight", &decl(&[4, 128]));
        assert_eq!(b.encoding, Encoding::Quant(QuantLayout::affine(4, 64, DType::F16)));
        assert_eq!(recipe.of("a.bias", &decl(&[4, 128])).0, Action::Keep);
        assert_eq!(recipe.of("a.weight", &decl(&[128])).0, Action::Keep);
    }

    #[test]
    fn groups_fall_back_to_a_divisor_of_the_row() {
        let q = Quantise {
            bits: 4,
            group: Group::Size(32),
            symmetric: false,
            scale: DType::F16,
            method: Method::Hqq,
        };
        assert_eq!(q.layout(640).group, 32);
        assert_eq!(q.layout(48).group, 24);
        assert_eq!(q.layout(7).group, 7);
    }

    #[test]
    fn wrong_rules_are_named() {
        for text in [
            "name = 'x'\n[[rule]]\nmatch = '('\nbits = 4",
            "name = 'x'\n[[rule]]\nmatch = 'a'\nbits = 9",
            "name = 'x'\n[[rule]]\nmatch = 'a'",
            "name = 'x'\n[[rule]]\nmatch = 'a'\nbits = 4\nsymmetric = true\nmethod = 'hqq'",
            "name = 'x'\n[[rule]]\nmatch = 'a'\nbitz = 4",
        ] {
            assert!(Recipe::from_toml(text).is_err(), "{text}");
        }
    }
}
