//! Which weights a program needs on the device, in which form, and how they get there.
//!
//! A *matrix* is multiplied with activations, or rows of it are looked up; it lies in memory of its
//! own. A *vector* is small and made `f32`; all vectors share one memory. Matrices are read a few rows
//! at a time by several threads, each with its own stream, through memory that the device reads by
//! itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use lapidary_backend::host::n_threads;
use lapidary_backend::{Error, Result};
use lapidary_backend_kit::{Derived, RowSource, token_ids};
use lapidary_program::{Program, WeightDecl};

use crate::driver::args;
use crate::driver::{Context, Event, Memory, Pinned, Stream};
use crate::gpu::Gpu;
use crate::packed::{Packed, PackedForm, TILE_ROWS};
use crate::raw::{Raw, RawLayout};

/// Bytes of a weight that are fetched at once.
const BLOCK_BYTES: usize = 8 << 20;
/// Threads that read weights at once.
const MOST_THREADS: usize = 8;
/// Where vectors begin.
const ALIGN: usize = 256;

/// The number of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixId(pub usize);
/// The number of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorId(pub usize);

/// How a matrix lies on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixForm {
    /// As it is stored.
    Raw,
    /// In the order of matrix instructions.
    Packed(PackedForm),
}

/// The weights that compiled methods refer to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WeightPlan {
    matrices: Vec<MatrixSpec>,
    vectors: Vec<Vector>,
}

/// A matrix on the device: one weight, or several of one form that stand one after another.
#[derive(Clone, Debug, PartialEq)]
struct MatrixSpec {
    names: Vec<String>,
    form: MatrixForm,
}

impl MatrixSpec {
    /// Where each weight begins, and bytes of all.
    fn starts(&self, program: &Program) -> (Vec<usize>, usize) {
        let mut at = 0;
        let starts = self.names.iter().map(|name| {
            let (decl, start) = (&program.weights()[name], at);
            at += match self.form {
                MatrixForm::Raw => RawLayout::new(decl, decl.rows()).size_bytes,
                MatrixForm::Packed(form) => PackedForm::n_tiles(decl) * form.tile_bytes(decl),
            };
            start
        });
        (starts.collect(), at)
    }
}

/// A small weight as kernels read it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Vector {
    Derived(Derived),
    /// `i64` ids as `u32`.
    TokenIds(String),
    /// Numbers that are no weight's.
    Numbers(Vec<f32>),
}

impl Vector {
    fn weight(&self) -> Option<&str> {
        match self {
            Vector::Derived(derived) => Some(&derived.weight),
            Vector::TokenIds(weight) => Some(weight),
            Vector::Numbers(_) => None,
        }
    }

    fn size_bytes(&self, program: &Program) -> usize {
        match self {
            Vector::Derived(derived) => derived.size_bytes(program) as usize,
            Vector::TokenIds(weight) => program.weights()[weight].n_elements() * 4,
            Vector::Numbers(numbers) => numbers.len() * 4,
        }
    }

    fn make(&self, program: &Program) -> Result<Vec<u8>> {
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(match self {
            Vector::Derived(derived) => bytes(&derived.make(program)?),
            Vector::TokenIds(weight) => {
                token_ids(program, weight)?.iter().flat_map(|id| id.to_le_bytes()).collect()
            }
            Vector::Numbers(numbers) => bytes(numbers),
        })
    }
}

/// The weights of an engine.
pub(crate) struct Weights {
    matrices: Vec<Matrix>,
    vectors: Memory,
    places: Vec<usize>,
}

/// A matrix on the device.
pub(crate) struct Matrix {
    pub form: MatrixForm,
    /// If it is as it is stored.
    pub raw: Raw,
    /// If it is packed. Tiles are those of one matrix.
    pub packed: Packed,
    /// Its rows, all matrices of it counted.
    pub rows: usize,
    /// Kept for what points to it.
    _memory: Memory,
}

impl Weights {
    pub(crate) fn matrix(&self, id: MatrixId) -> &Matrix {
        &self.matrices[id.0]
    }

    /// Where a vector stands.
    pub(crate) fn vector(&self, id: VectorId) -> u64 {
        self.vectors.at() + self.places[id.0] as u64
    }
}

/// Some rows of a matrix that are to be fetched.
struct Job<'a> {
    name: &'a str,
    form: MatrixForm,
    /// Where the weight begins.
    target: u64,
    rows: std::ops::Range<usize>,
}

