//! The client's clock: monotonic, and one that goes on while the machine sleeps, as leases do.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A difference between the wall clock and the monotonic one that no adjustment of the former makes.
const JUMP_NS: i64 = 50_000_000;

struct Start {
    at: Instant,
    /// What the wall clock was ahead of the monotonic one when it was looked at last.
    ahead_ns: AtomicI64,
    /// How long the machine was up, less what the monotonic clock says, at the start.
    uptime_ns: Option<i64>,
    /// How long the machine has slept since.
    slept_ns: AtomicI64,
}

/// Nanoseconds since some moment of this process.
///
/// The standard library's monotonic clock stands still on Linux while the machine sleeps. A jump of the
/// wall clock tells that this may have happened, and the machine's uptime, which counts sleep, how long it was.
pub(crate) fn now_ns() -> i64 {
    static START: OnceLock<Start> = OnceLock::new();
    let start = START.get_or_init(|| {
        let at = Instant::now();
        Start { at, ahead_ns: AtomicI64::new(wall_ns()), uptime_ns: uptime_ns(), slept_ns: AtomicI64::new(0) }
    });
    let running_ns = i64::try_from(start.at.elapsed().as_nanos()).unwrap_or(i64::MAX);
    let ahead_ns = wall_ns().wrapping_sub(running_ns);
    if (ahead_ns.wrapping_sub(start.ahead_ns.load(Ordering::Relaxed))).wrapping_abs() > JUMP_NS {
        start.ahead_ns.store(ahead_ns, Ordering::Relaxed);
        if let (Some(then_ns), Some(up_ns)) = (start.uptime_ns, uptime_ns()) {
            // Uptime has a coarse grain; less than a jump is no sleep.
            let slept_ns = up_ns - then_ns - running_ns;
            if slept_ns > JUMP_NS {
                start.slept_ns.fetch_max(slept_ns, Ordering::Relaxed);
            }
        }
    }
    running_ns.saturating_add(start.slept_ns.load(Ordering::Relaxed))
}

fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn uptime_ns() -> Option<i64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    parse_uptime(&std::fs::read_to_string("/proc/uptime").ok()?)
}

/// The first number of `/proc/uptime`: seconds with two decimals.
fn parse_uptime(text: &str) -> Option<i64> {
    let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    let hundredths: i64 = if hundredths.len() == 2 { hundredths.parse().ok()? } else { return None };
    Some(seconds.parse::<i64>().ok()?.checked_mul(1_000_000_000)? + hundredths * 10_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let mut before = now_ns();
        for _ in 0..10_000 {
            let now = now_ns();
            assert!(now >= before);
            before = now;
        }
    }

    #[test]
    fn uptime_is_read() {
        assert_eq!(parse_uptime("12345.67 2222.00\n"), Some(12_345_670_000_000));
        assert_eq!(parse_uptime("x.67 1"), None);
        assert_eq!(parse_uptime(""), None);
    }
}
