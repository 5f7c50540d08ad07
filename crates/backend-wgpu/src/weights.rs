//! Which weights a program needs on the device, in which form, and how they get there.
//!
//! A *matrix* is multiplied with activations. It lies in one buffer or, above the largest binding,
//! in several of whole rows: its shards. Those of `linear` are packed (`linear/form.rs`), and several
//! that read the same activations may stand in one buffer; all others are as they are stored. A
//! *vector* is small and made `f32`; all vectors share one buffer. Everything is written a few rows at
//! a time, and the queue is waited for now and then, so that no more than a few weights' bytes are on
//! the way at once.

use std::ops::Range;

use lapidary_backend::Result;
use lapidary_backend_kit::{Derived, RowSource, Table, token_ids};
use lapidary_program::{DType, Encoding, Part, Program, ScaleFormat, WeightDecl};

use crate::device::Gpu;
use crate::linear::{PackedForm, TILE_ROWS, pack_rows};

/// The number of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixId(pub usize);
/// The number of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorId(pub usize);
/// A buffer with some rows of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardId {
    pub matrix: usize,
    pub shard: usize,
}

/// Bytes that are written before the queue is waited for.
const STAGED_BYTES: usize = 32 << 20;
/// Bytes of a weight that are fetched at once.
const BLOCK_BYTES: usize = 4 << 20;
/// Where bindings may begin.
const ALIGN: u64 = 256;

/// The weights that compiled methods refer to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WeightPlan {
    matrices: Vec<MatrixSpec>,
    vectors: Vec<Vector>,
    tables: Vec<String>,
    max_shard: u64,
}

/// A small weight as kernels read it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Vector {
    Derived(Derived),
    /// `i64` ids as `u32`.
    TokenIds(String),
}

impl Vector {
    fn weight(&self) -> &String {
        match self {
            Vector::Derived(derived) => &derived.weight,
            Vector::TokenIds(weight) => weight,
        }
    }

    fn size_bytes(&self, program: &Program) -> u64 {
        match self {
            Vector::Derived(derived) => derived.size_bytes(program),
            Vector::TokenIds(weight) => program.weights()[weight].n_elements() as u64 * 4,
        }
    }

    fn make(&self, program: &Program) -> Result<Vec<u8>> {
        Ok(match self {
            Vector::Derived(derived) => {
                derived.make(program)?.iter().flat_map(|x| x.to_le_bytes()).collect()
            }
            Vector::TokenIds(weight) => {
                token_ids(program, weight)?.iter().flat_map(|id| id.to_le_bytes()).collect()
            }
        })
    }
}

/// A matrix on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MatrixSpec {
    /// One weight, or several that stand one after another.
    pub names: Vec<String>,
    /// How it is packed, if it is.
    pub form: Option<PackedForm>,
    /// The rows of each shard, or its tiles if it is packed.
    pub shards: Vec<Range<usize>>,
}

/// The rows of one weight in a shard of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Which of the weights that stand together.
    pub weight: usize,
    /// Its first row in this shard, padding counted.
    pub at: usize,
    pub n_rows: usize,
    /// The row of the weight that this is.
    pub first: usize,
}

/// Where the parts of some rows stand in one buffer, as `weight.wgsl` reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawLayout {
    /// For each part, where it begins and the bytes of one row of it.
    pub parts: Vec<(Part, usize, usize)>,
    pub size_bytes: usize,
}

/// The weights of an engine.
pub(crate) struct Weights {
    shards: Vec<Vec<wgpu::Buffer>>,
    vectors: wgpu::Buffer,
    /// Where each vector stands.
    places: Vec<Range<u64>>,
    pub tables: Vec<Table>,
}

impl RawLayout {
    pub(crate) fn new(decl: &WeightDecl, rows: usize) -> Self {
        let mut at = 0;
        let mut parts = Vec::new();
        for part in Part::ALL {
            let row_bytes = decl.part_bytes(part) as usize / decl.rows().max(1);
            if row_bytes > 0 {
                parts.push((part, at, row_bytes));
                at = (at + row_bytes * rows).next_multiple_of(4);
            }
        }
        RawLayout { parts, size_bytes: at }
    }

    fn start(&self, part: Part) -> u32 {
        self.parts.iter().find(|(p, ..)| *p == part).map_or(0, |(_, at, _)| *at as u32)
    }

