use lapidary_backend::Result;

use crate::matrix::Cpu;
use crate::parallel::try_rows;
use crate::weights::Rows;

/// Which rows of a table, and their factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Picked {
    /// Multiplies every row.
    pub scale: f32,
    /// The row of id 0.
    pub start: usize,
    /// Rows from one id to the next.
    pub stride: usize,
}

/// `ids [T] → [T, C]`: rows `start + stride·id` of a table `[V, C]`, times `scale`.
///
/// `soft` is the row that is read at soft positions, and `soft_index [T]`: −1 at the others.
pub(crate) fn embed(
    cpu: Cpu<'_>,
    table: &Rows<'_>,
    picked: Picked,
    (ids, soft): (&[i32], Option<(usize, &[i32])>),
    (out, channels): (&mut [f32], usize),
) -> Result<()> {
    try_rows(cpu, out, channels, channels, |t, out| {
        let row = match soft {
            Some((soft_id, soft_index)) if soft_index[t] >= 0 => soft_id,
            _ => picked.start + picked.stride * ids[t] as usize,
        };
        table.row_f32(row, out)?;
        for o in out {
            *o *= picked.scale;
        }
        Ok(())
    })
}
