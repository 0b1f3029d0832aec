//! An ordinary user's own namespaces (`unshare -Urm`), as containers without root have them: root there is nobody outside, and mounts
//! without fusermount3 where all users may open /dev/fuse.

mod common;

use common::source::{Resource, Source};
use common::systemd::{Login, Machine};
use std::process::Output;

fn source() -> Source {
    let source = Source::start();
    source.put("a.txt", Resource::new("first"));
    source
}

/// Runs lines of a shell as the root of new namespaces of this user.
fn in_namespaces(login: &Login<'_>, lines: &str) -> Output {
    login.run(&["unshare", "--user", "--map-root-user", "--mount", "bash", "-euc", lines])
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), errors(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_user_mounts_in_namespaces_of_their_own() {
    let (source, machine) = (source(), Machine::boot());
    let ann = machine.login("ann");
    let list = source.list_url();

    let output = in_namespaces(
        &ann,
        &format!(
            "mkdir mnt; resyncfs mount {list} mnt; cat mnt/a.txt; echo; stat --format %u mnt/a.txt; resyncfs list --json
             resyncfs refresh mnt; resyncfs status --json mnt; resyncfs unmount mnt; ls mnt"
        ),
    );

    let printed = printed(&output);
    eprintln!("{printed}");
    assert_eq!(errors(&output), "");
}
