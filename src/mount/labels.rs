//! Labels of SELinux for a whole mount: `context=` and its three sisters (mount(8)).

use crate::fs::session::Label;
use rustix::process::geteuid;
use std::fs;

/// Why no label can be given to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// The kernel would refuse the option as unknown.
    #[error("SELinux does not run on this machine, so files have no labels; leave the option out")]
    NoSelinux,
    /// fusermount3 would refuse the option as unknown.
    #[error(
        "only root can give a mount labels: fusermount3, which mounts for other users, does not pass them to the kernel"
    )]
    NotRoot,
}

/// Whether the kernel can be given these labels by this process.
pub fn check(labels: &[Label]) -> Result<(), LabelsError> {
    check_on(labels, has_selinux(), geteuid().is_root())
}

fn check_on(labels: &[Label], has_selinux: bool, is_root: bool) -> Result<(), LabelsError> {
    match (labels.is_empty(), has_selinux, is_root) {
        (true, ..) | (_, true, true) => Ok(()),
        (_, false, _) => Err(LabelsError::NoSelinux),
        (_, true, false) => Err(LabelsError::NotRoot),
    }
}

/// Whether SELinux runs. Its file system is listed also where it is not mounted, as in a container.
pub(super) fn has_selinux() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.split_whitespace().next_back() == Some("selinuxfs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_need_selinux_and_root() {
        let labels = [Label { option: "context", label: "u:r:t".into() }];

        assert_eq!(check_on(&labels, true, true), Ok(()));
        assert_eq!(check_on(&labels, false, true), Err(LabelsError::NoSelinux));
        assert_eq!(check_on(&labels, false, false), Err(LabelsError::NoSelinux));
        assert_eq!(check_on(&labels, true, false), Err(LabelsError::NotRoot));
        assert_eq!(check_on(&[], false, false), Ok(()));
    }
}
