//! Mounts that AppArmor or SELinux has a say in.
//!
//! The tests that load a policy into the kernel are ignored here: `scripts/test-kernels` runs them, in a kernel of their own.

mod common;

use common::mounted::{Mounted, PROGRAM, stderr};
use common::source::{Resource, Source};
use common::user::User;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

fn source() -> Source {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    source
}

/// fusermount3 as the kernel answers it where a security module refuses mounts that `pattern` (of sh) matches. It writes down each call.
fn refused_helper(user: &User, pattern: &str) -> String {
    let helper = user.program(
        "fusermount3",
        &format!(
            "#!/bin/sh\necho \"$*\" >>calls\ncase \"$*\" in {pattern})\n\
             echo 'fusermount3: mount failed: Permission denied' >&2; exit 1 ;;\nesac\nexec fusermount3 \"$@\"\n"
        ),
    );
    format!("export FUSERMOUNT_PATH={}; ", helper.display())
}

/// The options of each mount that the helper was asked for.
fn asked(user: &User) -> Vec<String> {
    let calls = fs::read_to_string(user.home().join("calls")).unwrap_or_default();
    calls.lines().filter(|call| call.starts_with("-o ")).map(str::to_owned).collect()
}

#[test]
fn a_helper_that_may_not_say_noexec_mounts_without_it() {
    let (source, user) = (source(), User::new());
    let helper = refused_helper(&user, "*noexec*");

    let mounted = user.runs(&format!("{helper}./resyncfs mount {} $MNT && cat $MNT/a", source.url()));

    assert!(mounted.status.success(), "{}", stderr(&mounted));
    assert_eq!(mounted.stdout, b"bytes");
    let line = user.mounted().unwrap();
    assert!(line.contains(" fuse.resyncfs ro,nosuid,nodev,") && !line.contains("noexec"), "{line}");
    let asked = asked(&user);
    assert!(asked.len() == 2 && asked[0].contains("noexec") && !asked[1].contains("noexec"), "{asked:?}");
    assert!(user.runs("./resyncfs unmount $MNT").status.success());
}

#[test]
fn a_helper_that_is_refused_still_is_an_error_of_one_line() {
    for (options, times) in [("nosuid", 2), ("noexec", 1), ("exec", 1)] {
        let (source, user) = (source(), User::new());
        let helper = refused_helper(&user, "*");

        let refused = user.runs(&format!("{helper}./resyncfs mount -o {options} {} $MNT", source.url()));

        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(5), "{said}");
        assert!(said.contains("fusermount3: mount failed: Permission denied"), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert_eq!(asked(&user).len(), times, "{options}");
        assert_eq!(user.mounted(), None);
    }
}

/// Only the `noexec` that no user asked for is given up.
#[test]
fn a_noexec_that_was_asked_for_is_not_given_up() {
    for options in ["-o noexec", "-o ro,noexec,nodev", "-o exec,noexec", "--exec=false"] {
        let (source, user) = (source(), User::new());
        let helper = refused_helper(&user, "*noexec*");

        let refused = user.runs(&format!("{helper}./resyncfs mount {options} {} $MNT", source.url()));

        assert_eq!(refused.status.code(), Some(5), "{options}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("fusermount3: mount failed: Permission denied"), "{options}");
        let asked = asked(&user);
        assert!(asked.len() == 1 && asked[0].contains("noexec"), "{options}: {asked:?}");
        assert_eq!(user.mounted(), None, "{options}");
    }
}

/// Without SELinux there are no labels, and with it only root gives them.
#[test]
fn labels_are_refused_with_the_reason() {
    let (source, user) = (source(), User::new());
    let has_selinux = fs::read_to_string("/proc/filesystems").unwrap().contains("selinuxfs");
    let reason =
        if has_selinux { "only root can give a mount labels: fusermount3, which" } else { "SELinux does not run" };
    for option in ["context", "fscontext", "defcontext", "rootcontext"] {
        for given in [format!("-o {option}='\"u:object_r:t:s0:c1,c2\"'"), format!("--{option} u:object_r:t:s0")] {
            let refused = user.runs(&format!("./resyncfs mount {given} {} $MNT", source.url()));
            let said = stderr(&refused);

            assert_eq!(refused.status.code(), Some(2), "{said}");
            assert!(said.contains(&format!("-o {option}=…: {reason}")), "{said}");
        }
    }
    assert!(source.take_log().is_empty(), "the Source is asked nothing");
    assert_eq!(user.mounted(), None);
}

/// A kernel whose policy may be changed: that of scripts/test-kernels, where this names the unpacked tools.
fn tools(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: scripts/test-kernels sets it")).into()
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
}

/// Loads the profile of fusermount3 as AppArmor 4.0 has it, for one test at a time.
fn load_profile() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let unpacked = tools("APPARMOR");
    succeeds(Command::new("cp").args(["-rT"]).args([&unpacked.join("etc/apparmor.d"), Path::new("/etc/apparmor.d")]));
    fs::write("/etc/apparmor.d/fusermount3", include_str!("common/fusermount3.apparmor")).unwrap();
    fs::create_dir_all("/etc/apparmor.d/local").unwrap();
    let _ = fs::remove_file("/etc/apparmor.d/local/fusermount3");
    // Older packages have it in /sbin.
    let parser = ["usr/sbin", "sbin"].map(|folder| unpacked.join(folder).join("apparmor_parser"));
    let parser = parser.iter().find(|parser| parser.exists()).unwrap();
    let _ = fs::remove_file("/usr/sbin/apparmor_parser");
    std::os::unix::fs::symlink(parser, "/usr/sbin/apparmor_parser").unwrap();
    succeeds(Command::new("apparmor_parser").args(["--replace", "/etc/apparmor.d/fusermount3"]));
    turn
}

