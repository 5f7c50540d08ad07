//! The way into a system that reaches GPUs.

use crate::adapter::Api;

/// An instance of an API, without what only windows need.
pub(crate) fn instance(api: Api) -> wgpu::Instance {
    #[cfg(target_os = "linux")]
    if let Some(instance) = (api == Api::Vulkan).then(windowless).flatten() {
        return instance;
    }
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: api.backends(),
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

/// Vulkan without Wayland: Mesa's layer that orders devices asks the compositor if it can, and
/// where there is none, as on most servers, it writes an error to standard error.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn windowless() -> Option<wgpu::Instance> {
    use wgpu::hal::{InstanceDescriptor, api::Vulkan, vulkan};

    let descriptor = InstanceDescriptor {
        name: "lapidary",
        flags: wgpu::InstanceFlags::empty(),
        memory_budget_thresholds: Default::default(),
        backend_options: Default::default(),
        telemetry: None,
        display: None,
    };
    let without_wayland = |asked: vulkan::CreateInstanceCallbackArgs<'_, '_, '_>| {
        asked.extensions.retain(|name| name.to_bytes() != b"VK_KHR_wayland_surface");
    };
    // SAFETY: nothing that an adapter can do is taken away. The extension is used to make surfaces
    // of Wayland's windows and for nothing else; `wgpu` looks whether it is there before it does
    // that, and this crate makes no surface.
    let raw = unsafe {
        vulkan::Instance::init_with_callback(&descriptor, Some(Box::new(without_wayland)))
    };
    // SAFETY: the instance is new, and given away here.
    Some(unsafe { wgpu::Instance::from_hal::<Vulkan>(raw.ok()?) })
}
