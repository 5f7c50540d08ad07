//! What the host makes for a call: rows of tables, the angles of ropes, and where tokens stand.
//!
//! Tables that are not on the device stay in the program's store, in the mapped file if there is one.
//! Angles are made here because a GPU's sines are poor for the large angles of long contexts.

mod out;

use lapidary_backend::host::n_threads;
use lapidary_backend::{Bound, DrawRule, Error, Fed, Result};
use lapidary_backend_kit::{GroupTables, Table, angles};
use lapidary_program::Program;

pub(crate) use self::out::Out;

/// Numbers that are worth a thread of their own.
const LEAST_SHARE: usize = 1 << 17;
/// Threads that read rows at once: memory is soon busy.
const MOST_THREADS: usize = 8;

/// How the host comes by what it feeds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HostFeed {
    /// The caller gives it: input number.
    Input(usize),
    /// Rows of a table.
    Rows(TableRows),
    /// Cosines and sines of positions.
    Angles { frequencies: Vec<f32> },
    /// Cosines of columns and of rows, then their sines; both are inputs.
    AxialAngles { columns: usize, rows: usize, frequencies: Vec<f32> },
    /// Where each token stands, for caches of a group: its position; where the pages of its sequence
    /// begin among [`HostFeed::Pages`], less the first of them; the last position that it sees; and
    /// the page that its own key goes to.
    Places { group: usize },
    /// The pages of each span in a group.
    Pages { group: usize },
    /// How a token is drawn from each row of an output: temperature, top-k, top-p, min-p, the two
    /// halves of the seed, position, and how many candidates there are.
    Rules { output: usize },
}

/// Words of one row of [`HostFeed::Places`].
pub(crate) const PLACE_WORDS: usize = 4;
/// Words of one row of [`HostFeed::Rules`].
pub(crate) const RULE_WORDS: usize = 8;

/// Rows `start + stride·id` of a table, times `scale`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TableRows {
    pub table: usize,
    /// The input that holds ids.
    pub ids: usize,
    pub scale: f32,
    pub start: usize,
    pub stride: usize,
    /// A row, and the input that says where it is read instead.
    pub soft: Option<(usize, usize)>,
}

/// What numbers are made of.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub program: &'a Program,
    pub tables: &'a [Table],
    pub groups: &'a [GroupTables],
    pub bound: &'a Bound<'a>,
    /// For each output, the rules by which tokens are drawn, and from how many candidates; empty if
    /// none are.
    pub rules: &'a [(&'a [DrawRule], usize)],
}

impl HostFeed {
    /// Makes rows of so many channels of what it feeds, from one on; `out` has room for as many as
    /// are wanted.
    pub(crate) fn make(
        &self,
        source: Source<'_>,
        (from, channels): (usize, usize),
        mut out: Out<'_>,
    ) -> Result<()> {
        let bound = source.bound;
        match self {
            HostFeed::Input(i) => {
                let part = from * channels..from * channels + out.len();
                match bound.feeds[*i] {
                    Fed::F32(data) => out.put(data[part].iter().map(|x| x.to_le_bytes())),
                    Fed::I32(data) => out.put(data[part].iter().map(|x| x.to_le_bytes())),
                    // The device has these.
                    Fed::Of(_) => {}
                }
                Ok(())
            }
            HostFeed::Rows(rows) => rows.make(source, (from, channels), out),
            HostFeed::Angles { frequencies } => make_rows(from, channels, out, &|t, out| {
                let (cosines, sines) = out.split_at_mut(frequencies.len());
                angles(bound.positions[t], frequencies, cosines, sines);
                Ok(())
            }),
            HostFeed::AxialAngles { columns, rows, frequencies } => {
                let [columns, rows] = [columns, rows].map(|input| indices(bound, *input));
                let n = frequencies.len();
                make_rows(from, channels, out, &|t, out| {
                    let (cosines, sines) = out.split_at_mut(2 * n);
                    angles(columns[t], frequencies, &mut cosines[..n], &mut sines[..n]);
                    angles(rows[t], frequencies, &mut cosines[n..], &mut sines[n..]);
                    Ok(())
                })
            }
            HostFeed::Places { group } => {
                for t in 0..out.len() / PLACE_WORDS {
                    let words = place_words(source, *group, t);
                    out.put(words.into_iter().map(i32::to_le_bytes));
                }
                Ok(())
            }
            HostFeed::Pages { group } => {
                for span in bound.spans {
                    let GroupTables { stride, .. } = source.groups[*group];
                    let first = source.groups[*group].first_page(span.start as usize);
                    let table = span.tables.get(*group).copied().unwrap_or_default();
                    let page = |n: usize| {
                        let at = n.checked_sub(table.first as usize)?;
                        table.pages.get(at).map(|page| page.0)
                    };
                    let pages = (0..stride).map(|n| page(first + n).unwrap_or(0).to_le_bytes());
                    out.put(pages);
                }
                Ok(())
            }
            HostFeed::Rules { output } => {
                let (rules, k) = source.rules.get(*output).copied().unwrap_or_default();
                for row in from..from + out.len() / RULE_WORDS {
                    let words = |rule| rule_words(rule, k);
                    let words = rules.get(row).map_or([0; RULE_WORDS], words);
                    out.put(words.into_iter().map(u32::to_le_bytes));
                }
                Ok(())
            }
        }
    }
}

