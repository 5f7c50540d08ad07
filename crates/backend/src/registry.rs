use crate::{Backend, Device, Error, Result};

/// The backends of a build, best first.
#[derive(Default)]
pub struct Registry {
    backends: Vec<Box<dyn Backend>>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a backend behind those that are there.
    pub fn with(mut self, backend: impl Backend + 'static) -> Self {
        self.backends.push(Box::new(backend));
        self
    }

    /// All backends, best first.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Backend> {
        self.backends.iter().map(AsRef::as_ref)
    }

    /// The backend that was asked for by name, and its first device. There is no fallback: an error
    /// says which others there are.
    pub fn named(&self, name: &str) -> Result<(&dyn Backend, Device)> {
        let known = || self.iter().map(Backend::name).collect::<Vec<_>>().join(", ");
        let backend = self
            .iter()
            .find(|b| b.name() == name)
            .ok_or_else(|| Error::UnknownBackend { name: name.to_string(), known: known() })?;
        match first_device(backend) {
            Ok(device) => Ok((backend, device)),
            Err(Error::Unavailable { backend, reason }) => {
                let others = self.usable();
                Err(Error::Unavailable { backend, reason: format!("{reason}; there is {others}") })
            }
            Err(e) => Err(e),
        }
    }

    /// The backends that have a device, by name.
    fn usable(&self) -> String {
        let names = self.iter().filter(|b| first_device(*b).is_ok()).map(Backend::name);
        let names: Vec<&str> = names.collect();
        if names.is_empty() { "no other".into() } else { names.join(", ") }
    }

    /// The best backend that has a device, and why each better one was passed over.
    pub fn auto(&self) -> Result<(&dyn Backend, Device, Vec<String>)> {
        let mut passed = Vec::new();
        for backend in self.iter() {
            if let Some(why) = backend.absent() {
                passed.push(format!("backend `{}`: {why}", backend.name()));
                continue;
            }
            match first_device(backend) {
                Ok(device) => match backend.passes_over(&device) {
                    None => return Ok((backend, device, passed)),
                    Some(why) => passed.push(format!("backend `{}`: {why}", backend.name())),
                },
                Err(e) => passed.push(e.to_string()),
            }
        }
        Err(Error::Device(format!("no backend can be used: {}", passed.join("; "))))
    }
}

fn first_device(backend: &dyn Backend) -> Result<Device> {
    backend.probe()?.into_iter().next().ok_or_else(|| Error::Unavailable {
        backend: backend.name(),
        reason: "no device was found".into(),
    })
}
