//! From stored rows to the sections of a packed matrix.

use half::{bf16, f16};
use lapidary_program::{DType, Encoding, Part, QuantLayout, ScaleFormat, Weight};

use super::form::{Codes, Factors, PackedForm, Scales, Step, TILE_ROWS, UNIT};

/// Some tiles, section by section.
pub(crate) struct PackedRows {
    pub codes: Vec<u8>,
    pub scales: Vec<u8>,
    pub rows: Vec<u8>,
}

/// Packs rows from a tile's first on; rows that the last tile lacks are zeros.
pub(crate) fn pack_rows(form: &PackedForm, weight: &Weight<'_>) -> PackedRows {
    let n_rows = weight.decl.rows();
    let tiles = n_rows.div_ceil(TILE_ROWS);
    let [codes, scales, rows] = form.tile_bytes();
    let mut out = PackedRows {
        codes: vec![0; codes * tiles],
        scales: vec![0; scales * tiles],
        rows: vec![0; rows * tiles],
    };
    let mut row = RowPacker::new(form, weight);
    for r in 0..n_rows {
        let (tile, lane) = (r / TILE_ROWS, r % TILE_ROWS);
        row.codes(r, lane, &mut out.codes[tile * codes..][..codes]);
        let power = row.factors(r, lane, &mut out.scales[tile * scales..][..scales]);
        out.rows[r * 4..][..4].copy_from_slice(&power.to_le_bytes());
    }
    // What pads the last tile is divided by, too.
    for r in n_rows..tiles * TILE_ROWS {
        out.rows[r * 4..][..4].copy_from_slice(&1f32.to_le_bytes());
    }
    out
}

/// Packs one row after another.
struct RowPacker<'a> {
    form: &'a PackedForm,
    weight: &'a Weight<'a>,
    /// The codes of a row, unpacked, where that is needed.
    codes: Vec<u8>,
    /// A row as it is stored on the device, whole units long.
    bytes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl<'a> RowPacker<'a> {
    fn new(form: &'a PackedForm, weight: &'a Weight<'a>) -> Self {
        let bytes = form.units() * form.codes.quads() * 16;
        RowPacker {
            form,
            weight,
            codes: vec![0; form.cols],
            bytes: vec![0; bytes],
            scales: Vec::new(),
            biases: Vec::new(),
        }
    }

    fn codes(&mut self, row: usize, lane: usize, tile: &mut [u8]) {
        let stored = self.weight.data.len() / self.weight.decl.rows().max(1);
        let stored = &self.weight.data[row * stored..][..stored];
        match (self.weight.decl.encoding, self.form.codes) {
            (Encoding::Quant(q), Codes::Eight) => {
                q.unpack_row(stored, &mut self.codes);
                spread_bytes(&self.codes, &mut self.bytes);
            }
            (Encoding::Quant(q), _) if q.bits < 4 => {
                q.unpack_row(stored, &mut self.codes);
                let wide = QuantLayout { bits: 4, ..q };
                wide.pack_row(&self.codes, &mut self.bytes[..wide.row_bytes(self.form.cols)]);
            }
            _ => self.bytes[..stored.len()].copy_from_slice(stored),
        }
        let quads = self.bytes.as_chunks::<16>().0;
        let places = tile.as_chunks_mut::<16>().0;
        for (quad, to) in quads.iter().zip(places.iter_mut().skip(lane).step_by(TILE_ROWS)) {
            *to = *quad;
        }
    }

    /// Writes the scales of a row and tells the power of two that it was divided by.
    fn factors(&mut self, row: usize, lane: usize, tile: &mut [u8]) -> f32 {
        let (Encoding::Quant(q), Some(factors)) = (self.weight.decl.encoding, self.form.factors)
        else {
            return self.dense_power(row);
        };
        let cols = self.form.cols;
        let groups = q.groups(cols);
        read_factors(self.weight, &q, row, [Part::Scale, Part::SuperScale], &mut self.scales);
        if q.affine {
            read_factors(self.weight, &q, row, [Part::Bias, Part::SuperBias], &mut self.biases);
        } else {
            self.biases.clear();
            self.biases.resize(groups, 0.0);
        }
        let highest = f32::from((1u16 << q.bits) - 1) - f32::from(q.offset);
        let reach = highest.max(f32::from(q.offset));
        let numbers = self.scales.iter().zip(&self.biases);
        let largest = numbers.map(|(s, b)| s.abs() * reach + b.abs()).fold(0.0, f32::max);
        let power = power_above(largest);
        let size = self.form.factor_bytes();
        for step in 0..self.form.steps() {
            let group = match factors.step {
                Step::Units(n) => (step * n * UNIT / q.group as usize).min(groups - 1),
                Step::Half => step,
            };
            // The second half of the last unit may not be there.
            let Some((scale, bias)) = self.scales.get(group).zip(self.biases.get(group)) else {
                continue;
            };
            let to = &mut tile[(step * TILE_ROWS + lane) * size..][..size];
            write_factor(&factors, [scale / power, bias / power], to);
        }
        power
    }

    fn dense_power(&mut self, row: usize) -> f32 {
        let cols = self.form.cols;
        self.scales.resize(cols, 0.0);
        self.weight.row_f32(row, &mut self.scales);
        power_above(self.scales.iter().fold(0.0, |most: f32, w| most.max(w.abs())))
    }
}

