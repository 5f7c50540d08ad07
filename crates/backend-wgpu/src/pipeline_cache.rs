//! Compiled kernels on disk, so that a second start need not compile them.
//!
//! The file stands beside packed weights, has a head like theirs, and is made anew if anything is
//! amiss with it. Only Vulkan gives such bytes; other systems keep caches of their own.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use lapidary_program::cache_file::{CacheHead, head_bytes, mark_used, read_head, write_whole};
use serde_json::json;
use twox_hash::XxHash3_128;

const KIND: &str = "pipelines";

/// A cache of compiled kernels, and where it is kept.
pub(crate) struct PipelineCache {
    pub raw: wgpu::PipelineCache,
    file: Option<CacheFile>,
}

struct CacheFile {
    path: PathBuf,
    head: CacheHead,
}

impl PipelineCache {
    /// The cache of a device, read from a folder if it was kept there. `None` if the device has no
    /// such thing.
    #[allow(unsafe_code)]
    pub(crate) fn open(
        device: &wgpu::Device,
        info: &wgpu::AdapterInfo,
        folder: Option<&Path>,
    ) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let file = folder.map(|folder| CacheFile::of(info, folder));
        let data = file.as_ref().and_then(CacheFile::read);
        // SAFETY: the bytes are none, or those that `keep` got of a device of the same name, vendor
        // and driver: a hash guards them against damage, and the folder is the user's own.
        let raw = unsafe {
            device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
                label: Some("kernels"),
                data: data.as_deref(),
                fallback: true,
            })
        };
        Some(PipelineCache { raw, file })
    }

    /// Writes what was compiled. A folder that can't be written costs a later start, not this one.
    pub(crate) fn keep(&self) {
        if let (Some(file), Some(data)) = (&self.file, self.raw.get_data()) {
            let _ = file.write(&data);
        }
    }
}

impl CacheFile {
    fn of(info: &wgpu::AdapterInfo, folder: &Path) -> Self {
        let source = format!(
            "{KIND} {} {:?} {} {} {} {} {}",
            env!("CARGO_PKG_VERSION"),
            info.backend,
            info.name,
            info.vendor,
            info.device,
            info.driver,
            info.driver_info
        );
        let key = format!("{:032x}", XxHash3_128::oneshot(source.as_bytes()));
        let head = CacheHead {
            kind: KIND.to_string(),
            of: info.name.clone(),
            key: key.clone(),
            contents: serde_json::Value::Null,
        };
        CacheFile { path: folder.join(format!("{key}.pack")), head }
    }

    fn read(&self) -> Option<Vec<u8>> {
        let mut file = File::open(&self.path).ok()?;
        let (head, _) = read_head(&mut file).ok()?;
        let mut data = Vec::new();
        file.read_to_end(&mut data).ok()?;
        let is_whole = head.contents.get("hash").is_some_and(|hash| *hash == hash_of(&data));
        if head.kind != KIND || head.key != self.head.key || !is_whole {
            return None;
        }
        mark_used(&self.path);
        Some(data)
    }

    fn write(&self, data: &[u8]) -> std::io::Result<()> {
        let head = CacheHead { contents: json!({ "hash": hash_of(data) }), ..self.head.clone() };
        write_whole(&self.path, |out| {
            out.write_all(&head_bytes(&head))?;
            out.write_all(data)
        })
    }
}

fn hash_of(data: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(data))
}

#[cfg(test)]
mod tests {
    use super::{CacheFile, CacheHead, KIND};

    #[test]
    fn what_is_damaged_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let head = CacheHead {
            kind: KIND.into(),
            of: "a GPU".into(),
            key: "00".repeat(16),
            contents: serde_json::Value::Null,
        };
        let file = CacheFile { path: folder.path().join("a.pack"), head };
        assert_eq!(file.read(), None);
        file.write(b"some kernels").unwrap();
        assert_eq!(file.read().as_deref(), Some(b"some kernels".as_slice()));
        let mut bytes = std::fs::read(&file.path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file.path, bytes).unwrap();
        assert_eq!(file.read(), None);
    }
}
