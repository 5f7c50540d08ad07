//! What a user may write where a model stands.

use std::path::Path;

use crate::error::{Error, Result};
use crate::table::{Entry, Table, Variant};

/// A model by its name.
#[derive(Clone, Debug)]
pub enum Name {
    /// One of the table: `gemma4:e2b`.
    Known {
        /// The model.
        entry: &'static Entry,
        /// Which of its variants.
        variant: &'static Variant,
        /// A branch, a tag or a commit; else `main`.
        revision: Option<String>,
    },
    /// Any repository of the hub: `org/repo[:quant][@revision]`.
    Repo {
        /// `org/repo`.
        repo: String,
        /// A part of the GGUF file's name: `Q4_K_M`.
        quant: Option<String>,
        /// A branch, a tag or a commit; else `main`.
        revision: Option<String>,
    },
}

/// What something that stands where a model stands can be.
#[derive(Clone, Debug)]
pub enum Given {
    /// A path, whether something is there or not.
    Path,
    /// A name.
    Name(Name),
}

/// How files of models end: what ends so is meant as a path.
const ENDINGS: [&str; 5] = [".lap", ".gguf", ".safetensors", ".json", ".bin"];
/// What a revision is unless told.
pub const MAIN: &str = "main";

/// Tells a path from a name. What is there is a path, whatever its name.
pub fn given(text: &str) -> Result<Given> {
    if Path::new(text).exists() || is_path(text) {
        return Ok(Given::Path);
    }
    Name::parse(text).map(Given::Name)
}

/// What can be nothing but a path.
fn is_path(text: &str) -> bool {
    let lower = text.trim_end().to_lowercase();
    let starts = ["/", "./", "../", "~", "."].iter().any(|start| text.starts_with(start));
    let is_repo = text.matches('/').count() == 1 && !text.ends_with('/');
    // A colon after the last slash begins a quant, and an @ a revision, whose slashes do not count.
    let head = text.split(['@', ':']).next().unwrap_or(text);
    let is_repo = is_repo || head.matches('/').count() == 1 && head != text;
    let ends = ENDINGS.iter().any(|ending| lower.ends_with(ending));
    starts || ends || text.contains('\\') || text.is_empty() || (text.contains('/') && !is_repo)
}

impl Name {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<Name> {
        let wrong = |what: String| Error::Name { given: text.into(), what };
        let (head, revision) = match text.split_once('@') {
            Some((head, revision)) => {
                check_revision(revision).map_err(wrong)?;
                (head, Some(revision.to_string()))
            }
            None => (text, None),
        };
        if !head.contains('/') {
            let (entry, variant) = Table::get().find(head)?;
            return Ok(Name::Known { entry, variant, revision });
        }
        let (repo, quant) = match head.split_once(':') {
            Some((repo, quant)) => {
                check_quant(quant).map_err(wrong)?;
                (repo, Some(quant.to_string()))
            }
            None => (head, None),
        };
        check_repo(repo).map_err(wrong)?;
        Ok(Name::Repo { repo: repo.to_string(), quant, revision })
    }

    /// The repository.
    pub fn repo(&self) -> &str {
        match self {
            Name::Known { variant, .. } => &variant.repo,
            Name::Repo { repo, .. } => repo,
        }
    }

    /// The revision that is wanted.
    pub fn revision(&self) -> &str {
        match self {
            Name::Known { revision, .. } | Name::Repo { revision, .. } => {
                revision.as_deref().unwrap_or(MAIN)
            }
        }
    }

    /// Which GGUF file is wanted.
    pub fn quant(&self) -> Option<&str> {
        match self {
            Name::Known { .. } => None,
            Name::Repo { quant, .. } => quant.as_deref(),
        }
    }

