use lapidary_backend_kit::axial_frequencies;
use lapidary_program::AxialRopeSpec;

use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::host::HostFeed;
use crate::shader::Shader;
use crate::step::Value;

/// Rotation in two directions by a table of angles that the host makes.
pub(super) fn axial_rope(
    cx: &mut MethodCompiler<'_>,
    spec: &AxialRopeSpec,
    [columns, rows]: [usize; 2],
    x: Value,
    y: Value,
) {
    let angles = HostFeed::AxialAngles { columns, rows, frequencies: axial_frequencies(spec) };
    let table = cx.feed((x.rows, spec.head_dim as usize), angles);
    let kernel = Kernel::over(cx, Shader::new("axial_rope"), y);
    kernel.words(&[spec.head_dim]).read(x).read(table).write(y).elements(cx, y);
}
