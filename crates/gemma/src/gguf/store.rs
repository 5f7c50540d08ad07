use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use lapidary_program::{Access, Encoding, Part, WeightDecl, WeightStore};

use super::quants;
use super::reader::{Gguf, TensorInfo};
use crate::error::{Error, Result};
use crate::names::{Stored, WeightSpec};
use crate::turned::Turned;

/// The weights of a GGUF file under canonical names.
///
/// Dense weights are borrowed from the file; the parts of quantised ones are made when asked for.
pub struct GgufStore {
    file: Arc<Gguf>,
    sources: HashMap<String, Source>,
    used: HashSet<usize>,
}

/// Where a weight comes from: numbers of tensors in the file.
enum Source {
    /// One tensor as it is.
    Whole(usize),
    /// One tensor of floats of which rows are wanted as columns.
    Turned(usize, Turned),
    /// Two tensors of rank 3 and equal type, interleaved by their outermost length: all rows of
    /// the first under index 0, then all rows of the second under index 0, and so on.
    Joined(usize, usize),
}

impl GgufStore {
    /// A store that knows no names yet.
    pub fn new(file: impl Into<Arc<Gguf>>) -> Self {
        GgufStore { file: file.into(), sources: HashMap::new(), used: HashSet::new() }
    }

    /// The file.
    pub fn file(&self) -> &Arc<Gguf> {
        &self.file
    }

    /// Makes `weight` a name for a tensor and says what it is.
    pub fn bind(&mut self, weight: &str, tensor: &str) -> Result<WeightDecl> {
        let (index, info) = self.find(tensor)?;
        let decl = WeightDecl { shape: info.shape.clone(), encoding: encoding(info)? };
        self.sources.insert(weight.to_string(), Source::Whole(index));
        self.used.insert(index);
        Ok(decl)
    }

    /// Makes the name of `spec` one for a tensor that stands there in one of its forms, and says what
    /// it is.
    pub(super) fn bind_spec(&mut self, spec: &WeightSpec, tensor: &str) -> Result<WeightDecl> {
        let (index, info) = self.find(tensor)?;
        let forms = spec.forms();
        let Some(form) = forms.iter().find(|form| form.shape() == info.shape) else {
            let asked = forms.first().map_or(spec.shape.as_slice(), |form| form.shape());
            let what = format!(
                "it has shape {:?}, the configuration asks for {asked:?}",
                info.shape
            );
            return Err(Error::tensor(tensor, what));
        };
        let encoding = encoding(info)?;
        let source = match (form, encoding) {
            (Stored::Turned { outer, rows, cols, .. }, Encoding::Dense(dtype)) => {
                Source::Turned(index, Turned::new([*outer, *rows, *cols], dtype))
            }
            // Groups of codes run along a row, which must stay one.
            (Stored::As(shape), Encoding::Quant(_)) if shape.last() != spec.shape.last() => {
                return Err(other_form(info));
            }
            (Stored::Turned { .. }, Encoding::Quant(_)) => return Err(other_form(info)),
            (Stored::As(_), _) => Source::Whole(index),
        };
        self.sources.insert(spec.name.clone(), source);
        self.used.insert(index);
        Ok(WeightDecl { shape: spec.shape.clone(), encoding })
    }

    /// Makes `weight` a name for two stacks of matrices `[E, I, K]` and `[E, J, K]`, joined to
    /// `[E, I + J, K]`, and says what it is.
    pub fn bind_joined(&mut self, weight: &str, tensors: [&str; 2]) -> Result<WeightDecl> {
        let [first_name, second_name] = tensors;
        let (first_index, first) = self.find(first_name)?;
        let (second_index, second) = self.find(second_name)?;
        if first.ggml_type != second.ggml_type {
            let what = format!(
                "it is {}, but `{first_name}`, which is joined with it, is {}; get a file that \
                 stores both in the same type",
                second.ggml_type.name(),
                first.ggml_type.name()
            );
            return Err(Error::tensor(second_name, what));
        }
        let (rows, shape) = match (first.shape.as_slice(), second.shape.as_slice()) {
            ([e, i, k], [e2, j, k2]) if e == e2 && k == k2 => (i.checked_add(*j), (*e, *k)),
            _ => (None, (0, 0)),
        };
        let Some(rows) = rows else {
            let what =
                format!("shape {:?} can't be joined with {:?}", second.shape, first.shape);
            return Err(Error::tensor(second_name, what));
        };
        let decl =
            WeightDecl { shape: vec![shape.0, rows, shape.1], encoding: encoding(first)? };
        self.sources.insert(weight.to_string(), Source::Joined(first_index, second_index));
        self.used.extend([first_index, second_index]);
        Ok(decl)
    }

    /// The tensors that stand behind no name.
    pub(super) fn unused(&self) -> impl Iterator<Item = &TensorInfo> {
        let tensors = self.file.tensors().iter().enumerate();
        tensors.filter(|(i, _)| !self.used.contains(i)).map(|(_, t)| t)
    }

