//! The kernels of `linear`, each with the constants that its template asks for.

use super::form::{PackedForm, Step, UNIT};
use super::tuning::{CoopTile, MatvecTile};
use crate::shader::Shader;

/// What kernels of all kinds depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub form: PackedForm,
    /// Matrices that stand together.
    pub outs: usize,
    pub bias: bool,
}

/// How `matvec` meets activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activations {
    /// As they are.
    Floats,
    /// As bytes that `rows_to_bytes` made.
    Bytes,
    /// As bytes that each workgroup makes for itself.
    OwnBytes,
}

/// What `matvec` makes of its sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gated {
    /// Themselves.
    Not,
    /// `gelu_tanh` of the first matrix's, times the second's.
    Second,
    /// `gelu_tanh` of them, times another value.
    Up,
}

/// Which matrix of each expert is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Experts {
    /// The gate and the other factor, of which the product is made.
    GateUp,
    /// What makes the output.
    Down,
}

/// The uses of experts in their order, in blocks.
pub(crate) fn experts_group(n_experts: usize, block: usize) -> Shader {
    Shader::new("experts/group").constant("E", n_experts as u32).constant("BM", block as u32)
}

impl Variant {
    fn shader(&self, stem: &'static str) -> Shader {
        let shader = Shader::new(stem)
            .unchecked()
            .with("BIAS", self.bias)
            .constant("BITS", self.form.codes.number())
            .constant("V", self.form.codes.quads() as u32)
            .constant("OUTS", self.outs as u32);
        match self.form.factors {
            Some(factors) => shader
                .with("AFFINE", factors.affine)
                .with("HALVES", factors.step == Step::Half)
                .constant("SCALE", factors.scales.number())
                .constant("OFF", factors.offset.into())
                .constant("UPS", self.form.units_per_step().min(2) as u32),
            None => shader.constant("SCALE", 0).constant("OFF", 0).constant("UPS", 1),
        }
    }

    /// For so many tokens at most; perhaps gated, and then perhaps kept in bytes, a row of so many
    /// channels.
    pub(crate) fn matvec(
        &self,
        tile: &MatvecTile,
        tokens: usize,
        activations: Activations,
        gate: Gated,
        subgroup: usize,
        keep: Option<usize>,
    ) -> Shader {
        let shader = self.shader("linear/matvec");
        let shader = match keep {
            Some(channels) => shader.with("KEEP", true).constant("CHANNELS", channels as u32),
            None => shader,
        };
        shader
            .with("SUBGROUPS", subgroup > 0)
            .with("RAGGED", !self.form.cols.is_multiple_of(UNIT))
            .constant("TOK", tokens as u32)
            .constant("MODE", (activations != Activations::Floats).into())
            .constant("LOCAL", (activations == Activations::OwnBytes).into())
            .constant("U", self.form.units() as u32)
            .constant("Q", tile.parts as u32)
            .constant("NT", tile.invocations as u32)
            .constant("R", tile.tiles as u32)
            .constant("UNR", tile.unroll as u32)
            .constant("SG", subgroup as u32)
            .with("UP", gate == Gated::Up)
            .constant("GLU", (gate == Gated::Second).into())
    }

    /// For many tokens, by cooperative matrices; `whole` if vectors of four can be written.
    pub(crate) fn coop(&self, tile: &CoopTile, split: usize, whole: bool) -> Shader {
        let (words, taken) = tile.words(&self.form);
        self.shader("linear/coop")
            .with("F16", true)
            .with("SUBGROUPS", true)
            .with("MATRICES", true)
            .with("WHOLE", whole)
            .constant("BM", tile.bm as u32)
            .constant("BN", tile.bn as u32)
            .constant("WM", tile.wm as u32)
            .constant("WN", tile.wn as u32)
            .constant("BK", tile.bk as u32)
            .constant("NT", tile.invocations() as u32)
            .constant("WPT", words as u32)
            .constant("WL", taken as u32)
            .constant("XL", (tile.vectors() / tile.invocations()) as u32)
            .constant("SPLIT", split as u32)
    }

    /// What adds the parts of a split sum.
    pub(crate) fn join(&self, split: usize) -> Shader {
        Shader::new("linear/join")
            .with("BIAS", self.bias)
            .constant("OUTS", self.outs as u32)
            .constant("SPLIT", split as u32)
    }

    /// For many tokens, with nothing but workgroup memory.
    pub(crate) fn tile(&self) -> Shader {
        self.shader("linear/tile")
    }

    /// Experts for few tokens, by workgroups of so many invocations. `more`: adds to what is there.
    pub(crate) fn experts_few(
        &self,
        factor: Experts,
        invocations: usize,
        subgroup: usize,
        more: bool,
    ) -> Shader {
        self.shader("experts/few")
            .constant("GATE", (factor == Experts::GateUp).into())
            .with("MORE", more)
            .with("SUBGROUPS", subgroup > 0)
            .with("RAGGED", !self.form.cols.is_multiple_of(UNIT))
            .constant("NT", invocations as u32)
            .constant("SG", subgroup as u32)
    }

    /// Experts for many tokens, of whose uses `block` are multiplied at once.
    pub(crate) fn experts_many(&self, factor: Experts, n_experts: usize, block: usize) -> Shader {
        self.shader("experts/many")
            .constant("GATE", (factor == Experts::GateUp).into())
            .constant("E", n_experts as u32)
            .constant("BM", block as u32)
    }
}

