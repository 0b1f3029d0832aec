//! A Source of millions of resources, written to disk once and served by nginx: a Resource List Index over lists of 50,000
//! entries, shaped like the holdings of a big repository.

use crate::common::nginx::{Nginx, free_port};
use crate::common::source::URLSET;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// The most entries of one list that the standard allows.
const ENTRIES: u64 = 50_000;

/// Names of the flat folder, at most.
const FLAT: u64 = 100_000;

/// Days that items are spread over: 25 years of 12 months of 28 days.
const DAYS: u64 = 25 * 12 * 28;

/// As many as one big aggregator's Source has on a usual day.
pub const CHANGES: u64 = 1600;

/// The published documents, and the server.
pub struct BigSource {
    folder: PathBuf,
    resources: u64,
    nginx: Nginx,
}

/// What a resource is in one of the two editions of everything.
pub struct Published {
    pub path: String,
    pub length: u64,
}

impl BigSource {
    /// Serves `resources` resources from `folder`, where they are written unless they are there already.
    pub fn in_folder(folder: &Path, resources: u64) -> BigSource {
        fs::create_dir_all(folder).unwrap();
        use std::os::unix::fs::PermissionsExt;
        // nginx's workers run as another user.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        // The address is part of every URI, so it stays with the documents.
        let port_file = folder.join("port");
        let port = fs::read_to_string(&port_file).ok().and_then(|port| port.parse().ok()).unwrap_or_else(free_port);
        fs::write(&port_file, port.to_string()).unwrap();
        let site = folder.join("site");
        fs::create_dir_all(&site).unwrap();
        let source = BigSource { folder: folder.to_owned(), resources, nginx: Nginx::serving_folder(&site, port) };
        if !folder.join("edition").exists() {
            source.write_lists(1);
            source.publish(1);
        }
        source
    }

    /// Its Capability List.
    pub fn entry_point(&self) -> String {
        self.nginx.url() + "capabilitylist.xml"
    }

    /// Requests answered so far.
    pub fn requests(&self) -> usize {
        self.nginx.access_log().len()
    }

    /// The documents that make up the tree.
    pub fn documents(&self) -> Vec<PathBuf> {
        let mut lists: Vec<_> = (0..self.lists()).map(|list| self.list_file(self.edition(), list)).collect();
        lists.insert(0, self.site().join("resourcelist.xml"));
        lists
    }

    /// The resource of that number, as it is published now.
    pub fn resource(&self, number: u64) -> Published {
        Published { path: path(number, self.resources), length: length(number, self.edition()) }
    }

    /// How many files are published now, changes counted.
    pub fn files(&self) -> u64 {
        let (mut deleted, mut created) = (HashSet::new(), 0);
        for number in 0..self.days() * CHANGES {
            match self.change(number) {
                (_, "created") => created += 1,
                (changed, "deleted") => drop(deleted.insert(changed)),
                (changed, _) => drop(deleted.remove(&changed)),
            }
        }
        self.resources - deleted.len() as u64 + created
    }

    /// What a change is of, and what it is.
    fn change(&self, number: u64) -> (u64, &'static str) {
        let changed = number.wrapping_mul(7919) % self.resources;
        (changed, ["created", "deleted", "updated", "updated"][number as usize % 4])
    }

    /// Writes what [`BigSource::change_everything`] publishes, unless it is written.
    pub fn write_next(&self) {
        let next = self.edition() + 1;
        let written = self.folder.join("written");
        if fs::read_to_string(&written).is_ok_and(|edition| edition == next.to_string()) {
            return;
        }
        self.write_lists(next);
        fs::write(written, next.to_string()).unwrap();
    }

    /// The length of a resource in the edition before.
    pub fn earlier_length(&self, number: u64) -> u64 {
        length(number, self.edition() + 1)
    }

    /// Publishes everything again: every resource has other bytes.
    pub fn change_everything(&self) {
        self.write_next();
        self.publish(self.edition() + 1);
    }

    /// Publishes one more day's changes, [`CHANGES`] of them: two updates on one creation and one deletion.
    pub fn change_some(&self) {
        let days = self.days() + 1;
        fs::write(self.folder.join("days"), days.to_string()).unwrap();
        self.write_changes();
    }

