//! What the system says about this process. Karpenter's program asks the same files, so that both are measured alike.

/// How much memory the process held at most, all in all and on top of what it held at the mark.
pub struct Used {
    pub peak: f64,
    pub grown: f64,
}

pub struct Memory {
    resident: f64,
    peak: f64,
}

impl Memory {
    /// Notes what is held now and forgets the peak so far, where the system allows it.
    pub fn mark() -> Self {
        let marked = Memory {
            resident: status("VmRSS:"),
            peak: status("VmHWM:"),
        };
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        marked
    }

    pub fn since(&self) -> Used {
        let peak = status("VmHWM:");
        Used {
            peak: peak.max(self.peak),
            grown: peak - self.resident,
        }
    }
}

/// A line of the process' status, in megabytes.
fn status(name: &str) -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1024.0
}

/// How long this thread, the only one, has been on a processor.
pub fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse::<f64>().ok());
    nanoseconds.unwrap_or_default() / 1e9
}
