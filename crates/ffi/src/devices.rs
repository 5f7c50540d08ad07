//! Backends and devices of this machine.

use crate::error::Result;
use crate::work::aside;

/// A backend of this build.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct BackendInfo {
    /// Its name: `cpu`, `vulkan`.
    pub name: String,
    /// Its devices, best first.
    pub devices: Vec<DeviceInfo>,
    /// Why it can't be used, if it can't.
    pub problem: Option<String>,
    /// Whether it is the one that is taken if none is asked for.
    pub is_auto: bool,
}

/// A device.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct DeviceInfo {
    /// Which it is: `vulkan:1`.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Bytes that a program may use, as far as the system tells.
    pub available_bytes: Option<u64>,
    /// Bytes that it has in all, as far as the system tells.
    pub total_bytes: Option<u64>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum DeviceKind {
    /// The cores of this machine.
    Cpu,
    /// A GPU that takes part of the system's memory.
    Integrated,
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that is software.
    Software,
}

/// Looks for backends and devices.
#[uniffi::export]
pub async fn backends() -> Result<Vec<BackendInfo>> {
    aside(|| {
        let info = |backend: lapidary::BackendInfo| {
            let (devices, problem) = match backend.devices {
                Ok(devices) => (devices, None),
                Err(problem) => (vec![], Some(problem)),
            };
            let devices = devices.iter().map(|(device, _)| device.into()).collect();
            let (name, is_auto) = (backend.name.to_string(), backend.is_auto);
            BackendInfo { name, devices, problem, is_auto }
        };
        Ok(lapidary::devices().into_iter().map(info).collect())
    })
    .await
}

impl From<&lapidary::DeviceInfo> for DeviceInfo {
    fn from(device: &lapidary::DeviceInfo) -> Self {
        DeviceInfo {
            id: device.id.to_string(),
            name: device.name.clone(),
            kind: match device.kind {
                lapidary::DeviceKind::Cpu => DeviceKind::Cpu,
                lapidary::DeviceKind::Integrated => DeviceKind::Integrated,
                lapidary::DeviceKind::Discrete => DeviceKind::Discrete,
                lapidary::DeviceKind::Software => DeviceKind::Software,
            },
            available_bytes: device.available_bytes,
            total_bytes: device.total_bytes,
        }
    }
}
