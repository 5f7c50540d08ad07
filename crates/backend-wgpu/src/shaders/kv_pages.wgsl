// Where keys and values stand: pools of pages [page][head][position in the page][quad], a quad of f32
// or of bf16 (`kv_cache`).

/// What a token knows of its place: its position; where the pages of its sequence begin in the table,
/// less the first of them; the last position of its block; the page of its own key.
struct Place {
    position: i32,
    table: i32,
    horizon: i32,
    page: u32,
}

/// Positions of a page, and the bits that they take.
const PAGE_BITS: u32 = 7u;
const PAGE_MASK: u32 = 127u;

/// The row of a position in a page, where the head is one of so many.
fn row_in_page(page: u32, head: u32, heads: u32, position: u32) -> u32 {
    return ((page * heads + head) << PAGE_BITS) | (position & PAGE_MASK);
}
