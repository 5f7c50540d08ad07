use lapidary_program::{Program, Result};

/// `ids [T] → [T, C]`: rows `start + stride·id` of a table `[V, C]`, times `scale`.
///
/// `soft` is the row that is read at soft positions, and `soft_index [T]`: −1 at the others.
pub(crate) fn embed(
    (program, table): (&Program, &str),
    scale: f32,
    (start, stride): (usize, usize),
    ids: &[i32],
    soft: Option<(usize, &[i32])>,
) -> Result<Vec<f32>> {
    let channels = program.weights()[table].cols();
    let mut out = vec![0.0; ids.len() * channels];
    for (t, (id, row)) in ids.iter().zip(out.chunks_exact_mut(channels)).enumerate() {
        let id = match soft {
            Some((soft_id, soft_index)) if soft_index[t] >= 0 => soft_id,
            _ => start + stride * *id as usize,
        };
        program.weight_rows(table, id..id + 1)?.row_f32(0, row);
        for x in row {
            *x *= scale;
        }
    }
    Ok(out)
}
