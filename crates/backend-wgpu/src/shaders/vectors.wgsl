// V channels at a time.
#if V == 4
alias Vector = vec4<f32>;

fn sum_of(v: Vector) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}
#else
alias Vector = f32;

fn sum_of(v: Vector) -> f32 {
    return v;
}
#endif
