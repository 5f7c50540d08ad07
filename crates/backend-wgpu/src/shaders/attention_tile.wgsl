// Attention of GT queries that see the same keys, a tile of keys at a time, with a running softmax.
// The kernel has params.head_dim, GT, and ACC for heads of up to 256·ACC channels. It gives
// query_quad(g, i), key_quad(k, i), value_quad(k, i) and score(x). A workgroup of 64: one key each
// for scores, then one quad of channels each for values; where a head has few quads, parts of the
// workgroup take every n-th key.
const WG: u32 = 64u;
const LOW: f32 = -3.0e38;

var<workgroup> queries: array<vec4<f32>, WG * ACC * GT>;
var<workgroup> scores: array<f32, WG * GT>;
/// The largest of every eight scores.
var<workgroup> highs: array<f32, 8 * GT>;
var<workgroup> shared_quads: array<vec4<f32>, WG>;
var<workgroup> shared_sums: array<f32, WG>;

/// The values of each query so far, not divided yet; whole only in the first part after `attend`.
var<private> acc: array<vec4<f32>, GT * ACC>;
/// The largest score of each query, and the sum of its weights.
var<private> most: array<f32, GT>;
var<private> total: array<f32, GT>;

/// Quads of channels of a head.
fn quads() -> u32 {
    return (params.head_dim + 3u) / 4u;
}

/// Attends to keys `first ..= last`, if there are any.
fn attend(lane: u32, first: i32, last: i32) {
    let n_quads = quads();
    let span = min(n_quads, WG);
    let n_parts = WG / span;
    for (var i = lane; i < n_quads * GT; i += WG) {
        queries[i] = query_quad(i / n_quads, i % n_quads);
    }
    for (var g = 0u; g < GT; g++) {
        most[g] = LOW;
        total[g] = 0.0;
        for (var a = 0u; a < ACC; a++) {
            acc[g * ACC + a] = vec4<f32>();
        }
    }
    let part = lane / span;
    for (var start = first; start <= last; start += i32(WG)) {
        workgroupBarrier();
        let here = min(WG, u32(last - start) + 1u);
        let k = start + i32(lane);
        for (var g = 0u; g < GT; g++) {
            scores[g * WG + lane] = LOW;
        }
        if lane < here {
            var sums: array<f32, GT>;
            for (var i = 0u; i < n_quads; i++) {
                let quad = key_quad(k, i);
                for (var g = 0u; g < GT; g++) {
                    sums[g] += dot(queries[g * n_quads + i], quad);
                }
            }
            for (var g = 0u; g < GT; g++) {
                scores[g * WG + lane] = score(sums[g]);
            }
        }
        workgroupBarrier();
        if lane < 8u * GT {
            var high = LOW;
            for (var j = 0u; j < 8u; j++) {
                high = max(high, scores[8u * lane + j]);
            }
            highs[lane] = high;
        }
        workgroupBarrier();
        var shrink: array<f32, GT>;
        for (var g = 0u; g < GT; g++) {
            var high = most[g];
            for (var j = 0u; j < 8u; j++) {
                high = max(high, highs[8u * g + j]);
            }
            shrink[g] = exp(most[g] - high);
            most[g] = high;
        }
        for (var g = 0u; g < GT; g++) {
            let own = scores[g * WG + lane];
            scores[g * WG + lane] = select(0.0, exp(own - most[g]), lane < here);
            total[g] *= shrink[g];
            for (var a = 0u; a < ACC; a++) {
                acc[g * ACC + a] *= shrink[g];
            }
        }
        workgroupBarrier();
        if part < n_parts {
            for (var j = part; j < here; j += n_parts) {
                for (var g = 0u; g < GT; g++) {
                    total[g] += scores[g * WG + j];
                }
                for (var a = 0u; a < ACC; a++) {
                    let i = lane % span + a * WG;
                    if i < n_quads {
                        let quad = value_quad(start + i32(j), i);
                        for (var g = 0u; g < GT; g++) {
                            acc[g * ACC + a] += scores[g * WG + j] * quad;
                        }
                    }
                }
            }
        }
    }
    if n_parts > 1u {
        gather_parts(lane, span, n_parts);
    }
}

/// Adds up what the parts of the workgroup have.
fn gather_parts(lane: u32, span: u32, n_parts: u32) {
    for (var g = 0u; g < GT; g++) {
        workgroupBarrier();
        shared_quads[lane] = acc[g * ACC];
        shared_sums[lane] = total[g];
        workgroupBarrier();
        if lane < span {
            for (var p = 1u; p < n_parts; p++) {
                acc[g * ACC] += shared_quads[lane + p * span];
                total[g] += shared_sums[lane + p * span];
            }
        }
    }
}

/// The quad of channels that an invocation holds as `acc[.. + a]`; as many as there are, or more, if none.
fn own_quad(lane: u32, a: u32) -> u32 {
    return select(quads(), lane + a * WG, lane < min(quads(), WG));
}

/// Query `g`'s result in that quad; a query that sees no key gives 0.
fn result(g: u32, a: u32) -> vec4<f32> {
    if total[g] == 0.0 {
        return vec4<f32>();
    }
    return acc[g * ACC + a] / total[g];
}