impl TableRows {
    fn make(
        &self,
        source: Source<'_>,
        (from, channels): (usize, usize),
        out: Out<'_>,
    ) -> Result<()> {
        let TableRows { table, ids, scale, start, stride, soft } = self;
        let soft = soft.map(|(row, index)| (row, indices(source.bound, index)));
        let ids = indices(source.bound, *ids);
        let table = source.tables[*table].open(source.program)?;
        make_rows(from, channels, out, &|t, out| {
            let row = match soft {
                Some((row, index)) if index[t] >= 0 => row,
                _ => start + stride * ids[t] as usize,
            };
            table.row_f32(row, out)?;
            out.iter_mut().for_each(|x| *x *= scale);
            Ok(())
        })
    }
}

/// Where a token stands in a group, as kernels read it.
fn place_words(source: Source<'_>, group: usize, t: usize) -> [i32; PLACE_WORDS] {
    let bound = source.bound;
    let (span, position) = (bound.sequences[t] as usize, bound.positions[t]);
    let GroupTables { stride, .. } = source.groups[group];
    let first = source.groups[group].first_page(bound.spans[span].start as usize);
    let table = bound.spans[span].tables.get(group);
    let own = table.and_then(|table| table.find(position as usize));
    [
        position,
        (span * stride) as i32 - first as i32,
        bound.horizons[t],
        own.map_or(0, |(page, _)| page.0 as i32),
    ]
}

pub(crate) fn rule_words(rule: &DrawRule, k: usize) -> [u32; RULE_WORDS] {
    [
        rule.temperature.to_bits(),
        rule.top_k,
        rule.top_p.to_bits(),
        rule.min_p.to_bits(),
        rule.seed as u32,
        (rule.seed >> 32) as u32,
        rule.position,
        k as u32,
    ]
}

/// Makes rows from number `from` on, by several threads if they are many.
fn make_rows(
    from: usize,
    channels: usize,
    mut out: Out<'_>,
    row: &(dyn Fn(usize, &mut [f32]) -> Result<()> + Sync),
) -> Result<()> {
    let channels = channels.max(1);
    let n_rows = out.len() / channels;
    // The host is asked only if it matters: a token has no time for that.
    let n_threads = match out.len() / LEAST_SHARE {
        0 | 1 => 1,
        shares => shares.min(MOST_THREADS).min(n_threads()).max(1),
    };
    let share = n_rows.div_ceil(n_threads).max(1);
    let make = |first: usize, n: usize, mut out: Out<'_>| {
        let mut made = vec![0.0; channels];
        for t in first..first + n {
            row(t, &mut made)?;
            out.put(made.iter().map(|x| x.to_le_bytes()));
        }
        Ok(())
    };
    if n_threads == 1 {
        return make(from, n_rows, out);
    }
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(n_threads);
        for first in (0..n_rows).step_by(share) {
            let n = share.min(n_rows - first);
            let part = out.split_off(n * channels);
            let part = std::thread::Builder::new()
                .spawn_scoped(scope, move || make(from + first, n, part))
                .map_err(|e| Error::Device(format!("there is no thread to be had: {e}")));
            threads.push(part);
        }
        let done = threads.into_iter().map(|thread| match thread?.join() {
            Ok(done) => done,
            Err(_) => Err(Error::Device("what is fed can't be made".to_string())),
        });
        done.collect()
    })
}

fn indices<'a>(bound: &Bound<'a>, input: usize) -> &'a [i32] {
    match bound.feeds[input] {
        Fed::I32(data) => data,
        Fed::F32(_) => unreachable!("validation typed this input as i32"),
        Fed::Of(_) => unreachable!("a call was checked to have what the host reads"),
    }
}
