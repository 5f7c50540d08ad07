use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Binding, Count, Value, Work};

/// Each token's key and value go to its page. `x` is keys and values.
pub(super) fn kv_write(cx: &mut MethodCompiler<'_>, state: &str, x: &[Value]) {
    let (id, cache) = cx.cache(state);
    let len = cx.len(x[0].rows);
    let places = cx.places(&cache, x[0].rows);
    let quads = cache.n_heads * cache.quads();
    Kernel::new(Shader::new("kv_write").with("HALVES", cache.halves))
        .words(&[len, cache.n_heads as u32, cache.head_dim as u32])
        .read(x[0])
        .read(x[1])
        .read(places)
        .writes(Binding::Keys(id))
        .writes(Binding::Values(id))
        .groups(cx, Count::of(x[0].rows, quads, 256), Work::Rows(x[0].rows, x[0].channels as u64));
}
