//! Limits of this process: open files, and its memory after a crash.

use super::MountError;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

/// The fewest descriptors with which a mount serves several readers: it has some 25 before the first read, a refresh takes a few more,
/// and each file that is read and each connection takes one.
pub const LEAST_OPEN_FILES: u64 = 96;

/// Allows as many open files as the hard limit does. The usual soft limit of 1,024 protects programs that call select(2); a
/// mount needs a file for each object that is read and for each connection. An error where even these are too few.
pub fn raise_open_files() -> Result<(), MountError> {
    let limit = getrlimit(Resource::Nofile);
    if let Err(cause) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%cause, limit = limit.current, "the limit of open files stays");
    }
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < LEAST_OPEN_FILES => Err(MountError::OpenFiles { limit, least: LEAST_OPEN_FILES }),
        _ => Ok(()),
    }
}

/// Leaves no core behind after a crash, and lets no other process of this user read this one's memory: it holds credentials
/// (core(5), prctl(2)).
pub fn protect_memory() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    // The limit does not count for a core that goes to a program.
    let results = [setrlimit(Resource::Core, none), set_dumpable_behavior(DumpableBehavior::NotDumpable)];
    for cause in results.into_iter().filter_map(Result::err) {
        tracing::debug!(%cause, "a crash may leave a core");
    }
}
