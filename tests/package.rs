//! The packages of Debian and RPM: built, checked by lintian, installed, used and removed in a root of their own.

mod common;

use common::source::{Resource, Source};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What is typed into a fresh Debian: an overlay of this machine's, in a mount namespace that ends with the script.
/// Each `step` says what holds; the first that fails ends it.
const INSTALLED: &str = r#"
set -eu
mount --make-rprivate /
scratch=$SCRATCH
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
root=$scratch/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
for folder in tmp run; do mount -t tmpfs tmpfs "$root/$folder"; done
cp "$PACKAGE" "$root/tmp/"
there() { chroot "$root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
step() { echo "ok: $*"; }

case $PACKAGE in
# As on a machine of RPM, which has its own database and no packages of Debian.
*.rpm) install="rpm -i --force-debian --nodeps --dbpath /tmp/rpm" check="rpm -V --nodeps --dbpath /tmp/rpm" remove="rpm -e --force-debian --dbpath /tmp/rpm" ;;
*.deb) install="dpkg -i" check="dpkg -V" remove="dpkg -P" ;;
esac
there $install "/tmp/${PACKAGE##*/}" >/dev/null
step installed
there $check resyncfs
there resyncfs --version
for page in man1/resyncfs.1 man1/resyncfs-mount.1 man5/resyncfs.conf.5 man7/resyncfs-semantics.7 man7/resyncfs-messages.7 man7/resyncfs-metrics.7 man8/mount.resyncfs.8 man8/mount.fuse.resyncfs.8; do
  there gzip -dc "/usr/share/man/$page.gz" | grep -q '^\.TH'
done
there gzip -dc /usr/share/man/man1/resyncfs-mount.1.gz | grep -A1 '^\.SH SYNOPSIS' | grep -qF 'resyncfs mount\fR [OPTIONS] <SOURCE|NAME> [DIR]'
step manual pages
there bash -c '. /usr/share/bash-completion/completions/resyncfs; COMP_WORDS=(resyncfs m); COMP_CWORD=1; _resyncfs resyncfs m resyncfs; printf "%s\n" "${COMPREPLY[@]}"' | grep -qx mount
there touch /etc/resyncfs/harbour.toml
there bash -c '. /usr/share/bash-completion/completions/resyncfs; COMP_WORDS=(resyncfs refresh h); COMP_CWORD=2; _resyncfs resyncfs h refresh; printf "%s\n" "${COMPREPLY[@]}"' | grep -qx harbour
there rm /etc/resyncfs/harbour.toml
there bash -c '. /usr/share/bash-completion/completions/resyncfs; COMP_WORDS=(resyncfs mount -o poll = 1h,cache-si); COMP_CWORD=5; _resyncfs resyncfs 1h,cache-si =; printf "%s\n" "${COMPREPLY[@]}"' | grep -qx '1h,cache-size='
there env TERM=dumb timeout 120 zsh -f -c '
zmodload zsh/zpty
zpty shell env PATH=/usr/bin:/bin zsh -f -i
zpty -w shell "fpath=(/usr/share/zsh/site-functions /usr/share/zsh/vendor-completions \$fpath); autoload -Uz compinit; compinit -u -D; print load\"\"ed"
zpty -r -m shell shown "*loaded*"
zpty -w -n shell "resyncfs unm$(printf "\t")"
zpty -r -m shell shown "*unmount*"'
step completions
for unit in "$root"/usr/lib/systemd/system/resyncfs*; do
  there systemd-analyze verify --man=no "${unit#"$root"}"
done
step units

mkdir "$root/mnt/letters"
there mount -t resyncfs -o ro,_netdev "$SOURCE" /mnt/letters
there cat /mnt/letters/a/letter.txt
there grep /mnt/letters /proc/mounts | grep -q ' fuse.resyncfs '
there umount /mnt/letters
there mount -t fuse.resyncfs "$SOURCE" /mnt/letters
there ls /mnt/letters/a >/dev/null
there umount /mnt/letters
step mounted
there stat -c '%a %U' /var/cache/resyncfs | grep -qx '700 root'
step cache

