// attention of many queries over a cache, in f32, with what every GPU has.
// q, y [len, heads·D]. The queries of a KV head, heads within tokens, are rows; a workgroup of 128
// makes M of them, 32 keys at a time. Scores: an invocation has four rows and KPT keys, eight quads
// of channels at a time. Values: it has AQ quads, QT apart, of RPT rows.
struct Params {
    len: u32,
    heads: u32,
    kv_heads: u32,
    per_kv: u32,
    scale: f32,
    /// 0 for all keys.
    window: u32,
    /// Whether a query sees the key at its own position.
    own_key: u32,
}
#include prelude
#include kv_cache
#include kv_pages

@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> places: array<Place>;
@group(0) @binding(4) var<storage, read> pages: array<u32>;
@group(0) @binding(5) var<storage, read> keys: array<Stored>;
@group(0) @binding(6) var<storage, read> values: array<Stored>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
#include attention_rows

const WG = 128u;
const BK = 32u;
const QUADS = $((D+3)/4)u;
// Quads of a row of a tile: one is left free, so that rows begin in different banks.
const LD = 9u;
// Invocations that have the scores of the same rows.
const PARTS = $(32/KPT)u;

var<workgroup> qs: array<vec4<f32>, $(M*9)>;
var<workgroup> ks: array<vec4<f32>, $(32*9)>;
/// Of four rows each: [keys, rows / 4].
var<workgroup> weights: array<vec4<f32>, $(32*M/4)>;
/// The largest scores, or the sums of weights, that each invocation has found.
var<workgroup> found: array<vec4<f32>, WG>;
/// What the sums of rows are multiplied with.
var<workgroup> factors: array<vec4<f32>, $(M/4)>;

