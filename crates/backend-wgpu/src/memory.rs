//! How much memory a GPU has.

use lapidary_backend::host;

/// Bytes of the memory that a GPU computes in, and those of them that may be free, as far as the
/// system tells. What other programs have taken of a GPU's own memory is not told.
pub(crate) fn of(adapter: &wgpu::Adapter) -> (Option<u64>, Option<u64>) {
    let (total, free) = (heap_bytes(adapter), host::available_bytes());
    let own = adapter.get_info().device_type == wgpu::DeviceType::DiscreteGpu;
    let available = match total {
        Some(total) if !own => Some(free.map_or(total, |free| free.min(total))),
        _ => total,
    };
    (total, available)
}

/// Bytes of the largest part of memory that is the GPU's own or as near to it as any.
#[cfg(any(target_os = "linux", target_os = "android", windows))]
#[allow(unsafe_code)]
fn heap_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the adapter is only asked for what it is, and lives as long as `adapter`.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device is one of this instance.
    let memory =
        unsafe { instance.get_physical_device_memory_properties(vulkan.raw_physical_device()) };
    let heaps = memory.memory_heaps.iter().take(memory.memory_heap_count as usize);
    heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0).map(|heap| heap.size).max()
}

#[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
fn heap_bytes(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}
