use lapidary_backend_kit::rope_frequencies;
use lapidary_program::RopeSpec;

use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::host::HostFeed;
use crate::shader::Shader;
use crate::step::Value;

/// Half-split rotation by a table of angles that the host makes.
pub(super) fn rope(cx: &mut MethodCompiler<'_>, spec: &RopeSpec, x: Value, y: Value) {
    let pairs = spec.rotated_pairs;
    let table = table(cx, spec, x);
    let kernel = Kernel::over(cx, Shader::new("rope"), y);
    kernel.words(&[spec.head_dim, pairs]).read(x).read(table).write(y).elements(cx, y);
}

/// The angles of each row of `x`, which the host makes.
pub(crate) fn table(cx: &mut MethodCompiler<'_>, spec: &RopeSpec, x: Value) -> Value {
    let angles = HostFeed::Angles { frequencies: rope_frequencies(spec) };
    cx.feed((x.rows, 2 * spec.rotated_pairs as usize), angles)
}
