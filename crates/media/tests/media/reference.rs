//! The fixtures of `testdata/media`.

use std::path::{Path, PathBuf};

use safetensors::{SafeTensors, tensor::TensorView};

/// A path below `testdata/media`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/media").join(name)
}

/// A file's bytes.
pub fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Tensors that were made by `testdata/make_media.py`.
pub struct Reference(Vec<u8>);

impl Reference {
    pub fn open(name: &str) -> Reference {
        Reference(bytes(name))
    }

    pub fn names(&self) -> Vec<String> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        tensors.names().iter().map(|name| name.to_string()).collect()
    }

    fn view(&self, name: &str) -> TensorView<'_> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.view(name).shape().to_vec()
    }

    pub fn u8(&self, name: &str) -> Vec<u8> {
        self.view(name).data().to_vec()
    }

    pub fn i32(&self, name: &str) -> Vec<i32> {
        let (four, _) = self.view(name).data().as_chunks::<4>();
        four.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let (four, _) = self.view(name).data().as_chunks::<4>();
        four.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

/// The largest difference, and the mean.
pub fn differences(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let each = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    let sum: u64 = each.clone().map(u64::from).sum();
    (each.max().unwrap_or(0), sum as f64 / a.len().max(1) as f64)
}
