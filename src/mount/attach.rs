//! The kernel's mount: asked by root itself, for other users by fusermount3, and explained where it is refused.

use super::labels::has_selinux;
use super::{MountConfig, MountError, mountpoint};
use crate::fs::session::{SessionOptions, mount_options};
use fuser::SessionACL;
use rustix::process::geteuid;
use std::fs;
use std::io;
use std::path::Path;

/// The profile of fusermount3, where AppArmor 4 or later has one.
const PROFILE: &str = "/etc/apparmor.d/fusermount3";
/// The file for an administrator's additions, which an update of the profile keeps.
const LOCAL: &str = "/etc/apparmor.d/local/fusermount3";

/// Mounts; `filesystem` makes what serves the mount.
pub(super) fn attach<F: fuser::Filesystem>(
    config: &MountConfig,
    filesystem: impl Fn() -> F,
) -> Result<fuser::Session<F>, MountError> {
    // A first tree takes long; another mount may have been made here meanwhile.
    mountpoint::check_free(&config.directory, &config.directory)?;
    let ask = |exec| {
        let options = SessionOptions { exec, ..config.session.clone() };
        fuser::Session::new(filesystem(), &config.directory, &mount_options(&options))
    };
    let mut answer = ask(config.session.exec);
    // The profile of AppArmor 4.0 names each set of flags that it allows, and none of them has noexec. A user who asked for it gets no less.
    if config.session.exec.is_none()
        && answer.as_ref().is_err_and(|cause| MountRefusal::of(cause) == Some(MountRefusal::Helper))
    {
        answer = ask(Some(true))
            .inspect(|_| tracing::info!("fusermount3 may not mount with noexec here: mounted without it"));
    }
    answer.map_err(|cause| {
        let hint = match MountRefusal::of(&cause) {
            Some(refusal) => refusal.explained(&Modules::of_this_machine(), &config.directory),
            None => hint(&config.session, &cause).to_owned(),
        };
        MountError::Kernel { directory: config.directory.clone(), hint, cause }
    })
}

/// The remedy for a failure that is not a [`MountRefusal`].
fn hint(session: &SessionOptions, cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied if session.acl == SessionACL::All => {
            ": allow_other needs the line user_allow_other in /etc/fuse.conf"
        }
        io::ErrorKind::PermissionDenied => ": is /dev/fuse writable for you?",
        io::ErrorKind::NotFound => ": is the package fuse3 installed and /dev/fuse there?",
        _ if !session.labels.is_empty() => {
            ": the kernel may not know one of the labels, or not allow them together; see: journalctl --dmesg --grep SELinux"
        }
        _ => "",
    }
}

/// The mount call that a security module refused: the kernel answers EACCES after all other rights were found sufficient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountRefusal {
    /// The profile of fusermount3.
    Helper,
    /// The profile of this process, as root.
    Own,
}

impl MountRefusal {
    /// fuser has the answers in its texts alone.
    fn of(cause: &io::Error) -> Option<MountRefusal> {
        let text = cause.to_string();
        if text.contains("mount failed: Permission denied") {
            Some(MountRefusal::Helper)
        } else if text.contains("Error calling mount()") && text.contains("EACCES") {
            Some(MountRefusal::Own)
        } else {
            None
        }
    }

    /// Which module refused it, and what an administrator does about that.
    fn explained(self, modules: &Modules, directory: &Path) -> String {
        match modules {
            Modules { apparmor: true, has_profile: true, .. } if self == MountRefusal::Helper => format!(
                ": AppArmor does not allow fusermount3 to mount here; as root, add the line '{}' to {LOCAL} and run: \
                 apparmor_parser --replace {PROFILE}",
                rules(directory)
            ),
            // Ubuntu's profiles for it, which a longer name may contain.
            Modules { apparmor: true, own_profile: Some(name), .. } if name.contains("unpriv") => format!(
                ": AppArmor does not let users without root mount in a user namespace (profile {name}); mount outside of it, or see: \
                 resyncfs help machines"
            ),
            Modules { apparmor: true, own_profile: Some(name), .. } => format!(
                ": AppArmor does not allow it to programs under the profile {name}; in a container use: docker run \
                 --security-opt apparmor=unconfined"
            ),
            Modules { selinux: true, .. } => {
                ": SELinux does not allow it; as root, see why with: ausearch --message avc --start recent".to_owned()
            }
            _ => String::new(),
        }
    }
}