/// Adds a line to the profile as an administrator does, and loads it by `command`.
fn permit(line: &str, command: &str) {
    fs::write("/etc/apparmor.d/local/fusermount3", format!("{line}\n")).unwrap();
    succeeds(Command::new("sh").args(["-c", command]));
}

#[test]
#[ignore = "loads a policy into the kernel: scripts/test-kernels runs it"]
fn under_apparmor_a_user_mounts_without_noexec() {
    let _turn = load_profile();
    let (source, user) = (source(), User::new());

    let mounted = user.runs(&format!("./resyncfs mount {} $MNT && cat $MNT/a", source.url()));

    assert!(mounted.status.success(), "{}", stderr(&mounted));
    assert_eq!(mounted.stdout, b"bytes");
    let line = user.mounted().unwrap();
    assert!(line.contains(" fuse.resyncfs ro,nosuid,nodev,") && !line.contains("noexec"), "{line}");
    let unmounted = user.runs("./resyncfs unmount $MNT");
    assert!(unmounted.status.success(), "{}", stderr(&unmounted));
}

/// The line that the error shows is the one that helps.
#[test]
#[ignore = "loads a policy into the kernel: scripts/test-kernels runs it"]
fn under_apparmor_the_error_names_the_line_that_helps() {
    let _turn = load_profile();
    let (source, user) = (source(), User::with_mount_point_below(Path::new("/srv/a [b] *")));
    let mount = format!("./resyncfs mount {} \"$MNT\"", source.url());

    let refused = user.runs(&mount);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(5), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    println!("{said}");
    let (_, advice) = said.split_once("AppArmor does not allow fusermount3 to mount here").expect(&said);
    let (_, advice) = advice.split_once("as root, add the line '").expect(&said);
    let (line, command) = advice.split_once("' to /etc/apparmor.d/local/fusermount3 and run: ").expect(&said);
    let (command, _) = command.split_once(": ").expect(&said);
    permit(line, command);

    let mounted = user.runs(&format!("{mount} && cat \"$MNT/a\" && ./resyncfs unmount \"$MNT\""));
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    assert_eq!(mounted.stdout, b"bytes");
}

/// The example that the package ships.
#[test]
#[ignore = "loads a policy into the kernel: scripts/test-kernels runs it"]
fn under_apparmor_the_example_permits_a_folder() {
    let _turn = load_profile();
    let (source, user) = (source(), User::with_mount_point_below(Path::new("/srv/collections/of")));
    let mount = format!("./resyncfs mount {} $MNT", source.url());
    assert_eq!(user.runs(&mount).status.code(), Some(5));

    permit(include_str!("../scripts/apparmor/fusermount3"), "apparmor_parser --replace /etc/apparmor.d/fusermount3");

    let mounted = user.runs(&format!("{mount} && cat $MNT/a && grep $MNT /proc/mounts && ./resyncfs unmount $MNT"));
    let printed = String::from_utf8(mounted.stdout.clone()).unwrap();
    assert!(mounted.status.success(), "{}", stderr(&mounted));
    assert!(printed.starts_with("bytes") && printed.contains("noexec"), "{printed}");
}

