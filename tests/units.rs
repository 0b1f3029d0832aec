//! `resyncfs@.service` under a real systemd.

mod common;

use common::slices::{shortest_slice, slices_of};
use common::source::{Fault, Resource, Source};
use common::systemd::Machine;
use common::{eventually, eventually_within};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

const UNIT: &str = "resyncfs@repo.service";
const LIST: &str = "resourcelist.xml";

fn source() -> Source {
    let source = Source::start();
    source.put("a.txt", Resource::new("first"));
    source.put("letters/b.txt", Resource::new("second"));
    source
}

fn published(source: &Source) -> BTreeMap<PathBuf, Vec<u8>> {
    source.published().into_iter().map(|(path, bytes)| (PathBuf::from(path), bytes)).collect()
}

/// A machine where `resyncfs@repo` mounts `source` at /mnt/repo once it is started; `further` stands in a drop-in.
fn machine(source: &Source, further: &str) -> Machine {
    let machine = Machine::boot();
    std::fs::create_dir_all(machine.path("/mnt/repo")).unwrap();
    let list = source.list_url();
    machine
        .write("/etc/resyncfs/repo.toml", &format!("source = \"{list}\"\ndirectory = \"/mnt/repo\"\npoll = \"1h\"\n"));
    drop_in(&machine, "test", further);
    machine
}

fn drop_in(machine: &Machine, name: &str, lines: &str) {
    machine.write(&format!("/run/systemd/system/{UNIT}.d/{name}.conf"), &format!("[Service]\n{lines}\n"));
    machine.ok(&["systemctl", "daemon-reload"]);
}

fn process(machine: &Machine) -> String {
    machine.property(UNIT, "MainPID")
}

fn status_line(machine: &Machine) -> String {
    machine.property(UNIT, "StatusText")
}

/// Waits until systemd has started the service again by itself after `before`, and the tree is there.
fn comes_back(machine: &Machine, source: &Source, before: &str) {
    eventually_within(Duration::from_secs(60), "another process serves the tree", || {
        let now = process(machine);
        now != "0" && now != before && machine.property(UNIT, "ActiveState") == "active"
    });
    assert_eq!(machine.tree("/mnt/repo"), published(source));
}

fn text<'v>(entry: &'v Value, field: &str) -> &'v str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[test]
fn a_service_shows_the_tree_and_leaves_nothing_when_stopped() {
    let source = source();
    let machine = machine(&source, "");

    machine.ok(&["systemctl", "start", UNIT]);

    assert_eq!(machine.tree("/mnt/repo"), published(&source));
    eventually("one line tells the state", || {
        let line = status_line(&machine);
        line.starts_with("revision 1, 2 files; last refresh 20") && line.contains("; next refresh 20")
    });
    println!("status: {}", status_line(&machine));
    eventually("the unit lets threads say who waits for whom", || {
        let slices = machine.programs().into_iter().flat_map(|process| slices_of(process, "fuser-0"));
        slices.collect::<Vec<_>>() == [shortest_slice()]
    });
    machine.ok(&["systemctl", "stop", UNIT]);
    assert!(!machine.is_mounted("/mnt/repo"));
    assert_eq!(machine.programs(), Vec::<u32>::new());
    assert_eq!(machine.property(UNIT, "Result"), "success");
}

#[test]
fn a_stop_detaches_at_once_and_ends_with_its_last_user() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", UNIT]);
    let mut open = File::open(machine.path("/mnt/repo/a.txt")).unwrap();

    let mut stop = machine.command(&["systemctl", "stop", UNIT]).spawn().unwrap();

    eventually("the mount is out of the tree", || !machine.is_mounted("/mnt/repo"));
    let mut bytes = String::new();
    open.read_to_string(&mut bytes).unwrap();
    assert_eq!(bytes, "first");
    drop(open);
    assert!(stop.wait().unwrap().success());
    assert_eq!(machine.property(UNIT, "Result"), "success");
    assert_eq!(machine.programs(), Vec::<u32>::new());
}

#[test]
fn a_source_that_fails_fails_the_start_and_the_journal_says_why() {
    let source = source();
    source.fault(LIST, Fault::Status(404, String::new()), u64::MAX);
    let machine = machine(&source, "");

    assert!(machine.fails(&["systemctl", "start", UNIT]));

    assert!(!machine.is_mounted("/mnt/repo"));
    let entry = machine.journal(UNIT).into_iter().find(|entry| text(entry, "MESSAGE").contains("404"));
    let entry = entry.expect("the journal says why");
    println!("journal: {}", text(&entry, "MESSAGE"));
    assert_eq!((text(&entry, "PRIORITY"), text(&entry, "SYSLOG_IDENTIFIER")), ("3", "resyncfs"));
    eventually("systemd gives up", || machine.property(UNIT, "ActiveState") == "failed");
    source.mend();
    machine.ok(&["systemctl", "reset-failed", UNIT]);
    machine.ok(&["systemctl", "start", UNIT]);
    assert_eq!(machine.tree("/mnt/repo"), published(&source));
}