impl WeightPlan {
    pub(crate) fn matrix(&mut self, names: &[&str], form: MatrixForm) -> MatrixId {
        let known = self.matrices.iter().position(|m| m.names == names && m.form == form);
        MatrixId(known.unwrap_or_else(|| {
            let names = names.iter().map(|name| (*name).to_string()).collect();
            self.matrices.push(MatrixSpec { names, form });
            self.matrices.len() - 1
        }))
    }

    pub(crate) fn vector(&mut self, vector: Vector) -> VectorId {
        let known = self.vectors.iter().position(|v| *v == vector);
        VectorId(known.unwrap_or_else(|| {
            self.vectors.push(vector);
            self.vectors.len() - 1
        }))
    }

    fn vector_places(&self, program: &Program) -> (Vec<usize>, usize) {
        let mut at = 0;
        let places = self.vectors.iter().map(|v| {
            let start = at;
            at = (at + v.size_bytes(program)).next_multiple_of(ALIGN);
            start
        });
        (places.collect(), at)
    }

    /// Bytes that `load` takes and keeps.
    pub(crate) fn size_bytes(&self, program: &Program) -> u64 {
        let matrices = self.matrices.iter().map(|matrix| matrix.starts(program).1 as u64);
        matrices.sum::<u64>() + self.vector_places(program).1 as u64
    }

    /// Brings the weights to the device.
    pub(crate) fn load(
        &self,
        program: &Program,
        gpu: &Gpu,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights> {
        let context = &gpu.context;
        let stored = |name: &str| program.weights()[name].size_bytes();
        let names = || self.matrices.iter().flat_map(|matrix| &matrix.names);
        let total: u64 = names().map(|name| stored(name)).sum();
        progress(0, total);
        let (places, size) = self.vector_places(program);
        let vectors = Memory::new(context, size)?;
        self.load_vectors(program, context, &vectors, &places)?;
        let (mut matrices, mut jobs) = (Vec::new(), Vec::new());
        for spec in &self.matrices {
            let (starts, bytes) = spec.starts(program);
            let memory = Memory::new(context, bytes)?;
            for (name, start) in spec.names.iter().zip(starts) {
                let decl = &program.weights()[name];
                let (form, target) = (spec.form, memory.at() + start as u64);
                let step = block_rows(decl);
                let rows = (0..decl.rows()).step_by(step);
                let rows = rows.map(|at| at..(at + step).min(decl.rows()));
                jobs.extend(rows.map(|rows| Job { name, form, target, rows }));
            }
            matrices.push(spec.matrix(program, memory));
        }
        let next = AtomicUsize::new(0);
        let (told, heard) = mpsc::channel::<Result<u64>>();
        let n_workers = n_threads().clamp(1, MOST_THREADS).min(jobs.len().max(1));
        std::thread::scope(|scope| {
            for _ in 0..n_workers {
                let (told, jobs, next) = (told.clone(), &jobs, &next);
                scope.spawn(move || {
                    let mut worker = match Worker::new(program, gpu) {
                        Ok(worker) => worker,
                        Err(e) => return drop(told.send(Err(e))),
                    };
                    while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let done = worker.fetch(job);
                        let is_wrong = done.is_err();
                        if told.send(done).is_err() || is_wrong {
                            return;
                        }
                    }
                    let ended = worker.stream.wait().map(|()| 0);
                    drop(told.send(ended));
                });
            }
            drop(told);
            let mut done = 0;
            for bytes in heard {
                // The others see at their next job that nobody listens.
                done += bytes?;
                progress(done.min(total), total);
            }
            Ok::<(), Error>(())
        })?;
        names().for_each(|name| program.store().forget(name));
        Ok(Weights { matrices, vectors, places })
    }

    fn load_vectors(
        &self,
        program: &Program,
        context: &Arc<Context>,
        to: &Memory,
        places: &[usize],
    ) -> Result<()> {
        let stream = Stream::new(context)?;
        let mut pinned = Pinned::new(context, to.bytes)?;
        for (vector, at) in self.vectors.iter().zip(places) {
            let made = vector.make(program)?;
            pinned.bytes_mut()[*at..at + made.len()].copy_from_slice(&made);
            if let Some(name) = vector.weight() {
                program.store().forget(name);
            }
        }
        stream.upload(&pinned, 0, to.at(), to.bytes)?;
        stream.wait()
    }
}

/// Rows of a weight that are fetched at once.
fn block_rows(decl: &WeightDecl) -> usize {
    let row_bytes = decl.size_bytes() as usize / decl.rows().max(1);
    (BLOCK_BYTES / row_bytes.max(1)).max(16) / 16 * 16
}

