//! Packed quantised weights against what their encoding means, written out plainly.

use lapidary_backend_kit::RowSource;
use lapidary_program::{DType, MemoryStore, Part, QuantLayout, ScaleFormat, Weight, WeightDecl};

use super::super::activations::BLOCK;
use super::super::{Activations, Cpu, MatrixShape, PackedWeight};
use crate::simd::Isa;
use crate::workers::Workers;

/// Numbers that look random and are the same everywhere.
struct Noise(u64);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as u8
    }

    fn float(&mut self) -> f32 {
        f32::from(self.byte()) / 64.0 - 2.0 + f32::from(self.byte()) / 4096.0
    }
}

fn layouts() -> Vec<QuantLayout> {
    let plain = |dtype| ScaleFormat::Plain { dtype };
    let nested = |per, sub| ScaleFormat::Nested { per, sub, dtype: DType::F16 };
    let mut all = Vec::new();
    for bits in 2..=8u8 {
        let offset = 1u8 << (bits - 1);
        let dtype = [DType::F16, DType::Bf16, DType::F32][usize::from(bits) % 3];
        for (group, affine) in [(32, false), (32, true), (64, true), (16, false), (48, true)] {
            let offset = if affine { 0 } else { offset };
            all.push(QuantLayout { bits, group, offset, scale: plain(dtype), affine });
        }
    }
    for bits in [4, 5] {
        all.push(QuantLayout {
            bits,
            group: 32,
            offset: 0,
            scale: nested(2, DType::U8),
            affine: true,
        });
    }
    all.push(QuantLayout {
        bits: 6,
        group: 16,
        offset: 32,
        scale: nested(4, DType::I8),
        affine: false,
    });
    all
}

fn store_of(decl: &WeightDecl, noise: &mut Noise) -> MemoryStore {
    let mut store = MemoryStore::new();
    for part in Part::ALL {
        let Some((dtype, _)) = decl.part_layout(part) else { continue };
        let n = decl.part_bytes(part) as usize / dtype.size_bytes();
        let bytes = match dtype {
            DType::F32 => (0..n).flat_map(|_| (noise.float() / 64.0).to_le_bytes()).collect(),
            DType::F16 => (0..n)
                .flat_map(|_| half::f16::from_f32(noise.float() / 64.0).to_le_bytes())
                .collect(),
            DType::Bf16 => (0..n)
                .flat_map(|_| half::bf16::from_f32(noise.float() / 64.0).to_le_bytes())
                .collect(),
            _ => (0..n).map(|_| noise.byte()).collect(),
        };
        store.insert("w", part, bytes);
    }
    store
}

/// `x` as bytes and back, by the rule of `activations`.
fn rounded(x: &[f32], cols: usize) -> Vec<f32> {
    let mut out = x.to_vec();
    for block in out.chunks_mut(cols).flat_map(|row| row.chunks_mut(BLOCK)) {
        let largest = block.iter().fold(0f32, |m, x| m.max(x.abs()));
        let (inverse, scale) = (127.0 / largest, largest / 127.0);
        block.iter_mut().for_each(|x| *x = (*x * inverse).round_ties_even() * scale);
    }
    out
}

fn plain_product(weight: &[f32], x: &[f32], cols: usize) -> Vec<f64> {
    let row_of = |x: &[f32]| {
        let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
        weight.chunks(cols).map(dot).collect::<Vec<f64>>()
    };
    x.chunks(cols).flat_map(row_of).collect()
}

fn assert_near(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    let size = want.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs() / size;
        assert!(error <= tolerance, "{what}: number {i} is {got}, not {want}");
    }
}

#[test]
fn every_layout_multiplies_as_its_encoding_says() {
    let workers = Workers::new(2);
    let mut noise = Noise(7);
    for layout in layouts() {
        // 16, 48 and 64 divide it; it is no multiple of a stretch of blocks.
        let (rows, cols) = (37usize, 960usize);
        let decl = WeightDecl::quant([rows as u64, cols as u64], layout);
        let store = store_of(&decl, &mut noise);
        let weight = Weight::fetch("w", &decl, &store).unwrap();
        let packed =
            PackedWeight::pack(&RowSource::of("w", &decl, &store).unwrap(), &workers).unwrap();
        assert!(matches!(packed, PackedWeight::Quant(_)), "{layout:?}");
        let floats = weight.to_f32();
        let mut row = vec![0.0; cols];
        for (r, want) in floats.chunks(cols).enumerate() {
            packed.row_f32(r, &mut row);
            assert_eq!(row, want, "{layout:?}: row {r}");
        }
        for n_tokens in [1usize, 3, 19] {
            let x: Vec<f32> = (0..n_tokens * cols).map(|_| noise.float()).collect();
            let want = plain_product(&floats, &rounded(&x, cols), cols);
            let exact = plain_product(&floats, &x, cols);
            for isa in Isa::all() {
                let mut cpu = Cpu { isa, workers: &workers, exact: false, stop: None };
                let mut y = vec![0.0; n_tokens * rows];
                let mut room = Activations::default();
                packed.matmul(cpu, 0, None, &x, &mut room, &mut y).unwrap();
                assert_near(&y, &want, 2e-6, &format!("{isa:?}, {layout:?}, {n_tokens} tokens"));
                cpu.exact = true;
                packed.matmul(cpu, 0, None, &x, &mut room, &mut y).unwrap();
                let what = format!("{isa:?}, {layout:?}, {n_tokens} tokens, exact");
                assert_near(&y, &exact, 2e-6, &what);
            }
        }
    }
}

