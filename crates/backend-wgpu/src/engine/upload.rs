//! Memory of the host that the device reads feeds from, kept from call to call: to make it anew takes
//! longer than to fill it.

use std::sync::{Arc, Mutex, PoisonError};

use lapidary_backend::{Error, Result};

use crate::device::Gpu;

/// Buffers that are not being filled.
pub(super) struct Uploads {
    spare: Vec<Upload>,
    /// How many at most: one is filled while the device reads others.
    most: usize,
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
    pub(super) fn new(most: usize) -> Self {
        Uploads { spare: Vec::new(), most }
    }

    /// A mapped buffer of at least so many bytes.
    pub(super) fn take(&mut self, gpu: &Gpu, size_bytes: u64) -> Result<Upload> {
        gpu.look()?;
        let is_large = |upload: &Upload| upload.buffer.size() >= size_bytes;
        let ready = |upload: &Upload| is_large(upload) && upload.is_mapped();
        let mut at = self.spare.iter().position(ready);
        if at.is_none() {
            // What is too small now would only be in the way.
            self.spare.retain(is_large);
        }
        if at.is_none() && self.spare.len() >= self.most {
            gpu.wait()?;
            at = self.spare.iter().position(ready);
        }
        let Some(at) = at else {
            let buffer = gpu.upload_buffer(size_bytes)?;
            return Ok(Upload { buffer, mapped: Arc::new(Mutex::new(Some(Ok(())))) });
        };
        let upload = self.spare.swap_remove(at);
        let told = upload.mapped.lock().unwrap_or_else(PoisonError::into_inner).take();
        match told {
            Some(Err(e)) => Err(Error::Device(format!("{}: {e}", gpu.name))),
            _ => Ok(upload),
        }
    }

    /// Keeps a buffer that was not used; it is still mapped.
    pub(super) fn give_back(&mut self, upload: Upload) {
        let mapped = Arc::new(Mutex::new(Some(Ok(()))));
        self.spare.push(Upload { mapped, ..upload });
    }

    /// Keeps a buffer that the device was told to read.
    pub(super) fn keep(&mut self, upload: Upload) {
        let mapped = Arc::new(Mutex::new(None));
        let told = mapped.clone();
        upload.buffer.slice(..).map_async(wgpu::MapMode::Write, move |done| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        });
        self.spare.push(Upload { mapped, ..upload });
    }
}
