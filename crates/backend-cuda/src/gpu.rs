//! A GPU with the kernels of this backend.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use lapidary_backend::{Error, Result};

use crate::bundle;
use crate::driver::{Args, Context, Found, Function, Grid, Stream};

/// A GPU that is open, with all kernels.
pub(crate) struct Gpu {
    pub context: Arc<Context>,
    functions: HashMap<&'static str, Function>,
    /// Whether kernels may begin before those before them have ended.
    early: bool,
}

/// The GPUs that are in use, by number.
static OPEN: Mutex<Vec<(u32, Weak<Gpu>)>> = Mutex::new(Vec::new());

impl Gpu {
    /// Opens a GPU, or gives the one that is open. One that failed is opened anew.
    pub(crate) fn open(found: &Found) -> Result<Arc<Gpu>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.iter().find(|(index, _)| *index == found.index);
        if let Some(gpu) = known.and_then(|(_, gpu)| gpu.upgrade())
            && !gpu.context.is_lost()
        {
            return Ok(gpu);
        }
        let context = Arc::new(Context::new(found)?);
        let mut functions = HashMap::new();
        for (image, names) in bundle::images()? {
            let module = context.module(image)?;
            for (name, shared) in names {
                functions.insert(*name, context.function(module, name, *shared)?);
            }
        }
        let gpu = Arc::new(Gpu { early: found.capability.0 >= 9, context, functions });
        open.retain(|(index, _)| *index != found.index);
        open.push((found.index, Arc::downgrade(&gpu)));
        Ok(gpu)
    }

    /// A kernel by its name.
    pub(crate) fn function(&self, name: &str) -> Result<Function> {
        let found = self.functions.get(name).copied();
        found.ok_or_else(|| Error::Device(format!("there is no kernel `{name}`")))
    }

    /// Starts a kernel.
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        name: &str,
        (blocks, threads, shared): ([u32; 3], u32, u32),
        mut args: Args,
    ) -> Result<()> {
        if blocks.contains(&0) {
            return Ok(());
        }
        let grid = Grid { blocks, threads, shared, early: self.early };
        stream.launch(self.function(name)?, grid, &mut args)
    }
}
