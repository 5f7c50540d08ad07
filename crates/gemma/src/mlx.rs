//! MLX's weights: the affine ones are ours already.
//!
//! A quantised module `X` of an MLX folder is three tensors: `X.weight`, little-endian `u32` words
//! that hold a row's codes low-first without gaps (at 3, 5 and 6 bits codes cross words), and
//! `X.scales` and `X.biases`, one float per group of 32, 64 or 128 codes. `w = code·scale + bias`.
//! That is [`QuantLayout::affine`], byte for byte, so a folder's bytes are used where they stand.
//!
//! Same values means: the product and the sum, each rounded to `f32`, of the stored codes, scales
//! and biases. That is what `mx.dequantize` gives when scales and biases are cast to `f32` first;
//! on half-precision scales as they are it rounds to half precision after each step.
//!
//! The modes `mxfp4` and `nvfp4` have no biases, a byte for a scale, and four-bit floats for codes.
//! Twice such a float is a whole number from −12 to 12, and half of such a scale is a `bf16`, so
//! they are read too, as 5 bits with offset 12: 5.5 bits a weight instead of 4.25, and 6 instead of
//! 4.5. (A negative zero loses its sign.) `mxfp8` spans too much for whole numbers of a byte.
//!
//! The lengths of the three tensors tell bits and group. `config.json` may say them once more, for
//! the whole model or module by module; where it names a module it must agree.

use std::collections::BTreeMap;

use lapidary_program::{DType, Part, QuantLayout, WeightDecl};
use safetensors::Dtype;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::hf_store::Source;
use crate::recode::{ByteScale, Form, Recoded};
use crate::shards::{Shards, Tensor};

/// Bits that MLX packs and that our representation has.
const BITS: &[u64] = &[2, 3, 4, 5, 6, 8];
/// Codes that may share a scale.
const GROUPS: &[u64] = &[16, 32, 64, 128];
/// The same in affine mode.
const AFFINE_GROUPS: &[u64] = &[32, 64, 128];

/// What `quantization` in `config.json` says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared {
    modules: BTreeMap<String, Module>,
}

/// What it says about one module.
#[derive(Clone, Debug)]
enum Module {
    /// Left as it was.
    Dense,
    /// Quantised like the rest.
    AsDefault,
    /// Quantised in its own way.
    Own { bits: Option<u64>, group: Option<u64>, mode: Option<String> },
}

/// A weight's declaration, and where its parts come from.
pub(crate) struct Found {
    pub decl: WeightDecl,
    pub source: Source,
    /// The type that MLX computes in.
    pub dtype: DType,
}

impl Declared {
    /// Reads the `quantization` object.
    pub fn read(quantization: &Value) -> Result<Self> {
        let fields = quantization
            .as_object()
            .ok_or_else(|| Error::config("quantization is not an object"))?;
        let mut declared = Declared::default();
        own("quantization", quantization)?;
        for (name, value) in fields {
            let module = match value {
                Value::Bool(false) => Module::Dense,
                Value::Bool(true) => Module::AsDefault,
                Value::Object(_) => own(&format!("quantization of `{name}`"), value)?,
                _ => continue,
            };
            declared.modules.insert(name.clone(), module);
        }
        Ok(declared)
    }

    /// What is said about the module of a tensor. mlx-vlm drops the prefix of the text side from
    /// some names.
    fn module(&self, stem: &str) -> Option<&Module> {
        let short = stem.strip_prefix("language_model.").unwrap_or(stem);
        self.modules
            .get(stem)
            .or_else(|| self.modules.get(short))
            .or_else(|| self.modules.get(&format!("language_model.{stem}")))
    }

    /// The weight whose codes are the tensor `name`, and which the model's configuration gives
    /// this shape.
    pub fn weight(&self, files: &Shards, name: &str, shape: &[u64]) -> Result<Found> {
        let fail = |what: String| Err(Error::tensor(name, what));
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let module = self.module(stem);
        if matches!(module, Some(Module::Dense)) {
            return fail("it is packed, but config.json says that it is not quantised".into());
        }
        let packed = Packed {
            name,
            shape,
            codes: part(files, name)?,
            scales: part(files, &format!("{stem}.scales"))?,
        };
        let (bits, group) = packed.lengths()?;
        // Only affine mode has float scales; the lengths of the other modes differ.
        let mode = match (packed.scales.dtype, bits, group) {
            (Dtype::U8, 4, 32) => "mxfp4",
            (Dtype::U8, 4, 16) => "nvfp4",
            (Dtype::U8, 8, 32) => "mxfp8",
            (Dtype::U8, ..) => "an unknown mode",
            _ => "affine",
        };
        if let Some(Module::Own { bits: own_bits, group: own_group, mode: own_mode }) = module {
            let differs = |said: &Option<u64>, is| said.is_some_and(|s| s != is);
            let other_mode = own_mode.as_deref().is_some_and(|m| m != mode);
            if differs(own_bits, bits) || differs(own_group, group) || other_mode {
                return fail(format!(
                    "it holds {bits} bits in groups of {group}, {mode}, which is not what \
                     config.json says of it"
                ));
            }
        }
        let twice_scaled = files.tensors.contains_key(&format!("{stem}.global_scale"));
        match mode {
            "affine" => packed.affine(part(files, &format!("{stem}.biases"))?, bits, group),
            "mxfp4" => packed.small_floats(ByteScale::E8m0, 32),
            "nvfp4" if !twice_scaled => packed.small_floats(ByteScale::E4m3, 16),
            mode => fail(format!(
                "its mode ({mode}, {bits} bits in groups of {group}) is not read; give a folder in \
                 affine mode, in mxfp4, in nvfp4 without global scales, or the bf16 checkpoint"
            )),
        }
    }
}

