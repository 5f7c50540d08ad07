use lapidary_program::Activation;

use super::gelu_gate::gelu_tanh;

/// `f(x)`.
pub(crate) fn activate(x: &[f32], function: Activation) -> Vec<f32> {
    let f = match function {
        Activation::GeluTanh => gelu_tanh,
        Activation::Silu => |x: f32| x / (1.0 + (-x).exp()),
        // Unlike `f32::max`, this keeps what is not a number.
        Activation::Relu => |x: f32| if x < 0.0 { 0.0 } else { x },
    };
    x.iter().map(|x| f(*x)).collect()
}
