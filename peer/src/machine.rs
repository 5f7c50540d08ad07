//! What Linux tells about this machine and about processes; `None` elsewhere.

use std::fs;

use crate::protocol::Memory;

/// The memory of this process.
pub fn memory() -> Option<Memory> {
    memory_of(&fs::read_to_string("/proc/self/status").ok()?)
}

fn memory_of(status: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    Some(Memory {
        peak_bytes: field("VmHWM:")?,
        anon_bytes: field("RssAnon:")?,
        file_bytes: field("RssFile:")?,
    })
}

/// Processor time at one moment, in ticks: of everybody, and of this program and its children.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    busy: u64,
    all: u64,
    ours: u64,
}

impl CpuTime {
    /// Reads the clocks. `children` are those that still run.
    pub fn now(children: &[u32]) -> Option<Self> {
        let (busy, all) = ticks(&fs::read_to_string("/proc/stat").ok()?)?;
        let mut ours = of_process(&fs::read_to_string("/proc/self/stat").ok()?, true)?;
        for pid in children {
            ours += of_process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, false)?;
        }
        Some(CpuTime { busy, all, ours })
    }

    /// The part of the machine that others used since `earlier`: 0 is a quiet machine.
    pub fn others_since(&self, earlier: &CpuTime) -> f64 {
        let since = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let others = since(self.busy, earlier.busy) - since(self.ours, earlier.ours);
        others.max(0.0) / since(self.all, earlier.all).max(1.0)
    }
}

/// Busy ticks and all ticks of all processors. Time that a hypervisor took away is busy.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    // user nice system idle iowait irq softirq steal; guests are in user already
    let fields: Option<Vec<u64>> =
        line.split_whitespace().take(8).map(|x| x.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal] = fields?.try_into().ok()?;
    let busy = user + nice + system + irq + softirq + steal;
    Some((busy, busy + idle + iowait))
}

/// Ticks of a process, with those of its children that have ended if asked.
fn of_process(stat: &str, ended_children: bool) -> Option<u64> {
    // The name may hold spaces and brackets; what follows its last bracket holds none.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // utime and stime are fields 14 and 15 of the whole line, cutime and cstime follow.
    let times = fields.get(11..if ended_children { 15 } else { 13 })?;
    times.iter().map(|x| x.parse::<u64>().ok()).sum()
}

/// Whether the processor claims an instruction set, by Linux's name for it. That is not a promise:
/// some virtual machines pass the claim on and trap on the instructions.
pub fn announces(flag: &str) -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|f| f == flag)
}

/// The processor's name.
pub fn cpu_name() -> String {
    lapidary_backend::host::cpu_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status() {
        let status = "Name:\tpeer\nVmHWM:\t  2048 kB\nRssAnon:\t 1024 kB\nRssFile:\t  512 kB\n";
        let expected = Memory { peak_bytes: 2 << 20, anon_bytes: 1 << 20, file_bytes: 512 << 10 };
        assert_eq!(memory_of(status), Some(expected));
        assert_eq!(memory_of("Name:\tpeer\n"), None);
    }

    #[test]
    fn names_with_brackets_do_not_shift_the_times() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 0 10 20 30 40 100 20 3 4 20 0 1 0";
        assert_eq!(of_process(stat, false), Some(120));
        assert_eq!(of_process(stat, true), Some(127));
    }

    #[test]
    fn ticks_of_others_are_what_is_neither_idle_nor_ours() {
        assert_eq!(ticks("cpu  10 1 5 80 4 0 0 2 0 0\ncpu0 1\n"), Some((18, 102)));
        let then = CpuTime { busy: 100, all: 1000, ours: 50 };
        let now = CpuTime { busy: 300, all: 1400, ours: 150 };
        assert_eq!(now.others_since(&then), 0.25);
    }
}