/// The tensors of a quantised module, and the shape that the configuration gives it.
struct Packed<'a> {
    name: &'a str,
    shape: &'a [u64],
    codes: &'a Tensor,
    scales: &'a Tensor,
}

impl Packed<'_> {
    fn affine(&self, biases: &Tensor, bits: u64, group: u64) -> Result<Found> {
        let fail = |what: String| Err(Error::tensor(self.name, what));
        let scales = self.scales;
        if !AFFINE_GROUPS.contains(&group) {
            return fail(format!("groups of {group}; affine mode has 32, 64 and 128"));
        }
        if biases.shape != scales.shape || biases.dtype != scales.dtype {
            return fail(format!(
                "its biases are {:?} {:?}, its scales {:?} {:?}; they must be alike",
                biases.dtype, biases.shape, scales.dtype, scales.shape
            ));
        }
        let Some(dtype) = scales.float() else {
            return fail(format!("its scales are {:?}; F32, F16 and BF16 are read", scales.dtype));
        };
        let (Ok(bits), Ok(group)) = (u8::try_from(bits), u32::try_from(group)) else {
            return fail(format!("{bits} bits in groups of {group}"));
        };
        let source = Source::Stored(vec![
            (Part::Data, self.codes.place.clone()),
            (Part::Scale, scales.place.clone()),
            (Part::Bias, biases.place.clone()),
        ]);
        let decl = WeightDecl::quant(self.shape, QuantLayout::affine(bits, group, dtype));
        Ok(Found { decl, source, dtype })
    }

    fn small_floats(&self, scales: ByteScale, group: u32) -> Result<Found> {
        // MLX gives rows of these modes as bf16.
        let dtype = DType::Bf16;
        let layout = QuantLayout { offset: 12, ..QuantLayout::symmetric(5, group, dtype) };
        let decl = WeightDecl::quant(self.shape, layout);
        let form = Form::SmallFloats {
            codes: self.codes.place.clone(),
            scale: self.scales.place.clone(),
            scales,
        };
        let (rows, cols) = (decl.rows(), decl.cols());
        let recoded = Recoded { layout, matrices: 1, rows, cols, form };
        Ok(Found { decl, source: Source::Recoded(Box::new(recoded)), dtype })
    }

    /// Bits and group, which the lengths of a row, of its words and of its scales tell.
    fn lengths(&self) -> Result<(u64, u64)> {
        let (shape, codes, scales) = (self.shape, self.codes, self.scales);
        let fail = |what: String| Err(Error::tensor(self.name, what));
        let (Some((cols, outer)), Some((words, codes_outer)), Some((groups, scales_outer))) =
            (shape.split_last(), codes.shape.split_last(), scales.shape.split_last())
        else {
            return fail("it is a single number".into());
        };
        if outer.is_empty() || codes_outer != outer || scales_outer != outer {
            return fail(format!(
                "its codes have shape {:?} and its scales {:?}, the configuration asks for \
                 {shape:?}",
                codes.shape, scales.shape
            ));
        }
        let bits = words.checked_mul(32).and_then(|n| exact(n, *cols));
        let Some(bits) = bits.filter(|b| BITS.contains(b)) else {
            return fail(format!(
                "rows of {cols} codes in {words} words are not 2, 3, 4, 5, 6 or 8 bits each"
            ));
        };
        let Some(group) = exact(*cols, *groups).filter(|g| GROUPS.contains(g)) else {
            return fail(format!(
                "rows of {cols} codes with {groups} scales are not groups of 16, 32, 64 or 128"
            ));
        };
        Ok((bits, group))
    }
}

/// Whether a tensor holds codes.
pub(crate) fn is_packed(tensor: &Tensor) -> bool {
    tensor.dtype == Dtype::U32
}

fn part<'a>(files: &'a Shards, name: &str) -> Result<&'a Tensor> {
    files.tensors.get(name).ok_or_else(|| Error::tensor(name, "it is missing"))
}

/// The quotient, if nothing remains.
fn exact(n: u64, by: u64) -> Option<u64> {
    (n.checked_rem(by)? == 0).then(|| n.checked_div(by))?
}

/// Bits, group and mode of the model or of one module, if they are ones that MLX has.
fn own(what: &str, value: &Value) -> Result<Module> {
    let number = |key: &str, known: &[u64]| match value.get(key) {
        None => Ok(None),
        Some(v) => match v.as_u64() {
            Some(n) if known.contains(&n) => Ok(Some(n)),
            _ => Err(Error::config(format!("{what}: {key} is {v}, not one of {known:?}"))),
        },
    };
    Ok(Module::Own {
        bits: number("bits", BITS)?,
        group: number("group_size", GROUPS)?,
        mode: mode(value)?,
    })
}

fn mode(value: &Value) -> Result<Option<String>> {
    match value.get("mode") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(s)) => Ok(Some(s.clone())),
        Some(other) => Err(Error::config(format!("quantization: mode is {other}, not a name"))),
    }
}