    fn site(&self) -> PathBuf {
        self.folder.join("site")
    }

    fn edition(&self) -> u64 {
        fs::read_to_string(self.folder.join("edition")).ok().and_then(|edition| edition.parse().ok()).unwrap_or(1)
    }

    fn days(&self) -> u64 {
        fs::read_to_string(self.folder.join("days")).ok().and_then(|days| days.parse().ok()).unwrap_or(0)
    }

    fn lists(&self) -> u64 {
        self.resources.div_ceil(ENTRIES)
    }

    /// Two editions are there at a time.
    fn list_file(&self, edition: u64, list: u64) -> PathBuf {
        self.folder.join(format!("lists-{}/{list:05}.xml", edition % 2))
    }

    fn write_lists(&self, edition: u64) {
        let first = self.list_file(edition, 0);
        fs::create_dir_all(first.parent().unwrap()).unwrap();
        let (next, base) = (AtomicU64::new(0), self.nginx.url());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let list = next.fetch_add(1, Ordering::Relaxed);
                        if list >= self.lists() {
                            return;
                        }
                        let numbers = list * ENTRIES..((list + 1) * ENTRIES).min(self.resources);
                        let text = resource_list(&base, numbers, self.resources, edition);
                        let mut file = File::create(self.list_file(edition, list)).unwrap();
                        file.write_all(text.as_bytes()).unwrap();
                        // Two editions that are written within one second, some lists of which have one length, would have one
                        // ETag of nginx's: the second and the length.
                        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_700_000_000 + edition)).unwrap();
                    }
                });
            }
        });
        // Gigabytes on their way to the disk would be work of whatever is measured next.
        assert!(Command::new("sync").status().unwrap().success());
    }

    /// Makes an edition the one that is served.
    fn publish(&self, edition: u64) {
        let base = self.nginx.url();
        let served = self.site().join("lists");
        let _ = fs::remove_file(&served);
        let lists = self.list_file(edition, 0);
        std::os::unix::fs::symlink(lists.parent().unwrap(), &served).unwrap();
        let at = at(edition);
        let mut index = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<sitemapindex xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" \
             xmlns:rs=\"http://www.openarchives.org/rs/terms/\">\n<rs:ln rel=\"up\" href=\"{base}capabilitylist.xml\"/><rs:md capability=\"resourcelist\" at=\"{at}\"/>\n"
        );
        for list in 0..self.lists() {
            let _ = writeln!(index, "<sitemap><loc>{base}lists/{list:05}.xml</loc><lastmod>{at}</lastmod></sitemap>");
        }
        fs::write(self.site().join("resourcelist.xml"), index + "</sitemapindex>\n").unwrap();
        fs::write(
            self.site().join("capabilitylist.xml"),
            format!(
                "{URLSET}<rs:md capability=\"capabilitylist\"/>\
                 <url><loc>{base}resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url>\
                 <url><loc>{base}changelist.xml</loc><rs:md capability=\"changelist\"/></url></urlset>"
            ),
        )
        .unwrap();
        fs::write(self.folder.join("edition"), edition.to_string()).unwrap();
        fs::write(self.folder.join("days"), "0").unwrap();
        self.write_changes();
    }

    fn write_changes(&self) {
        let base = self.nginx.url();
        let from = at(self.edition());
        let day = &from[..10];
        let up = format!("<rs:ln rel=\"up\" href=\"{base}capabilitylist.xml\"/>");
        let mut list = format!("{URLSET}{up}<rs:md capability=\"changelist\" from=\"{from}\"/>\n");
        for number in 0..self.days() * CHANGES {
            let (hour, minute, second) = (number / 3600, number / 60 % 60, number % 60);
            let time = format!("{day}T{hour:02}:{minute:02}:{second:02}Z");
            let (changed, change) = self.change(number);
            let path = match change {
                "created" => format!("new/{}/item-{number}.xml", number / 1000),
                _ => path(changed, self.resources),
            };
            let _ = writeln!(
                list,
                "<url><loc>{base}{path}</loc><lastmod>{time}</lastmod><rs:md change=\"{change}\" datetime=\"{time}\" length=\"{}\"/></url>",
                number % 999
            );
        }
        fs::write(self.site().join("changelist.xml"), list + "</urlset>\n").unwrap();
    }
}

