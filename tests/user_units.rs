//! `resyncfs@.service` of an ordinary user, under a real `systemd --user`, and that user's own configuration files.

mod common;

use common::source::{Fault, Resource, Source};
use common::systemd::{Login, Machine};
use common::{eventually, eventually_within};
use std::process::Output;
use std::time::Duration;

const UNIT: &str = "resyncfs@repo.service";
const LIST: &str = "resourcelist.xml";
const FILE: &str = ".config/resyncfs/repo.toml";
const FOLDER: &str = "/home/ann/repo";

fn source() -> Source {
    let source = Source::start();
    source.put("a.txt", Resource::new("first"));
    source
}

/// A user for whom `repo` is `source`, mounted below their home folder.
fn ann<'m>(machine: &'m Machine, source: &Source) -> Login<'m> {
    let ann = machine.login("ann");
    ann.ok(&["mkdir", FOLDER]);
    ann.write(FILE, &format!("source = \"{}\"\ndirectory = \"{FOLDER}\"\npoll = \"1h\"\n", source.list_url()));
    ann
}

fn look(ann: &Login<'_>) -> String {
    ann.ok(&["cat", "repo/a.txt"])
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_user_starts_reloads_and_stops_a_mount_of_their_own() {
    let (source, machine) = (source(), Machine::boot());
    let ann = ann(&machine, &source);

    ann.ok(&["systemctl", "--user", "start", UNIT]);

    assert_eq!(look(&ann), "first");
    let mounts = machine.ok(&["cat", "/proc/mounts"]);
    assert!(mounts.contains(&format!(" {FOLDER} fuse.resyncfs ro,nosuid,nodev,noexec,")), "{mounts}");
    assert!(machine.fails(&["ls", FOLDER]), "not even root looks in");
    let status = ann.property(UNIT, "StatusText");
    assert!(status.starts_with("revision 1, 1 files; last refresh 20"), "{status}");
    let status = ann.ok(&["resyncfs", "status", "repo"]);
    assert!(status.contains(&source.list_url()), "{status}");
    source.put("new.txt", Resource::new("second"));
    ann.ok(&["systemctl", "--user", "reload", UNIT]);
    assert_eq!(ann.ok(&["ls", "repo"]), "a.txt\nnew.txt\n");
    ann.ok(&["systemctl", "--user", "stop", UNIT]);
    assert!(!machine.is_mounted(FOLDER));
    assert_eq!(machine.programs(), Vec::<u32>::new());
    assert_eq!(ann.property(UNIT, "Result"), "success");
}

#[test]
fn a_mount_of_a_user_comes_back_by_itself_after_kill_9() {
    let (source, machine) = (source(), Machine::boot());
    let ann = ann(&machine, &source);
    ann.ok(&["systemctl", "--user", "start", UNIT]);
    let before = ann.property(UNIT, "MainPID");

    ann.ok(&["kill", "-9", &before]);

    eventually_within(Duration::from_secs(60), "another process serves the tree", || {
        let output = ann.run(&["cat", "repo/a.txt"]);
        output.status.success() && output.stdout == b"first" && ann.property(UNIT, "MainPID") != before
    });
    assert_eq!(ann.property(UNIT, "NRestarts"), "1");
}

#[test]
fn a_start_that_fails_is_a_failed_unit_with_its_reason() {
    let (source, machine) = (source(), Machine::boot());
    source.fault(LIST, Fault::Status(404, String::new()), u64::MAX);
    let ann = ann(&machine, &source);

    assert!(!ann.run(&["systemctl", "--user", "start", UNIT]).status.success());

    assert!(!machine.is_mounted(FOLDER));
    let journal = machine.ok(&["journalctl", "--no-pager", "--output=cat", "_SYSTEMD_USER_UNIT=resyncfs@repo.service"]);
    assert!(journal.contains("404"), "{journal}");
    eventually("the manager gives up", || ann.property(UNIT, "ActiveState") == "failed");
}

#[test]
fn a_token_that_only_its_user_reads_reaches_the_source() {
    let (source, machine) = (source(), Machine::boot());
    let ann = ann(&machine, &source);
    ann.write(".config/resyncfs/token", "s3cret-token\n");
    ann.ok(&["chmod", "600", ".config/resyncfs/token"]);
    let list = source.list_url();
    ann.write(
        FILE,
        &format!("source = \"{list}\"\ndirectory = \"{FOLDER}\"\nbearer-file = \"/home/ann/.config/resyncfs/token\"\n"),
    );
    ann.ok(&["chmod", "600", ".config/resyncfs/token"]);

    ann.ok(&["systemctl", "--user", "start", UNIT]);

    assert_eq!(look(&ann), "first");
    let log = source.log();
    assert!(log.iter().all(|request| request.field("authorization") == Some("Bearer s3cret-token")), "{log:?}");
}

#[test]
fn the_user_unit_is_in_order() {
    let machine = Machine::boot();
    let ann = machine.login("ann");

    let verified = ann.run(&["systemd-analyze", "verify", "--user", "--man=no", UNIT]);

    assert!(verified.status.success(), "{}", errors(&verified));
    assert_eq!(errors(&verified), "");
}

#[test]
fn a_users_own_file_counts_before_that_of_all_users() {
    let (source, machine) = (source(), Machine::boot());
    let ann = ann(&machine, &source);
    let other = Source::start();
    other.put("other.txt", Resource::new("other"));
    let of_all = |name: &str| {
        let text = format!("source = \"{}\"\ndirectory = \"{FOLDER}\"\n", other.list_url());
        machine.write(&format!("/etc/resyncfs/{name}.toml"), &text);
    };
    of_all("repo");
    of_all("common");
    let shown = |variable: &str, name: &str| {
        ann.ok(&["env", variable, "resyncfs", "mount", name]);
        let shown = ann.ok(&["ls", "repo"]);
        ann.ok(&["env", variable, "resyncfs", "unmount", name]);
        shown
    };

    assert_eq!(shown("A=b", "repo"), "a.txt\n");
    assert_eq!(shown("A=b", "common"), "other.txt\n", "a name that the user has not");
    assert_eq!(shown("XDG_CONFIG_HOME=/home/ann/elsewhere", "repo"), "other.txt\n");
    ann.ok(&["mkdir", "elsewhere"]);
    ann.ok(&["cp", "--recursive", ".config/resyncfs", "elsewhere"]);
    assert_eq!(shown("XDG_CONFIG_HOME=/home/ann/elsewhere", "repo"), "a.txt\n");
    assert_eq!(shown("XDG_CONFIG_HOME=elsewhere", "repo"), "a.txt\n", "a path that is not absolute does not count");

    machine.ok(&["chown", "1", "/home/ann/elsewhere/resyncfs/repo.toml"]);
    let of_another = ann.run(&["env", "XDG_CONFIG_HOME=/home/ann/elsewhere", "resyncfs", "mount", "repo"]);
    assert!(errors(&of_another).contains("repo.toml: belongs to another user"), "{}", errors(&of_another));

    let unknown = ann.run(&["resyncfs", "mount", "unknown", FOLDER]);
    let both = "there is no /home/ann/.config/resyncfs/unknown.toml and no /etc/resyncfs/unknown.toml";
    assert!(errors(&unknown).contains(both), "{}", errors(&unknown));
    // Root takes no configuration from a user's environment.
    let root =
        machine.run(&["env", "HOME=/home/ann", "XDG_CONFIG_HOME=/home/ann/.config", "resyncfs", "mount", "repo"]);
    assert!(root.status.success(), "{}", errors(&root));
    assert_eq!(machine.ok(&["ls", FOLDER]), "other.txt\n");
}
