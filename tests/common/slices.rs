//! How long threads keep a processor for which others wait: their slices (sched_setattr(2)), if this kernel has them.

use std::fs;

/// Slices in nanoseconds of the threads of `process` with this name.
pub fn slices_of(process: u32, name: &str) -> Vec<u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let numbers = threads.map(|thread| thread.unwrap().file_name().into_string().unwrap());
    let is_named = |number: &String| {
        let named = fs::read_to_string(format!("/proc/{process}/task/{number}/comm")).unwrap_or_default();
        named.trim_end() == name
    };
    numbers.filter(is_named).map(|number| attributes(number.parse().unwrap()).sched_runtime).collect()
}

/// What this kernel makes of the shortest slice that a thread may ask for.
pub fn shortest_slice() -> u64 {
    let asking = || {
        let mut short = attributes(0);
        short.sched_runtime = 100_000;
        // SAFETY: the attributes are as long as they say and are only read; 0 is the calling thread.
        assert_eq!(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const short, 0) }, 0);
        attributes(0).sched_runtime
    };
    std::thread::spawn(asking).join().unwrap()
}

fn attributes(thread: libc::pid_t) -> libc::sched_attr {
    // SAFETY: numbers alone; the kernel fills it in.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the attributes are as long as `size`, and live through the call (sched_getattr(2)).
    let status = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attributes, size, 0) };
    assert_eq!(status, 0, "of thread {thread}: {}", std::io::Error::last_os_error());
    attributes
}