/// The security modules of a machine that refuse mounts.
#[derive(Debug, Default)]
struct Modules {
    apparmor: bool,
    /// True if AppArmor has a profile for fusermount3.
    has_profile: bool,
    /// AppArmor's profile of this process, which fusermount3 inherits where it has none.
    own_profile: Option<String>,
    selinux: bool,
}

impl Modules {
    fn of_this_machine() -> Modules {
        let own = fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
        let own = own.trim_end_matches(['\0', '\n']);
        Modules {
            apparmor: fs::read("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with(b"Y")),
            has_profile: Path::new(PROFILE).exists(),
            own_profile: own.strip_suffix(" (enforce)").map(str::to_owned),
            selinux: has_selinux(),
        }
    }
}

/// The profile of AppArmor that counts for a mount by this process, where there is one: its own, or that of fusermount3.
pub fn apparmor_profile() -> Option<String> {
    let modules = Modules::of_this_machine();
    let of_helper = (modules.has_profile && !geteuid().is_root()).then(|| "fusermount3".to_owned());
    modules.own_profile.or(of_helper).filter(|_| modules.apparmor)
}

/// The rules of AppArmor that let fusermount3 mount and unmount at `directory`, on one line.
fn rules(directory: &Path) -> String {
    let mut escaped = String::new();
    for character in directory.to_string_lossy().chars() {
        if r#"*?[]{}^"\"#.contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    format!("mount fstype=fuse.resyncfs options in (ro,nosuid,nodev,noexec) -> \"{escaped}/\", umount \"{escaped}/\",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_other_failures() {
        let failed = |text: &str| MountRefusal::of(&io::Error::other(text));

        assert_eq!(failed("fusermount3: mount failed: Permission denied\n"), Some(MountRefusal::Helper));
        assert_eq!(
            failed("Error calling mount() at \"/m\" with \"fd=3\": EACCES: Permission denied"),
            Some(MountRefusal::Own)
        );
        for other in [
            "Error calling mount() at \"/m\": EINVAL: Invalid argument",
            "fusermount3: mount failed: Invalid argument",
            "fusermount3: failed to open /etc/fuse.conf: Permission denied",
            "fusermount3: user has no write access to mountpoint /m",
        ] {
            assert_eq!(failed(other), None, "{other}");
        }
    }

    #[test]
    fn the_module_that_refuses_is_named() {
        let apparmor = || Modules { apparmor: true, ..Modules::default() };
        let docker = || Some("docker-default".to_owned());
        let namespace = || Some("bwrap//&unprivileged_userns".to_owned());
        for (refusal, modules, says) in [
            (
                MountRefusal::Helper,
                Modules { has_profile: true, ..apparmor() },
                "umount \"/m/\",' to /etc/apparmor.d/local/fusermount3",
            ),
            (MountRefusal::Helper, Modules { own_profile: docker(), ..apparmor() }, "the profile docker-default"),
            (
                MountRefusal::Own,
                Modules { has_profile: true, own_profile: docker(), ..apparmor() },
                "apparmor=unconfined",
            ),
            (MountRefusal::Own, Modules { own_profile: namespace(), ..apparmor() }, "see: resyncfs help machines"),
            (MountRefusal::Own, Modules { selinux: true, ..Modules::default() }, "SELinux"),
        ] {
            let explained = refusal.explained(&modules, Path::new("/m"));
            assert!(explained.starts_with(": ") && explained.contains(says), "{modules:?}: {explained}");
        }
        assert_eq!(
            MountRefusal::Helper.explained(&Modules { has_profile: true, ..Modules::default() }, Path::new("/m")),
            ""
        );
        assert_eq!(MountRefusal::Own.explained(&apparmor(), Path::new("/m")), "");
    }

    #[test]
    fn the_rules_of_apparmor_mean_this_folder_alone() {
        assert_eq!(
            rules(Path::new("/srv/my repo")),
            "mount fstype=fuse.resyncfs options in (ro,nosuid,nodev,noexec) -> \"/srv/my repo/\", umount \"/srv/my repo/\","
        );
        assert!(rules(Path::new("/srv/a*{b}\"")).contains(r#""/srv/a\*\{b\}\"/""#));
    }
}