    /// `struct Weight` of `weight.wgsl`.
    pub(crate) fn words(&self, decl: &WeightDecl) -> [u32; 16] {
        let kind = |dtype: DType| match dtype {
            DType::F16 => 1,
            DType::Bf16 => 2,
            _ => 0,
        };
        let cols = decl.cols() as u32;
        let row_bytes = self.parts.first().map_or(0, |(.., row_bytes)| *row_bytes as u32);
        let mut words = [0; 16];
        match decl.encoding {
            Encoding::Dense(dtype) => {
                words[..4].copy_from_slice(&[cols, 0, row_bytes, kind(dtype)])
            }
            Encoding::Quant(q) => {
                let (per, signed, dtype) = match q.scale {
                    ScaleFormat::Plain { dtype } => (0, 0, dtype),
                    ScaleFormat::Nested { per, sub, dtype } => {
                        (per, u32::from(sub == DType::I8), dtype)
                    }
                };
                words[..13].copy_from_slice(&[
                    cols,
                    q.bits.into(),
                    row_bytes,
                    kind(dtype),
                    q.group,
                    q.offset.into(),
                    q.affine.into(),
                    per,
                    signed,
                    self.start(Part::Scale),
                    self.start(Part::Bias),
                    self.start(Part::SuperScale),
                    self.start(Part::SuperBias),
                ]);
            }
        }
        words
    }
}

impl WeightPlan {
    /// Weights in buffers of so many bytes at most.
    pub(crate) fn new(max_shard: u64) -> Self {
        WeightPlan { matrices: vec![], vectors: vec![], tables: vec![], max_shard }
    }

    /// A matrix whose shards hold whole runs of `unit` rows.
    pub(crate) fn matrix(&mut self, program: &Program, name: &str, unit: usize) -> MatrixId {
        let is_it = |m: &MatrixSpec| m.form.is_none() && m.names == [name];
        if let Some(known) = self.matrices.iter().position(is_it) {
            return MatrixId(known);
        }
        let decl = &program.weights()[name];
        let rows = decl.rows();
        // Parts begin at multiples of 4 bytes, so that a row's share may be a little more.
        let row_bytes = (decl.size_bytes() / rows.max(1) as u64).max(1);
        let fit = (self.max_shard.saturating_sub(64) / row_bytes) as usize;
        let step = (fit / unit * unit).max(unit).min(rows.max(1));
        let shards = (0..rows.max(1)).step_by(step).map(|at| at..(at + step).min(rows)).collect();
        self.matrices.push(MatrixSpec { names: vec![name.to_string()], form: None, shards });
        MatrixId(self.matrices.len() - 1)
    }

    /// Matrices of one form, packed and put together, in shards of whole runs of `unit` tiles. Several
    /// must fit one buffer ([`Self::fit_together`]).
    pub(crate) fn packed(
        &mut self,
        program: &Program,
        names: &[&str],
        form: PackedForm,
        unit: usize,
    ) -> MatrixId {
        let is_it = |m: &MatrixSpec| m.form == Some(form) && m.names == names;
        if let Some(known) = self.matrices.iter().position(is_it) {
            return MatrixId(known);
        }
        let tiles = tiles_of(program, names).max(1);
        let fit = (self.fitting_tiles(&form) / unit).max(1) * unit;
        let shards = (0..tiles).step_by(fit).map(|at| at..(at + fit).min(tiles)).collect();
        let names = names.iter().map(|name| (*name).to_string()).collect();
        self.matrices.push(MatrixSpec { names, form: Some(form), shards });
        MatrixId(self.matrices.len() - 1)
    }

    /// Tiles of a form that fit one buffer.
    pub(crate) fn fitting_tiles(&self, form: &PackedForm) -> usize {
        let tile_bytes = form.tile_bytes().iter().sum::<usize>() as u64;
        // Sections begin at multiples of 256 bytes.
        (self.max_shard.saturating_sub(1024) / tile_bytes) as usize
    }

    /// Whether packed matrices fit one buffer together.
    pub(crate) fn fit_together(
        &self,
        program: &Program,
        names: &[&str],
        form: &PackedForm,
    ) -> bool {
        tiles_of(program, names) <= self.fitting_tiles(form)
    }