there $remove resyncfs >/dev/null
# RPM has no purge: what was cached stays.
case $PACKAGE in *.rpm) rm -r "$scratch/upper/var/cache/resyncfs" ;; esac
left=$(cd "$scratch/upper" && find . -path '*resyncfs*' -not -type c -not -path './var/log/*' -not -path './var/cache/man/*' -not -path './var/lib/dpkg/*')
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
step purged
"#;

fn program(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {arguments:?}: {said}");
    said
}

/// The packages of the program under test, built once: Debian's, the RPM, and the archive.
fn packages() -> &'static [PathBuf; 3] {
    static BUILT: OnceLock<(tempfile::TempDir, [PathBuf; 3])> = OnceLock::new();
    let (_, packages) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let said = program("scripts/package", &["--debug", "--rpm", "--archive", folder.path().to_str().unwrap()]);
        let path = |kind| said.lines().rfind(|line| line.ends_with(kind)).unwrap_or_else(|| panic!("{said}")).into();
        (folder, [".deb", ".rpm", ".tar.gz"].map(path))
    });
    packages
}

fn package() -> &'static Path {
    &packages()[0]
}

#[test]
fn the_package_has_program_helpers_units_and_manual() {
    let listed = program("dpkg-deb", &["--contents", package().to_str().unwrap()]);

    for path in [
        "./usr/bin/resyncfs",
        "./usr/sbin/mount.resyncfs -> ../bin/resyncfs",
        "./usr/sbin/mount.fuse.resyncfs -> ../bin/resyncfs",
        "./usr/lib/systemd/system/resyncfs@.service",
        "./usr/lib/systemd/user/resyncfs@.service",
        "./usr/share/man/man1/resyncfs.1.gz",
        "./usr/share/man/man5/resyncfs.conf.5.gz",
        "./usr/share/man/man7/resyncfs-semantics.7.gz",
        "./usr/share/man/man7/resyncfs-messages.7.gz",
        "./usr/share/man/man7/resyncfs-metrics.7.gz",
        "./usr/share/man/man8/mount.resyncfs.8.gz",
        "./usr/share/bash-completion/completions/resyncfs",
        "./usr/share/zsh/vendor-completions/_resyncfs",
        "./usr/share/fish/vendor_completions.d/resyncfs.fish",
        "./usr/share/doc/resyncfs/examples/",
        "./usr/share/doc/resyncfs/examples/fusermount3",
        "./usr/share/doc/resyncfs/examples/alerts.yml",
        "./usr/share/doc/resyncfs/examples/dashboard.json",
        "./usr/lib/systemd/system/plocate-updatedb.service.d/resyncfs.conf",
        "./usr/share/doc/resyncfs/copyright",
        "./usr/share/doc/resyncfs/changelog.gz",
        "./usr/share/doc/resyncfs/licences.gz",
    ] {
        assert!(listed.lines().any(|line| line.ends_with(path)), "{path} is missing from\n{listed}");
    }
}

#[test]
fn checksums_and_a_bill_of_materials_are_beside_the_packages() {
    let folder = package().parent().unwrap();
    let files = |ending: &str| {
        let listed = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        listed.filter(|name| name.ends_with(ending)).collect::<Vec<_>>()
    };

    let sums = std::fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let checked =
        Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(folder).status().unwrap();
    let bill: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join(&files(".cdx.json")[0])).unwrap()).unwrap();

    assert!(checked.success());
    for name in [".deb", ".rpm", ".tar.gz", ".cdx.json"].iter().flat_map(|ending| files(ending)) {
        assert!(sums.lines().any(|line| line.ends_with(&format!("  {name}"))), "{name} is not in\n{sums}");
    }
    assert_eq!((bill["bomFormat"].as_str(), bill["specVersion"].as_str()), (Some("CycloneDX"), Some("1.5")));
    let linked = |name: &str| bill["components"].as_array().unwrap().iter().any(|crate_| crate_["name"] == name);
    assert!(linked("tokio") && linked("ring") && !linked("proptest") && !linked("s3s"));
}

