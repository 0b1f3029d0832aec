//! mount(8) and the program as its helper, in a mount namespace of its own where `/sbin` has the helper's links.

mod common;

use common::mounted::{PROGRAM, stderr};
use common::source::{Resource, Source};
use common::{eventually, source::URLSET};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A mount namespace with the links of the mount helper; gone with everything mounted in it when this is dropped.
struct Namespace {
    scratch: tempfile::TempDir,
    keeper: Child,
}

const SETUP: &str = r#"
    set -e
    # The mounts of other tests end when they are unmounted, not when this namespace ends.
    umount --lazy --all --types fuse.resyncfs || true
    sbin=$(readlink -f /sbin)
    mkdir "$1/over" && mount -t tmpfs tmpfs "$1/over" && mkdir "$1/over/upper" "$1/over/work"
    mount -t overlay overlay -o "lowerdir=$sbin,upperdir=$1/over/upper,workdir=$1/over/work" "$sbin"
    ln -s "$2" "$sbin/mount.resyncfs"
    ln -s "$2" "$sbin/mount.fuse.resyncfs"
    # Open to every user, as on most systems.
    mknod "$1/over/fuse" c 10 229 && chmod 666 "$1/over/fuse" && mount --bind "$1/over/fuse" /dev/fuse
    echo ready
    exec cat
"#;