    /// The weights in a shard of a packed matrix.
    pub(crate) fn spans(&self, program: &Program, id: ShardId) -> Vec<Span> {
        let matrix = &self.matrices[id.matrix];
        matrix.spans(program, &matrix.shards[id.shard])
    }

    pub(crate) fn shards(&self, id: MatrixId) -> &[Range<usize>] {
        &self.matrices[id.0].shards
    }

    pub(crate) fn vector(&mut self, vector: Vector) -> VectorId {
        let known = self.vectors.iter().position(|v| *v == vector);
        VectorId(known.unwrap_or_else(|| {
            self.vectors.push(vector);
            self.vectors.len() - 1
        }))
    }

    pub(crate) fn table(&mut self, name: &str) -> usize {
        self.tables.iter().position(|t| t == name).unwrap_or_else(|| {
            self.tables.push(name.to_string());
            self.tables.len() - 1
        })
    }

    fn vector_places(&self, program: &Program) -> (Vec<Range<u64>>, u64) {
        let mut at = 0;
        let places = self.vectors.iter().map(|v| {
            let place = at..at + v.size_bytes(program).max(4);
            at = place.end.next_multiple_of(ALIGN);
            place
        });
        (places.collect(), at)
    }

    /// Bytes that `load` takes and keeps.
    pub(crate) fn size_bytes(&self, program: &Program) -> u64 {
        let mut bytes = self.vector_places(program).1;
        for matrix in &self.matrices {
            let decl = &program.weights()[&matrix.names[0]];
            let shards = matrix.shards.iter().map(|shard| match matrix.form {
                Some(form) => form.sections(shard.len()).size_bytes(),
                None => RawLayout::new(decl, shard.len()).size_bytes as u64,
            });
            bytes += shards.sum::<u64>();
        }
        bytes + self.tables.iter().map(|name| Table::size_bytes(program, name)).sum::<u64>()
    }

    /// Writes the weights to the device, one at a time.
    pub(crate) fn load(
        &self,
        program: &Program,
        gpu: &Gpu,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights> {
        let stored = |name: &String| program.weights()[name].size_bytes();
        let names = self.matrices.iter().flat_map(|m| &m.names);
        let total = names.chain(self.vectors.iter().map(Vector::weight)).map(stored).sum();
        let mut done = 0;
        progress(done, total);
        let mut told = |name: &String| {
            program.store().forget(name);
            done += stored(name);
            progress(done, total);
        };
        let mut staging = Staging { gpu, staged: 0 };
        let (places, size) = self.vector_places(program);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let vectors = gpu.buffer("vectors", size, usage)?;
        for (vector, place) in self.vectors.iter().zip(&places) {
            staging.write(&vectors, place.start, vector.make(program)?)?;
            told(vector.weight());
        }
        let mut shards = Vec::new();
        for matrix in &self.matrices {
            shards.push(match matrix.form {
                Some(form) => matrix.load_packed(program, &form, &mut staging)?,
                None => matrix.load(program, &mut staging)?,
            });
            matrix.names.iter().for_each(&mut told);
        }
        staging.flush()?;
        let tables = self.tables.iter().map(|name| Table::new(program, name));
        Ok(Weights { shards, vectors, places, tables: tables.collect::<Result<_>>()? })
    }
}

impl MatrixSpec {
    fn load(&self, program: &Program, staging: &mut Staging<'_>) -> Result<Vec<wgpu::Buffer>> {
        let name = &self.names[0];
        let decl = &program.weights()[name];
        let source = RowSource::open(program, name)?;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let mut buffers = Vec::new();
        for rows in &self.shards {
            let layout = RawLayout::new(decl, rows.len());
            let buffer = staging.gpu.buffer(name, layout.size_bytes as u64, usage)?;
            let row_bytes = layout.parts.iter().map(|(.., bytes)| bytes).sum::<usize>().max(1);
            // Four rows of anything begin at a multiple of four bytes.
            let block = (BLOCK_BYTES / row_bytes).next_multiple_of(4).max(4);
            for start in rows.clone().step_by(block) {
                let end = (start + block).min(rows.end);
                let weight = source.rows(start..end)?;
                for (part, at, row_bytes) in &layout.parts {
                    let mut bytes = weight.part(*part).to_vec();
                    bytes.resize(bytes.len().next_multiple_of(4), 0);
                    let at = at + (start - rows.start) * row_bytes;
                    staging.write(&buffer, at as u64, bytes)?;
                }
            }
            buffers.push(buffer);
        }
        Ok(buffers)
    }