    fn find(&self, tensor: &str) -> Result<(usize, &TensorInfo)> {
        self.file
            .tensor_index(tensor)
            .and_then(|i| Some((i, self.file.tensors().get(i)?)))
            .ok_or_else(|| Error::tensor(tensor, "it is missing"))
    }

    /// One part of one tensor.
    fn tensor_part(&self, index: usize, part: Part) -> Option<Cow<'_, [u8]>> {
        let info = self.file.tensors().get(index)?;
        let bytes = self.file.tensor_bytes(info);
        match info.ggml_type.encoding()? {
            Encoding::Dense(_) => (part == Part::Data).then_some(Cow::Borrowed(bytes)),
            Encoding::Quant(_) => quants::part(info.ggml_type, part, bytes).map(Cow::Owned),
        }
    }

    /// The blocks of some rows of a quantised tensor, taken apart.
    fn quantised_rows(&self, index: usize, part: Part, rows: &Range<usize>) -> Option<Vec<u8>> {
        let info = self.file.tensors().get(index)?;
        let Encoding::Quant(_) = info.ggml_type.encoding()? else { return None };
        let bytes = self.file.tensor_bytes(info);
        let outer = info.shape.split_last()?.1;
        let n_rows = outer.iter().try_fold(1u64, |n, d| n.checked_mul(*d))?;
        let row_bytes = bytes.len().checked_div(usize::try_from(n_rows).ok()?)?;
        let range = rows.start.checked_mul(row_bytes)?..rows.end.checked_mul(row_bytes)?;
        quants::part(info.ggml_type, part, bytes.get(range)?)
    }

    fn joined_part(&self, first: usize, second: usize, part: Part) -> Option<Cow<'_, [u8]>> {
        let outer = *self.file.tensors().get(first)?.shape.first()?;
        let outer = usize::try_from(outer).ok()?;
        let first = self.tensor_part(first, part)?;
        let second = self.tensor_part(second, part)?;
        let (first_len, second_len) =
            (first.len().checked_div(outer)?, second.len().checked_div(outer)?);
        if first_len == 0 || second_len == 0 {
            return None;
        }
        let mut joined = Vec::with_capacity(first.len().checked_add(second.len())?);
        for (a, b) in first.chunks_exact(first_len).zip(second.chunks_exact(second_len)) {
            joined.extend_from_slice(a);
            joined.extend_from_slice(b);
        }
        Some(Cow::Owned(joined))
    }
}

impl WeightStore for GgufStore {
    fn access(&self, weight: &str) -> Access {
        match self.sources.get(weight) {
            Some(Source::Whole(index)) => {
                let encoding = self.file.tensors().get(*index).map(|t| t.ggml_type.encoding());
                let is_dense = matches!(encoding, Some(Some(Encoding::Dense(_))));
                if is_dense { Access::Lent } else { Access::Rows }
            }
            Some(Source::Turned(..)) => Access::Rows,
            Some(Source::Joined(..)) | None => Access::Whole,
        }
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        match self.sources.get(weight)? {
            Source::Whole(index) => self.quantised_rows(*index, part, &rows),
            Source::Turned(index, turned) => {
                let info = self.file.tensors().get(*index).filter(|_| part == Part::Data)?;
                turned.rows(self.file.tensor_bytes(info), rows)
            }
            Source::Joined(..) => None,
        }
    }

    fn fingerprint(&self) -> Option<[u8; 32]> {
        self.file.fingerprint()
    }

    fn forget(&self, weight: &str) {
        let tensors = match self.sources.get(weight) {
            Some(Source::Whole(index) | Source::Turned(index, _)) => vec![*index],
            Some(Source::Joined(first, second)) => vec![*first, *second],
            None => vec![],
        };
        for info in tensors.into_iter().filter_map(|index| self.file.tensors().get(index)) {
            self.file.forget(info);
        }
    }

    fn part(&self, weight: &str, part: Part) -> lapidary_program::Result<Cow<'_, [u8]>> {
        let bytes = self.sources.get(weight).and_then(|source| match source {
            Source::Whole(index) => self.tensor_part(*index, part),
            Source::Turned(index, turned) => {
                let whole = turned.whole(self.tensor_part(*index, part)?.as_ref());
                whole.map(Cow::Owned)
            }
            Source::Joined(first, second) => self.joined_part(*first, *second, part),
        });
        bytes.ok_or_else(|| lapidary_program::Error::Weight {
            weight: weight.to_string(),
            what: format!("{part:?} is not stored"),
        })
    }
}

fn other_form(info: &TensorInfo) -> Error {
    let what = format!(
        "it is {}, which can't be read in the order that is wanted; get a file that has it in F16",
        info.ggml_type.name()
    );
    Error::tensor(&info.name, what)
}

fn encoding(info: &TensorInfo) -> Result<Encoding> {
    info.ggml_type.encoding().ok_or_else(|| {
        let what = format!(
            "its type {} is not read; get a file in Q4_0, Q4_K_M, Q6_K, Q8_0, F16 or BF16",
            info.ggml_type.name()
        );
        Error::tensor(&info.name, what)
    })
}
