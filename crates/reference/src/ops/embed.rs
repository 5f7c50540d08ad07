use lapidary_program::Weight;

/// `ids [T] → [T, C]`: rows of a table `[V, C]`, times `scale`.
///
/// `soft` is the row that is read at soft positions, and `soft_index [T]`: −1 at the others.
pub(crate) fn embed(
    table: &Weight<'_>,
    scale: f32,
    ids: &[i32],
    soft: Option<(usize, &[i32])>,
) -> Vec<f32> {
    let channels = table.decl.cols();
    let mut out = vec![0.0; ids.len() * channels];
    for (t, (id, row)) in ids.iter().zip(out.chunks_exact_mut(channels)).enumerate() {
        let id = match soft {
            Some((soft_id, soft_index)) if soft_index[t] >= 0 => soft_id,
            _ => *id as usize,
        };
        table.row_f32(id, row);
        for x in row {
            *x *= scale;
        }
    }
    out
}
