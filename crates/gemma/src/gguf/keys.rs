//! The metadata of one architecture, and what stands in a tensor instead.

use lapidary_program::RopeSpec;

use super::ggml_type::GgmlType;
use super::reader::Gguf;
use super::value::Value;
use crate::config::LayerKind;
use crate::error::{Error, Result};

/// Frequency factors above this stop a pair: the converter writes 1e30.
const STOPPED: f32 = 1e20;

/// Metadata under the architecture's name.
pub(super) struct Keys<'a> {
    pub file: &'a Gguf,
    pub family: Family,
}

/// The members of the family that a file may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Gemma3,
    Gemma4,
    Gemma4Assistant,
}

impl Family {
    /// The word under `general.architecture`, which is also the prefix of the keys.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Family::Gemma3 => "gemma3",
            Family::Gemma4 => "gemma4",
            Family::Gemma4Assistant => "gemma4-assistant",
        }
    }
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name())
    }

    /// The error for a key that must be there.
    pub fn missing(&self, name: &str) -> Error {
        Error::config(format!("`{}` is missing", self.key(name)))
    }

    /// The error for a value that can't be.
    pub fn bad(&self, name: &str, what: impl AsRef<str>) -> Error {
        Error::config(format!("`{}`: {}", self.key(name), what.as_ref()))
    }

    /// A value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.file.get(&self.key(name))
    }

    /// An integer that is not negative.
    pub fn u32(&self, name: &str) -> Result<Option<u32>> {
        self.file.u32(&self.key(name))
    }

    /// An integer that is positive where it is given.
    pub fn positive(&self, name: &str) -> Result<Option<u32>> {
        match self.u32(name)? {
            Some(0) => Err(self.bad(name, "it is 0")),
            value => Ok(value),
        }
    }

    /// An integer that must be given and positive.
    pub fn need(&self, name: &str) -> Result<u32> {
        self.positive(name)?.ok_or_else(|| self.missing(name))
    }

    /// A float.
    pub fn float(&self, name: &str) -> Result<Option<f64>> {
        self.file.float(&self.key(name))
    }

    /// One value for all layers, or an array with one for each; all positive.
    pub fn per_layer(&self, name: &str, n_layers: usize) -> Result<Option<Vec<u32>>> {
        if !matches!(self.get(name), Some(Value::Array(_))) {
            return Ok(self.positive(name)?.map(|n| vec![n; n_layers]));
        }
        let values = self.file.scalars(&self.key(name))?.unwrap_or_default();
        if values.len() != n_layers {
            let what = format!("it has {} values for {n_layers} layers", values.len());
            return Err(self.bad(name, what));
        }
        let value = |v: &Value| {
            let n = v.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            n.ok_or_else(|| self.bad(name, "a value is not a positive integer"))
        };
        values.iter().map(value).collect::<Result<Vec<u32>>>().map(Some)
    }

    /// `true` is sliding.
    pub fn kinds(&self, n_layers: usize) -> Result<Vec<LayerKind>> {
        let name = "attention.sliding_window_pattern";
        let values =
            self.file.scalars(&self.key(name))?.ok_or_else(|| self.missing(name))?;
        if values.len() != n_layers {
            let what = format!("it has {} values for {n_layers} layers", values.len());
            return Err(self.bad(name, what));
        }
        let kind = |v: &Value| match v {
            Value::Bool(true) | Value::Unsigned(1) | Value::Signed(1) => Ok(LayerKind::Sliding),
            Value::Bool(false) | Value::Unsigned(0) | Value::Signed(0) => Ok(LayerKind::Full),
            _ => Err(self.bad(name, "a value is neither true nor false")),
        };
        values.iter().map(kind).collect()
    }

    /// Positions that sliding layers see.
    pub fn window(&self, context_length: u32) -> Result<Option<u32>> {
        let name = "attention.sliding_window";
        let window = self.positive(name)?;
        if let Some(w) = window.filter(|w| *w > context_length) {
            let what = format!("it is {w}, larger than the context length {context_length}");
            return Err(self.bad(name, what));
        }
        Ok(window)
    }

    /// Elements of a head; keys and values have as many.
    pub fn head_dim(&self, suffix: &str, default: Option<u32>) -> Result<u32> {
        let (key_name, value_name) =
            (format!("attention.key_length{suffix}"), format!("attention.value_length{suffix}"));
        let head_dim = self.positive(&key_name)?.or(default.filter(|n| *n > 0));
        let head_dim = head_dim.ok_or_else(|| self.missing(&key_name))?;
        let value_dim = self.positive(&value_name)?.unwrap_or(head_dim);
        if value_dim != head_dim {
            let what = format!("it is {value_dim}, but keys have {head_dim}");
            return Err(self.bad(&value_name, what));
        }
        if !head_dim.is_multiple_of(2) {
            return Err(self.bad(&key_name, format!("it is {head_dim}, which is odd")));
        }
        Ok(head_dim)
    }

    /// Heads are rotated whole: a part would be paired in a way that Gemma does not use.
    pub fn whole_rope(&self, suffix: &str, head_dim: u32) -> Result<()> {
        let name = format!("rope.dimension_count{suffix}");
        match self.u32(&name)? {
            Some(n) if n != head_dim => {
                Err(self.bad(&name, format!("it is {n}, but heads have {head_dim}")))
            }
            _ => Ok(()),
        }
    }

    /// A rotary embedding of whole heads.
    pub fn rope(&self, suffix: &str, head_dim: u32, theta: f64, factor: f64) -> Result<RopeSpec> {
        let name = format!("rope.freq_base{suffix}");
        let theta = self.float(&name)?.unwrap_or(theta);
        if theta <= 0.0 {
            return Err(self.bad(&name, format!("it is {theta}")));
        }
        Ok(RopeSpec { head_dim, theta, rotated_pairs: head_dim.div_euclid(2), factor })
    }

    /// By what all angles of full layers are divided.
    pub fn linear_factor(&self) -> Result<f64> {
        let factor = match self.float("rope.scaling.factor")? {
            Some(factor) => factor,
            None => self.float("rope.scale_linear")?.unwrap_or(1.0),
        };
        match self.file.text(&self.key("rope.scaling.type"))? {
            Some("none") => return Ok(1.0),
            None | Some("linear") => {}
            Some(other) => {
                return Err(self.bad("rope.scaling.type", format!("`{other}` is not run here")));
            }
        }
        if factor <= 0.0 {
            return Err(self.bad("rope.scaling.factor", format!("it is {factor}")));
        }
        Ok(factor)
    }

    /// Full layers of Gemma 4 divide the angle of pair `i` by `rope_freqs[i]`: the first pairs by
    /// the same number, the others by one so large that they stand still.
    pub fn frequency_factors(&self, head_dim: u32) -> Result<(u32, f64)> {
        let name = "rope_freqs.weight";
        let fail = |what: String| Err(Error::tensor(name, what));
        let Some(tensor) = self.file.tensor(name) else { return fail("it is missing".into()) };
        let n_pairs = head_dim.div_euclid(2);
        if tensor.ggml_type != GgmlType::F32 || tensor.shape != [u64::from(n_pairs)] {
            let (kind, shape) = (tensor.ggml_type.name(), &tensor.shape);
            return fail(format!("it is {kind} {shape:?}, not F32 [{n_pairs}]"));
        }
        let bytes = self.file.tensor_bytes(tensor).as_chunks::<4>().0;
        let factors: Vec<f32> = bytes.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let rotated = factors.iter().take_while(|f| **f < STOPPED).count();
        let (moving, still) = factors.split_at_checked(rotated).unwrap_or_default();
        let factor = moving.first().copied().unwrap_or(1.0);
        let uniform = moving.iter().all(|f| *f == factor) && factor > 0.0;
        // A comparison that a NaN fails.
        if !uniform || !still.iter().all(|f| *f >= STOPPED) {
            return fail("it is not one factor for the first pairs and a huge one for the rest".into());
        }
        Ok((u32::try_from(rotated).unwrap_or(n_pairs), factor.into()))
    }
}