/// A link in place of a folder stays: on Fedora and Arch `/usr/sbin` is one.
#[test]
fn the_archive_replaces_no_link_of_the_machine() {
    let root = tempfile::tempdir().unwrap();
    let path = |path: &str| root.path().join(path);
    for folder in ["usr/bin", "usr/lib"] {
        fs::create_dir_all(path(folder)).unwrap();
    }
    for (link, target) in [("usr/sbin", "bin"), ("lib", "usr/lib"), ("bin", "usr/bin")] {
        symlink(target, path(link)).unwrap();
    }
    let archive = packages()[2].to_str().unwrap();

    program("tar", &["-C", root.path().to_str().unwrap(), "-xf", archive]);

    assert_eq!(fs::read_link(path("usr/sbin")).unwrap(), Path::new("bin"));
    assert!(path("usr/bin/resyncfs").is_file() && path("usr/lib/systemd/system/resyncfs@.service").is_file());
    assert_eq!(fs::canonicalize(path("usr/sbin/mount.resyncfs")).unwrap(), path("usr/bin/resyncfs"));
    let home = tempfile::tempdir().unwrap();
    program("tar", &["-C", home.path().to_str().unwrap(), "--strip-components=2", "-xf", archive, "./usr"]);
    assert!(home.path().join("bin/resyncfs").is_file() && home.path().join("share/man/man1/resyncfs.1.gz").is_file());
}

#[test]
fn the_program_is_stripped() {
    let root = tempfile::tempdir().unwrap();
    program("dpkg-deb", &["--extract", package().to_str().unwrap(), root.path().to_str().unwrap()]);

    let sections = program("readelf", &["--section-headers", root.path().join("usr/bin/resyncfs").to_str().unwrap()]);

    assert!(
        sections.contains(".text") && !sections.contains(".symtab") && !sections.contains(".debug_info"),
        "{sections}"
    );
}

#[test]
fn lintian_finds_no_error() {
    let output =
        Command::new("lintian").args(["--no-cfg", "--allow-root", "--fail-on", "error"]).arg(package()).output();
    let output = output.expect("lintian is installed (scripts/test does it)");

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_licence_of_each_linked_crate_is_there() {
    let root = tempfile::tempdir().unwrap();
    program("dpkg-deb", &["--extract", package().to_str().unwrap(), root.path().to_str().unwrap()]);

    let licences = program("gzip", &["-dc", root.path().join("usr/share/doc/resyncfs/licences.gz").to_str().unwrap()]);

    // Crates of each kind: with a text, with C sources and theirs, with none but a name; and one that only tests link.
    for (text, is_there) in [
        ("\ntokio 1.", true),
        ("OpenLDAP Public License", true),
        ("\nheed 0.", true),
        ("Copyright (c) Kerollmops", true),
        ("\nproptest ", false),
    ] {
        assert_eq!(licences.contains(text), is_there, "{text:?}");
    }
}

#[test]
fn the_deb_is_installed_used_and_purged() {
    is_installed_used_and_removed(&packages()[0]);
}

#[test]
fn the_rpm_is_installed_used_and_removed() {
    is_installed_used_and_removed(&packages()[1]);
}

fn is_installed_used_and_removed(package: &Path) {
    let source = Source::start();
    source.put("a/letter.txt", Resource::new("Sir, the beacon stands.\n"));

    let scratch = tempfile::tempdir().unwrap();

    let output = Command::new("unshare")
        .args(["--mount", "bash", "-c", INSTALLED])
        .env("SCRATCH", scratch.path())
        .env("PACKAGE", package)
        .env("SOURCE", source.list_url())
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("Sir, the beacon stands."), "{said}");
    for step in ["installed", "manual pages", "completions", "units", "mounted", "cache", "purged"] {
        assert!(said.contains(&format!("ok: {step}\n")), "{step} is missing from\n{said}{errors}");
    }
}