/// Activations as bytes.
pub(crate) fn rows_to_bytes() -> Shader {
    Shader::new("linear/rows_to_bytes").constant("MODE", 1)
}

/// Activations in `f16`.
pub(crate) fn rows_to_halves() -> Shader {
    Shader::new("linear/rows_to_halves").with("F16", true)
}

#[cfg(test)]
pub(crate) mod tests {
    use lapidary_backend::Precision;
    use lapidary_program::{DType, QuantLayout, ScaleFormat, WeightDecl};

    use super::{
        Activations, Experts, Gated, Variant, experts_group, rows_to_bytes, rows_to_halves,
    };
    use crate::linear::{MatvecTile, PackedForm, Tuning};
    use crate::shader::Shader;

    fn forms() -> Vec<PackedForm> {
        let nested = ScaleFormat::Nested { per: 16, sub: DType::I8, dtype: DType::F16 };
        let six = QuantLayout { bits: 6, group: 16, offset: 32, scale: nested, affine: false };
        let decls = [
            WeightDecl::dense([64, 300], DType::Bf16),
            WeightDecl::dense([64, 256], DType::F16),
            WeightDecl::dense([64, 256], DType::F32),
            WeightDecl::quant([64, 256], QuantLayout::symmetric(4, 32, DType::F16)),
            WeightDecl::quant([64, 256], QuantLayout::affine(4, 64, DType::Bf16)),
            WeightDecl::quant([64, 256], QuantLayout::affine(4, 16, DType::F32)),
            WeightDecl::quant([64, 300], QuantLayout::symmetric(8, 300, DType::F32)),
            WeightDecl::quant([64, 256], six),
        ];
        decls.iter().map(|decl| PackedForm::of(decl, Precision::Fast).unwrap()).collect()
    }

    /// Kernels that every GPU may be given.
    pub(crate) fn variants() -> Vec<Shader> {
        let mut all = vec![rows_to_bytes(), experts_group(128, 16)];
        for form in forms() {
            let variant = Variant { form, outs: 1, bias: false };
            for (factor, block, subgroup) in
                [(Experts::GateUp, 16, 0), (Experts::Down, 16, 32), (Experts::GateUp, 64, 32)]
            {
                let more = factor == Experts::Down;
                all.push(variant.experts_few(factor, 256, subgroup, more));
                all.push(variant.experts_many(factor, 128, block));
            }
            for (outs, bias) in [(1, true), (1, false), (3, false)] {
                let variant = Variant { form, outs, bias };
                all.push(variant.tile());
                all.push(variant.join(4));
                for (tokens, subgroup) in [(1, 0), (8, 0), (4, 32)] {
                    let tile = MatvecTile { parts: 1, invocations: 256, tiles: 2, unroll: 2 };
                    let activations = match (form.factors, tokens, subgroup) {
                        (None, ..) | (_, 8, _) => Activations::Floats,
                        (_, _, 0) => Activations::Bytes,
                        _ => Activations::OwnBytes,
                    };
                    let gate = match (outs == 1 && !bias, tokens) {
                        (false, _) => Gated::Not,
                        (true, 8) => Gated::Up,
                        (true, _) => Gated::Second,
                    };
                    all.push(variant.matvec(&tile, tokens, activations, gate, subgroup, None));
                    if gate == Gated::Second && subgroup > 0 {
                        let tile = MatvecTile { parts: 4, invocations: 64, ..tile };
                        all.push(variant.matvec(&tile, 1, activations, gate, subgroup, Some(64)));
                    }
                }
            }
        }
        all
    }

    /// No column is left out: invocations take all vectors and all codes of a round.
    #[test]
    fn coop_tiles_are_whole() {
        let mut odd = 0;
        for form in forms().into_iter().filter(|f| f.codes != crate::linear::Codes::F32) {
            for cols in [form.cols, 96, 1152] {
                let form = PackedForm { cols, ..form };
                for (_, tile) in Tuning::COOP {
                    let tile = tile.fitted(&form);
                    odd += usize::from(tile.bk == 32);
                    let n = tile.invocations();
                    assert!(tile.vectors() >= n && tile.vectors() % n == 0, "{tile:?}");
                    let (words, taken) = tile.words(&form);
                    let all = tile.bn * tile.bk / 32 * form.codes.quads() * 4;
                    assert_eq!(words * taken * n, all, "{tile:?} {form:?}");
                    assert_eq!(form.units() % (tile.bk / 32), 0, "{tile:?} {form:?}");
                }
            }
        }
        assert!(odd > 0, "no form has an odd number of units");
    }

    /// Kernels for those that have cooperative matrices.
    pub(crate) fn matrix_variants() -> Vec<Shader> {
        let mut all = vec![rows_to_halves()];
        for form in forms().into_iter().filter(|f| f.codes != crate::linear::Codes::F32) {
            for (_, tile) in Tuning::COOP {
                let tile = tile.fitted(&form);
                for (outs, bias, split, whole) in
                    [(1, true, 1, false), (3, false, 1, true), (1, false, 2, true)]
                {
                    all.push(Variant { form, outs, bias }.coop(&tile, split, whole));
                }
            }
        }
        all
    }
}
