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
    /// The kernel would refuse the mount.
    #[error("only root of the machine can give a mount labels, not root of a user namespace; leave the option out")]
    InNamespace,
}

/// An error if this process cannot give the kernel these labels.
pub fn check(labels: &[Label]) -> Result<(), LabelsError> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    check_on(labels, has_selinux(), geteuid().is_root(), &map)
}

/// `users`: which users the namespace has (user_namespaces(7)).
fn check_on(labels: &[Label], has_selinux: bool, is_root: bool, users: &str) -> Result<(), LabelsError> {
    let has_all = users.split_whitespace().eq(["0", "0", "4294967295"]);
    match (labels.is_empty(), has_selinux, is_root) {
        (true, ..) => Ok(()),
        (_, false, _) => Err(LabelsError::NoSelinux),
        (_, true, false) => Err(LabelsError::NotRoot),
        (_, true, true) if !has_all => Err(LabelsError::InNamespace),
        (_, true, true) => Ok(()),
    }
}

/// True if SELinux runs. Its file system is listed even if it is not mounted, as in a container.
pub fn has_selinux() -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.split_whitespace().next_back() == Some("selinuxfs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_need_selinux_and_root() {
        let labels = [Label { option: "context", label: "u:r:t".into() }];

        let all = "         0          0 4294967295\n";

        assert_eq!(check_on(&labels, true, true, all), Ok(()));
        assert_eq!(check_on(&labels, false, true, all), Err(LabelsError::NoSelinux));
        assert_eq!(check_on(&labels, false, false, all), Err(LabelsError::NoSelinux));
        assert_eq!(check_on(&labels, true, false, all), Err(LabelsError::NotRoot));
        assert_eq!(check_on(&labels, true, true, "         0       1000          1\n"), Err(LabelsError::InNamespace));
        assert_eq!(check_on(&[], false, false, all), Ok(()));
    }
}
