//! Reads under a deadline: what hangs fails the test and does not hang it.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Options with short deadlines, so that a test of what hangs does not.
pub const FAST: &str = "timeout=2s,connect-timeout=1s,poll=1h";

/// More than any read may take under [`FAST`], retries, the kernel's second try and a busy machine included.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Reads a file; one that hangs fails the test.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || sender.send(fs::read(path)));
    receiver.recv_timeout(PATIENCE).expect("a read hangs")
}

/// Why a read failed.
pub fn errno(result: std::io::Result<Vec<u8>>) -> Option<i32> {
    result.err().and_then(|cause| cause.raw_os_error())
}
