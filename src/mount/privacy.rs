//! What is nobody else's business: credentials and collections in memory and in the cache folder.

use super::MountError;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Leaves no image of this process behind when it crashes, nor lets other processes of its user look into it: credentials are
/// in its memory (core(5), prctl(2)). A kernel that refuses changes nothing else.
pub fn keep_memory() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit outlives the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) } != 0 {
        tracing::debug!(cause = %io::Error::last_os_error(), "a crash may leave a core");
    }
    // A core that goes to a program through a pipe does not know the limit.
    // SAFETY: takes no pointers.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) } != 0 {
        tracing::debug!(cause = %io::Error::last_os_error(), "a crash may leave a core");
    }
}

/// Refuses a cache folder that somebody else could change what is shown in; one that others can read is told of.
/// [`MountError::Cache`]; a folder that is not there yet is made for its owner alone.
pub fn check_cache(folder: &Path) -> Result<(), MountError> {
    let failed = |cause| MountError::Cache { folder: folder.to_owned(), cause };
    let found = match fs::metadata(folder) {
        Ok(found) => found,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(failed(cause)),
    };
    // SAFETY: geteuid has no preconditions and cannot fail.
    let own = unsafe { libc::geteuid() };
    let (owner, mode) = (found.uid(), found.permissions().mode() & 0o7777);
    let shown = folder.display();
    if owner != own && owner != 0 {
        let what = format!(
            "it belongs to user {owner}, who could change what is shown; make it yours (chown {own} {shown}) or name another"
        );
        return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, what)));
    }
    if mode & 0o022 != 0 {
        let what =
            format!("others can write to it and change what is shown; mend with: chmod go-w {shown}, or name another");
        return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, what)));
    }
    if mode & 0o044 != 0 {
        tracing::debug!(folder = %shown, "others can list the cache folder; what is in it they cannot read");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_folder_that_others_can_write_to_is_refused_with_what_mends_it() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, is_good) in [(0o700, true), (0o755, true), (0o775, false), (0o702, false), (0o1777, false)] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();

            let checked = check_cache(folder.path());

            assert_eq!(checked.is_ok(), is_good, "{mode:o}");
            if let Err(MountError::Cache { cause, .. }) = checked {
                assert!(cause.to_string().contains("chmod go-w"), "{cause}");
            }
        }
    }

    #[test]
    fn a_cache_folder_that_is_not_there_yet_is_fine() {
        let folder = tempfile::tempdir().unwrap();

        assert!(check_cache(&folder.path().join("new")).is_ok());
    }
}