fn query_quad(at: u32, quad: u32) -> vec4<f32> {
    var x = vec4<f32>();
#if D % 4 == 0
    if quad < QUADS {
        let source = at * $(D)u + 4u * quad;
        x = vec4<f32>(q[source], q[source + 1u], q[source + 2u], q[source + 3u]);
    }
#else
    for (var c = 0u; c < 4u; c++) {
        if 4u * quad + c < $(D)u {
            x[c] = q[at * $(D)u + 4u * quad + c];
        }
    }
#endif
    return x;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let n_rows = len_of(params.len) * params.per_kv;
    let tiles = (n_rows + M - 1u) / M;
    let at = flat_group(group, groups);
    let kv_head = at / tiles;
    if kv_head >= params.kv_heads {
        return;
    }
    // The last tokens see most keys, so they are begun first.
    let first_row = (tiles - 1u - at % tiles) * M;
    let n_own = min(M, n_rows - first_row);

    if thread < n_own {
        let token = (first_row + thread) / params.per_kv;
        let sees = seen_keys(places[token]);
        seen[thread] = vec3<i32>(sees.x, sees.y, places[token].table);
    }
    workgroupBarrier();

    // What this invocation does: scores of four rows and some keys, values of other rows.
    let group_of_rows = thread % $(M/4)u;
    let own_key = thread / $(M/4)u * $(KPT)u;
    let scores = own_key < BK;
    var most = vec4<f32>(LOW);
    var total = vec4<f32>();
    let own_quad = thread % $(QT)u;
    let own_rows = thread / $(QT)u * $(RPT/4)u;
#for A 0 AQ
#for R 0 RPT
    var acc_$(A)_$(R) = vec4<f32>();
#endfor
#endfor

    // Rows of one table together; the others wait for their turn.
    var begin = 0u;
    while begin < n_own {
        let run = run_of_rows(begin, n_own);
        // What the rows see by this table.
        var first = vec4<i32>();
        var last = vec4<i32>(-1);
        for (var r = 0u; r < 4u; r++) {
            let row = 4u * group_of_rows + r;
            if row >= begin && row < run.end {
                first[r] = seen[row].x;
                last[r] = seen[row].y;
            }
        }
        begin = run.end;
        // A tile is never in two pages. Keys before the first may be anything, and are not read.
        for (var start = run.first & ~31; start <= run.last; start += i32(BK)) {
            let page = pages[run.table + (start >> PAGE_BITS)];
            let tile = row_in_page(page, kv_head, params.kv_heads, u32(start));
            let unseen = u32(max(run.first - start, 0));
            let here = min(BK, u32(run.last - start) + 1u);
#for K 0 KPT
            var sums_$(K) = vec4<f32>();
#endfor
            for (var quad = 0u; quad < QUADS; quad += 8u) {
                workgroupBarrier();
                for (var i = thread; i < 8u * M; i += WG) {
                    let of_row = query_at(min(first_row + i / 8u, n_rows - 1u), kv_head);
                    qs[i / 8u * LD + i % 8u] = query_quad(of_row, quad + i % 8u);
                }
                for (var i = thread; i < 8u * BK; i += WG) {
                    var x = vec4<f32>();
                    if i / 8u < here && i / 8u >= unseen && quad + i % 8u < QUADS {
                        x = widen(keys[(tile + i / 8u) * QUADS + quad + i % 8u]);
                    }
                    ks[i / 8u * LD + i % 8u] = x;
                }
                workgroupBarrier();
                if scores {
                    for (var i = 0u; i < 8u; i++) {
#for R 0 4
                        let q_$(R) = qs[(4u * group_of_rows + $(R)u) * LD + i];
#endfor
#for K 0 KPT
                        let k_$(K) = ks[(own_key + $(K)u) * LD + i];
                        sums_$(K) += vec4<f32>(dot(q_0, k_$(K)), dot(q_1, k_$(K)), dot(q_2, k_$(K)), dot(q_3, k_$(K)));
#endfor
                    }
                }
            }
            var high = most;
#for K 0 KPT
            let k_$(K) = vec4<i32>(start + i32(own_key) + $(K));
            let seen_$(K) = (k_$(K) >= first) & (k_$(K) <= last) & vec4<bool>(scores);
            sums_$(K) = select(vec4<f32>(LOW), sums_$(K) * params.scale, seen_$(K));
            high = max(high, sums_$(K));
#endfor
            found[thread] = high;
            workgroupBarrier();
            for (var i = 0u; i < PARTS; i++) {
                high = max(high, found[i * $(M/4)u + group_of_rows]);
            }
            let shrink = exp(most - high);
            most = high;
            total *= shrink;
            if own_key == 0u {
                factors[group_of_rows] = shrink;
            }
#for K 0 KPT
            let weight_$(K) = select(vec4<f32>(), exp(sums_$(K) - most), seen_$(K));
            total += weight_$(K);
            if scores {
                weights[(own_key + $(K)u) * $(M/4)u + group_of_rows] = weight_$(K);
            }
#endfor
            workgroupBarrier();

#for R 0 RPT/4
            let shrink_$(R) = factors[own_rows + $(R)u];
#for A 0 AQ
#for C 0 4
            acc_$(A)_$(4*R+C) *= shrink_$(R)[$(C)];
#endfor
#endfor
#endfor
            for (var k = unseen; k < here; k++) {
#for A 0 AQ
                var v_$(A) = vec4<f32>();
                if own_quad + $(A*QT)u < QUADS {
                    v_$(A) = widen(values[(tile + k) * QUADS + own_quad + $(A*QT)u]);
                }
#endfor
#for R 0 RPT/4
                let w_$(R) = weights[k * $(M/4)u + own_rows + $(R)u];
#for A 0 AQ
#for C 0 4
                acc_$(A)_$(4*R+C) += w_$(R)[$(C)] * v_$(A);
#endfor
#endfor
#endfor
            }
        }
    }

    // A row that sees no key gives 0.
    found[thread] = total;
    workgroupBarrier();
    if own_key == 0u {
        var sum = vec4<f32>();
        for (var i = 0u; i < PARTS; i++) {
            sum += found[i * $(M/4)u + group_of_rows];
        }
        factors[group_of_rows] = select(1.0 / sum, vec4<f32>(), sum == vec4<f32>());
    }
    workgroupBarrier();
#for R 0 RPT
    if 4u * own_rows + $(R)u < n_own {
        let factor = factors[own_rows + $(R/4)u][$(R%4)];
        let to_row = query_at(first_row + 4u * own_rows + $(R)u, kv_head) * $(D)u;
#for A 0 AQ
        for (var c = 0u; c < 4u; c++) {
            let channel = 4u * (own_quad + $(A*QT)u) + c;
            if channel < $(D)u {
                y[to_row + channel] = acc_$(A)_$(R)[c] * factor;
            }
        }
#endfor
    }
#endfor
}
