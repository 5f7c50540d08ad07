// attention of many queries with cooperative matrices, over a cache of bf16; sums in f32.
// q, y [len, heads·D]. The queries of a KV head, heads within tokens, are rows; a workgroup of W
// subgroups of 32 makes M of them, BK keys at a time. Scores: a subgroup has 16 rows, one of KS
// parts of the channels and KF·16 keys. Values: it has OI·16 rows and OJ·16 channels.
// Weights are made with a largest score that lags behind, so that sums are seldom scaled anew.
// TPR invocations have a row's weights. Queries come in QR parts, keys and values L vectors at a time.
struct Params {
    len: u32,
    heads: u32,
    kv_heads: u32,
    per_kv: u32,
    /// Of scores, as powers of two.
    scale: f32,
    /// 0 for all keys.
    window: u32,
    /// Whether a query sees the key at its own position.
    own_key: u32,
}
#include prelude
#include kv_pages
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> places: array<Place>;
@group(0) @binding(4) var<storage, read> pages: array<u32>;
@group(0) @binding(5) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> values: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read_write> y: array<vec4<f32>>;
#include attention_rows

// Vectors of a row of keys or values, of scores, of weights, and of a part of the queries: some are
// left free, so that rows begin in different banks.
const LD = $((D+8)/4)u;
const LS = $(BK/4+1)u;
const LP = $((BK+8)/4)u;
const LQ = $((D/QR+8)/4)u;
// How far a score may be above the one that weights are made with: 2¹⁰ is far from f16's largest.
const LAG = 10.0;

var<workgroup> kv: array<vec4<f16>, $(BK*((D+8)/4))>;
var<workgroup> scores: array<vec4<f32>, $(KS*M*(BK/4+1))>;
var<workgroup> weights: array<vec4<f16>, $(M*((BK+8)/4))>;
/// What each row is multiplied with: when its largest score grows, and in the end.
var<workgroup> factors: array<f32, $(M)>;
/// Whether a row's sums must be scaled anew: the first of four, so that what stands behind begins at
/// a multiple of 16 bytes. Matrices are read wrongly from elsewhere, and no type asks for that.
var<workgroup> grown: array<atomic<u32>, 4>;

/// Four numbers of bf16 in f16, as near as they come.
fn halves(x: vec2<u32>) -> vec4<f16> {
    let wide = bitcast<vec4<f32>>(vec4<u32>(x.x << 16u, x.x & 0xffff0000u, x.y << 16u, x.y & 0xffff0000u));
    return clamp(vec4<f16>(wide), vec4<f16>(-65504.0h), vec4<f16>(65504.0h));
}

/// The largest number among the invocations of a row.
fn largest_of_row(x: f32) -> f32 {
    var high = x;
#if TPR > 1
    high = max(high, subgroupShuffleXor(high, 1u));
#endif
#if TPR > 2
    high = max(high, subgroupShuffleXor(high, 2u));
#endif
#if TPR > 4
    high = max(high, subgroupShuffleXor(high, 4u));
#endif
    return high;
}

/// The sum of their numbers.
fn sum_of_row(x: f32) -> f32 {
    var sum = x;
#if TPR > 1
    sum += subgroupShuffleXor(sum, 1u);
#endif
#if TPR > 2
    sum += subgroupShuffleXor(sum, 2u);
#endif
#if TPR > 4
    sum += subgroupShuffleXor(sum, 4u);
#endif
    return sum;
}

@compute @workgroup_size($(32*W))
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let n_rows = len_of(params.len) * params.per_kv;
    let tiles = (n_rows + $(M-1)u) / $(M)u;
    let at = flat_group(group, groups);
    // A workgroup too many has no rows.
    let is_there = at < tiles * params.kv_heads;
    let kv_head = select(0u, at / tiles, is_there);
    // The last tokens see most keys, so they are begun first.
    let first_row = (tiles - 1u - at % tiles) * $(M)u;
    let n_own = select(0u, min($(M)u, n_rows - first_row), is_there);

    // What this invocation does with weights: a part of the keys of one row.
    let row = (subgroup * 32u + lane) / $(TPR)u;
    let part = lane % $(TPR)u;
    let token = min(first_row + row, n_rows - 1u) / params.per_kv;
    let sees = seen_keys(places[token]);
    if part == 0u {
        seen[row] = vec3<i32>(sees, places[token].table);
    }
    if thread == 0u {
        atomicStore(&grown[0], 0u);
    }

    // Queries in f16, each made at most 1 by a power of two.
    let source = query_at(min(first_row + row, n_rows - 1u), kv_head) * $(D/4)u;
    var high = 0.0;
    for (var i = part; i < $(D/4)u; i += $(TPR)u) {
        let x = abs(q[source + i]);
        high = max(high, max(max(x.x, x.y), max(x.z, x.w)));
    }
    let exponent = clamp((bitcast<u32>(largest_of_row(high)) >> 23u) & 255u, 1u, 252u);
    let up = bitcast<f32>((253u - exponent) << 23u);
    let factor = params.scale * bitcast<f32>((exponent + 1u) << 23u);
    let row_block = subgroup % $(M/16)u * 16u;
    let channel_part = subgroup / $(M/16)u % $(KS)u;
    let first_key = subgroup / $(M/16*KS)u * $(16*KF)u;
