//! Matrices that stand in a file with rows and columns exchanged, turned when asked for.

use std::ops::Range;

use lapidary_program::DType;

/// `outer` matrices `[cols, rows]` in a file, each of which is wanted as `[rows, cols]`.
pub(crate) struct Turned {
    outer: u64,
    rows: u64,
    cols: u64,
    dtype: DType,
}

impl Turned {
    /// Of so many matrices, rows and columns as they are wanted.
    pub fn new([outer, rows, cols]: [u64; 3], dtype: DType) -> Self {
        Turned { outer, rows, cols, dtype }
    }

    /// All of it.
    pub fn whole(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let (rows, cols) = self.lengths()?;
        let matrix = rows.checked_mul(cols)?.checked_mul(self.dtype.size_bytes())?;
        let outer = usize::try_from(self.outer).ok()?;
        if matrix == 0 || bytes.len() != matrix.checked_mul(outer)? {
            return None;
        }
        let mut out = Vec::with_capacity(bytes.len());
        for matrix in bytes.chunks_exact(matrix) {
            self.turn(matrix, 0..rows, &mut out)?;
        }
        Some(out)
    }

    /// Some rows of the one matrix; `None` if there are several.
    pub fn rows(&self, bytes: &[u8], rows: Range<usize>) -> Option<Vec<u8>> {
        if self.outer != 1 {
            return None;
        }
        let mut out = Vec::new();
        self.turn(bytes, rows, &mut out)?;
        Some(out)
    }

    fn lengths(&self) -> Option<(usize, usize)> {
        Some((usize::try_from(self.rows).ok()?, usize::try_from(self.cols).ok()?))
    }

    /// Column after column of one matrix in the file.
    fn turn(&self, matrix: &[u8], wanted: Range<usize>, out: &mut Vec<u8>) -> Option<()> {
        let (rows, cols) = self.lengths()?;
        let size = self.dtype.size_bytes();
        let stride = rows.checked_mul(size)?;
        if wanted.end > rows || matrix.len() != stride.checked_mul(cols)? {
            return None;
        }
        for row in wanted {
            let at = row.checked_mul(size)?;
            for line in matrix.chunks_exact(stride) {
                out.extend_from_slice(line.get(at..at.checked_add(size)?)?);
            }
        }
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_columns() {
        // [2, 3] in the file.
        let bytes = [0u8, 1, 2, 3, 4, 5].map(|b| [b, 0]).concat();
        let turned = Turned::new([1, 3, 2], DType::F16);
        let want = [0u8, 3, 1, 4, 2, 5].map(|b| [b, 0]).concat();
        assert_eq!(turned.whole(&bytes).unwrap(), want);
        assert_eq!(turned.rows(&bytes, 1..3).unwrap(), want[4..]);
        assert!(turned.rows(&bytes, 1..4).is_none());
        assert!(turned.whole(&bytes[1..]).is_none());
        let two = Turned::new([2, 3, 2], DType::F16);
        assert_eq!(two.whole(&[&bytes[..], &bytes].concat()).unwrap(), [&want[..], &want].concat());
        assert!(two.rows(&bytes, 0..1).is_none());
    }
}
