// Functions of one number that are exact to a few units in the last place and overflow nowhere.

/// Whether this is not a number. Compilers take `x != x` for false, and comparisons for `max`.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

/// tanh: a polynomial where 1 − 2 / (e^2x + 1) would lose digits.
fn tanh_exact(x: f32) -> f32 {
    let a = abs(x);
    if a < 0.625 {
        let z = x * x;
        var p = -5.70498872745e-3;
        p = p * z + 2.06390887954e-2;
        p = p * z - 5.37397155531e-2;
        p = p * z + 1.33314422036e-1;
        p = p * z - 3.33332819422e-1;
        return x + x * z * p;
    }
    let t = 1.0 - 2.0 / (exp(2.0 * min(a, 20.0)) + 1.0);
    // What is not a number stays so.
    return select(select(t, -t, x < 0.0), x, is_nan(x));
}

/// 1 / (1 + e^−x).
fn sigmoid(x: f32) -> f32 {
    let t = exp(-min(abs(x), 80.0));
    return select(1.0, t, x < 0.0) / (1.0 + t);
}

/// 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), which is x·sigmoid(2u).
fn gelu_tanh(x: f32) -> f32 {
    let u = 0.7978845608 * (x + 0.044715 * x * x * x);
    return x * sigmoid(2.0 * u);
}
