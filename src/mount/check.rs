//! The check of a catalog after the machine went down: in a child process, behind the mount.

use crate::catalog::Catalog;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use tokio::process::Command;

/// The subcommand that the child is started with, followed by the catalog's folder.
pub const SUBCOMMAND: &str = "check-catalog";

/// The child's exit code where the catalog is damaged; any other failure says nothing about it.
pub const DAMAGED: u8 = 65;

/// This very program, also where its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";

/// Has the catalog in `folder` read whole by a child process; damage is told to `catalog`, which has its next refresh at once.
pub async fn run(catalog: Arc<Catalog>, folder: impl AsRef<Path>) {
    tracing::info!("the machine went down while the catalog was open: it is checked behind the mount");
    let mut child = Command::new(PROGRAM);
    child.arg(SUBCOMMAND).arg(folder.as_ref()).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    super::descriptors::give_back(child.as_std_mut());
    let child = child.status().await;
    if let Err(cause) = catalog.end_dead_readers() {
        tracing::warn!(%cause, "the catalog may grow until the next mount");
    }
    match child.map(verdict) {
        Ok(Some(true)) => {
            tracing::info!("the catalog is in order");
            if let Err(cause) = catalog.forget_crash() {
                tracing::warn!(%cause, "the catalog will be checked again");
            }
        }
        Ok(Some(false)) => catalog.distrust(),
        Ok(None) => tracing::warn!("the catalog could not be checked; the next mount does"),
        Err(cause) => tracing::warn!(%cause, "the catalog could not be checked; the next mount does"),
    }
}

/// Whether the catalog is in order; `None`: the child could not tell.
fn verdict(status: ExitStatus) -> Option<bool> {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => Some(true),
        (Some(code), _) if code == i32::from(DAMAGED) => Some(false),
        // What reading a page that is not there, or following one that makes no sense, ends in.
        (_, Some(libc::SIGBUS | libc::SIGSEGV | libc::SIGABRT | libc::SIGFPE | libc::SIGILL)) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn only_damage_and_faults_of_memory_condemn_a_catalog() {
        let exited = |code: i32| verdict(ExitStatus::from_raw(code << 8));
        let killed = |signal: i32| verdict(ExitStatus::from_raw(signal));

        assert_eq!(exited(0), Some(true));
        assert_eq!(exited(DAMAGED.into()), Some(false));
        assert_eq!([exited(1), exited(2), exited(127)], [None; 3]);
        assert_eq!([killed(libc::SIGBUS), killed(libc::SIGSEGV)], [Some(false); 2]);
        assert_eq!([killed(libc::SIGKILL), killed(libc::SIGTERM)], [None; 2]);
    }
}