#[test]
fn a_hanging_source_ends_the_start_and_leaves_nothing() {
    let source = source();
    source.fault(LIST, Fault::StallHead(Duration::from_secs(3600)), u64::MAX);
    let machine = machine(&source, "TimeoutStartSec=2\nRestart=no");

    assert!(machine.fails(&["systemctl", "start", UNIT]));

    assert_eq!(machine.property(UNIT, "Result"), "timeout");
    assert!(!machine.is_mounted("/mnt/repo"));
    assert_eq!(machine.programs(), Vec::<u32>::new());
}

#[test]
fn a_long_first_tree_is_given_time_as_long_as_it_makes_progress() {
    let source = source();
    for number in 0..6000 {
        source.put(&format!("many/{number}"), Resource::new(format!("{number}")));
    }
    source.fault(LIST, Fault::Slow(Duration::from_millis(200)), u64::MAX);
    let machine = machine(&source, "TimeoutStartSec=5\nRestart=no");
    let began = Instant::now();

    let mut start = machine.command(&["systemctl", "start", UNIT]).spawn().unwrap();

    eventually("the line tells of progress", || {
        let line = status_line(&machine);
        line.starts_with("first tree: downloading documents") && !line.ends_with(" 0.0 kB")
    });
    println!("status: {}", status_line(&machine));
    assert!(start.wait().unwrap().success());
    println!("a start with TimeoutStartSec=5 took {:?}", began.elapsed());
    assert!(machine.is_mounted("/mnt/repo"));
}

#[test]
fn after_kill_9_the_tree_is_back_also_for_its_users() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", UNIT]);
    let before = process(&machine);
    let _open = File::open(machine.path("/mnt/repo/a.txt")).unwrap();
    let began = Instant::now();

    machine.ok(&["kill", "-9", &before]);

    eventually_within(Duration::from_secs(60), "the tree is back", || {
        std::fs::read(machine.path("/mnt/repo/a.txt")).is_ok_and(|bytes| bytes == b"first")
            && machine.property(UNIT, "ActiveState") == "active"
            && process(&machine) != before
    });
    println!("back {:?} after kill -9", began.elapsed());
    comes_back(&machine, &source, &before);
    assert_eq!(machine.property(UNIT, "NRestarts"), "1");
}

#[test]
fn a_dead_mount_that_somebody_left_is_detached_at_the_start() {
    let source = source();
    let machine = machine(&source, "");
    let mut other = machine
        .command(&["/usr/bin/resyncfs", "mount", "-f", "-o", "cache=/tmp/other", &source.list_url(), "/mnt/repo"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the other mount is there", || machine.is_mounted("/mnt/repo"));
    machine.ok(&["pkill", "-9", "-x", "resyncfs"]);
    other.wait().unwrap();
    assert!(machine.is_mounted("/mnt/repo") && machine.fails(&["ls", "/mnt/repo"]));

    machine.ok(&["systemctl", "start", UNIT]);

    assert_eq!(machine.tree("/mnt/repo"), published(&source));
}

#[test]
fn a_reload_returns_when_what_is_new_can_be_seen() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", UNIT]);
    source.put("new.txt", Resource::new("third"));

    machine.ok(&["systemctl", "reload", UNIT]);

    assert_eq!(machine.tree("/mnt/repo"), published(&source));
    assert_eq!(machine.property(UNIT, "ActiveState"), "active");
}

#[test]
fn a_hangup_signal_is_a_reload_from_beginning_to_end() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", UNIT]);
    source.put("new.txt", Resource::new("third"));
    source.fault(LIST, Fault::Held(10), u64::MAX);

    machine.ok(&["systemctl", "kill", "--signal=HUP", "--kill-who=main", UNIT]);

    eventually("systemd knows of the reload", || machine.property(UNIT, "ActiveState") == "reloading");
    assert!(!machine.path("/mnt/repo/new.txt").exists());
    source.mend();
    eventually_within(Duration::from_secs(60), "the reload ends", || machine.property(UNIT, "ActiveState") == "active");
    assert_eq!(machine.tree("/mnt/repo"), published(&source));
}

#[test]
fn log_lines_come_to_the_journal_with_priority_name_and_fields() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", UNIT]);
    source.fault("a.txt", Fault::Body(b"wrong".to_vec()), u64::MAX);

    assert!(std::fs::read(machine.path("/mnt/repo/a.txt")).is_err());

    let find = |message: &str| {
        let entry = machine.journal(UNIT).into_iter().find(|entry| text(entry, "MESSAGE").starts_with(message));
        let entry = entry.unwrap_or_else(|| panic!("no line {message:?}"));
        assert_eq!(text(&entry, "SYSLOG_IDENTIFIER"), "resyncfs");
        assert_eq!(text(&entry, "_SYSTEMD_UNIT"), UNIT);
        assert_eq!(text(&entry, "_TRANSPORT"), "journal");
        entry
    };
    let mounted = find("mounted");
    assert_eq!(text(&mounted, "PRIORITY"), "6");
    assert_eq!(text(&mounted, "RESYNCFS_SOURCE"), source.list_url());
    assert_eq!(text(&mounted, "RESYNCFS_DIRECTORY"), "/mnt/repo");
    assert_eq!(text(&mounted, "TARGET"), "resyncfs::mount::lifecycle");
    let failed = find("read: ");
    println!("journal: {}", serde_json::to_string(&failed).unwrap());
    assert_eq!(text(&failed, "PRIORITY"), "4");
    assert_eq!(text(&failed, "RESYNCFS_URI"), format!("{}a.txt", source.url()));
    assert!(!text(&failed, "RESYNCFS_INO").is_empty());
}