#[test]
fn odd_lengths_and_stacks_of_matrices() {
    let workers = Workers::new(3);
    let mut noise = Noise(11);
    for (count, rows, cols) in [(1usize, 5usize, 7usize), (3, 16, 40), (2, 33, 24), (1, 1, 1)] {
        for bits in [4u8, 5, 6, 8] {
            let layout = QuantLayout::symmetric(bits, cols as u32, DType::F32);
            let shape = [count as u64, rows as u64, cols as u64];
            let decl = WeightDecl::quant(shape, layout);
            let store = store_of(&decl, &mut noise);
            let weight = Weight::fetch("w", &decl, &store).unwrap();
            let packed =
                PackedWeight::pack(&RowSource::of("w", &decl, &store).unwrap(), &workers).unwrap();
            assert_eq!(packed.shape(), MatrixShape { count, rows, cols });
            let x: Vec<f32> = (0..7 * cols).map(|_| noise.float()).collect();
            let bias: Vec<f32> = (0..rows).map(|_| noise.float()).collect();
            let x_bytes = rounded(&x, cols);
            for isa in Isa::all() {
                let cpu = Cpu { isa, workers: &workers, exact: false, stop: None };
                for matrix in 0..count {
                    let floats = &weight.to_f32()[matrix * rows * cols..(matrix + 1) * rows * cols];
                    let mut want = plain_product(floats, &x_bytes, cols);
                    for row in want.chunks_mut(rows) {
                        row.iter_mut().zip(&bias).for_each(|(w, b)| *w += f64::from(*b));
                    }
                    let mut y = vec![0.0; 7 * rows];
                    let mut room = Activations::default();
                    packed.matmul(cpu, matrix, Some(&bias), &x, &mut room, &mut y).unwrap();
                    assert_near(&y, &want, 2e-6, &format!("{isa:?}, {bits} bits, {rows}×{cols}"));
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_in_any_company() {
    let workers = Workers::new(2);
    let mut noise = Noise(3);
    let (rows, cols) = (70usize, 1216usize);
    for layout in layouts().into_iter().filter(|l| cols.is_multiple_of(l.group as usize)) {
        let decl = WeightDecl::quant([rows as u64, cols as u64], layout);
        let store = store_of(&decl, &mut noise);
        let packed =
            PackedWeight::pack(&RowSource::of("w", &decl, &store).unwrap(), &workers).unwrap();
        let n_tokens = 41;
        let x: Vec<f32> = (0..n_tokens * cols).map(|_| noise.float()).collect();
        for isa in Isa::all() {
            for exact in [false, true] {
                let cpu = Cpu { isa, workers: &workers, exact, stop: None };
                let mut room = Activations::default();
                let mut all = vec![0.0; n_tokens * rows];
                packed.matmul(cpu, 0, None, &x, &mut room, &mut all).unwrap();
                for t in [0, 1, 17, 40] {
                    let mut one = vec![0.0; rows];
                    let x = &x[t * cols..(t + 1) * cols];
                    packed.matmul(cpu, 0, None, x, &mut room, &mut one).unwrap();
                    let same = all[t * rows..(t + 1) * rows] == one[..];
                    assert!(same, "{isa:?}, {layout:?}, exact {exact}, token {t}");
                }
            }
        }
    }
}

/// Tiles against vectors: every width of codes, one scale or two per block, affine or not, offsets
/// that fit signed bytes and one that does not, odd columns, and rows that fill tiles or do not.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn tiles_give_the_bits_of_vectors() {
    let Ok(tiles) = Isa::named("amx") else {
        eprintln!("SKIPPED amx: this machine does not have it");
        return;
    };
    let vectors = Isa::named("avx512vnni").expect("whoever has tiles has these");
    let (workers, mut noise) = (Workers::new(2), Noise(23));
    let scale = ScaleFormat::Plain { dtype: DType::F16 };
    let whole_rows = [(4, 8), (5, 0), (6, 32), (8, 128), (8, 0), (8, 100), (7, 200)];
    let mut cases: Vec<_> = layouts().into_iter().map(|l| (l, 48 * 24)).collect();
    for (bits, offset) in whole_rows {
        for (cols, affine) in [(1usize, false), (37, true), (1000, false), (1311, true)] {
            let layout = QuantLayout { bits, group: cols as u32, offset, scale, affine };
            cases.push((layout, cols));
        }
    }
    for (i, (layout, cols)) in cases.into_iter().enumerate() {
        let rows = [5usize, 16, 37, 64][i % 4];
        let decl = WeightDecl::quant([rows as u64, cols as u64], layout);
        let store = store_of(&decl, &mut noise);
        let packed =
            PackedWeight::pack(&RowSource::of("w", &decl, &store).unwrap(), &workers).unwrap();
        assert!(matches!(packed, PackedWeight::Quant(_)), "{layout:?}");
        let mut x: Vec<f32> = (0..70 * cols).map(|_| noise.float()).collect();
        x[33 * cols] = f32::INFINITY;
        for n_tokens in (1..=70).filter(|n| i < 4 || n % 7 == i % 7 || n % 16 == 0) {
            let product = |isa| {
                let cpu = Cpu { isa, workers: &workers, exact: false, stop: None };
                let (mut y, mut room) = (vec![0.0f32; n_tokens * rows], Activations::default());
                packed.matmul(cpu, 0, None, &x[..n_tokens * cols], &mut room, &mut y).unwrap();
                y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let same = product(tiles) == product(vectors);
            assert!(same, "{layout:?}, {rows} × {cols}, {n_tokens} tokens");
        }
    }
}
