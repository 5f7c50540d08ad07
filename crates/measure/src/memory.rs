/// The most memory that this process has had resident, where the system tells.
pub fn peak_memory_bytes() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::peak_memory_bytes;

    #[test]
    fn peak_memory_is_known_on_linux() {
        assert_eq!(peak_memory_bytes().is_some(), cfg!(target_os = "linux"));
    }
}
