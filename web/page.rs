//! The chat page as it was built from this folder, so that nobody needs Node to have it.

/// One file of the page.
pub struct File {
    /// Its path.
    pub path: &'static str,
    /// What it is.
    pub content_type: &'static str,
    /// As it is.
    pub plain: &'static [u8],
    /// Compressed by brotli, if that was worth it.
    pub brotli: Option<&'static [u8]>,
}

/// The page's files. `cargo xtask web --check` compares this table with the folder.
pub const FILES: &[File] = include!("dist/files.rs");

/// Scripts, styles and connections of the page's own server, and nothing else: the policy that the page
/// was built and tested with.
pub const POLICY: &str = include_str!("csp.txt");
