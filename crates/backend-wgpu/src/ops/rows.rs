//! How a workgroup goes over one row.

use crate::adapter::Abilities;
use crate::linear::Tuning;
use crate::shader::Shader;

/// A workgroup that holds a row in its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// Channels of a vector.
    vector: u32,
    invocations: u32,
    /// Vectors of one invocation.
    each: u32,
    /// The size of a subgroup, if kernels may count on it; else 0.
    subgroup: u32,
}

impl Rows {
    /// For rows of so many channels, in vectors of four if that may be.
    pub(super) fn new(abilities: &Abilities, channels: u32, whole: bool) -> Self {
        let vector = if whole { 4 } else { 1 };
        let vectors = channels / vector;
        let subgroup = Tuning { abilities }.subgroup() as u32;
        // More than two vectors each take longer than what more invocations cost.
        let most = match vectors {
            0..=512 => 256,
            513..=1024 => 512,
            _ => 1024,
        };
        let most = most.min(abilities.max_invocations);
        let invocations = vectors.next_power_of_two().min(most).max(subgroup.max(32));
        Rows { vector, invocations, each: vectors.div_ceil(invocations).max(1), subgroup }
    }

    /// What `workgroup_sum` and kernels of such rows ask for.
    pub(super) fn constants(self, shader: Shader) -> Shader {
        let shader = shader
            .with("SUBGROUPS", self.subgroup > 0)
            .constant("V", self.vector)
            .constant("WG", self.invocations)
            .constant("N", self.each);
        if self.subgroup > 0 { shader.constant("SG", self.subgroup) } else { shader }
    }
}
