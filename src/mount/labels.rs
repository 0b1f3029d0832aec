//! Labels of SELinux for a whole mount: `context=` and its three sisters (mount(8)).

use crate::fs::session::Label;
use rustix::process::geteuid;
use std::fs;

/// An error if this process cannot give the kernel these labels: the reason, and what to do. The kernel and fusermount3 would only say that
/// an option is unknown.
pub fn check(labels: &[Label]) -> Result<(), &'static str> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    check_on(labels, has_selinux(), geteuid().is_root(), &map)
}

/// `users`: which users the namespace has (user_namespaces(7)).
fn check_on(labels: &[Label], has_selinux: bool, is_root: bool, users: &str) -> Result<(), &'static str> {
    let has_all = users.split_whitespace().eq(["0", "0", "4294967295"]);
    match (labels.is_empty(), has_selinux, is_root) {
        (true, ..) => Ok(()),
        (_, false, _) => Err("SELinux does not run on this machine, so files have no labels; leave the option out"),
        (_, true, false) => Err(
            "only root can give a mount labels: fusermount3, which mounts for other users, does not pass them to the kernel",
        ),
        (_, true, true) if !has_all => {
            Err("only root of the machine can give a mount labels, not root of a user namespace; leave the option out")
        }
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

        let refused =
            |labels: &[Label], selinux, root, users| check_on(labels, selinux, root, users).err().unwrap_or("");
        assert_eq!(refused(&labels, true, true, all), "");
        assert!(refused(&labels, false, true, all).starts_with("SELinux does not run"));
        assert!(refused(&labels, false, false, all).starts_with("SELinux does not run"));
        assert!(refused(&labels, true, false, all).starts_with("only root can"));
        assert!(
            refused(&labels, true, true, "         0       1000          1\n").starts_with("only root of the machine")
        );
        assert_eq!(refused(&[], false, false, all), "");
    }
}
