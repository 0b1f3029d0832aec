//! How many files and connections the process may have open at once.
//!
//! The usual soft limit of 1,024 is there for programs that call select(2), which knows no further descriptors. A mount has one
//! for each object that somebody reads, for each connection, and for its own files; without one a reader gets an error. So it
//! takes what the hard limit allows (getrlimit(2)), and gives the limit that it was started with to programs that it starts.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

/// What this process was started with.
static GIVEN: OnceLock<libc::rlimit> = OnceLock::new();

/// From now on as many as the hard limit allows. A kernel that refuses changes nothing.
pub fn raise() {
    let limit = match limit() {
        Ok(limit) => limit,
        Err(cause) => {
            tracing::debug!(%cause, "the limit of open files is not known");
            return;
        }
    };
    let given = GIVEN.get_or_init(|| limit);
    if let Err(cause) = set(&libc::rlimit { rlim_cur: given.rlim_max, ..*given }) {
        tracing::warn!(%cause, limit = given.rlim_cur, "the limit of open files stays");
    }
}

/// Has `command` begin with the limit that this process was started with.
pub fn give_back(command: &mut Command) {
    let Some(given) = GIVEN.get().copied() else { return };
    // SAFETY: between fork and exec `set` does nothing but a system call, and allocates nothing where it succeeds or fails.
    unsafe { command.pre_exec(move || set(&given)) };
}

fn limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call, which writes nothing else.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit)
}

fn set(limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: the limit outlives the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_started_has_the_limit_of_before() {
        let before = limit().unwrap();
        let started = |give: fn(&mut Command)| {
            let mut command = Command::new("sh");
            command.args(["-c", "ulimit -Sn"]);
            give(&mut command);
            String::from_utf8(command.output().unwrap().stdout).unwrap().trim().to_owned()
        };

        raise();

        assert_eq!(limit().unwrap().rlim_cur, before.rlim_max);
        assert_eq!(started(|_| ()), before.rlim_max.to_string());
        assert_eq!(started(give_back), before.rlim_cur.to_string());
    }
}
