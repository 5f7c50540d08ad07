//! The table of released models, `models.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::error::{Error, Result};

/// What is in `models.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    platforms: Platforms,
    /// All models, smallest first.
    #[serde(rename = "model")]
    pub models: Vec<Entry>,
}

/// Backends that are tried first where none is asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Platforms {
    ios: Vec<String>,
    android: Vec<String>,
}

/// A released model in one size.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// `gemma4`.
    pub family: String,
    /// `e2b`.
    pub size: String,
    /// What its makers call it.
    pub title: String,
    /// Its released shape, `gemma-4-e2b`.
    pub shape: String,
    /// All its numbers, towers included.
    pub params: u64,
    /// What it takes: `text`, `image`, `video`, `audio`.
    pub input: Vec<String>,
    /// Its licence.
    pub licence: Licence,
    /// Whether its terms must be accepted before a download.
    pub gated: bool,
    /// The variant that the plain name means.
    default: String,
    /// All variants.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
}

/// What one may do with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Licence {
    /// Google's terms for Gemma 1 to 3.
    #[serde(rename = "gemma")]
    Gemma,
    /// Apache-2.0.
    #[serde(rename = "apache-2.0")]
    Apache2,
}

/// One way to have a model: where its weights come from, and by which recipe they are quantised.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// `it-q4_0`.
    pub name: String,
    /// The repository on the hub.
    pub repo: String,
    /// The form of its files.
    pub format: Format,
    /// The recipe that quantises it when it is opened; else it is as it was published.
    pub recipe: Option<String>,
    /// How a GGUF file holds most of its weights.
    stored: Option<String>,
}

/// The form of a repository's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A Hugging Face folder.
    Safetensors,
    /// One GGUF file, and perhaps one with towers.
    Gguf,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    toml::from_str(include_str!("../models.toml")).expect("models.toml is read by a test")
});

/// The drafter's variant.
const ASSISTANT: &str = "it-assistant";

impl Table {
    /// The table of this build.
    pub fn get() -> &'static Table {
        &TABLE
    }

    /// Backends that are tried first on a system (`std::env::consts::OS`), best first.
    pub fn platform(&self, os: &str) -> &[String] {
        match os {
            "ios" => &self.platforms.ios,
            "android" => &self.platforms.android,
            _ => &[],
        }
    }

    /// Whether a word before a colon is a family's.
    pub fn has_family(&self, family: &str) -> bool {
        self.models.iter().any(|entry| entry.family == family)
    }

    /// The model and the variant of a name.
    ///
    /// After the colon comes a size, then perhaps a variant. `it-` may be left out of one.
    pub fn find(&self, name: &str) -> Result<(&Entry, &Variant)> {
        let given = name.to_ascii_lowercase();
        let (family, tag) = given.split_once(':').unwrap_or((&given, ""));
        let of_family = || self.models.iter().filter(|entry| entry.family == family);
        for entry in of_family() {
            let Some(rest) = tag.strip_prefix(entry.size.as_str()) else { continue };
            let variant = match rest.strip_prefix('-') {
                Some(variant) => variant,
                None if rest.is_empty() => &entry.default,
                None => continue,
            };
            if let Some(variant) = entry.variant(variant) {
                return Ok((entry, variant));
            }
            // The size is right, so what there is of it is all that can be meant.
            let known = entry.variants.iter().map(|v| entry.name_of(v)).collect();
            return Err(Error::Unknown { given: name.into(), known, close: false });
        }
        if tag.is_empty() && of_family().next().is_some() {
            let known = of_family().map(Entry::name).collect();
            return Err(Error::Unknown { given: name.into(), known, close: false });
        }
        let close = self.close_to(&given);
        let near = !close.is_empty();
        let known = if near { close } else { self.models.iter().map(Entry::name).collect() };
        Err(Error::Unknown { given: name.into(), known, close: near })
    }

    /// Names that a word may have been meant for, the nearest first.
    pub fn close_to(&self, given: &str) -> Vec<String> {
        let wanted = letters(given);
        let mut near: Vec<(usize, String)> = Vec::new();
        for entry in &self.models {
            let spelt = |name: &str| distance(&letters(name), &wanted);
            near.extend(entry.variants.iter().map(|variant| {
                let name = entry.name_of(variant);
                (spelt(&name), name)
            }));
        }
        // A third of the letters may be wrong, no more.
        let limit = (wanted.len() / 3).min(4);
        near.retain(|(d, _)| *d <= limit);
        near.sort_by_key(|(d, _)| *d);
        let best = near.first().map_or(0, |(d, _)| *d);
        near.into_iter().take_while(|(d, _)| *d <= best + 1).map(|(_, name)| name).take(3).collect()
    }
}

