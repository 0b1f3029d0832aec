//! Containers without root, as an ordinary user starts them. `unshare -Urm` makes a root without rights outside; it mounts without
//! fusermount3 where all users may open /dev/fuse. Without that right, the mount is made outside and handed over.

mod common;

use common::source::{Resource, Source};
use common::systemd::{Login, Machine};
use serde_json::Value;
use std::process::Output;

fn source() -> Source {
    let source = Source::start();
    source.put("a.txt", Resource::new("first"));
    source
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs lines of a shell as the root of new namespaces of this user; what they printed.
fn in_namespaces(login: &Login<'_>, lines: &str) -> String {
    let output = login.run(&["unshare", "--user", "--map-root-user", "--mount", "bash", "-euc", lines]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", errors(&output));
    assert_eq!(errors(&output), "", "{printed}");
    printed
}

#[test]
fn a_user_mounts_in_namespaces_of_their_own() {
    let (source, machine) = (source(), Machine::boot());
    let ann = machine.login("ann");
    let list = source.list_url();

    let printed = in_namespaces(
        &ann,
        &format!(
            "mkdir mnt; resyncfs mount {list} mnt; cat mnt/a.txt; stat --format ' %u' mnt/a.txt
             resyncfs list --json; ls /run/user/4711/resyncfs; resyncfs refresh mnt; resyncfs status mnt | head -1
             grep -c fuse.resyncfs /proc/mounts; resyncfs unmount mnt; ls mnt; ls .cache"
        ),
    );

    let (read, rest) = printed.split_once('\n').unwrap();
    assert_eq!(read, "first 0");
    let (listed, rest) = rest.split_once("]\n").unwrap();
    let listed: Value = serde_json::from_str(&format!("{listed}]")).unwrap();
    assert_eq!((&listed[0]["state"], &listed[0]["directory"]), (&"alive".into(), &"/home/ann/mnt".into()));
    let rest: Vec<_> = rest.lines().collect();
    assert!(rest[0].starts_with("0:") && rest[0].ends_with(".json"), "{rest:?}");
    assert_eq!(rest[1], "nothing has changed", "{rest:?}");
    assert!(rest[2].starts_with("Source ") && rest[2].ends_with(&list), "{rest:?}");
    assert_eq!(rest[3..], ["1", "resyncfs"]);
}

/// Two users' namespaces, both with a root of their own, and root itself do not stand in each other's way.
#[test]
fn mounts_in_namespaces_of_two_users_are_found_apart() {
    let (source, machine) = (source(), Machine::boot());
    let (ann, list) = (machine.login("ann"), source.list_url());
    machine.ok(&["useradd", "--create-home", "--uid", "4712", "ben"]);
    let lines = format!("cd; mkdir -p m; resyncfs mount {list} m; resyncfs list --json; resyncfs unmount m");
    let ben = ["setpriv", "--reuid", "ben", "--regid", "ben", "--init-groups", "--reset-env", "unshare", "-Urm"];

    for _ in 0..2 {
        let of_ann = in_namespaces(&ann, &lines);
        let of_ben = machine.ok(&[&ben[..], &["bash", "-euc", &lines]].concat());
        for listed in [of_ann, of_ben] {
            let listed: Value = serde_json::from_str(&listed).unwrap();
            assert_eq!(listed[0]["state"], "alive", "{listed}");
        }
    }
    machine.ok(&["bash", "-euc", &lines]);
}

/// As a driver of a cluster's node does: it mounts with rights, and the program that serves has none.
#[test]
fn a_user_without_rights_serves_what_root_mounted() {
    let (source, machine) = (source(), Machine::boot());
    let ann = machine.login("ann");
    let driver = r"
import ctypes, os, sys
device = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={device},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other'
assert ctypes.CDLL(None).mount(b'a-driver', b'/mnt/given', b'fuse.resyncfs', 7, options.encode()) == 0
os.set_inheritable(device, True)
user = ['--reuid', 'ann', '--regid', 'ann', '--init-groups', '--no-new-privs', '--bounding-set', '-all', '--reset-env']
os.execvp('setpriv', ['setpriv', *user, 'resyncfs', 'mount', sys.argv[1], f'/dev/fd/{device}'])
";
    machine.ok(&["mkdir", "/mnt/given"]);

    machine.ok(&["python3", "-c", driver, &source.list_url()]);

    assert_eq!(machine.ok(&["cat", "/mnt/given/a.txt"]), "first");
    let listed: Value = serde_json::from_str(&ann.ok(&["resyncfs", "list", "--json"])).unwrap();
    let own = listed.as_array().unwrap().iter().find(|it| it["state"] == "alive").unwrap();
    let name = own["directory"].as_str().unwrap();
    assert!(name.starts_with("/proc/") && own["user"] == "ann", "a record of ann is not believed about root's mount");
    assert_eq!(ann.ok(&["resyncfs", "refresh", name]), "nothing has changed\n");
    assert!(ann.ok(&["resyncfs", "status"]).contains(name));
    machine.ok(&["umount", "/mnt/given"]);
    common::eventually("the program ends", || machine.programs().is_empty());
}