/// Bytes with their sign bit turned; of eight, the even ones first.
fn spread_bytes(codes: &[u8], out: &mut [u8]) {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    for (codes, out) in codes.chunks(8).zip(out.as_chunks_mut::<8>().0) {
        for (to, from) in out.iter_mut().zip(ORDER) {
            *to = codes.get(from).copied().unwrap_or(0) ^ 0x80;
        }
    }
}

/// The scales or the biases of a row, nesting resolved.
fn read_factors(
    weight: &Weight<'_>,
    q: &QuantLayout,
    row: usize,
    [own, above]: [Part; 2],
    out: &mut Vec<f32>,
) {
    let groups = q.groups(weight.decl.cols());
    let decode = |part: Part, dtype: DType, n: usize, out: &mut [f32]| {
        let bytes = n * dtype.size_bytes();
        dtype.decode_f32(&weight.part(part)[row * bytes..][..bytes], out);
    };
    out.clear();
    out.resize(groups, 0.0);
    match q.scale {
        ScaleFormat::Plain { dtype } => decode(own, dtype, groups, out),
        ScaleFormat::Nested { per, sub, dtype } => {
            decode(own, sub, groups, out);
            let per = per as usize;
            let mut supers = vec![0.0; groups / per];
            decode(above, dtype, groups / per, &mut supers);
            for (own, above) in out.chunks_mut(per).zip(supers) {
                own.iter_mut().for_each(|x| *x *= above);
            }
        }
    }
}

fn write_factor(factors: &Factors, values: [f32; 2], to: &mut [u8]) {
    let size = factors.scales.size_bytes();
    for (value, to) in values.into_iter().zip(to.chunks_exact_mut(size)) {
        match factors.scales {
            Scales::F16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Scales::Bf16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            Scales::F32 => to.copy_from_slice(&value.to_le_bytes()),
        }
    }
}

/// The power of two just above a number; 1 for what has none.
fn power_above(largest: f32) -> f32 {
    let exponent = (largest.to_bits() >> 23) as i32;
    // Both it and its inverse are to be ordinary numbers.
    if largest > 0.0 && largest.is_finite() {
        f32::from_bits(((exponent + 1).clamp(2, 252) as u32) << 23)
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::{power_above, spread_bytes};

    #[test]
    fn powers_are_just_above() {
        assert_eq!(power_above(0.75), 1.0);
        assert_eq!(power_above(1.0), 2.0);
        assert_eq!(power_above(3e-5), 2f32.powi(-15));
        assert_eq!(power_above(0.0), 1.0);
        assert_eq!(power_above(f32::INFINITY), 1.0);
        assert!((1.0 / power_above(f32::MIN_POSITIVE / 4.0)).is_finite());
    }

    #[test]
    fn even_bytes_come_first() {
        let mut out = [0; 16];
        spread_bytes(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &mut out);
        assert_eq!(out, [0, 2, 4, 6, 1, 3, 5, 7, 8, 0, 0, 0, 9, 0, 0, 0].map(|x| x ^ 0x80));
    }
}