#for R 0 QR
    for (var i = part; i < $(D/QR/4)u; i += $(TPR)u) {
        kv[row * LQ + i] = vec4<f16>(q[source + $(R*(D/QR/4))u + i] * up);
    }
    workgroupBarrier();
#for S 0 D/QR/KS/16
    let q_$(R*(D/QR/16)+S) = coopLoadT<coop_mat16x16<f16, A>>(&kv[row_block * LQ + channel_part * $(D/QR/KS/4)u + $(4*S)u], LQ);
#endfor
    workgroupBarrier();
#endfor

    let out_row = subgroup % $(M/16/OI)u * $(16*OI)u;
    let out_vector = subgroup / $(M/16/OI)u * $(4*OJ)u;
#for I 0 OI
#for J 0 OJ
    var o_$(I)_$(J) = coop_mat16x16<f32, C>();
#endfor
#endfor
    // Among the scores, room for a block of sums of each subgroup.
    let scratch = subgroup * 64u;
    var most = LOW;
    var total = 0.0;
#for E 0 L
    let key_$(E) = (thread + $(E*32*W)u) / $(D/8)u;
    let vector_$(E) = (thread + $(E*32*W)u) % $(D/8)u;
    let to_$(E) = key_$(E) * LD + vector_$(E) * 2u;
