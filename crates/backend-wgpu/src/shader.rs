//! Kernels as text: WGSL files with switches and constants.
//!
//! Files are templates (`template.rs`), in which switches that are on are 1. Constants are put before
//! the text as well, so that a file may use them as WGSL has it.

use crate::template::{self, Defines};

/// One variant of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shader {
    /// The file in `shaders/`, without its ending.
    pub stem: &'static str,
    /// Switches that are on.
    pub on: Vec<&'static str>,
    /// `u32` constants.
    pub constants: Vec<(&'static str, u32)>,
    /// Whether bounds are left to the kernel: those of loops, workgroup memory and buffers.
    pub unchecked: bool,
}

impl Shader {
    /// A kernel without switches.
    pub(crate) fn new(stem: &'static str) -> Self {
        Shader { stem, ..Self::default() }
    }

    /// The same with a switch on, if a condition holds.
    pub(crate) fn with(mut self, switch: &'static str, holds: bool) -> Self {
        if holds {
            self.on.push(switch);
        }
        self
    }

    /// The same with a constant.
    pub(crate) fn constant(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self
    }

    /// The same with its bounds left to itself.
    pub(crate) fn unchecked(mut self) -> Self {
        self.unchecked = true;
        self
    }

    /// A name for people.
    pub(crate) fn label(&self) -> String {
        let mut label = self.stem.to_string();
        for switch in &self.on {
            label += &format!(" {switch}");
        }
        for (name, value) in &self.constants {
            label += &format!(" {name}={value}");
        }
        label
    }

    /// The text that a compiler gets, or what is wrong with the file.
    pub(crate) fn text(&self) -> Result<String, String> {
        let mut out = String::new();
        if self.on.contains(&"F16") {
            out += "enable f16;\n";
        }
        if self.on.contains(&"MATRICES") {
            out += "enable wgpu_cooperative_matrix;\n";
        }
        let mut defines = Defines::new();
        for (name, value) in &self.constants {
            out += &format!("const {name}: u32 = {value}u;\n");
            defines.insert((*name).to_string(), i64::from(*value));
        }
        defines.extend(self.on.iter().map(|switch| ((*switch).to_string(), 1)));
        out += &template::expand(self.stem, &file, &defines)?;
        Ok(out)
    }
}

/// The text of a file.
fn file(stem: &str) -> Option<&'static str> {
    FILES.iter().find(|(name, _)| *name == stem).map(|(_, text)| *text)
}

macro_rules! files {
    ($($stem:literal),* $(,)?) => {
        &[$(($stem, include_str!(concat!("shaders/", $stem, ".wgsl")))),*]
    };
}

/// Every file in `shaders/`.
pub(crate) const FILES: &[(&str, &str)] = files![
    "activate",
    "add",
    "attention_coop",
    "attention_few",
    "attention_few_join",
    "attention_keys",
    "attention_many",
    "attention_one",
    "attention_rows",
    "attention_seen",
    "attention_tile",
    "axial_rope",
    "causal_conv1d",
    "centroid_logits",
    "centroid_spread",
    "clamp",
    "concat",
    "conv2d",
    "draw",
    "elements",
    "embed",
    "experts/few",
    "experts/group",
    "experts/many",
    "experts/sum",
    "experts_down",
    "experts_gate",
    "functions",
    "gather_rows",
    "gelu_gate",
    "heads",
    "kv_cache",
    "kv_pages",
    "kv_write",
    "largest",
    "layer_norm",
    "linear/byte_parts",
    "linear/coop",
    "linear/decode",
    "linear/factors",
    "linear/floats",
    "linear/join",
    "linear/keep_bytes",
    "linear/local_bytes",
    "linear/matvec",
    "linear/rows_to_bytes",
    "linear/rows_to_halves",
    "linear/store",
    "linear/tile",
    "linear/unit_dot",
    "linear_plain",
    "local_attention",
    "logsumexp",
    "pool_rows",
    "prelude",
    "residual",
    "rms_norm",
    "rope",
    "scale",
    "scale_by",
    "self_attention",
    "sigmoid_gate",
    "slice",
    "soft_cap",
    "soft_merge",
    "speed",
    "standardise",
    "top",
    "vectors",
    "weight",
    "workgroup_sum",
];

#[cfg(test)]
mod tests {
    use super::Shader;

    #[test]
    fn switches_choose_lines() {
        let plain = Shader::new("layer_norm").text().unwrap();
        let biased = Shader::new("layer_norm").with("BIAS", true).text().unwrap();
        assert!(!plain.contains("bias["));
        assert!(biased.contains("bias["));
        assert!(!biased.contains('#'));
    }

    #[test]
    fn constants_come_first() {
        let text = Shader::new("add").constant("N", 7).text().unwrap();
        assert!(text.starts_with("const N: u32 = 7u;\n"));
    }

    #[test]
    fn an_unknown_file_is_told() {
        assert!(Shader::new("no such").text().unwrap_err().contains("no such"));
    }
}