impl Namespace {
    fn new() -> Namespace {
        let scratch = tempfile::Builder::new().prefix("resyncfs-helper-").tempdir().unwrap();
        fs::create_dir(scratch.path().join("mnt")).unwrap();
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", SETUP, "sh"])
            .args([scratch.path(), Path::new(PROGRAM)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "no namespace could be made: these tests run as root");
        Namespace { scratch, keeper }
    }

    fn runs(&self, program: &str, arguments: &[&str]) -> Output {
        Command::new("nsenter")
            .args(["--mount", "--target", &self.keeper.id().to_string(), "--", program])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs a program that must succeed, and returns its output.
    fn succeeds(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.runs(program, arguments);
        assert!(output.status.success(), "{program} {arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn mount_point(&self) -> String {
        self.scratch.path().join("mnt").to_str().unwrap().to_owned()
    }

    fn options(&self, further: &str) -> String {
        format!("cache={}{further}", self.scratch.path().join("cache").display())
    }

    /// The line of the mount, if it is there.
    fn mounted(&self) -> Option<String> {
        let mounts = self.succeeds("cat", &["/proc/self/mounts"]);
        mounts.lines().find(|line| line.contains(&format!(" {} ", self.mount_point()))).map(str::to_owned)
    }

    /// Whether a process runs that was started for the mount point.
    fn is_served(&self) -> bool {
        let found = Command::new("pgrep").args(["-f", &format!("mount.*{}", self.mount_point())]).output().unwrap();
        !found.stdout.is_empty()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.runs("umount", &["--lazy", "--quiet", &self.mount_point()]);
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

#[test]
fn mount_8_mounts_by_either_type_and_any_unmount_ends_it() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let namespace = Namespace::new();
    let directory = namespace.mount_point();
    let file = format!("{directory}/a");
    let ways: [&[&str]; 5] = [
        &["umount", &directory],
        &["umount", "-l", &directory],
        &["fusermount3", "-u", &directory],
        &["umount", "-f", &directory],
        &[PROGRAM, "unmount", &directory],
    ];

    for (round, way) in ways.into_iter().enumerate() {
        let filesystem = ["resyncfs", "fuse.resyncfs"][round % 2];
        let options = namespace.options(",ro,_netdev,nofail,x-systemd.automount,comment=mine,uid=root,umask=022");
        namespace.succeeds("mount", &["-t", filesystem, &source.url(), &directory, "-o", &options]);
        assert_eq!(namespace.succeeds("cat", &[&file]), "bytes");
        let line = namespace.mounted().unwrap();
        assert!(line.starts_with(&format!("{} ", source.url())), "{line}");
        assert!(line.contains(" fuse.resyncfs ro,nosuid,nodev,noexec"), "{line}");
        let control = ["--absolute-names", "--only-values", "-n", "user.resyncfs.control", directory.as_str()];
        let socket = PathBuf::from(namespace.succeeds("getfattr", &control));
        assert!(socket.exists() && namespace.is_served());

        namespace.succeeds(way[0], &way[1..]);

        if way[0] == PROGRAM {
            assert!(!namespace.is_served(), "it returns when the process has ended");
        }
        eventually("the process has ended", || !namespace.is_served());
        assert!(!socket.exists(), "{way:?}");
        assert_eq!(namespace.mounted(), None);
    }
}

#[test]
fn rw_of_mount_8_is_no_error_and_the_mount_is_read_only() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let namespace = Namespace::new();
    let directory = namespace.mount_point();

    namespace.succeeds("mount", &["-t", "resyncfs", &source.url(), &directory, "-o", &namespace.options("")]);

    let line = namespace.mounted().unwrap();
    assert!(line.contains(" fuse.resyncfs ro,"), "{line}");
    let refused = namespace.runs("touch", &[&format!("{directory}/b")]);
    assert!(stderr(&refused).contains("Read-only file system"), "{}", stderr(&refused));
    let refused = namespace.runs("mount", &["-o", "remount,noatime", &directory]);
    assert!(!refused.status.success() && stderr(&refused).contains("mount it again"), "{}", stderr(&refused));
}

#[test]
fn blanks_and_commas_of_a_line_in_fstab_arrive() {
    let source = Source::start();
    source.put("f/a", Resource::new("bytes"));
    let namespace = Namespace::new();
    let folder = namespace.scratch.path();
    let list = folder.join("my list.xml");
    fs::write(&list, format!("{URLSET}<url><loc>{}f/a</loc></url></urlset>", source.url())).unwrap();
    let host = source.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let fstab = folder.join("fstab");
    let options = namespace.options(&format!(",map={}f/=my\\040files\\,\\040all,allow-host={host}", source.url()));
    let line = format!(
        "{} {} resyncfs noauto,nofail,_netdev,x-systemd.automount,{options} 0 0\n",
        list.display().to_string().replace(' ', "\\040"),
        namespace.mount_point()
    );
    fs::write(&fstab, line).unwrap();

    namespace.succeeds("mount", &["--fstab", fstab.to_str().unwrap(), &namespace.mount_point()]);

    assert_eq!(namespace.succeeds("cat", &[&format!("{}/my files, all/a", namespace.mount_point())]), "bytes");
}

#[test]
fn a_wrong_option_is_named_and_exit_codes_are_those_of_mount_8() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let namespace = Namespace::new();
    let directory = namespace.mount_point();
    let url = source.url();
    let dead = namespace.options(",timeout=2s,connect-timeout=1s");
    for (source, options, exit, says) in [
        (url.as_str(), "cachesize=1G", 1, "cachesize=1G: there is no such option; did you mean cache-size?"),
        (url.as_str(), "poll=soon", 1, "5m"),
        (url.as_str(), "bearer=s3cr3t", 1, "bearer-file"),
        (url.as_str(), "cache=/dev/null/cache", 2, "cache"),
        ("http://127.0.0.1:1/", &dead, 32, "127.0.0.1:1"),
    ] {
        let refused = namespace.runs("mount", &["-t", "resyncfs", source, &directory, "-o", options]);

        assert_eq!(refused.status.code(), Some(exit), "{options}: {}", stderr(&refused));
        let message = stderr(&refused);
        let line = message.lines().find(|line| line.starts_with("mount.resyncfs: ")).unwrap_or_default();
        assert!(line.contains(says) && !message.contains("s3cr3t"), "{options}: {message}");
        assert_eq!(namespace.mounted(), None);
    }
    let absent = namespace.runs("/sbin/mount.resyncfs", &[&url, "/no/such/folder", "-o", "rw"]);
    assert_eq!(absent.status.code(), Some(32), "{}", stderr(&absent));
    let nothing = namespace.runs("/sbin/mount.fuse.resyncfs", &[]);
    assert_eq!(nothing.status.code(), Some(1), "{}", stderr(&nothing));
}

#[test]
fn fake_mounts_nothing_and_sloppy_ignores_unknown_options() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let namespace = Namespace::new();
    let directory = namespace.mount_point();
    let options = namespace.options(",frobnicate=1");
    let mount = |flags: &str, options: &str| {
        namespace.runs("mount", &[flags, "-t", "fuse.resyncfs", &source.url(), &directory, "-o", options])
    };

    assert_eq!(mount("-fnv", &options).status.code(), Some(1));
    let fake = mount("-fnvs", &options);
    assert!(fake.status.success(), "{}", stderr(&fake));
    assert_eq!(namespace.mounted(), None);
    assert!(!namespace.scratch.path().join("cache").exists() && source.take_log().is_empty());

    let sloppy = mount("-snv", &options);
    assert!(sloppy.status.success(), "{}", stderr(&sloppy));
    assert!(namespace.mounted().is_some());
}

#[test]
fn a_line_of_fstab_for_users_is_mounted_and_unmounted_by_one() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let namespace = Namespace::new();
    let home = tempfile::Builder::new().prefix("resyncfs-nobody-").tempdir().unwrap();
    fs::create_dir(home.path().join("mnt")).unwrap();
    fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
    for path in [home.path().to_owned(), home.path().join("mnt")] {
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    let (home, directory) = (home.path().display(), home.path().join("mnt"));
    let directory = directory.to_str().unwrap();
    let fstab = namespace.scratch.path().join("fstab");
    fs::write(&fstab, format!("{} {directory} resyncfs noauto,user,cache={home}/cache 0 0\n", source.url())).unwrap();
    namespace.succeeds("mount", &["--bind", fstab.to_str().unwrap(), "/etc/fstab"]);
    // The program under test may be in a folder that only root can enter.
    namespace.succeeds("cp", &["--remove-destination", PROGRAM, "/sbin/mount.resyncfs"]);
    let nobody = |line: &str| {
        let ids = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", line];
        namespace.succeeds("setpriv", &ids)
    };

    let output = nobody(&format!("mount {directory} && cat {directory}/a && grep {directory} /proc/self/mounts"));
    let (bytes, line) = output.split_at(5);
    assert_eq!(bytes, "bytes");
    assert!(line.contains(" fuse.resyncfs ro,nosuid,nodev,noexec") && line.contains("user_id=65534"), "{line}");

    nobody(&format!("umount {directory}"));
    let found = || Command::new("pgrep").args(["-f", &format!("mount.*{directory}")]).output().unwrap();
    eventually("the process has ended", || found().stdout.is_empty());
}

/// `-N` is followed by the namespace of another process, as mount(8) passes it on.
#[test]
fn another_mount_namespace_is_entered() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let namespace = Namespace::new();
    let directory = namespace.mount_point();
    let keeper = namespace.keeper.id().to_string();
    let link = namespace.scratch.path().join("mount.resyncfs");
    std::os::unix::fs::symlink(PROGRAM, &link).unwrap();

    let options = namespace.options("");
    let output = Command::new(&link).args([&source.url(), &directory, "-N", &keeper, "-o", &options]).output().unwrap();

    assert!(output.status.success(), "{}", stderr(&output));
    assert!(namespace.mounted().is_some());
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "here nothing is mounted");
}
