use lapidary_backend::Result;

use crate::matrix::Cpu;
use crate::parallel::try_rows;
use crate::weights::Rows;

/// `ids [T] → [T, C]`: rows of a table `[V, C]`, times `scale`.
///
/// `soft` is the row that is read at soft positions, and `soft_index [T]`: −1 at the others.
pub(crate) fn embed(
    cpu: Cpu<'_>,
    table: &Rows<'_>,
    scale: f32,
    (ids, soft): (&[i32], Option<(usize, &[i32])>),
    (out, channels): (&mut [f32], usize),
) -> Result<()> {
    try_rows(cpu, out, channels, channels, |t, out| {
        let id = match soft {
            Some((soft_id, soft_index)) if soft_index[t] >= 0 => soft_id,
            _ => ids[t] as usize,
        };
        table.row_f32(id, out)?;
        for o in out {
            *o *= scale;
        }
        Ok(())
    })
}
