/// `min(max(x, low), high)`; what is not a number stays so.
pub(crate) fn clamp(x: &[f32], low: f32, high: f32) -> Vec<f32> {
    // Not `f32::clamp`, which panics where a checkpoint's bounds are crossed or not numbers.
    let one = |x: f32| {
        let x = if x < low { low } else { x };
        if x > high { high } else { x }
    };
    x.iter().map(|x| one(*x)).collect()
}
