//! The example units of scripts/systemd, and a line of fstab, under a real systemd: mount(8) calls the program by its name.

mod common;

use common::eventually;
use common::source::{Fault, Resource, Source};
use common::systemd::Machine;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

const MOUNT: &str = "mnt-repo.mount";
const AUTOMOUNT: &str = "mnt-repo.automount";
const LIST: &str = "resourcelist.xml";

fn source() -> Source {
    let source = Source::start();
    source.put("a.txt", Resource::new("first"));
    source
}

/// An example as it is shipped, of `source` in place of its own.
fn example(source: &Source, name: &str) -> String {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/systemd").join(name);
    std::fs::read_to_string(file).unwrap().replace("https://repo.example.org/", &source.list_url())
}

/// A machine with the example of a mount unit, with `more` in a drop-in.
fn machine(source: &Source, more: &str) -> Machine {
    let machine = Machine::boot();
    machine.write(&format!("/etc/systemd/system/{MOUNT}"), &example(source, MOUNT));
    machine.write(&format!("/etc/systemd/system/{MOUNT}.d/test.conf"), &format!("[Mount]\n{more}\n"));
    machine.ok(&["systemctl", "daemon-reload"]);
    machine
}

/// Every process of ours has ended: the one that served the mount does so by itself.
fn nothing_is_left(machine: &Machine) {
    eventually("no process is left", || machine.programs().is_empty());
    assert!(!machine.is_mounted("/mnt/repo"));
}

fn look(machine: &Machine) -> String {
    machine.ok(&["cat", "/mnt/repo/a.txt"])
}

#[test]
fn a_mount_unit_shows_the_tree_and_leaves_nothing_when_stopped() {
    let source = source();
    let machine = machine(&source, "");

    machine.ok(&["systemctl", "start", MOUNT]);

    assert_eq!(look(&machine), "first");
    let mounts = machine.ok(&["cat", "/proc/mounts"]);
    assert!(mounts.contains(&format!("{} /mnt/repo fuse.resyncfs ro,", source.list_url())), "{mounts}");
    machine.ok(&["systemctl", "stop", MOUNT]);
    nothing_is_left(&machine);
}

#[test]
fn a_stopped_mount_unit_serves_its_last_users() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", MOUNT]);
    let mut open = File::open(machine.path("/mnt/repo/a.txt")).unwrap();

    machine.ok(&["systemctl", "stop", MOUNT]);

    assert!(!machine.is_mounted("/mnt/repo"));
    let mut bytes = String::new();
    open.read_to_string(&mut bytes).unwrap();
    assert_eq!(bytes, "first");
    drop(open);
    nothing_is_left(&machine);
}

#[test]
fn a_mount_unit_of_a_failing_source_fails_with_the_reason() {
    let source = source();
    source.fault(LIST, Fault::Status(404, String::new()), u64::MAX);
    let machine = machine(&source, "");

    assert!(machine.fails(&["systemctl", "start", MOUNT]));

    let journal = machine.journal(MOUNT);
    assert!(
        journal.iter().any(|entry| entry["MESSAGE"].as_str().is_some_and(|message| message.contains("404"))),
        "{journal:#?}"
    );
    nothing_is_left(&machine);
}

#[test]
fn a_mount_unit_of_a_source_that_hangs_ends_at_its_time() {
    let source = source();
    source.fault(LIST, Fault::StallHead(Duration::from_secs(3600)), u64::MAX);
    let machine = machine(&source, "TimeoutSec=2");

    assert!(machine.fails(&["systemctl", "start", MOUNT]));

    assert_eq!(machine.property(MOUNT, "Result"), "timeout");
    nothing_is_left(&machine);
}

#[test]
fn after_kill_9_a_mount_unit_is_mended_by_a_restart() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", MOUNT]);
    let program = machine.programs();
    assert_eq!(program.len(), 1);

    // SAFETY: kill(2) has no memory preconditions; the process is the machine's own.
    unsafe { libc::kill(program[0] as i32, libc::SIGKILL) };

    eventually("the mount is dead", || machine.fails(&["cat", "/mnt/repo/a.txt"]));
    machine.ok(&["systemctl", "restart", MOUNT]);
    assert_eq!(look(&machine), "first");
}

#[test]
fn lines_of_a_mount_unit_come_to_the_journal_with_their_fields() {
    let source = source();
    let machine = machine(&source, "");

    machine.ok(&["systemctl", "start", MOUNT]);

    let journal = machine.journal(MOUNT);
    let is_it = |entry: &&serde_json::Value| entry["MESSAGE"].as_str().is_some_and(|it| it.starts_with("mounted "));
    let mounted = journal.iter().find(is_it).unwrap_or_else(|| panic!("{journal:#?}"));
    assert_eq!(mounted["SYSLOG_IDENTIFIER"], "resyncfs");
    assert_eq!(mounted["RESYNCFS_DIRECTORY"], "/mnt/repo");
    assert_eq!(mounted["PRIORITY"], "6");
}

#[test]
fn a_mount_unit_with_a_log_file_writes_it() {
    let source = source();
    let machine = machine(&source, "Options=ro,_netdev,log=/run/own.log");

    machine.ok(&["systemctl", "start", MOUNT]);

    let log = machine.ok(&["cat", "/run/own.log"]);
    assert!(log.contains("mounted"), "{log}");
}

#[test]
fn an_automount_mounts_unmounts_when_idle_and_mounts_again() {
    let source = source();
    let machine = machine(&source, "");
    let automount = example(&source, AUTOMOUNT).replace("TimeoutIdleSec=10min", "TimeoutIdleSec=1");
    machine.write(&format!("/etc/systemd/system/{AUTOMOUNT}"), &automount);
    machine.ok(&["systemctl", "daemon-reload"]);
    machine.ok(&["systemctl", "start", AUTOMOUNT]);
    assert!(!machine.is_mounted("/mnt/repo"));

    assert_eq!(look(&machine), "first");

    eventually("it is unmounted when nobody uses it", || !machine.is_mounted("/mnt/repo"));
    nothing_is_left(&machine);
    assert_eq!(look(&machine), "first");
}

#[test]
fn a_line_of_fstab_mounts_for_who_looks_and_unmounts_when_idle() {
    let source = source();
    let machine = Machine::boot();
    machine.write("/etc/fstab", &example(&source, "fstab").replace("idle-timeout=10min", "idle-timeout=4s"));
    machine.ok(&["systemctl", "daemon-reload"]);
    machine.ok(&["systemctl", "start", AUTOMOUNT]);

    assert_eq!(look(&machine), "first");

    assert_eq!(machine.property(MOUNT, "ActiveState"), "active");
    eventually("it is unmounted when nobody uses it", || !machine.is_mounted("/mnt/repo"));
    nothing_is_left(&machine);
}
