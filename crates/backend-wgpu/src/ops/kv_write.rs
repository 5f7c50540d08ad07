use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Bound, Count, Value, Work};

/// Each token's key and value go to its slot and position. `x` is keys, values, slots, positions.
pub(super) fn kv_write(cx: &mut MethodCompiler<'_>, state: &str, x: &[Value]) {
    let (id, cache) = cx.cache(state);
    let len = cx.len(x[0].rows);
    let kernel = Kernel::new(Shader::new("kv_write").with("HALVES", cache.halves)).words(&[
        len,
        cache.n_heads as u32,
        cache.head_dim as u32,
        cache.capacity as u32,
    ]);
    let kernel = x.iter().fold(kernel, |kernel, value| kernel.read(*value));
    let quads = cache.n_heads * cache.quads();
    kernel.writes(Bound::Keys(id)).writes(Bound::Values(id)).groups(
        cx,
        Count::of(x[0].rows, quads, 256),
        Work::Rows(x[0].rows, x[0].channels as u64),
    );
}