impl Entry {
    /// `gemma4:e2b`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.family, self.size)
    }

    /// `gemma4:e2b` for the default, else `gemma4:e2b-it-int4`.
    pub fn name_of(&self, variant: &Variant) -> String {
        match variant.name == self.default {
            true => self.name(),
            false => format!("{}-{}", self.name(), variant.name),
        }
    }

    /// The variant that the plain name means.
    pub fn default_variant(&self) -> &Variant {
        self.variant(&self.default).expect("a test looks for every default")
    }

    /// The drafter, if one was released.
    pub fn drafter(&self) -> Option<&Variant> {
        self.variants.iter().find(|v| v.is_drafter())
    }

    fn variant(&self, name: &str) -> Option<&Variant> {
        let is = |wanted: &str| self.variants.iter().find(|v| v.name == wanted);
        match name {
            "it" if self.default.starts_with("it-") => is(&self.default),
            "pt" => self.variants.iter().find(|v| v.name.starts_with("pt-")),
            _ => is(name).or_else(|| is(&format!("it-{name}"))),
        }
    }

    /// Bytes of a variant's weights as they are downloaded, where they follow from its shape.
    pub fn download_bytes(&self, variant: &Variant) -> Option<u64> {
        let is_bf16 = variant.format == Format::Safetensors && !variant.is_drafter();
        is_bf16.then_some(self.params * 2)
    }
}

impl Variant {
    /// Whether it only guesses tokens for another model.
    pub fn is_drafter(&self) -> bool {
        self.name == ASSISTANT
    }

    /// The recipe that says how large the weights are in memory; `None` for bf16.
    pub fn recipe_in_memory(&self) -> Option<&str> {
        self.recipe.as_deref().or(self.stored.as_deref())
    }
}

impl Licence {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Licence::Gemma => "Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
            Licence::Apache2 => "Apache-2.0",
        }
    }
}

/// What of a name carries meaning: people write `gemma-3-1b-it`, `Gemma3:1B` or `gemma3_1b`.
fn letters(name: &str) -> Vec<char> {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Letters to add, remove or change.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let here = (diagonal + usize::from(x != y)).min(left + 1).min(*cell + 1);
            diagonal = std::mem::replace(cell, here);
            left = here;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str) -> String {
        let (entry, variant) = Table::get().find(name).unwrap();
        format!("{} {} {}", entry.name(), variant.name, variant.repo)
    }

    #[test]
    fn every_name_of_the_table_finds_itself() {
        let table = Table::get();
        assert_eq!(table.models.len(), 10);
        for entry in &table.models {
            assert!(entry.variants.iter().any(|v| v.name == entry.default), "{}", entry.name());
            let default = entry.default_variant();
            assert!(default.name.starts_with("it-") && !default.is_drafter());
            assert_eq!(entry.drafter().is_some(), entry.family == "gemma4", "{}", entry.name());
            assert_eq!(entry.gated, entry.licence == Licence::Gemma);
            for variant in &entry.variants {
                let whole = format!("{}-{}", entry.name(), variant.name);
                for name in [whole.clone(), whole.to_uppercase(), entry.name_of(variant)] {
                    let (e, v) = table.find(&name).unwrap();
                    assert_eq!((e.name(), &v.name), (entry.name(), &variant.name), "{name}");
                }
                crate::name::check_repo(&variant.repo).unwrap();
                assert_eq!(variant.format == Format::Gguf, variant.stored.is_some());
            }
        }
    }

    #[test]
    fn a_name_is_a_size_and_perhaps_a_variant() {
        assert_eq!(found("gemma3:1b"), "gemma3:1b it-q4_0 google/gemma-3-1b-it-qat-q4_0-gguf");
        assert_eq!(found("gemma3:270m"), "gemma3:270m it-bf16 google/gemma-3-270m-it");
        assert_eq!(found("gemma4:31b-it-int4"), "gemma4:31b it-int4 google/gemma-4-31B-it");
        assert_eq!(found("gemma4:31b-int4"), found("gemma4:31b-it-int4"));
        assert_eq!(found("gemma4:31b-it"), found("gemma4:31b"));
        assert_eq!(found("gemma4:26b-a4b-pt"), "gemma4:26b-a4b pt-bf16 google/gemma-4-26B-A4B");
        assert_eq!(
            found("gemma4:e2b-assistant"),
            "gemma4:e2b it-assistant google/gemma-4-E2B-it-assistant"
        );
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is_near() {
        let said = |name: &str| Table::get().find(name).unwrap_err().to_string();
        let did = |name: &str, meant: &str| {
            assert!(said(name).contains(&format!("did you mean {meant}")), "{}", said(name));
        };
        did("gemma3:1", "gemma3:1b");
        did("gemma4:e2", "gemma4:e2b");
        did("gemma-3-4b", "gemma3:4b");
        did("gema3:12b", "gemma3:12b");
        let once = said("gemma3:1");
        assert_eq!(once.matches("gemma3:1b").count(), 1, "{once}");
        let sizes = said("gemma3");
        assert!(sizes.contains("gemma3:270m, gemma3:1b") && !sizes.contains("gemma4"), "{sizes}");
        let variants = said("gemma4:e2b-q9");
        assert!(variants.contains("gemma4:e2b, gemma4:e2b-it-bf16"), "{variants}");
        assert!(said("mistral:7b").contains("; there are gemma3:270m"), "{}", said("mistral:7b"));
    }

    #[test]
    fn distance_counts_edits() {
        let d = |a: &str, b: &str| distance(&letters(a), &letters(b));
        assert_eq!(d("kitten", "sitting"), 3);
        assert_eq!((d("", "abc"), d("abc", ""), d("a-b", "ab")), (3, 3, 0));
    }
}