    fn load_packed(
        &self,
        program: &Program,
        form: &PackedForm,
        staging: &mut Staging<'_>,
    ) -> Result<Vec<wgpu::Buffer>> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let [code_bytes, scale_bytes, _] = form.tile_bytes();
        let block = (BLOCK_BYTES / (code_bytes + scale_bytes)).max(1) * TILE_ROWS;
        let mut buffers = Vec::new();
        for shard in &self.shards {
            let sections = form.sections(shard.len());
            let buffer = staging.gpu.buffer(&self.names[0], sections.size_bytes(), usage)?;
            for span in self.spans(program, shard) {
                let name = &self.names[span.weight];
                let source = RowSource::open(program, name)?;
                for start in (0..span.n_rows).step_by(block) {
                    let end = (start + block).min(span.n_rows);
                    let rows = source.rows(span.first + start..span.first + end)?;
                    let packed = pack_rows(form, &rows);
                    let tile = ((span.at + start) / TILE_ROWS) as u64;
                    let mut put = |section: &Range<u64>, bytes: usize, data: Vec<u8>| {
                        staging.write(&buffer, section.start + tile * bytes as u64, data)
                    };
                    put(&sections.codes, code_bytes, packed.codes)?;
                    if scale_bytes > 0 {
                        put(&sections.scales, scale_bytes, packed.scales)?;
                    }
                    put(&sections.rows, 4 * TILE_ROWS, packed.rows)?;
                }
            }
            buffers.push(buffer);
        }
        Ok(buffers)
    }

    /// The weights in some tiles of a packed matrix.
    fn spans(&self, program: &Program, tiles: &Range<usize>) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut from = 0;
        for (weight, name) in self.names.iter().enumerate() {
            let rows = program.weights()[name].rows();
            let own = from..from + rows.div_ceil(TILE_ROWS);
            let (start, end) = (own.start.max(tiles.start), own.end.min(tiles.end));
            if start < end {
                let first = (start - own.start) * TILE_ROWS;
                let n_rows = ((end - own.start) * TILE_ROWS).min(rows) - first;
                spans.push(Span { weight, at: (start - tiles.start) * TILE_ROWS, n_rows, first });
            }
            from = own.end;
        }
        spans
    }
}

/// Tiles of packed matrices that stand together.
fn tiles_of(program: &Program, names: &[&str]) -> usize {
    names.iter().map(|name| program.weights()[*name].rows().div_ceil(TILE_ROWS)).sum()
}

impl Weights {
    pub(crate) fn shard(&self, id: ShardId) -> wgpu::BindingResource<'_> {
        self.shards[id.matrix][id.shard].as_entire_binding()
    }

    /// Some bytes of a shard.
    pub(crate) fn section(&self, id: ShardId, at: u64, size: u64) -> wgpu::BindingResource<'_> {
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.shards[id.matrix][id.shard],
            offset: at,
            size: wgpu::BufferSize::new(size),
        })
    }

    pub(crate) fn vector(&self, id: VectorId) -> wgpu::BindingResource<'_> {
        let place = &self.places[id.0];
        wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: &self.vectors,
            offset: place.start,
            size: wgpu::BufferSize::new(place.end - place.start),
        })
    }
}

/// Writes to buffers, with a bound on what is on the way.
pub(crate) struct Staging<'a> {
    pub gpu: &'a Gpu,
    staged: usize,
}

impl Staging<'_> {
    /// Writes bytes, a multiple of four of them.
    fn write(&mut self, buffer: &wgpu::Buffer, at: u64, bytes: Vec<u8>) -> Result<()> {
        if self.staged > 0 && self.staged + bytes.len() > STAGED_BYTES {
            self.flush()?;
        }
        self.staged += bytes.len();
        self.gpu.queue.write_buffer(buffer, at, &bytes);
        self.gpu.check()
    }

    fn flush(&mut self) -> Result<()> {
        self.staged = 0;
        self.gpu.queue.submit([]);
        self.gpu.wait()
    }
}
