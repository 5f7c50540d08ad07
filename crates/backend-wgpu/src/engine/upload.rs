//! Memory of the host that the device reads feeds from, kept from call to call: to make it anew takes
//! longer than to fill it.

use std::sync::{Arc, Mutex, PoisonError};

use lapidary_backend::{Error, Result};

use crate::device::Gpu;

/// Buffers at most: one is filled while the device reads another.
const MOST: usize = 2;

/// Buffers that are not being filled.
#[derive(Default)]
pub(super) struct Uploads {
    kept: Vec<Upload>,
}

/// A buffer that the host may write once it is mapped.
pub(super) struct Upload {
    pub buffer: wgpu::Buffer,
    mapped: Arc<Mutex<Option<Result<(), wgpu::BufferAsyncError>>>>,
}

impl Upload {
    fn is_mapped(&self) -> bool {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Uploads {
    /// A mapped buffer of at least so many bytes.
    pub(super) fn take(&mut self, gpu: &Gpu, size_bytes: u64) -> Result<Upload> {
        gpu.look()?;
        let is_large = |upload: &Upload| upload.buffer.size() >= size_bytes;
        let ready = |upload: &Upload| is_large(upload) && upload.is_mapped();
        let mut at = self.kept.iter().position(ready);
        if at.is_none() {
            // What is too small now would only be in the way.
            self.kept.retain(is_large);
        }
        if at.is_none() && self.kept.len() >= MOST {
            gpu.wait()?;
            at = self.kept.iter().position(ready);
        }
        let Some(at) = at else {
            let buffer = gpu.upload_buffer(size_bytes)?;
            return Ok(Upload { buffer, mapped: Arc::new(Mutex::new(Some(Ok(())))) });
        };
        let upload = self.kept.swap_remove(at);
        let told = upload.mapped.lock().unwrap_or_else(PoisonError::into_inner).take();
        match told {
            Some(Err(e)) => Err(Error::Device(format!("{}: {e}", gpu.name))),
            _ => Ok(upload),
        }
    }

    /// Keeps a buffer that was not used; it is still mapped.
    pub(super) fn give_back(&mut self, upload: Upload) {
        let mapped = Arc::new(Mutex::new(Some(Ok(()))));
        self.kept.push(Upload { mapped, ..upload });
    }

    /// Keeps a buffer that the device was told to read.
    pub(super) fn keep(&mut self, upload: Upload) {
        let mapped = Arc::new(Mutex::new(None));
        let told = mapped.clone();
        upload.buffer.slice(..).map_async(wgpu::MapMode::Write, move |done| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        });
        self.kept.push(Upload { mapped, ..upload });
    }
}
