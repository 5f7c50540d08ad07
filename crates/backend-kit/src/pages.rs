//! Tables of pages, as kernels that index them get them.

use lapidary_backend::{LoadOptions, PAGE};
use lapidary_program::Program;

/// How the pages of a group reach kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTables {
    /// Keys that the widest reader sees; `None` for all.
    pub window: Option<usize>,
    /// Page numbers that one span has room for.
    pub stride: usize,
}

impl GroupTables {
    /// Those of every group of a program.
    pub fn of(program: &Program, options: &LoadOptions) -> Vec<Self> {
        let whole = (options.max_context as usize).div_ceil(PAGE).max(1);
        let groups = program.kv_groups().iter().map(|group| {
            let window = group.window.map(|window| window as usize);
            // A window and a chunk begin and end in the middle of a page.
            let seen = |window: usize| (window + options.limits.chunk as usize).div_ceil(PAGE) + 1;
            GroupTables { window, stride: window.map_or(whole, seen).min(whole) }
        });
        groups.collect()
    }

    /// The first page that a span starting at a position needs.
    pub fn first_page(&self, start: usize) -> usize {
        self.window.map_or(0, |window| (start + 1).saturating_sub(window).min(start) / PAGE)
    }
}
