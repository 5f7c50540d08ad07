//! Pages of a text as bytes: to be kept by whoever has files, and restored by a later process.
//!
//! ```text
//! magic  8 bytes        tokens   u32 n, then n · u32
//! program  32 bytes     soft     u32 n, then n · (u32 start, u32 length, 32 bytes hash)
//! layout   u32 n, text  groups   u32 n, then n · (u32 first page, u32 pages, u64 bytes of a page, …)
//! KV type  u32 n, text  BLAKE3 of all before, 32 bytes
//! ```
//!
//! All numbers are little-endian. Nothing in such a file is believed before its hash is checked, and
//! nothing of another program, layout or KV type is taken.

use std::io::{Read, Write};
use std::panic::AssertUnwindSafe;

use lapidary_backend::{PAGE, PageId};
use lapidary_program::{Access, Part, Program, method};
use lapidary_text::Prompt;

use crate::batch::guard;
use crate::error::{Error, Result};
use crate::pages::{Held, SoftKey, Text};
use crate::runner::Runner;
use crate::soft::SoftUse;

const MAGIC: &[u8; 8] = b"LAPKV\x00\x00\x01";
/// Bytes of a file besides tokens and pages, at most.
const SLACK: u64 = 1 << 20;
/// Bytes of a weight that are looked at.
const SAMPLE: usize = 4096;

impl Runner {
    /// Writes the keys and values of the longest part of a prompt that is at hand, and returns how
    /// many tokens that is; 0, and nothing is written, if there is none.
    /// No generation may be under way.
    pub fn save_prefix(
        &mut self,
        prompt: &Prompt,
        scope: u64,
        out: &mut dyn Write,
    ) -> Result<usize> {
        self.idle()?;
        let blocks =
            SoftUse::of(&self.program).check(&prompt.soft, prompt.tokens.len(), usize::MAX)?;
        let soft = blocks.keys(&prompt.soft);
        let text = Text { tokens: &prompt.tokens, soft: &soft, scope };
        let (n, tables) = self.scheduler.pages.look_up(&text);
        if n == 0 {
            return Ok(0);
        }
        let mut out = Hashing { out, hasher: blake3::Hasher::new() };
        out.bytes(MAGIC)?;
        out.bytes(&program_hash(&self.program))?;
        out.text(&self.engine.page_layout())?;
        out.text(self.engine.options().kv_type().name())?;
        out.number(n)?;
        prompt.tokens.iter().take(n).try_for_each(|id| out.bytes(&id.to_le_bytes()))?;
        let soft: Vec<&SoftKey> = soft.iter().filter(|key| key.start < n).collect();
        out.number(soft.len())?;
        for SoftKey { start, len, hash } in soft {
            out.number(*start)?;
            out.number(*len)?;
            out.bytes(hash)?;
        }
        out.number(tables.len())?;
        let mut bytes = Vec::new();
        for (group, (first, pages)) in tables.iter().enumerate() {
            let size = self.engine.page_bytes(group);
            out.number(*first)?;
            out.number(pages.len())?;
            out.bytes(&(size as u64).to_le_bytes())?;
            for page in pages {
                let engine = self.engine.as_mut();
                let read = AssertUnwindSafe(|| engine.read_page(group, *page, &mut bytes));
                guard(method::FORWARD, read)?;
                if bytes.len() != size {
                    let what =
                        format!("the engine gave a page of {}, not {size} bytes", bytes.len());
                    return Err(Error::Program(what));
                }
                out.bytes(&bytes)?;
            }
        }
        let hash = out.hasher.finalize();
        out.bytes(hash.as_bytes())?;
        Ok(n)
    }

    /// Takes what [`save_prefix`](Self::save_prefix) wrote, and returns how many tokens that are:
    /// prompts of this scope that begin with them need not run them again.
    /// No generation may be under way.
    pub fn restore_prefix(&mut self, from: &mut dyn Read, scope: u64) -> Result<usize> {
        self.idle()?;
        let groups = 0..self.program.kv_groups().len();
        let pages = groups.map(|g| {
            let n = self.engine.options().pages_of(g) as u64;
            n.saturating_mul(self.engine.page_bytes(g) as u64)
        });
        let most = pages.fold(SLACK, u64::saturating_add);
        let most = most.saturating_add(64 * self.max_context() as u64);
        let mut bytes = Vec::new();
        let read = from.take(most).read_to_end(&mut bytes);
        read.map_err(|e| Error::PrefixIo(e.to_string()))?;
        let saved = Saved::read(&bytes).map_err(Error::Prefix)?;
        self.check(&saved).map_err(Error::Prefix)?;
        let n = saved.tokens.len();
        let Some(mut held) = self.scheduler.pages.start_empty(scope, n) else {
            let what = format!("{n} tokens need more pages than there are; load with more");
            return Err(lapidary_backend::Error::OutOfMemory(what).into());
        };
        let done = self.write_pages(&held, &saved);
        if done.is_ok() {
            let text = Text { tokens: &saved.tokens, soft: &saved.soft, scope };
            self.scheduler.pages.wrote(&mut held, &text, n);
        }
        self.scheduler.pages.release(&mut held);
        done.map(|()| n)
    }

