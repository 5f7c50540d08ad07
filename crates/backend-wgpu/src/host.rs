//! What the host makes for a call: rows of tables, and the angles of ropes.
//!
//! Tables stay in the program's store, in the mapped file if there is one. Angles are made here
//! because a GPU's sines are poor for the large angles of long contexts.

mod out;

use lapidary_backend::host::n_threads;
use lapidary_backend::{Error, FeedData, Result};
use lapidary_program::{AxialRopeSpec, MemoryStore, Part, Program, RopeSpec, Weight, WeightDecl};
use std::borrow::Cow;

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
    /// Cosines and sines of positions, which are an input.
    Angles { positions: usize, frequencies: Vec<f32> },
    /// Cosines of columns and of rows, then their sines; both are inputs.
    AxialAngles { columns: usize, rows: usize, frequencies: Vec<f32> },
}

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

/// A table on the host.
pub(crate) enum Table {
    /// In the program's store, which lends its bytes or makes single rows.
    Stored { name: String, row_by_row: bool },
    /// Here, because the store would make the whole table anew each time it is asked.
    Kept { name: String, store: MemoryStore },
}

/// `theta^(−2i/head_dim) / factor` for each pair that rotates.
pub(crate) fn frequencies(spec: &RopeSpec) -> Vec<f32> {
    let frequency = |i: u32| {
        let exponent = -2.0 * f64::from(i) / f64::from(spec.head_dim);
        (spec.theta.powf(exponent) / spec.factor) as f32
    };
    (0..spec.rotated_pairs).map(frequency).collect()
}

/// The same for each half of a head that turns in two directions.
pub(crate) fn axial_frequencies(spec: &AxialRopeSpec) -> Vec<f32> {
    let half = spec.head_dim / 2;
    frequencies(&RopeSpec {
        head_dim: half,
        theta: spec.theta,
        rotated_pairs: half / 2,
        factor: 1.0,
    })
}

/// What a store would make whole each time it is asked.
pub(crate) fn is_made_whole(program: &Program, name: &str) -> Result<bool> {
    let decl: &WeightDecl = &program.weights()[name];
    for part in Part::ALL.into_iter().filter(|part| decl.part_bytes(*part) > 0) {
        if program.store().make_rows(name, part, 0..1).is_none()
            && matches!(program.store().part(name, part)?, Cow::Owned(_))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Table {
    pub(crate) fn new(program: &Program, name: &str) -> Result<Self> {
        let name = name.to_string();
        if !is_made_whole(program, &name)? {
            let row_by_row = program.store().make_rows(&name, Part::Data, 0..1).is_some();
            return Ok(Table::Stored { name, row_by_row });
        }
        let weight = program.weight(&name)?;
        let mut store = MemoryStore::new();
        for part in Part::ALL {
            let bytes = weight.part(part);
            if !bytes.is_empty() {
                store.insert(&name, part, bytes.to_vec());
            }
        }
        Ok(Table::Kept { name, store })
    }

    /// The table's name, and all of it, unless rows are asked for one by one.
    fn open<'a>(&'a self, program: &'a Program) -> Result<(&'a str, Option<Weight<'a>>)> {
        Ok(match self {
            Table::Stored { name, row_by_row: true } => (name, None),
            Table::Stored { name, .. } => (name, Some(program.weight(name)?)),
            Table::Kept { name, store } => {
                (name, Some(Weight::fetch(name, &program.weights()[name], store)?))
            }
        })
    }
}

/// What makes numbers: a program, its tables, and what the caller gave.
type Source<'a> = (&'a Program, &'a [Table], &'a [FeedData<'a>]);

impl HostFeed {
    /// Makes rows of so many channels of what it feeds, from one on; `out` has room for as many as
    /// are wanted.
    pub(crate) fn make(
        &self,
        (program, tables, fed): Source<'_>,
        (from, channels): (usize, usize),
        mut out: Out<'_>,
    ) -> Result<()> {
        match self {
            HostFeed::Input(i) => {
                let part = from * channels..from * channels + out.len();
                match fed[*i] {
                    FeedData::F32(data) => out.put(data[part].iter().map(|x| x.to_le_bytes())),
                    FeedData::I32(data) => out.put(data[part].iter().map(|x| x.to_le_bytes())),
                }
                Ok(())
            }
            HostFeed::Rows(TableRows { table, ids, scale, start, stride, soft }) => {
                let soft = soft.map(|(row, index)| (row, indices(fed, index)));
                let ids = indices(fed, *ids);
                let (name, whole) = tables[*table].open(program)?;
                make_rows(from, channels, out, &|t, out| {
                    let row = match soft {
                        Some((row, index)) if index[t] >= 0 => row,
                        _ => start + stride * ids[t] as usize,
                    };
                    match &whole {
                        Some(weight) => weight.row_f32(row, out),
                        None => program.weight_rows(name, row..row + 1)?.row_f32(0, out),
                    }
                    out.iter_mut().for_each(|x| *x *= scale);
                    Ok(())
                })
            }
            HostFeed::Angles { positions, frequencies } => {
                let positions = indices(fed, *positions);
                make_rows(from, channels, out, &|t, out| {
                    let (cosines, sines) = out.split_at_mut(frequencies.len());
                    angles(positions[t], frequencies, cosines, sines);
                    Ok(())
                })
            }
            HostFeed::AxialAngles { columns, rows, frequencies } => {
                let [columns, rows] = [columns, rows].map(|input| indices(fed, *input));
                let n = frequencies.len();
                make_rows(from, channels, out, &|t, out| {
                    let (cosines, sines) = out.split_at_mut(2 * n);
                    angles(columns[t], frequencies, &mut cosines[..n], &mut sines[..n]);
                    angles(rows[t], frequencies, &mut cosines[n..], &mut sines[n..]);
                    Ok(())
                })
            }
        }
    }
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
            threads.push(scope.spawn(move || make(from + first, n, part)));
        }
        let done = threads.into_iter().map(|thread| match thread.join() {
            Ok(done) => done,
            Err(_) => Err(Error::Device("what is fed can't be made".to_string())),
        });
        done.collect()
    })
}

fn indices<'a>(fed: &[FeedData<'a>], input: usize) -> &'a [i32] {
    match fed[input] {
        FeedData::I32(data) => data,
        FeedData::F32(_) => unreachable!("validation typed this input as i32"),
    }
}

fn angles(position: i32, frequencies: &[f32], cosines: &mut [f32], sines: &mut [f32]) {
    for (frequency, (c, s)) in frequencies.iter().zip(cosines.iter_mut().zip(sines)) {
        (*s, *c) = (position as f32 * frequency).sin_cos();
    }
}