    /// The recipe that quantises it when it is opened.
    pub fn recipe(&self) -> Option<&str> {
        match self {
            Name::Known { variant, .. } => variant.recipe.as_deref(),
            Name::Repo { .. } => None,
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let revision = match self {
            Name::Known { entry, variant, revision } => {
                write!(f, "{}", entry.name_of(variant))?;
                revision
            }
            Name::Repo { repo, quant, revision } => {
                write!(f, "{repo}")?;
                if let Some(quant) = quant {
                    write!(f, ":{quant}")?;
                }
                revision
            }
        };
        match revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

fn is_word(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    first && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// `org/repo` as the hub allows it: it becomes part of paths and addresses.
pub(crate) fn check_repo(repo: &str) -> Result<(), String> {
    let parts: Vec<&str> = repo.split('/').collect();
    let [org, name] = parts.as_slice() else {
        return Err("a repository is written org/name".into());
    };
    // Two hyphens stand for the slash in the cache's folders.
    let is_one = |part: &str| is_word(part) && !part.contains("..") && !part.contains("--");
    if !is_one(org) || !is_one(name) || repo.len() > 96 {
        return Err("a repository is written org/name in letters, digits, `-`, `_` and `.`".into());
    }
    Ok(())
}

fn check_quant(quant: &str) -> Result<(), String> {
    match is_word(quant) {
        true => Ok(()),
        false => Err("after the colon comes a part of a GGUF file's name, such as Q4_K_M".into()),
    }
}

/// A branch, a tag or a commit, perhaps with slashes: `refs/pr/1`.
pub(crate) fn check_revision(revision: &str) -> Result<(), String> {
    let fits = revision.split('/').all(|part| is_word(part) && !part.contains(".."));
    match fits && revision.len() <= 200 {
        true => Ok(()),
        false => Err("after the @ comes a branch, a tag or a commit".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        for text in [
            "gemma3:1b",
            "gemma4:31b-it-int4",
            "gemma4:e2b@refs/pr/1",
            "google/gemma-3-1b-it",
            "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
            "a/b:Q8_0@v1.0",
            "a/b@0123456789abcdef0123456789abcdef01234567",
        ] {
            assert_eq!(Name::parse(text).unwrap().to_string(), text);
        }
        let name = Name::parse("a/b:Q8_0@refs/pr/2").unwrap();
        assert_eq!(
            (name.repo(), name.quant(), name.revision()),
            ("a/b", Some("Q8_0"), "refs/pr/2")
        );
        let name = Name::parse("gemma4:31b-int4").unwrap();
        assert_eq!((name.recipe(), name.revision()), (Some("int4"), "main"));
        assert_eq!(name.repo(), "google/gemma-4-31B-it");
    }

    #[test]
    fn names_that_would_lead_elsewhere_are_refused() {
        for text in [
            "a/../b", "../b", "a/..", "a/b@..", "a/b@../x", "a/b@/x", "a/b@x/", "a/b:..", "a/b:",
            "a/b@", "a--b/c", "a/b c", "a/b?x", "a/b#x", "a/b%2f", "-a/b", "a/.b", "a/b:x/y",
            "a/b\n", "é/b", "a/",
        ] {
            let said = Name::parse(text).unwrap_err();
            assert_eq!(said.code(), "invalid_argument", "{text}: {said}");
        }
    }

    #[test]
    fn what_is_there_or_looks_so_is_a_path() {
        let is_path = |text: &str| matches!(given(text), Ok(Given::Path));
        let here = env!("CARGO_MANIFEST_DIR");
        for text in [
            here,
            "src",
            "src/lib.rs",
            "./gemma3:1b",
            "../x",
            "/x/y",
            "a/b/c",
            "x/gemma.gguf",
            "x.lap",
            "a\\b",
            "a/",
            "",
        ] {
            assert!(is_path(text), "{text}");
        }
        for text in ["gemma3:1b", "google/gemma-3-1b-it", "a/b:Q8_0", "a/b@refs/pr/1"] {
            assert!(!is_path(text) && given(text).is_ok(), "{text}");
        }
        assert!(given("gemma5").is_err());
    }
}
