//! What Prometheus expects to know of any process, from Linux's `/proc`: nothing where that isn't there.

use std::fmt::Write as _;
use std::fs;

/// Clock ticks a second in `/proc/self/stat`: 100 on every Linux, whatever the kernel counts in (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// As text of the exposition format.
pub fn text() -> String {
    let mut out = String::new();
    // A file that can't be read leaves its values out: absent isn't 0.
    let stat = fs::read_to_string("/proc/self/stat").ok();
    let status = fs::read_to_string("/proc/self/status").ok();
    let mut put = |kind: &str, name: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            // Writing to a String can't fail.
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n\n");
        }
    };
    let field = |at: usize| stat.as_deref().and_then(|stat| stat_field(stat, at));
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS_PER_SECOND);
    put("counter", "process_cpu_seconds_total", "CPU time of this process, in user and system mode", cpu);
    let started = field(22).zip(boot_time()).map(|(ticks, boot)| boot + ticks / TICKS_PER_SECOND);
    put("gauge", "process_start_time_seconds", "when this process began, in seconds since 1970", started);
    let kib = |name: &str| status.as_deref().and_then(|status| status_number(status, name));
    let bytes = |name: &str| kib(name).map(|kib| kib * 1024.0);
    put("gauge", "process_resident_memory_bytes", "memory that this process occupies", bytes("VmRSS:"));
    put("gauge", "process_virtual_memory_bytes", "address space of this process", bytes("VmSize:"));
    put("gauge", "process_threads", "threads of this process", kib("Threads:"));
    let open = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
    put("gauge", "process_open_fds", "file descriptors that are open", open);
    let limits = fs::read_to_string("/proc/self/limits").ok();
    let most = limits.as_deref().and_then(|limits| status_number(limits, "Max open files"));
    put("gauge", "process_max_fds", "the most file descriptors that may be open", most);
    out
}

/// A field of `/proc/self/stat`, counted from 1. The second one is a name in brackets that may hold anything.
fn stat_field(stat: &str, at: usize) -> Option<f64> {
    let rest = &stat[stat.rfind(')')? + 1..];
    rest.split_whitespace().nth(at.checked_sub(3)?)?.parse().ok()
}

/// The first number of the line that begins so.
fn status_number(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn boot_time() -> Option<f64> {
    status_number(&fs::read_to_string("/proc/stat").ok()?, "btime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a) b 1 2) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 9 0 4200 1 2";
        assert_eq!((stat_field(stat, 14), stat_field(stat, 15)), (Some(250.0), Some(50.0)));
        assert_eq!(stat_field(stat, 22), Some(4200.0));
        assert_eq!(stat_field("", 14), None);
        assert_eq!(status_number("VmRSS:\t  12 kB\n", "VmRSS:"), Some(12.0));
        assert_eq!(status_number("Max open files  unlimited  x\n", "Max open files"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_says_all_of_it() {
        let text = text();
        for name in ["cpu_seconds_total", "start_time_seconds", "resident_memory_bytes", "open_fds"] {
            assert!(text.contains(&format!("\nprocess_{name} ")), "{name}: {text}");
        }
    }
}
