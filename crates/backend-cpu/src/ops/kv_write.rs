use crate::cache::Cache;

/// `k [T, C], v [T, C], slots [T], positions [T]`: each token's key and value go to its slot and
/// position, over whatever a ring held there.
pub(crate) fn kv_write(cache: &mut Cache, k: &[f32], v: &[f32], slots: &[i32], positions: &[i32]) {
    let shape = cache.shape();
    let channels = shape.n_heads * shape.head_dim;
    for (t, (slot, position)) in slots.iter().zip(positions).enumerate() {
        for head in 0..shape.n_heads {
            let start = t * channels + head * shape.head_dim;
            let part = start..start + shape.head_dim;
            cache.write(*slot as usize, head, *position as usize, &k[part.clone()], &v[part]);
        }
    }
}
