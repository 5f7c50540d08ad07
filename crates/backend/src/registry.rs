use crate::{Backend, Device, DeviceId, DeviceInfo, Error, Result};

/// The backends of a build, best first.
#[derive(Default)]
pub struct Registry {
    backends: Vec<Box<dyn Backend>>,
}

/// A device that was chosen, open.
pub struct Chosen<'a> {
    /// Its backend.
    pub backend: &'a dyn Backend,
    /// The device.
    pub device: Box<dyn Device>,
    /// Why each better backend was passed over, if the choice was open.
    pub passed_over: Vec<String>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a backend after those that are there.
    pub fn with(mut self, backend: impl Backend + 'static) -> Self {
        self.backends.push(Box::new(backend));
        self
    }

    /// All backends, best first.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Backend> {
        self.backends.iter().map(AsRef::as_ref)
    }

    /// The backend that was asked for by name, whether or not it has a device.
    pub fn backend(&self, name: &str) -> Result<&dyn Backend> {
        self.iter().find(|b| b.name() == name).ok_or_else(|| {
            let known = self.iter().map(Backend::name).collect::<Vec<_>>().join(", ");
            Error::UnknownBackend { name: name.to_string(), known }
        })
    }

    /// A device by its backend's name and, if asked for, its number. There is no fallback: an error
    /// says what else there is.
    pub fn named(&self, name: &str, index: Option<u32>) -> Result<Chosen<'_>> {
        let backend = self.backend(name)?;
        let chosen = devices(backend).and_then(|all| {
            let Some(index) = index else { return Ok(all[0].id.clone()) };
            let found = all.iter().find(|d| d.id.index == index);
            found.map(|d| d.id.clone()).ok_or_else(|| no_such_device(name, index, &all))
        });
        match chosen {
            Ok(id) => Ok(Chosen { backend, device: backend.open(&id)?, passed_over: Vec::new() }),
            Err(Error::Unavailable { backend, reason }) => {
                let others = self.usable();
                Err(Error::Unavailable { backend, reason: format!("{reason}; there is {others}") })
            }
            Err(e) => Err(e),
        }
    }

    /// A device by its id.
    pub fn device(&self, id: &DeviceId) -> Result<Chosen<'_>> {
        self.named(&id.backend, Some(id.index))
    }

    /// The best device that there is, and why each better backend was passed over. With a number,
    /// that device of the best backend that has it.
    pub fn auto(&self, index: Option<u32>) -> Result<Chosen<'_>> {
        let mut passed_over = Vec::new();
        for backend in self.iter() {
            if let Some(why) = backend.absent() {
                passed_over.push(format!("backend `{}`: {why}", backend.name()));
                continue;
            }
            let all = match devices(backend) {
                Ok(all) => all,
                Err(e) => {
                    passed_over.push(e.to_string());
                    continue;
                }
            };
            let device = all.iter().find(|d| index.is_none_or(|i| d.id.index == i));
            let why = match device {
                Some(device) => backend.passes_over(device),
                None => Some(format!("it has no device {}", index.unwrap_or(0))),
            };
            match (device, why) {
                (Some(device), None) => {
                    let device = backend.open(&device.id)?;
                    return Ok(Chosen { backend, device, passed_over });
                }
                (_, why) => passed_over.push(format!(
                    "backend `{}`: {}",
                    backend.name(),
                    why.unwrap_or_default()
                )),
            }
        }
        Err(Error::Device(format!("no backend can be used: {}", passed_over.join("; "))))
    }

    /// The backends that have a device, by name.
    fn usable(&self) -> String {
        let names = self.iter().filter(|b| devices(*b).is_ok()).map(Backend::name);
        let names: Vec<&str> = names.collect();
        if names.is_empty() { "no other".into() } else { names.join(", ") }
    }
}

/// The devices of a backend, at least one.
fn devices(backend: &dyn Backend) -> Result<Vec<DeviceInfo>> {
    let all = backend.devices()?;
    if all.is_empty() {
        let reason = "no device was found".into();
        return Err(Error::Unavailable { backend: backend.name(), reason });
    }
    Ok(all)
}

fn no_such_device(name: &str, index: u32, all: &[DeviceInfo]) -> Error {
    let known: Vec<String> = all.iter().map(|d| format!("{} ({})", d.id, d.name)).collect();
    let id = DeviceId::new(name, index);
    Error::UnknownDevice { id: id.to_string(), known: known.join(", ") }
}
