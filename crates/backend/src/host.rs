//! What this machine is, and how much memory a program may take.

/// The processor's name; its architecture where the system does not tell.
pub fn cpu_name() -> String {
    let told = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        let name = line.split_once(':')?.1.trim();
        (!name.is_empty()).then(|| name.to_string())
    });
    told.unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

/// Threads that the machine, or a container's quota, allows.
pub fn n_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes that can be taken: what the system has to spare, and no more than a container's limit
/// leaves. `None` where neither is known.
pub fn available_bytes() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let system = read("/proc/meminfo").and_then(|text| mem_field(&text, "MemAvailable:"));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let group = cgroup_files(&groups).into_iter().filter_map(|[limit, usage]| {
        let limit = cgroup_bytes(&read(&limit)?)?;
        let used = read(&usage).and_then(|text| cgroup_bytes(&text)).unwrap_or(0);
        Some(limit.saturating_sub(used))
    });
    system.into_iter().chain(group).min()
}

/// Bytes of memory that the system has; `None` where it is not known.
pub fn total_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    mem_field(&text, "MemTotal:")
}

/// A line of `/proc/meminfo`, in bytes.
fn mem_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Where the limit and the usage of this process's memory groups stand: its own group and the
/// root that a container sees as its own, version 2 and version 1.
fn cgroup_files(proc_self_cgroup: &str) -> Vec<[String; 2]> {
    let mut files = Vec::new();
    let mut add = |root: &str, path: &str, names: [&str; 2]| {
        for dir in [format!("{root}{}", path.trim_end_matches('/')), root.to_string()] {
            files.push(names.map(|name| format!("{dir}/{name}")));
        }
    };
    for line in proc_self_cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(kinds), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if id == "0" && kinds.is_empty() {
            add("/sys/fs/cgroup", path, ["memory.max", "memory.current"]);
        } else if kinds.split(',').any(|kind| kind == "memory") {
            let names = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
            add("/sys/fs/cgroup/memory", path, names);
        }
    }
    files
}

/// A number of bytes; `max`, and version 1's way to say it, are no limit.
fn cgroup_bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 62)
}

#[cfg(test)]
mod tests {
    use super::{cgroup_bytes, cgroup_files, mem_field};

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       32872048 kB\nMemAvailable:   20971520 kB\nBuffers: 1 kB\n";
        assert_eq!(mem_field(text, "MemAvailable:"), Some(20 << 30));
        assert_eq!(mem_field("MemTotal: 1 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn m8_groups_of_both_versions_are_found() {
        let files = cgroup_files("4:cpu,memory:/docker/abc\n0::/user.slice\n");
        let limits: Vec<_> = files.iter().map(|[limit, _]| limit.as_str()).collect();
        assert_eq!(
            limits,
            [
                "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
    }

    #[test]
    fn no_limit_is_no_number() {
        assert_eq!(cgroup_bytes("max\n"), None);
        assert_eq!(cgroup_bytes("9223372036854771712\n"), None);
        assert_eq!(cgroup_bytes("1073741824\n"), Some(1 << 30));
    }
}
