//! What a file that is not ours looks like, so that the message can say what to do with it.

/// What the first bytes of a file look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing at all.
    Empty,
    /// A safetensors header, ours or another's.
    Safetensors,
    /// llama.cpp's format.
    Gguf,
    /// A zip archive, which is what PyTorch's pickles are today.
    Zip,
    /// A bare Python pickle.
    Pickle,
    /// A Git LFS pointer instead of the file it points to.
    LfsPointer,
    /// A web page, most often an error page saved under the file's name.
    Html,
    /// An ONNX graph.
    Onnx,
    /// JSON text.
    Json,
    /// None of these.
    Unknown,
}

/// Looks at the first bytes.
pub fn sniff(bytes: &[u8]) -> Kind {
    let start = |magic: &[u8]| bytes.starts_with(magic);
    let lower: Vec<u8> =
        bytes.trim_ascii_start().iter().take(16).map(u8::to_ascii_lowercase).collect();
    if bytes.is_empty() {
        Kind::Empty
    } else if start(b"GGUF") {
        Kind::Gguf
    } else if start(b"PK\x03\x04") {
        Kind::Zip
    } else if start(b"version https://git-lfs") {
        Kind::LfsPointer
    } else if lower.starts_with(b"<!doctype") || lower.starts_with(b"<html") {
        Kind::Html
    } else if bytes.get(8) == Some(&b'{') && bytes.get(4..8) == Some(&[0, 0, 0, 0]) {
        Kind::Safetensors
    } else if start(b"\x80\x02") || start(b"\x80\x03") || start(b"\x80\x04") || start(b"\x80\x05") {
        Kind::Pickle
    } else if lower.starts_with(b"{") {
        Kind::Json
    } else if matches!(bytes, [0x08, 0x01..=0x0f, 0x12, ..]) {
        Kind::Onnx
    } else {
        Kind::Unknown
    }
}

impl Kind {
    /// A sentence that names it and says what to do, for somebody who wanted a model file.
    pub fn advice(self) -> &'static str {
        match self {
            Kind::Empty => "the file is empty; the download or copy did not finish",
            Kind::Safetensors => {
                "it is a safetensors file of another program; give the folder that holds it and its \
                 config.json to `lapidary run` or `lapidary export`"
            }
            Kind::Gguf => {
                "it is a GGUF file; give it to `lapidary run` as it is, or turn it into a .lap with \
                 `lapidary export`"
            }
            Kind::Zip | Kind::Pickle => {
                "it looks like a PyTorch pickle, which can run code when it is opened and is never \
                 read here; get the safetensors form of the checkpoint"
            }
            Kind::LfsPointer => {
                "it is a Git LFS pointer, not the file itself; run `git lfs pull` where it came from"
            }
            Kind::Html => "it is a web page, probably an error page saved by a failed download",
            Kind::Onnx => "it looks like an ONNX graph, which is not read here",
            Kind::Json => {
                "it is JSON text; give the folder that holds it, not the file, to `lapidary run`"
            }
            Kind::Unknown => "its first bytes are of no format that is known here",
        }
    }
}