#[test]
fn without_a_network_the_tree_of_the_last_time_is_there_at_once() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", UNIT]);
    assert_eq!(machine.tree("/mnt/repo"), published(&source));
    machine.ok(&["systemctl", "stop", UNIT]);
    source.take_log();
    drop_in(&machine, "offline", "RestrictAddressFamilies=\nRestrictAddressFamilies=AF_UNIX");

    machine.ok(&["systemctl", "start", UNIT]);

    assert_eq!(machine.tree("/mnt/repo"), published(&source), "names, sizes and what was read before");
    // It is asked again for half a minute before that counts as a failure.
    eventually_within(Duration::from_secs(90), "the line tells that the Source cannot be asked", || {
        status_line(&machine).contains("failed (")
    });
    println!("status: {}", status_line(&machine));
    assert_eq!(source.log(), Vec::new());
}

#[test]
fn a_stopped_process_is_replaced_and_an_idle_one_stays() {
    let source = source();
    let machine = machine(&source, "WatchdogSec=2");
    machine.ok(&["systemctl", "start", UNIT]);
    let before = process(&machine);
    let mut beats = std::collections::BTreeSet::new();
    eventually("signs of life come without any use of the mount", || {
        beats.insert(machine.property(UNIT, "WatchdogTimestampMonotonic"));
        beats.len() > 4
    });
    assert_eq!((process(&machine), machine.property(UNIT, "NRestarts").as_str()), (before.clone(), "0"));

    machine.ok(&["kill", "-STOP", &before]);

    comes_back(&machine, &source, &before);
    let journal: Vec<_> = machine.journal(UNIT).iter().map(|entry| text(entry, "MESSAGE").to_owned()).collect();
    assert!(journal.iter().any(|message| message.contains("Watchdog timeout")), "{journal:#?}");
}

#[test]
fn a_token_of_the_credential_store_reaches_the_source_alone() {
    let source = source();
    let machine = machine(&source, "");
    machine.write_secret("/etc/credstore/resyncfs.repo.bearer", "s3cret-token\n");
    machine.ok(&["systemctl", "start", UNIT]);

    assert_eq!(machine.tree("/mnt/repo"), published(&source));
    let log = source.log();
    assert!(log.len() >= 3, "{log:?}");
    assert!(log.iter().all(|asked| asked.field("authorization") == Some("Bearer s3cret-token")), "{log:?}");
    let journal =
        machine.ok(&["journalctl", "--no-pager", "--output=json"]) + &machine.ok(&["systemctl", "show", UNIT]);
    assert!(!journal.contains("s3cret-token"));
}

#[test]
fn the_units_are_right_and_as_hardened_as_a_mount_allows() {
    let source = source();
    let machine = machine(&source, "");
    let units = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/systemd");
    for name in ["mnt-repo.mount", "mnt-repo.automount"] {
        machine.write(&format!("/usr/lib/systemd/system/{name}"), &std::fs::read_to_string(units.join(name)).unwrap());
    }
    machine.ok(&["systemctl", "daemon-reload"]);

    // Whether the man pages are installed is the package's affair.
    let verified =
        machine.run(&["systemd-analyze", "verify", "--man=no", UNIT, "mnt-repo.mount", "mnt-repo.automount"]);

    assert!(verified.status.success(), "{verified:?}");
    assert_eq!(String::from_utf8_lossy(&verified.stderr), "");
    // 4.0 of 10; what is left needs a mount namespace, or the network, or is what mounting takes.
    let judged = machine.ok(&["systemd-analyze", "security", "--no-pager", "--threshold=42", UNIT]);
    println!("{}", judged.lines().last().unwrap_or_default());
}

/// Reading again from the start, of a file that was open before: `ESTALE` and the like are errors.
#[test]
fn who_has_a_file_open_over_a_reload_goes_on_reading_its_bytes() {
    let source = source();
    let machine = machine(&source, "");
    machine.ok(&["systemctl", "start", UNIT]);
    let mut open = File::open(machine.path("/mnt/repo/a.txt")).unwrap();
    let mut bytes = String::new();
    open.read_to_string(&mut bytes).unwrap();
    source.put("a.txt", Resource::new("changed"));

    machine.ok(&["systemctl", "reload", UNIT]);

    let mut again = String::new();
    open.rewind().unwrap();
    open.read_to_string(&mut again).unwrap();
    assert_eq!((bytes.as_str(), again.as_str()), ("first", "first"));
    assert_eq!(machine.tree("/mnt/repo"), published(&source));
}