/// The day of an edition, from which on changes are announced.
fn at(edition: u64) -> String {
    format!("2026-{:02}-{:02}T00:00:00Z", 1 + edition / 28 % 12, 1 + edition % 28)
}

/// The folder of a resource: a part in one flat folder, one in a hundred in folders of a thousand, the others in the folders of
/// items (1 to 4 files each), by year, month and day.
pub fn path(number: u64, resources: u64) -> String {
    let flat = FLAT.min(resources / 10);
    let shelved = resources / 100;
    if number < flat {
        return format!("flat/record-{:08x}-{number}.xml", scattered(number) >> 32);
    }
    let Some(nested) = number.checked_sub(flat + shelved) else {
        let number = number - flat;
        return format!("shelf-{:03}/object-{number}.pdf", number / 1000);
    };
    // Of ten files in a row, four items with 1, 2, 3 and 4.
    let (group, place) = (nested / 10, nested % 10);
    let (item, file) = match place {
        0 => (0, 0),
        1..=2 => (1, place - 1),
        3..=5 => (2, place - 3),
        _ => (3, place - 6),
    };
    let items = (resources - flat - shelved).div_ceil(10) * 4;
    let item = group * 4 + item;
    let day = item * DAYS / items.max(1);
    let (year, month, day) = (2000 + day / (12 * 28), 1 + day / 28 % 12, 1 + day % 28);
    let ending = ["xml", "pdf", "txt", "jpg"][file as usize];
    format!("dataset/{year}/{month:02}/{month:02}{day:02}/item-{item}/file-{file}.{ending}")
}

fn length(number: u64, edition: u64) -> u64 {
    scattered(number ^ (edition % 2) << 60) % 1_000_000
}

/// A number like a random one (splitmix64).
pub fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn resource_list(base: &str, numbers: std::ops::Range<u64>, resources: u64, edition: u64) -> String {
    let up = format!("<rs:ln rel=\"up\" href=\"{base}capabilitylist.xml\"/>");
    let mut list = format!("{URLSET}{up}<rs:md capability=\"resourcelist\" at=\"{}\"/>\n", at(edition));
    list.reserve((numbers.end - numbers.start) as usize * 400);
    for number in numbers {
        let path = path(number, resources);
        let chance = scattered(number);
        let stamp = if edition % 2 == 0 { chance >> 8 } else { chance >> 16 };
        let _ = write!(
            list,
            "<url><loc>{base}{path}</loc><lastmod>20{:02}-{:02}-{:02}T{:02}:{:02}:{:02}Z</lastmod><rs:md",
            10 + stamp % 15,
            1 + stamp / 16 % 12,
            1 + stamp / 256 % 28,
            stamp / 8192 % 24,
            stamp / 262_144 % 60,
            stamp / 16_777_216 % 60
        );
        let digest = |part: u64| scattered(number ^ part << 48 ^ (edition % 2) << 60);
        let hashed = chance % 100;
        if hashed >= 5 {
            let _ = write!(list, " hash=\"md5:{:016x}{:016x}", digest(1), digest(2));
            if hashed >= 10 {
                let _ =
                    write!(list, " sha-256:{:016x}{:016x}{:016x}{:016x}", digest(3), digest(4), digest(5), digest(6));
            }
            list.push('"');
        }
        let media_type = match path.as_bytes() {
            [.., b'p', b'd', b'f'] => "application/pdf",
            [.., b'j', b'p', b'g'] => "image/jpeg",
            [.., b't', b'x', b't'] => "text/plain",
            _ => "application/xml",
        };
        let _ = write!(list, " length=\"{}\" type=\"{media_type}\"/>", length(number, edition));
        if chance >> 32 & 0xff < 87 {
            let _ =
                write!(list, "<rs:ln rel=\"describedby\" href=\"{base}{path}.meta.xml\" type=\"application/xml\"/>");
        }
        list.push_str("</url>\n");
    }
    list + "</urlset>\n"
}
