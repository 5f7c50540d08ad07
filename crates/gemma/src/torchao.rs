//! torchao's weights, read from the safetensors folders that transformers saves.
//!
//! A quantised parameter `M.weight` is several tensors `M._weight_<part>`, and a note in the
//! header under `M.weight` that says in JSON which of torchao's tensor classes it was (`M` may have
//! another prefix there). These are read, each with exactly its values in `f32`:
//!
//! | class | what is stored | what it becomes |
//! |---|---|---|
//! | `Int4Tensor` | signed nibbles, `w = q·scale + zero` | 4 bits, offset 8, zeros as biases |
//! | `Int4TilePackedTo4dTensor` | nibbles in tensor-core order, `w = (q − 8)·scale + zero` | the same |
//! | `IntxUnpackedToInt8Tensor`, `Int8Tensor` | signed bytes, `w = (q − zero)·scale`, whole zeros | see below |
//!
//! `(q − zero)·scale` is rounded once, `q·scale − zero·scale` up to three times. So whole zeros are
//! taken off the codes, which keeps that one rounding whatever the scale's type: symmetric weights
//! (all zeros 0) keep their width; `int4` with zeros anywhere from −8 to 7 becomes 5 bits, which in
//! groups of 32 with `bf16` scales is 5.5 bits a weight where 4.75 would be the least. Only `int8`
//! with zeros has no room: with half-precision scales it becomes `q·scale + (−zero·scale)` in
//! `f32`, where every step is exact (at most 9 + 11 bits); with `f32` scales it is refused.
//!
//! Same values means: torchao's `dequantize_affine` (or its tinygemm form) with `f32` as output
//! type and the stored scales and zeros cast to `f32`. Quantisation of activations, which some of
//! these folders ask for, is not done: activations stay floats.

use lapidary_program::{DType, QuantLayout, ScaleFormat, WeightDecl};
use safetensors::Dtype;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::recode::{Form, Recoded, TILE_COLS, TILE_ROWS, whole};
use crate::shards::{Shards, Tensor};

/// What a header says about one parameter.
pub(crate) struct Note {
    class: String,
    fields: Value,
    parts: Vec<String>,
}

/// A weight's declaration, and what its parts are made from.
pub(crate) struct Found {
    pub decl: WeightDecl,
    pub recoded: Recoded,
    /// The type that the weight had, and that torchao computes in.
    pub dtype: DType,
}

/// Whether the codes of a parameter stand in the files.
pub(crate) fn is_packed(files: &Shards, name: &str) -> bool {
    files.tensors.contains_key(&part_name(name, "qdata"))
}

/// The note of a parameter that is quantised.
pub(crate) fn note(files: &Shards, name: &str) -> Option<Note> {
    let json: Value = serde_json::from_str(files.notes.get(name)?).ok()?;
    let class = json.get("_type")?.as_str()?.to_string();
    let strings = |v: &Value| v.as_str().map(str::to_string);
    let parts = json.get("_tensor_data_names").and_then(Value::as_array);
    let parts = parts.into_iter().flatten().filter_map(strings).collect();
    let fields = json.get("_data").cloned().unwrap_or(Value::Null);
    (class != "Tensor").then_some(Note { class, fields, parts })
}

/// The quantised parameter `name`, which the model's configuration gives this shape.
pub(crate) fn weight(files: &Shards, name: &str, note: &Note, shape: &[u64]) -> Result<Found> {
    let reader = Reader { files, name, note, shape };
    if note.parts.iter().any(|p| p == "act_pre_scale") {
        return reader.fail(
            "its inputs are scaled (act_pre_scale, of AWQ and SmoothQuant), which is not read; give \
             a folder without that, or the bf16 checkpoint",
        );
    }
    match note.class.as_str() {
        "Int4Tensor" => reader.nibbles(),
        "Int4TilePackedTo4dTensor" => reader.tiles(),
        "IntxUnpackedToInt8Tensor" | "Int8Tensor" => reader.bytes(),
        class => reader.fail(format!(
            "it is a torchao {class}, which is not read; Int4Tensor, Int4TilePackedTo4dTensor, \
             IntxUnpackedToInt8Tensor and Int8Tensor are"
        )),
    }
}

