//! Models by name, and the backends of this machine.

use std::sync::Arc;

use lapidary::hub::{Entry, Hub, Name, Progress, Step, Table, Watch};
use lapidary::serde_json::{Value, json};
use pyo3::prelude::*;

use crate::wait::{Task, wait, wait_telling};

/// Downloads a model by its name, and returns its path. `progress` is called with the file, whether it is
/// checked, the bytes that have come, and all.
#[pyfunction]
#[pyo3(signature = (name, progress=None))]
pub(crate) fn pull(
    py: Python<'_>,
    name: String,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    type Told = (String, bool, u64, u64);
    let work = move |task: &Arc<Task<Told, String>>| {
        let tell = |told: &Progress| {
            task.tell((told.file.clone(), told.step == Step::Checking, told.done, told.total));
        };
        let watch = Watch { tell: Some(&tell), stop: Some(task.stop()) };
        Ok(lapidary::pull(&name, &watch)?.path.display().to_string())
    };
    wait_telling(py, work, |told: Told| match &progress {
        Some(progress) => progress.call1(told).map(drop),
        None => Ok(()),
    })
}

/// The models on this machine, whoever downloaded them.
#[pyfunction]
pub(crate) fn ls(py: Python<'_>) -> PyResult<String> {
    wait(py, || {
        let model = |cached: lapidary::hub::Cached| {
            let path = match &cached.model {
                Some(file) => cached.path.join(file),
                None => cached.path.clone(),
            };
            json!({
                "name": cached.repo,
                "commit": cached.commit,
                "path": path.display().to_string(),
                "bytes": cached.bytes,
            })
        };
        Ok(Hub::from_env()?.list()?.into_iter().map(model).collect::<Value>().to_string())
    })
}

/// Removes a model from this machine, and returns the bytes that are free now.
#[pyfunction]
pub(crate) fn rm(py: Python<'_>, name: String) -> PyResult<u64> {
    wait(py, move || Ok(Hub::from_env()?.remove(&Name::parse(&name)?)?))
}

/// Whether all files of a model are on this machine.
#[pyfunction]
pub(crate) fn is_downloaded(py: Python<'_>, name: String) -> PyResult<bool> {
    wait(py, move || match Hub::from_env()?.find(&Name::parse(&name)?) {
        Ok(_) => Ok(true),
        Err(lapidary::hub::Error::NotHere { .. }) => Ok(false),
        Err(e) => Err(e.into()),
    })
}

/// All released models, smallest first.
#[pyfunction]
pub(crate) fn models() -> String {
    let model = |entry: &Entry| {
        let variant = |variant: &lapidary::hub::Variant| {
            json!({
                "name": entry.name_of(variant),
                "repo": variant.repo,
                "recipe": variant.recipe,
                "is_default": std::ptr::eq(variant, entry.default_variant()),
                "is_drafter": variant.is_drafter(),
                "download_bytes": entry.download_bytes(variant),
            })
        };
        json!({
            "name": entry.name(),
            "title": entry.title,
            "parameters": entry.params,
            "input": entry.input,
            "licence": entry.licence.name(),
            "gated": entry.gated,
            "variants": entry.variants.iter().map(variant).collect::<Value>(),
        })
    };
    Table::get().models.iter().map(model).collect::<Value>().to_string()
}

/// The backends of this build, best first, with their devices.
#[pyfunction]
pub(crate) fn backends(py: Python<'_>) -> PyResult<String> {
    wait(py, || {
        let device = |device: &lapidary::DeviceInfo| {
            json!({
                "id": device.id.to_string(),
                "name": device.name,
                "available_bytes": device.available_bytes,
                "total_bytes": device.total_bytes,
            })
        };
        let info = |backend: &lapidary::BackendInfo| {
            let (devices, problem) = match &backend.devices {
                Ok(devices) => (devices.iter().map(|(d, _)| device(d)).collect(), None),
                Err(problem) => (vec![], Some(problem)),
            };
            json!({
                "name": backend.name,
                "is_auto": backend.is_auto,
                "devices": devices,
                "problem": problem,
            })
        };
        Ok(lapidary::devices().iter().map(info).collect::<Value>().to_string())
    })
}
