// Where the rows of a packed matrix go: OUTS matrices stand one after another, each from a tile on.
// `outs[i]`: its first row here, its rows, its first column in y, and the columns of y.
// WHOLE: four rows at a time, of which y has whole vectors.
#if WHOLE
alias Out = vec4<f32>;
#else
alias Out = f32;
#endif

fn store(token: u32, row: u32, value: Out) {
#for O 0 OUTS
#if O + 1 < OUTS
    if row < params.outs[$(O+1)].x {
#else
    {
#endif
        let n = row - params.outs[$(O)].x;
        if n < params.outs[$(O)].y {
            let column = params.outs[$(O)].z + n;
            let at = token * params.outs[$(O)].w + column;
#if BIAS
            y_$(O)[at] = value + bias[column];
#else
#if WHOLE
            y_$(O)[at / 4u] = value;
#else
            y_$(O)[at] = value;
#endif
#endif
        }
        return;
    }
#endfor
}
