use crate::engine::{Cache, Places};

/// `k [T, C], v [T, C]`: each token's key and value go to its sequence and position.
pub(crate) fn kv_write(cache: &mut Cache, k: &[f32], v: &[f32], places: &Places<'_>) {
    let channels = k.len() / places.positions.len().max(1);
    let rows = k.chunks_exact(channels).zip(v.chunks_exact(channels));
    for (t, (k, v)) in rows.enumerate() {
        let (key, value) = cache.row_mut(places.span(t), places.positions[t] as usize);
        key.copy_from_slice(k);
        value.copy_from_slice(v);
    }
}
