//! Changes announced by documents that somebody else's library writes, and the real nginx serves.

mod common;

use common::mounted::Mounted;
use common::nginx::Nginx;
use common::tree;
use serde_json::{Value, json};
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const FILES: u64 = 60;

/// A Source in motion: its files, and the changes to announce.
struct Motion {
    nginx: Nginx,
    /// When the last change was.
    now: f64,
    /// When the next document begins.
    from: f64,
    changes: Vec<Value>,
}

impl Motion {
    /// Files with a Resource List beside these capabilities.
    fn start(capabilities: &Value) -> Motion {
        let nginx = Nginx::serving_plain_names(FILES);
        nginx.publish(&json!([{"kind": "capabilitylist", "name": "capabilitylist.xml", "capabilities": capabilities}]));
        // A list fetched in the very second it was written is asked for whole once more: its validators tell seconds apart.
        let list = fs::File::options().write(true).open(nginx.documents().join("resourcelist.xml")).unwrap();
        list.set_modified(SystemTime::now() - Duration::from_secs(10)).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        Motion { nginx, now, from: now, changes: Vec::new() }
    }

    fn record(&mut self, path: &str, change: &str) {
        // Not the times of this machine's clock: the order of changes must not depend on its pace.
        self.now += 0.25;
        self.changes.push(json!({"path": path, "change": change, "time": self.now}));
    }

    fn put(&mut self, path: &str, text: &str) {
        let file = self.nginx.files().join(path);
        let change = if file.exists() { "updated" } else { "created" };
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        self.record(path, change);
        let modified = UNIX_EPOCH + Duration::from_secs_f64(self.now);
        fs::File::options().write(true).open(&file).unwrap().set_modified(modified).unwrap();
    }

    fn delete(&mut self, path: &str) {
        fs::remove_file(self.nginx.files().join(path)).unwrap();
        self.record(path, "deleted");
    }

    /// Changes of every kind, some of them of one file.
    fn live(&mut self, round: u32) {
        self.put("f0/file-0.txt", &format!("updated in round {round}"));
        self.put(&format!("new/{round}.txt"), "created");
        self.put(&format!("new/{round}.txt"), &format!("and updated in round {round}"));
        self.delete(&format!("f1/file-{round}1.txt"));
        self.put(&format!("new/passing-{round}.txt"), "created");
        self.delete(&format!("new/passing-{round}.txt"));
        self.delete(&format!("f2/file-{round}2.txt"));
        self.put(&format!("f2/file-{round}2.txt"), &format!("there again in round {round}"));
    }

    /// The changes so far, each file as it is now: the library cannot describe what is gone.
    fn announced(&self) -> Vec<Value> {
        let exists = |change: &Value| self.nginx.files().join(change["path"].as_str().unwrap()).exists();
        let announced = self.changes.iter().filter(|change| change["change"] == "deleted" || exists(change));
        announced.cloned().collect()
    }

    /// Has the mount look, which needs no Resource List, and compares every byte.
    fn assert_followed(&self, mounted: &Mounted) {
        let lists = || {
            let whole = |line: &&String| line.contains("GET /documents/resourcelist.xml") && line.contains("\" 200 ");
            self.nginx.access_log().iter().filter(whole).count()
        };
        let before = lists();

        mounted.try_refresh().unwrap();

        let (shown, published) = (tree(&mounted.path()), tree(&self.nginx.files()));
        assert_eq!(shown.keys().collect::<Vec<_>>(), published.keys().collect::<Vec<_>>());
        assert!(shown == published, "the bytes differ");
        assert_eq!(lists(), before, "the Resource List is not asked for whole");
    }
}

fn mount(motion: &Motion) -> Mounted {
    Mounted::new(&motion.nginx.url(), "poll=1h")
}

/// One list that grows, in both versions of the standard and in either order.
fn follows_an_open_list(spec: &str, newest_first: bool) {
    let mut motion = Motion::start(&json!({"resourcelist": "resourcelist.xml", "changelist": "changes.xml"}));
    let publish = |motion: &Motion| {
        let mut entries = motion.announced();
        if newest_first {
            entries.reverse();
        }
        motion.nginx.publish(
            &json!([{"kind": "changelist", "name": "changes.xml", "spec": spec, "from": motion.from, "entries": entries}]),
        );
    };
    publish(&motion);
    let mounted = mount(&motion);

    for round in 1..=4 {
        motion.live(round);
        publish(&motion);
        motion.assert_followed(&mounted);
        if round == 2 {
            mounted.remount();
        }
    }
}

#[test]
fn an_open_change_list_is_followed() {
    follows_an_open_list("1.1", false);
}

#[test]
fn a_change_list_with_the_newest_first_is_followed() {
    follows_an_open_list("1.1", true);
}

#[test]
fn a_change_list_of_version_1_0_is_followed() {
    follows_an_open_list("1.0", false);
}

/// The library splits a long list into parts that all carry the times of the whole.
#[test]
fn a_change_list_in_parts_is_followed() {
    let mut motion = Motion::start(&json!({"resourcelist": "resourcelist.xml", "changelist": "changes.xml"}));
    let publish = |motion: &Motion| {
        motion.nginx.publish(
            &json!([{"kind": "changelist", "name": "changes.xml", "from": motion.from, "most": 5, "entries": motion.announced()}]),
        );
    };
    publish(&motion);
    let mounted = mount(&motion);

    for round in 1..=4 {
        motion.live(round);
        publish(&motion);
        motion.assert_followed(&mounted);
    }
}

/// As repositories with the Metadata Harvesting profile publish: no Change List, an archive of closed ones.
#[test]
fn a_change_list_archive_without_a_change_list_is_followed() {
    let mut motion = Motion::start(&json!({"resourcelist": "resourcelist.xml", "changelist-archive": "archive.xml"}));
    let mut lists: Vec<Value> = Vec::new();
    let publish = |motion: &mut Motion, lists: &mut Vec<Value>| {
        let name = format!("changes-{}.xml", lists.len());
        let until = motion.now + 0.1;
        lists.push(json!({"name": name, "from": motion.from, "until": until}));
        motion.nginx.publish(&json!([
            {"kind": "changelist", "name": name, "from": motion.from, "until": until, "entries": motion.announced()},
            {"kind": "changelist-archive", "name": "archive.xml", "lists": lists},
        ]));
        motion.from = until;
        motion.changes.clear();
    };
    publish(&mut motion, &mut lists);
    let mounted = mount(&motion);

    for round in 1..=4 {
        motion.live(round);
        publish(&mut motion, &mut lists);
        motion.assert_followed(&mounted);
    }
}