struct Reader<'a> {
    files: &'a Shards,
    name: &'a str,
    note: &'a Note,
    shape: &'a [u64],
}

/// Lengths of a weight of rank 2, or 3 for experts.
#[derive(Clone, Copy)]
struct Size {
    matrices: u64,
    rows: u64,
    cols: u64,
    /// Codes along a row that share a scale.
    group: u64,
    /// Rows that share one.
    rows_per_scale: u64,
}

impl Size {
    fn groups(&self) -> u64 {
        self.cols.checked_div(self.group).unwrap_or(0)
    }

    /// Lengths of a tensor of this weight: the matrices come first only where there are several.
    fn shape(&self, rank: usize, inner: &[u64]) -> Vec<u64> {
        let outer = (rank == 3).then_some(self.matrices);
        outer.into_iter().chain(inner.iter().copied()).collect()
    }
}

impl Reader<'_> {
    fn fail<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::tensor(self.name, what))
    }

    fn nibbles(&self) -> Result<Found> {
        let size = self.size(true)?;
        let codes = self.part("qdata", &[Dtype::I8, Dtype::U8])?;
        let scale = self.part("scale", FLOATS)?;
        let zero = self.part("zero_point", &[scale.dtype])?;
        let Some(half) = size.cols.is_multiple_of(2).then(|| size.cols.div_euclid(2)) else {
            return self.fail(format!("rows of {} nibbles do not fill bytes", size.cols));
        };
        self.has_shape("qdata", codes, &size.shape(self.shape.len(), &[size.rows, half]))?;
        let floats = size.shape(self.shape.len(), &[size.groups(), size.rows]);
        self.has_shape("scale", scale, &floats)?;
        self.has_shape("zero_point", zero, &floats)?;
        let dtype = self.float(scale)?;
        let form = Form::Nibbles {
            codes: codes.place.clone(),
            scale: scale.place.clone(),
            zero: zero.place.clone(),
        };
        self.found(size, signed_nibbles(size, dtype), form, dtype)
    }

    fn tiles(&self) -> Result<Found> {
        let size = self.size(true)?;
        let codes = self.part("qdata", &[Dtype::I32])?;
        let scale_and_zero = self.part("scale_and_zero", &[Dtype::BF16])?;
        let inner = self.shape.len().saturating_sub(2);
        let padded = match codes.shape.get(inner..) {
            Some([tile_rows, tiles, 32, 4]) => {
                let rows = tile_rows.checked_mul(TILE_ROWS).filter(|n| *n >= size.rows);
                let cols = tiles.checked_mul(TILE_COLS).filter(|n| *n >= size.cols);
                rows.zip(cols)
            }
            _ => None,
        };
        let Some((rows, cols)) = padded.filter(|(_, cols)| cols.is_multiple_of(size.group)) else {
            return self.fail(format!(
                "its qdata has shape {:?}, which does not hold {:?} in tiles of 8 × 128",
                codes.shape, self.shape
            ));
        };
        let outer = size.shape(self.shape.len(), codes.shape.get(inner..).unwrap_or(&[]));
        self.has_shape("qdata", codes, &outer)?;
        let groups = cols.div_euclid(size.group);
        let pairs = size.shape(self.shape.len(), &[groups, rows, 2]);
        self.has_shape("scale_and_zero", scale_and_zero, &pairs)?;
        let form = Form::Tiles {
            codes: codes.place.clone(),
            scale_and_zero: scale_and_zero.place.clone(),
            padded_rows: self.count(rows)?,
            padded_cols: self.count(cols)?,
        };
        self.found(size, signed_nibbles(size, DType::Bf16), form, DType::Bf16)
    }

    fn bytes(&self) -> Result<Found> {
        let size = self.size(false)?;
        let codes = self.part("qdata", &[Dtype::I8])?;
        let scale = self.part("scale", FLOATS)?;
        self.has_shape("qdata", codes, self.shape)?;
        let scale_rows = size.rows.div_euclid(size.rows_per_scale);
        let floats = size.shape(self.shape.len(), &[scale_rows, size.groups()]);
        self.has_shape("scale", scale, &floats)?;
        let mut zero = None;
        let (mut least_zero, mut most_zero) = (0, 0);
        if self.note.parts.iter().any(|p| p == "zero_point") {
            let zeros =
                self.part("zero_point", &[Dtype::I8, Dtype::F32, Dtype::F16, Dtype::BF16])?;
            self.has_shape("zero_point", zeros, &floats)?;
            let dtype = zeros.float().unwrap_or(DType::I8);
            (least_zero, most_zero) = self.zeros(zeros, dtype)?;
            zero = Some((zeros.place.clone(), dtype));
        }
        let scale_dtype = self.float(scale)?;
        let (lowest, highest) = self.code_range()?;
        let range = (lowest.saturating_sub(most_zero), highest.saturating_sub(least_zero));
        let layout = match shifted(size, range, scale_dtype) {
            Some(layout) => layout,
            None if scale_dtype != DType::F32 => QuantLayout {
                offset: 128,
                ..QuantLayout::affine(8, u32::try_from(size.group).unwrap_or(0), DType::F32)
            },
            None => {
                return self.fail(
                    "8-bit codes with zeros and F32 scales have no exact form here; give a folder \
                     with symmetric weights",
                );
            }
        };
        let form = Form::Bytes {
            codes: codes.place.clone(),
            scale: scale.place.clone(),
            scale_dtype,
            zero,
            rows_per_scale: self.count(size.rows_per_scale)?,
            lowest,
            highest,
        };
        let dtype = match self.note.fields.pointer("/dtype/_data").and_then(Value::as_str) {
            Some("bfloat16") => DType::Bf16,
            Some("float16") => DType::F16,
            _ => DType::F32,
        };
        self.found(size, layout, form, dtype)
    }

    fn found(&self, size: Size, layout: QuantLayout, form: Form, dtype: DType) -> Result<Found> {
        let recoded = Recoded {
            layout,
            matrices: self.count(size.matrices)?,
            rows: self.count(size.rows)?,
            cols: self.count(size.cols)?,
            form,
        };
        Ok(Found { decl: WeightDecl::quant(self.shape, layout), recoded, dtype })
    }

    /// Lengths and blocks, and that they fit each other.
    fn size(&self, one_row: bool) -> Result<Size> {
        let block = self.numbers("block_size")?;
        if self.note.fields.get("shape").is_some() && self.numbers("shape")? != self.shape {
            return self.fail(format!(
                "it has shape {:?}, the configuration asks for {:?}",
                self.numbers("shape")?,
                self.shape
            ));
        }
        let (matrices, rows, cols) = match *self.shape {
            [rows, cols] => (1, rows, cols),
            [matrices, rows, cols] => (matrices, rows, cols),
            _ => return self.fail(format!("shape {:?} is not quantised", self.shape)),
        };
        let (rows_per_scale, group) = match (block.as_slice(), self.shape.len()) {
            ([rows, group], 2) | ([1, rows, group], 3) => (*rows, *group),
            _ => (0, 0),
        };
        let divides = |n: u64, by: u64| by > 0 && n.is_multiple_of(by);
        let fits = divides(cols, group) && divides(rows, rows_per_scale);
        if !fits || (one_row && rows_per_scale != 1) || u32::try_from(group).is_err() {
            return self.fail(format!("blocks of {block:?} do not divide it"));
        }
        Ok(Size { matrices, rows, cols, group, rows_per_scale })
    }

    fn numbers(&self, key: &str) -> Result<Vec<u64>> {
        let list = self.note.fields.get(key).and_then(Value::as_array);
        match list.and_then(|l| l.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()) {
            Some(numbers) => Ok(numbers),
            None => self.fail(format!("its note has no {key}")),
        }
    }

    /// The least and the greatest code of the type that was asked for.
    fn code_range(&self) -> Result<(i32, i32)> {
        let named = self.note.fields.pointer("/target_dtype/_data").and_then(Value::as_str);
        let named = named.or((self.note.class == "Int8Tensor").then_some("int8"));
        let bits = named.and_then(|n| n.strip_prefix("int")).and_then(|n| n.parse::<u32>().ok());
        match bits.filter(|b| (1..=8).contains(b)).and_then(|b| b.checked_sub(1)) {
            Some(magnitude) => {
                let half = 1i32.checked_shl(magnitude).unwrap_or(1);
                Ok((half.saturating_neg(), half.saturating_sub(1)))
            }
            None => self.fail("its note has no target_dtype from int1 to int8"),
        }
    }

    /// The least and the greatest zero, which must be whole.
    fn zeros(&self, zeros: &Tensor, dtype: DType) -> Result<(i32, i32)> {
        let bytes = zeros.place.bytes(&self.files.files).unwrap_or_default();
        let (mut least, mut most) = (i32::MAX, i32::MIN);
        for bytes in bytes.chunks_exact(dtype.size_bytes()) {
            let mut value = [0.0];
            dtype.decode_f32(bytes, &mut value);
            let [value] = value;
            let Some(zero) = whole(value) else {
                return self.fail(format!("its zero {value} is not a whole number of a byte"));
            };
            (least, most) = (least.min(zero), most.max(zero));
        }
        Ok((least.min(most), most.max(least)))
    }

    fn part(&self, part: &str, dtypes: &[Dtype]) -> Result<&Tensor> {
        let name = part_name(self.name, part);
        let Some(tensor) = self.files.tensors.get(&name) else {
            return Err(Error::tensor(&name, "it is missing"));
        };
        if !dtypes.contains(&tensor.dtype) {
            let what = format!("it is {:?}, not one of {dtypes:?}", tensor.dtype);
            return Err(Error::tensor(&name, what));
        }
        Ok(tensor)
    }

    fn has_shape(&self, part: &str, tensor: &Tensor, shape: &[u64]) -> Result<()> {
        if tensor.shape == shape {
            return Ok(());
        }
        self.fail(format!("its {part} has shape {:?}, not {shape:?}", tensor.shape))
    }

    fn float(&self, tensor: &Tensor) -> Result<DType> {
        match tensor.float() {
            Some(dtype) => Ok(dtype),
            None => self.fail(format!("its scales are {:?}", tensor.dtype)),
        }
    }

    fn count(&self, n: u64) -> Result<usize> {
        match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => self.fail(format!("a length of {n}")),
        }
    }
}

/// The name of a tensor of a parameter.
fn part_name(name: &str, part: &str) -> String {
    let (module, leaf) = name.rsplit_once('.').unwrap_or(("", name));
    format!("{module}._{leaf}_{part}")
}

/// Types of scales.
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];

/// Nibbles whose middle is 0, with a bias per group.
fn signed_nibbles(size: Size, dtype: DType) -> QuantLayout {
    let group = u32::try_from(size.group).unwrap_or(0);
    QuantLayout { offset: 8, ..QuantLayout::affine(4, group, dtype) }
}

/// The narrowest codes that hold this range, if a byte does.
fn shifted(size: Size, (low, high): (i32, i32), dtype: DType) -> Option<QuantLayout> {
    let (low, high) = (low.min(0), high.max(0));
    let width = u8::try_from(high.checked_sub(low)?).ok()?;
    let bits = 8u32.checked_sub(width.leading_zeros())?.max(2);
    Some(QuantLayout {
        bits: u8::try_from(bits).ok()?,
        group: u32::try_from(size.group).ok()?,
        offset: u8::try_from(low.checked_neg()?).ok()?,
        scale: ScaleFormat::Plain { dtype },
        affine: false,
    })
}