#endfor

    // Rows of one table together; the others wait for their turn.
    var begin = 0u;
    while begin < n_own {
        let run = run_of_rows(begin, n_own);
        let mine = row >= begin && row < run.end;
        begin = run.end;
        // A tile is never in two pages. In the place of keys that no row sees stands the nearest that
        // one does.
        let first = run.first & ~$(BK-1);
        // Rows that see no key have no page either.
        let first_page = pages[max(run.table + (first >> PAGE_BITS), 0)];
        var tile = row_in_page(first_page, kv_head, params.kv_heads, u32(first));
        let low = u32(run.first - first);
        let high = u32(max(run.last - first, 0));
#for E 0 L
        var c_$(E) = keys[(tile + clamp(key_$(E), low, min(high, $(BK-1)u))) * $(D/8)u + vector_$(E)];
#endfor
        for (var start = first; start <= run.last; start += $(BK)) {
            // The next page is looked up long before it is needed.
            let next_start = min(start + $(BK), run.last & ~$(BK-1));
            let next_page = pages[run.table + (next_start >> PAGE_BITS)];
            let unseen = u32(max(run.first - start, 0));
            let behind = u32(run.last - start);
#for E 0 L
            kv[to_$(E)] = halves(c_$(E).xy);
            kv[to_$(E) + 1u] = halves(c_$(E).zw);
            c_$(E) = values[(tile + clamp(key_$(E), unseen, behind)) * $(D/8)u + vector_$(E)];
#endfor
            workgroupBarrier();
#for J 0 KF
            var s_$(J) = coop_mat16x16<f32, C>();
#endfor
#for S 0 D/KS/16
#for J 0 KF
            {
                let k = coopLoad<coop_mat16x16<f16, B>>(&kv[(first_key + $(16*J)u) * LD + channel_part * $(D/KS/4)u + $(4*S)u], LD);
                s_$(J) = coopMultiplyAdd(q_$(S), k, s_$(J));
            }
#endfor
#endfor
#for J 0 KF
            {
                let value = s_$(J);
                let to = (channel_part * $(M)u + row_block) * LS + first_key / 4u + $(4*J)u;
                let stride = LS;
                coopStoreT(value, &scores[to], stride);
            }
#endfor
            workgroupBarrier();

            // Values take the place of keys, and the next keys are on their way.
            tile = row_in_page(next_page, kv_head, params.kv_heads, u32(next_start));
            let next = u32(max(run.last - start - $(BK), 0));
#for E 0 L
            kv[to_$(E)] = halves(c_$(E).xy);
            kv[to_$(E) + 1u] = halves(c_$(E).zw);
            c_$(E) = keys[(tile + min(key_$(E), next)) * $(D/8)u + vector_$(E)];
#endfor
            var highest = LOW;
#for V 0 BK/4/TPR
            let k_$(V) = vec4<i32>(start + i32(4u * (part + $(V*TPR)u))) + vec4<i32>(0, 1, 2, 3);
            let seen_$(V) = (k_$(V) >= vec4<i32>(sees.x)) & (k_$(V) <= vec4<i32>(sees.y)) & vec4<bool>(mine);
            var w_$(V) = scores[row * LS + part + $(V*TPR)u];
#for P 1 KS
            w_$(V) += scores[($(P*M)u + row) * LS + part + $(V*TPR)u];
#endfor
            w_$(V) = select(vec4<f32>(LOW), w_$(V) * factor, seen_$(V));
            highest = max(highest, max(max(w_$(V).x, w_$(V).y), max(w_$(V).z, w_$(V).w)));
#endfor
            highest = largest_of_row(highest);
            var shrink = 1.0;
            if highest > most + LAG {
                if most > LOW {
                    shrink = exp2(most - highest);
                    atomicStore(&grown[0], 1u);
                }
                most = highest;
                total *= shrink;
            }
            if part == 0u {
                factors[row] = shrink;
            }
#for V 0 BK/4/TPR
            w_$(V) = select(vec4<f32>(), exp2(w_$(V) - most), seen_$(V));
            total += w_$(V).x + w_$(V).y + w_$(V).z + w_$(V).w;
            weights[row * LP + part + $(V*TPR)u] = vec4<f16>(w_$(V));
#endfor
            workgroupBarrier();

            if atomicLoad(&grown[0]) != 0u {
#for I 0 OI
#for J 0 OJ
                {
                    let value = o_$(I)_$(J);
                    let stride = 4u;
                    coopStoreT(value, &scores[scratch], stride);
                }
                workgroupBarrier();
#for E 0 2
                scores[scratch + $(32*E)u + lane] *= factors[out_row + $(16*I+8*E)u + lane / 4u];
#endfor
                workgroupBarrier();
                o_$(I)_$(J) = coopLoadT<coop_mat16x16<f32, C>>(&scores[scratch], 4u);
#endfor
#endfor
            }
#for S 0 BK/16
            {
#for I 0 OI
                let w_$(I) = coopLoadT<coop_mat16x16<f16, A>>(&weights[(out_row + $(16*I)u) * LP + $(4*S)u], LP);
#endfor
#for J 0 OJ
                let v_$(J) = coopLoadT<coop_mat16x16<f16, B>>(&kv[$(16*S)u * LD + out_vector + $(4*J)u], LD);
#for I 0 OI
                o_$(I)_$(J) = coopMultiplyAdd(w_$(I), v_$(J), o_$(I)_$(J));
#endfor
#endfor
            }
#endfor
            workgroupBarrier();
            if thread == 0u {
                atomicStore(&grown[0], 0u);
            }
        }
    }

    // A row that sees no key gives 0.
    total = sum_of_row(total);
    if part == 0u {
        factors[row] = select(1.0 / total, 0.0, total == 0.0);
    }
    workgroupBarrier();
#for I 0 OI
#for E 0 2
    let row_$(I)_$(E) = out_row + $(16*I+8*E)u + lane / 4u;
    let factor_$(I)_$(E) = factors[row_$(I)_$(E)];
    let to_row_$(I)_$(E) = query_at(min(first_row + row_$(I)_$(E), n_rows - 1u), kv_head) * $(D/4)u + out_vector + lane % 4u;
#endfor
#for J 0 OJ
    {
        let value = o_$(I)_$(J);
        let stride = 4u;
        coopStoreT(value, &scores[scratch], stride);
    }
    workgroupBarrier();
#for E 0 2
    if row_$(I)_$(E) < n_own {
        y[to_row_$(I)_$(E) + $(4*J)u] = scores[scratch + $(32*E)u + lane] * factor_$(I)_$(E);
    }
#endfor
    workgroupBarrier();
#endfor
#endfor
}
