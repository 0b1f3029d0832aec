//! Deletions that are too many to be believed wait for somebody who says that they are meant.

mod common;

use common::changing::{ChangingSource, Style};
use common::mounted::{Mounted, PROGRAM};
use common::source::{Resource, Source};
use std::process::Command;

const FILES: usize = 20;

fn command(name: &[&str], mounted: &Mounted) -> String {
    let output = Command::new(PROGRAM).args(name).arg(mounted.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn source() -> ChangingSource {
    let resources = (0..FILES).map(|number| (format!("f/{number}"), Resource::new(format!("bytes {number}"))));
    ChangingSource::start(Style::Rolling(1000), resources)
}

/// How many names are shown; the bytes of what is gone cannot be had any more.
fn shown(mounted: &Mounted) -> usize {
    std::fs::read_dir(mounted.join("f")).unwrap().count()
}

/// Promise: never an accidental emptiness. All but the deletions is applied; they outlive a restart, and a word applies them.
#[test]
fn too_many_deletions_are_held_back_until_somebody_accepts_them() {
    let mut source = source();
    let mounted = Mounted::new(&source.source().url(), "poll=1h");

    source.pass(60);
    for number in 0..15 {
        source.delete(&format!("f/{number}"));
    }
    source.put("f/new", Resource::new("new"));
    source.publish();
    let refreshed = command(&["refresh"], &mounted);

    assert_eq!(shown(&mounted), FILES + 1, "what is new is there, and what is gone too");
    assert!(refreshed.contains("15 unconfirmed deletions"), "{refreshed}");
    assert!(refreshed.contains("resyncfs refresh --accept-deletions"), "{refreshed}");

    mounted.remount();
    assert!(command(&["refresh"], &mounted).contains("15 unconfirmed deletions"));
    assert!(command(&["status"], &mounted).contains("15 unconfirmed deletions"));
    assert_eq!(shown(&mounted), FILES + 1);

    let accepted = command(&["refresh", "--accept-deletions"], &mounted);
    assert!(accepted.contains("15 deleted"), "{accepted}");
    assert_eq!(shown(&mounted), FILES + 1 - 15);
    assert!(!command(&["status"], &mounted).contains("unconfirmed"));
}

/// What the Source takes back before anybody has accepted it never happened.
#[test]
fn a_held_deletion_ends_when_the_resource_is_back() {
    let mut source = source();
    let mounted = Mounted::new(&source.source().url(), "poll=1h");

    source.pass(60);
    for number in 0..15 {
        source.delete(&format!("f/{number}"));
    }
    source.publish();
    command(&["refresh"], &mounted);
    source.pass(60);
    for number in 0..15 {
        source.put(&format!("f/{number}"), Resource::new(format!("again {number}")));
    }
    source.publish();
    let refreshed = command(&["refresh"], &mounted);

    assert!(!refreshed.contains("unconfirmed"), "{refreshed}");
    assert_eq!(std::fs::read_to_string(mounted.join("f/3")).unwrap(), "again 3");
    assert_eq!(shown(&mounted), FILES);
}

/// A Resource List that is suddenly short is held back like a Change List that deletes.
#[test]
fn a_resource_list_that_is_suddenly_short_takes_nothing_away() {
    let mut source = source();
    let mounted = Mounted::new(&source.source().url(), "poll=1h");

    for number in 0..15 {
        source.source().remove(&format!("f/{number}"));
    }
    source.pass(60);
    source.list();
    let refreshed = command(&["refresh"], &mounted);

    assert_eq!(shown(&mounted), FILES);
    assert!(refreshed.contains("15 unconfirmed deletions"), "{refreshed}");
    command(&["refresh", "--accept-deletions"], &mounted);
    assert_eq!(shown(&mounted), FILES - 15);
}

#[test]
fn who_believes_every_deletion_says_so() {
    let mut source = source();
    let mounted = Mounted::new(&source.source().url(), "poll=1h,max-delete=100");

    source.pass(60);
    for number in 0..19 {
        source.delete(&format!("f/{number}"));
    }
    source.publish();

    assert!(command(&["refresh"], &mounted).contains("19 deleted"));
    assert_eq!(shown(&mounted), 1);
}

/// A list that is cut off for a moment leaves neither deletions that wait nor names of what is gone.
#[test]
fn a_list_cut_for_a_moment_leaves_no_name_of_what_is_gone() {
    let source = Source::start();
    let put = |number: usize| source.put(&format!("f/{number}"), Resource::new(format!("bytes {number}")));
    (0..FILES).for_each(put);
    let publish = |minute: u32| {
        let list = source.resource_list_at(&format!("2024-05-01T10:{minute:02}:00Z"));
        source.document("resourcelist.xml", list);
    };
    publish(0);
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    (5..FILES).for_each(|number| source.remove(&format!("f/{number}")));
    publish(1);
    assert!(command(&["refresh"], &mounted).contains("15 unconfirmed deletions"));
    assert_eq!(shown(&mounted), FILES);

    (5..FILES).for_each(put);
    source.remove("f/2");
    source.remove("f/12");
    publish(2);
    let refreshed = command(&["refresh"], &mounted);

    assert!(refreshed.contains("2 deleted") && !refreshed.contains("unconfirmed"), "{refreshed}");
    assert_eq!(shown(&mounted), FILES - 2);
    assert!(!mounted.join("f/2").exists() && !mounted.join("f/12").exists());
}

/// A list that is empty takes nothing away because another list of its set, which was empty too, is back.
#[test]
fn an_empty_list_is_not_believed_because_another_is_back() {
    let source = Source::start();
    let base = source.url();
    let lists = [("a", 0..12), ("b", 12..28), ("c", 28..88)];
    lists[2].1.clone().chain(0..28).for_each(|number| source.put(&format!("f/{number}"), Resource::new("bytes")));
    let publish = |minute: u32, empty: &[&str]| {
        let mut index = String::from("<sitemapindex xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">");
        for (name, files) in &lists {
            let files = if empty.contains(name) { 0..0 } else { files.clone() };
            let urls: String = files.map(|number| format!("<url><loc>{base}f/{number}</loc></url>")).collect();
            let list = format!("<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">{urls}</urlset>");
            source.document(&format!("{name}.xml"), list);
            index += &format!(
                "<sitemap><loc>{base}{name}.xml</loc><lastmod>2024-05-01T10:{minute:02}:00Z</lastmod></sitemap>"
            );
        }
        source.document("index.xml", index + "</sitemapindex>");
    };
    publish(0, &[]);
    let mounted = Mounted::new(&format!("{base}index.xml"), "poll=1h");
    publish(1, &["a", "b"]);
    assert!(command(&["refresh"], &mounted).contains("28 unconfirmed deletions"));

    publish(2, &["a"]);
    let refreshed = command(&["refresh"], &mounted);

    assert!(refreshed.contains("12 unconfirmed deletions"), "{refreshed}");
    assert_eq!(shown(&mounted), 88);
}
