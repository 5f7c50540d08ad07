// Rows of queries that a workgroup makes together, M at most: what each of them sees, and which of
// them have the same table of pages. The kernel has params and places.
#include attention_seen
const LOW: f32 = -3.0e38;

/// The first key that each row sees, the last, and its table.
var<workgroup> seen: array<vec3<i32>, M>;

/// Rows up to `end` that have one table, and the keys that they see; the first is 0 or more.
struct Run {
    end: u32,
    table: i32,
    first: i32,
    last: i32,
}

/// Which head's query a row of a KV head is.
fn query_at(row: u32, kv_head: u32) -> u32 {
    return row / params.per_kv * params.heads + kv_head * params.per_kv + row % params.per_kv;
}

/// The rows from `begin` on that have one table. The loop does not end before the last row, so that
/// no read waits for another.
fn run_of_rows(begin: u32, n_own: u32) -> Run {
    let table = seen[begin].z;
    var run = Run(begin, table, 0x7fffffff, -1);
    var same = true;
    for (var i = begin; i < n_own; i++) {
        let row = seen[i];
        same = same && row.z == table;
        let counts = same && row.x <= row.y;
        run.end += select(0u, 1u, same);
        run.first = select(run.first, min(run.first, row.x), counts);
        run.last = select(run.last, max(run.last, row.y), counts);
    }
    run.first = select(run.first, 0, run.last < 0);
    return run;
}
