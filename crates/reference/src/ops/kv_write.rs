use crate::engine::Cache;

/// `k [T, C], v [T, C], slots [T], positions [T]`: each token's key and value go to its slot and
/// position, over whatever a ring held there.
pub(crate) fn kv_write(cache: &mut Cache, k: &[f32], v: &[f32], slots: &[i32], positions: &[i32]) {
    let channels = k.len() / slots.len();
    let rows = k.chunks_exact(channels).zip(v.chunks_exact(channels));
    for ((k, v), (slot, position)) in rows.zip(slots.iter().zip(positions)) {
        let (key, value) = cache.row_mut(*slot as usize, *position as usize);
        key.copy_from_slice(k);
        value.copy_from_slice(v);
    }
}