/// As in a container, or in Ubuntu's namespaces of users: the profile of the program itself has no mount.
#[test]
#[ignore = "loads a policy into the kernel: scripts/test-kernels runs it"]
fn under_apparmor_the_error_names_the_profile_of_root() {
    let _turn = load_profile();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profile");
    for (profile, says) in [
        ("resyncfs-test", "programs under the profile resyncfs-test; in a container use: docker run"),
        ("unprivileged_userns", "(profile unprivileged_userns); mount outside of it, or see: resyncfs help machines"),
    ] {
        fs::write(&file, format!("profile {profile} {{\n file,\n capability,\n network,\n signal,\n unix,\n}}\n"))
            .unwrap();
        succeeds(Command::new("apparmor_parser").arg("--replace").arg(&file));
        let source = source();
        let mounted = Mounted::prepared(&source.url(), "");

        let confine = "printf \"exec $PROFILE\" >/proc/self/attr/exec; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", confine, PROGRAM]).args(mounted.command("-v").get_args()).env("PROFILE", profile);
        let refused = command.output().unwrap();

        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(5), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

/// The label of a file as the kernel has it.
fn label(path: &Path) -> String {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut label = vec![0_u8; 200];
    // SAFETY: two C strings, and a buffer of the length that is passed.
    let length =
        unsafe { libc::getxattr(path.as_ptr(), c"security.selinux".as_ptr(), label.as_mut_ptr().cast(), label.len()) };
    assert!(length > 0, "{path:?} has no label: {}", std::io::Error::last_os_error());
    label.truncate(length as usize);
    String::from_utf8(label).unwrap().trim_end_matches('\0').to_owned()
}

/// A policy of one role, which allows everything and has two types for files. The kernel takes the first that is loaded.
fn load_policy() {
    let folder = tempfile::tempdir().unwrap();
    let (text, binary) = (folder.path().join("policy.cil"), folder.path().join("policy"));
    fs::write(&text, include_str!("common/selinux.cil")).unwrap();
    let unpacked = tools("SELINUX");
    let mut compiler = Command::new(unpacked.join("usr/bin/secilc"));
    compiler.args(["--policyvers=31", "--filecontext=/dev/null", "--output"]).arg(&binary).arg(&text);
    succeeds(compiler.env("LD_LIBRARY_PATH", unpacked.join("usr/lib/x86_64-linux-gnu")));
    fs::write("/sys/fs/selinux/load", fs::read(&binary).unwrap()).unwrap();
}

#[test]
#[ignore = "loads a policy into the kernel: scripts/test-kernels runs it"]
fn under_selinux_the_files_have_the_labels_asked_for() {
    load_policy();
    let source = source();
    for (options, root, file) in [
        (r#"context="u:object_r:label:s0:c1,c2""#, "u:object_r:label:s0:c1,c2", "u:object_r:label:s0:c1,c2"),
        ("rootcontext=u:object_r:label:s0", "u:object_r:label:s0", ""),
        ("fscontext=u:object_r:label:s0", "", ""),
    ] {
        let mounted = Mounted::new(&source.url(), options);
        assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
        if !root.is_empty() {
            assert_eq!(label(&mounted.path()), root, "{options}");
        }
        if !file.is_empty() {
            assert_eq!(label(&mounted.join("a")), file, "{options}");
        }
        // `ls -Z` asks for no label that is not listed.
        let listed =
            Command::new("getfattr").args(["--match=-", "--absolute-names"]).arg(mounted.join("a")).output().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains("security.selinux"), "{listed:?}");
        mounted.unmount();
    }

    // The policy has no such type, and gives FUSE files no labels of their own.
    for options in ["context=u:object_r:unknown:s0", "defcontext=u:object_r:label:s0"] {
        let refused = Mounted::prepared(&source.url(), options).try_start().unwrap_err();
        assert!(refused.contains("the kernel may not know one of the labels"), "{options}: {refused}");
    }
}
