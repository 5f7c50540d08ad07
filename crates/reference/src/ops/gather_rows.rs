/// `x [T, channels], rows [R] → [R, channels]`.
pub(crate) fn gather_rows(x: &[f32], channels: usize, rows: &[i32]) -> Vec<f32> {
    let row = |r: &i32| &x[*r as usize * channels..(*r as usize + 1) * channels];
    rows.iter().flat_map(row).copied().collect()
}