    /// Whether what was saved is of this program, as it is loaded here.
    fn check(&self, saved: &Saved<'_>) -> std::result::Result<(), String> {
        if saved.program != program_hash(&self.program) {
            return Err("it is of another program; start without it".into());
        }
        let layout = self.engine.page_layout();
        if saved.layout != layout {
            return Err(format!("it is for `{}`, and this is `{layout}`", saved.layout));
        }
        let kv = self.engine.options().kv_type().name();
        if saved.kv != kv {
            return Err(format!("its keys are {}, and those of this engine are {kv}", saved.kv));
        }
        let (n, max) = (saved.tokens.len(), self.max_context());
        if n == 0 || n > max {
            return Err(format!("it has {n} tokens, and the context holds {max}"));
        }
        let vocab = self.metadata().vocab_size;
        if saved.tokens.iter().any(|id| *id >= vocab) {
            return Err("it has tokens that this program does not know".into());
        }
        let tables = self.scheduler.pages.tables_for(n);
        let same = saved.groups.len() == tables.len()
            && saved.groups.iter().zip(&tables).enumerate().all(|(g, (group, table))| {
                (group.first, group.pages.len()) == *table
                    && group.pages.iter().all(|page| page.len() == self.engine.page_bytes(g))
            });
        if same { Ok(()) } else { Err("its pages are not those of its tokens".into()) }
    }

    fn write_pages(&mut self, held: &Held, saved: &Saved<'_>) -> Result<()> {
        for (group, table) in held.tables().enumerate() {
            let Some(from) = saved.groups.get(group) else { continue };
            for (page, bytes) in table.pages.iter().zip(&from.pages) {
                let (engine, page): (_, PageId) = (self.engine.as_mut(), *page);
                let write = AssertUnwindSafe(|| engine.write_page(group, page, bytes));
                guard(method::FORWARD, write)?;
            }
        }
        Ok(())
    }
}

/// A hash that another program has not: of everything but weights, and of as much of those as is
/// cheap to tell.
fn program_hash(program: &Program) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    // A description is plain data, so that this does not fail.
    hasher.update(&serde_json::to_vec(program.description()).unwrap_or_default());
    hasher.update(&(PAGE as u64).to_le_bytes());
    let store = program.store();
    match store.fingerprint() {
        Some(fingerprint) => _ = hasher.update(&fingerprint),
        None => {
            for name in program.weights().keys().filter(|name| store.access(name) == Access::Lent) {
                let Ok(bytes) = store.part(name, Part::Data) else { continue };
                for start in [0, bytes.len() / 2, bytes.len().saturating_sub(SAMPLE)] {
                    let end = bytes.len().min(start.saturating_add(SAMPLE));
                    hasher.update(bytes.get(start..end).unwrap_or_default());
                }
            }
        }
    }
    *hasher.finalize().as_bytes()
}

/// Writes, and hashes what is written.
struct Hashing<'a> {
    out: &'a mut dyn Write,
    hasher: blake3::Hasher,
}

impl Hashing<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.out.write_all(bytes).map_err(|e| Error::PrefixIo(e.to_string()))
    }

    fn number(&mut self, n: usize) -> Result<()> {
        let n = u32::try_from(n).map_err(|_| Error::Program(format!("{n} does not fit")))?;
        self.bytes(&n.to_le_bytes())
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.number(text.len())?;
        self.bytes(text.as_bytes())
    }
}

/// What was saved.
struct Saved<'a> {
    program: [u8; 32],
    layout: &'a str,
    kv: &'a str,
    tokens: Vec<u32>,
    soft: Vec<SoftKey>,
    groups: Vec<SavedGroup<'a>>,
}

struct SavedGroup<'a> {
    first: usize,
    pages: Vec<&'a [u8]>,
}

type Step<T> = std::result::Result<T, String>;

impl<'a> Saved<'a> {
    fn read(bytes: &'a [u8]) -> Step<Self> {
        let Some((bytes, hash)) = bytes.split_last_chunk::<32>() else {
            return Err("it is not one, or it was cut off".into());
        };
        if !bytes.starts_with(MAGIC) {
            return Err("it is not one, or it is of another version".into());
        }
        if blake3::hash(bytes).as_bytes() != hash {
            return Err("it is damaged or was cut off".into());
        }
        let mut rest = Bytes(bytes);
        rest.array::<8>()?;
        let program = rest.array()?;
        let layout = rest.text()?;
        let kv = rest.text()?;
        let tokens = (0..rest.count(4)?).map(|_| rest.u32()).collect::<Step<_>>()?;
        let soft = (0..rest.count(40)?)
            .map(|_| Ok(SoftKey { start: rest.size()?, len: rest.size()?, hash: rest.array()? }))
            .collect::<Step<_>>()?;
        let groups = (0..rest.count(16)?)
            .map(|_| {
                let (first, n) = (rest.size()?, rest.size()?);
                let size = u64::from_le_bytes(rest.array()?);
                let size = usize::try_from(size).map_err(|_| "a page is too large")?;
                if n.checked_mul(size).is_none_or(|all| all > rest.0.len()) {
                    return Err("it was cut off".to_string());
                }
                let pages = (0..n).map(|_| rest.take(size)).collect::<Step<_>>()?;
                Ok(SavedGroup { first, pages })
            })
            .collect::<Step<_>>()?;
        if !rest.0.is_empty() {
            return Err(format!("it has {} bytes too many", rest.0.len()));
        }
        Ok(Saved { program, layout, kv, tokens, soft, groups })
    }
}

/// Bytes that were not read yet.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> Step<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or("it was cut off")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or("it was cut off")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Step<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn size(&mut self) -> Step<usize> {
        usize::try_from(self.u32()?).map_err(|_| "a number is too large".to_string())
    }

    /// How many things follow, each of at least so many bytes.
    fn count(&mut self, each: usize) -> Step<usize> {
        let n = self.size()?;
        match n.checked_mul(each) {
            Some(all) if all <= self.0.len() => Ok(n),
            _ => Err("it was cut off".into()),
        }
    }

    fn text(&mut self) -> Step<&'a str> {
        let n = self.count(1)?;
        std::str::from_utf8(self.take(n)?).map_err(|_| "a name is not text".to_string())
    }
}
