//! The backends of this build: one line each, and nothing else.

use lapidary_backend::Registry;
use lapidary_backend_cpu::CpuBackend;
use lapidary_reference::ReferenceBackend;

/// All backends, best first.
pub fn all() -> Registry {
    Registry::new().with(CpuBackend).with(ReferenceBackend)
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_known_and_unique() {
        let registry = super::all();
        let names: Vec<_> = registry.iter().map(|backend| backend.name()).collect();
        assert_eq!(names, ["cpu", "reference"]);
        for name in names {
            assert!(registry.named(name).is_ok(), "{name}");
        }
    }
}