impl MatrixSpec {
    /// It in its memory.
    fn matrix(&self, program: &Program, memory: Memory) -> Matrix {
        let decl = &program.weights()[&self.names[0]];
        let rows: usize = self.names.iter().map(|name| program.weights()[name].rows()).sum();
        let raw = Raw::new(decl, &RawLayout::new(decl, decl.rows()), memory.at());
        let (bits, affine) = match self.form {
            MatrixForm::Raw => (0, false),
            MatrixForm::Packed(form) => (form.bits, form.affine),
        };
        // Of a weight of several matrices, those of one.
        let n_tiles = match decl.shape.as_slice() {
            [_, rows, _] => *rows as usize / TILE_ROWS,
            _ => self.names.iter().map(|n| PackedForm::n_tiles(&program.weights()[n])).sum(),
        };
        let packed = Packed {
            data: memory.at(),
            n_rows: rows as u32,
            n_cols: decl.cols() as u32,
            n_tiles: n_tiles as u32,
            n_blocks: PackedForm::n_blocks(decl) as u32,
            bits,
            affine: affine.into(),
        };
        Matrix { form: self.form, raw, packed, rows, _memory: memory }
    }
}

/// A thread that fetches rows and copies them to the device.
struct Worker<'a> {
    program: &'a Program,
    gpu: &'a Gpu,
    stream: Stream,
    slots: [(Pinned, Event); 2],
    /// Rows as they are stored, before they are packed.
    stored: Memory,
    turn: usize,
    /// The weight that it is at.
    source: Option<(&'a str, RowSource<'a>)>,
}

impl<'a> Worker<'a> {
    fn new(program: &'a Program, gpu: &'a Gpu) -> Result<Self> {
        let context = &gpu.context;
        let bytes = BLOCK_BYTES + (1 << 20);
        let slot = || -> Result<_> { Ok((Pinned::new(context, bytes)?, Event::new(context)?)) };
        let (slots, stream) = ([slot()?, slot()?], Stream::new(context)?);
        let stored = Memory::new(context, bytes)?;
        Ok(Worker { program, gpu, stream, slots, stored, turn: 0, source: None })
    }

    /// Copies rows to where they belong; bytes of them.
    fn fetch(&mut self, job: &Job<'a>) -> Result<u64> {
        if self.source.as_ref().is_none_or(|(name, _)| *name != job.name) {
            self.source = Some((job.name, RowSource::open(self.program, job.name)?));
        }
        let Some((_, source)) = &self.source else { return Ok(0) };
        let decl = source.decl();
        let rows = source.rows(job.rows.clone())?;
        let n_rows = job.rows.len();
        // Where parts go: to their places in the weight, or all together to be packed.
        let (layout, target, before) = match job.form {
            MatrixForm::Raw => (RawLayout::new(decl, decl.rows()), job.target, job.rows.start),
            MatrixForm::Packed(_) => {
                let layout = RawLayout::new(decl, n_rows);
                if self.stored.bytes < layout.size_bytes {
                    self.stored = Memory::new(&self.gpu.context, layout.size_bytes)?;
                }
                (layout, self.stored.at(), 0)
            }
        };
        let need: usize = layout.parts.iter().map(|(.., bytes)| bytes * n_rows + 16).sum();
        self.turn ^= 1;
        let (pinned, event) = &mut self.slots[self.turn];
        event.wait()?;
        if pinned.len() < need {
            *pinned = Pinned::new(&self.gpu.context, need)?;
        }
        let (mut at, mut sum) = (0, 0);
        for (part, start, row_bytes) in &layout.parts {
            let bytes = rows.part(*part);
            pinned.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            let to = target + (start + before * row_bytes) as u64;
            self.stream.upload(pinned, at, to, bytes.len())?;
            at = (at + bytes.len()).next_multiple_of(16);
            sum += bytes.len() as u64;
        }
        if let MatrixForm::Packed(form) = job.form {
            let raw = Raw::new(decl, &layout, target);
            let tile = job.rows.start / TILE_ROWS * form.tile_bytes(decl);
            let blocks = PackedForm::n_blocks(decl);
            let n = n_rows.div_ceil(TILE_ROWS) * blocks * 32;
            let affine = u32::from(form.affine);
            let (to, blocks) = (job.target + tile as u64, blocks as u32);
            let args = args![raw, to, n_rows as u32, blocks, form.bits, affine];
            let grid = ([n.div_ceil(128) as u32, 1, 1], 128, 0);
            self.gpu.launch(&self.stream, "pack", grid, args)?;
        }
        self.stream.record(event)?;
        Ok(sum)
    }
}
