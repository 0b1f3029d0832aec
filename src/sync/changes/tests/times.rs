//! The time and the order of changes, by their entries.

use super::*;
use crate::document::{Limits, Reader};
use Change::{Created, Deleted, Updated};

#[test]
fn example_19_of_version_1_1_is_understood() {
    let xml = r#"<?xml version="1.0" encoding="UTF-8"?>
        <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:rs="http://www.openarchives.org/rs/terms/">
          <rs:ln rel="up" href="http://example.com/dataset1/capabilitylist.xml"/>
          <rs:md capability="changelist" from="2013-01-03T00:00:00Z"/>
          <url><loc>http://example.com/res1.html</loc><lastmod>2000-01-01T01:01:00Z</lastmod>
            <rs:md change="created" datetime="2013-01-03T11:00:00Z"/></url>
          <url><loc>http://example.com/res2.pdf</loc><lastmod>2013-01-03T13:00:00Z</lastmod>
            <rs:md change="updated" datetime="2013-01-03T13:00:00Z"/></url>
          <url><loc>http://example.com/res3.tiff</loc><rs:md change="deleted" datetime="2013-01-03T18:00:00Z"/></url>
          <url><loc>http://example.com/res2.pdf</loc><rs:md change="updated"/></url>
        </urlset>"#;
    let time = |raw| Timestamp::parse(raw).unwrap();
    let known = KnownJournal::since(Some(time("2013-01-03T00:00:00Z")));
    let mut reader = Reader::new(xml.as_bytes(), None, Limits::default()).unwrap();
    let mut it = list("l", None, None, Vec::new());
    it.from = reader.header().from.map(|from| from.seconds);
    while let Some(entry) = reader.next_entry().unwrap() {
        it.entries.push(entry);
    }

    let news = look(&known, &[it], time("2013-01-04T00:00:00Z").seconds).1;

    let told: Vec<_> = news.changes.iter().map(|it| (it.entry.loc.path(), it.change, it.is_doubtful)).collect();
    assert_eq!(told, [("/res1.html", Created, false), ("/res3.tiff", Deleted, false), ("/res2.pdf", Updated, false)]);
    assert_eq!(news.changes[0].time, time("2013-01-03T11:00:00Z"));
    assert!(news.changes[2].time > time("2013-01-03T18:00:00Z"), "its place says that it is the most recent");
}

#[test]
fn an_old_lastmod_never_means_already_processed() {
    let entries = vec![modified("a", Created, 3), dated("b", Created, 12)];
    for from in [Some(11), None] {
        let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", from, None, vec![entries[0].clone()])], 20);
        assert_eq!(told(&news).len(), 1, "alone, from {from:?}");

        let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", from, None, entries.clone())], 20);
        assert_eq!(told(&news).len(), 2, "beside another, from {from:?}");
    }
}

#[test]
fn without_datetime_a_lastmod_in_the_interval_is_the_time() {
    let entries = vec![modified("a", Created, 5), modified("b", Updated, 15)];

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(0), None, entries)], 20);

    assert_eq!(told(&news), [("b", Updated, 15)]);
}

#[test]
fn a_list_may_be_written_newest_first() {
    let entries = vec![change("a", Deleted), dated("b", Updated, 14), dated("a", Created, 12), dated("c", Created, 11)];

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

    assert_eq!(told(&news), [("c", Created, 11), ("b", Updated, 14), ("a", Deleted, 14)]);
}

/// Equal times say nothing about the order, whatever bears them.
#[test]
fn of_equal_datetimes_the_lastmods_show_the_order() {
    let entries = vec![
        modified("f", Updated, 50),
        modified("g", Deleted, 45),
        dated("h", Updated, 40),
        dated("i", Updated, 40),
        modified("g", Updated, 30),
        modified("f", Updated, 20),
    ];
    let oldest_first: Vec<_> = entries.iter().rev().cloned().collect();
    for entries in [entries, oldest_first] {
        let news = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries)], 90).1;
        let mut told = told(&news);
        told.sort_unstable_by_key(|it| it.0);
        assert_eq!(told, [("f", Updated, 50), ("g", Deleted, 45), ("h", Updated, 40), ("i", Updated, 40)]);
    }
}

#[test]
fn a_list_may_be_written_in_no_order() {
    let entries =
        vec![dated("a", Deleted, 14), dated("b", Created, 11), dated("a", Created, 12), dated("c", Created, 13)];

    let (is_joined, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

    assert!(is_joined);
    assert_eq!(told(&news), [("b", Created, 11), ("c", Created, 13), ("a", Deleted, 14)]);
}

#[test]
fn several_changes_of_one_resource_collapse_to_the_last() {
    let entries =
        vec![dated("a", Created, 11), dated("a", Updated, 12), dated("a", Deleted, 13), dated("b", Created, 14)];

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

    assert_eq!(told(&news), [("a", Deleted, 13), ("b", Created, 14)]);
}

#[test]
fn equal_times_are_decided_by_the_place() {
    let entries = vec![dated("a", Created, 11), dated("a", Deleted, 11)];

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

    assert_eq!(told(&news), [("a", Deleted, 11)]);
}

#[test]
fn of_equal_times_the_later_document_counts() {
    let lists = [
        list("1", Some(10), Some(15), vec![dated("a", Created, 15), dated("b", Deleted, 15)]),
        list("2", Some(15), None, vec![dated("b", Created, 15), dated("a", Deleted, 15)]),
    ];
    for lists in [lists.clone(), [lists[1].clone(), lists[0].clone()]] {
        let mut told = look(&KnownJournal::since(Some(t(10))), &lists, 30).1.changes;
        told.sort_unstable_by(|one, other| one.entry.loc.cmp(&other.entry.loc));

        assert_eq!(told.iter().map(|it| it.change).collect::<Vec<_>>(), [Deleted, Created]);
    }
}

#[test]
fn what_was_written_in_the_baselines_second_may_be_later() {
    let known = KnownJournal::since(Some(Timestamp { nanos: 11_000_000, ..t(100) }));
    let written =
        |second| List { modified: Some(second), ..list("changes", None, None, vec![change("a", Change::Created)]) };

    assert_eq!(look(&known, &[written(100)], 500).1.changes.len(), 1);
    assert_eq!(look(&known, &[written(99)], 500).1.changes.len(), 0);
}

#[test]
fn what_is_dated_to_the_day_may_be_later_than_the_list() {
    const DAY: i64 = 86_400;
    let known = KnownJournal::since(Some(Timestamp { nanos: 500_000_000, ..t(10 * DAY + 6 * 3600) }));
    let days = [8, 9, 10].map(|day| modified(&format!("r{day}"), Deleted, day * DAY));
    let second = modified("second", Created, 10 * DAY + 6 * 3600);
    let before = modified("before", Created, 10 * DAY + 6 * 3600 - 1);

    let news = look(&known, &[list("l", Some(0), None, [&days[..], &[before, second]].concat())], 11 * DAY).1;

    let names: Vec<_> = told(&news).into_iter().map(|(name, ..)| name.to_owned()).collect();
    assert_eq!(names, ["r9", "r10", "second"]);
}

#[test]
fn a_late_change_does_not_undo_a_later_one_that_was_seen() {
    let known =
        look(&KnownJournal::since(Some(t(10))), &[list("l", Some(0), None, vec![dated("a", Deleted, 15)])], 20).1.known;

    let (_, news) =
        look(&known, &[list("l", Some(0), None, vec![dated("a", Updated, 12), dated("a", Deleted, 15)])], 30);

    assert_eq!(told(&news), [], "its last change is applied");
}

#[test]
fn a_time_to_come_is_not_known_yet() {
    let news =
        look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), Some(900), vec![dated("a", Created, 800)])], 20)
            .1;

    assert_eq!(told(&news), [("a", Created, 800)]);
    assert_eq!(news.known.until, Some(t(20)));
}

#[test]
fn a_disorder_that_cannot_be_resolved_is_a_gap() {
    let known =
        look(&KnownJournal::since(Some(t(10))), &[list("l", Some(0), None, vec![dated("x", Created, 11)])], 15).1.known;
    let shuffled = |last: Entry| {
        let entries = vec![
            dated("b", Created, 14),
            dated("x", Created, 11),
            dated("c", Created, 13),
            dated("a", Created, 12),
            last,
        ];
        look(&known, &[list("l", Some(0), None, entries)], 20).0
    };

    assert!(!shuffled(change("a", Deleted)), "before or after its creation?");
    assert!(shuffled(dated("d", Created, 15)), "nothing of it lacks a time");
}

#[test]
fn an_entry_without_change_is_an_update_and_a_document_none() {
    let document = Entry { capability: Some(crate::document::Capability::ChangeList), ..Entry::new(uri("l2")) };
    let silent = Entry { datetime: Some(t(12)), ..Entry::new(uri("a")) };

    let news = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(0), None, vec![document, silent])], 20).1;

    assert_eq!(told(&news), [("a", Updated, 12)]);
}

/// Sources that date by the second say two things of a resource in one.
#[test]
fn of_equal_times_only_what_says_otherwise_is_new() {
    let mut it = list("l", Some(0), None, vec![dated("a", Created, 11)]);
    let first = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 20).1.known;
    for (written, last) in [("oldest first", 1), ("newest first", 0)] {
        it.entries.insert(last, dated("a", Deleted, 11));

        let (_, second) = look(&first, std::slice::from_ref(&it), 30);
        // What was dropped from its beginning keeps nothing from being known.
        let rolled = List { entries: [&[dated("x", Created, 5)], &it.entries[..]].concat(), ..it.clone() };
        let (_, third) = look(&second.known, &[rolled], 40);

        if last == 1 {
            assert_eq!(told(&second), [("a", Deleted, 11)], "{written}");
        }
        assert_eq!(told(&third), [], "{written}");
        it.entries.remove(last);
    }
}

#[test]
fn a_time_that_is_yet_to_come_outlasts_no_change() {
    let later = t(1_000_000_000_000);
    let far = |name: &str, what| Entry { datetime: Some(later), ..change(name, what) };
    let known = KnownJournal::since(Some(t(10)));
    let mut it = list("l", Some(5), None, vec![dated("b", Updated, 20), far("a", Deleted)]);
    let first = look(&known, std::slice::from_ref(&it), 100).1;
    assert_eq!(first.changes.len(), 2);
    assert!(first.changes.iter().all(|change| change.time <= t(101)), "{:?}", told(&first));

    it.entries.push(dated("a", Created, 200));
    let second = look(&first.known, std::slice::from_ref(&it), 300).1;
    assert_eq!(told(&second), [("a", Created, 200)]);

    // Where nothing bears another time.
    let mut ahead = list("l", Some(1_000_000_000_000), None, vec![far("a", Updated)]);
    let first = look(&known, std::slice::from_ref(&ahead), 100).1;
    assert!(first.changes.iter().all(|change| change.time <= t(101)), "{:?}", told(&first));
    ahead.entries.push(far("a", Created));
    assert_eq!(look(&first.known, &[ahead], 300).1.changes.len(), 1);
}

/// Clocks and unsaid zones differ by a day at most.
#[test]
fn a_time_two_days_ahead_is_none() {
    let (now, day) = (1_000_000, 86_400);
    let told_at = |ahead: i64| {
        let it = list("l", Some(5), None, vec![dated("a", Updated, 900_000), dated("b", Updated, now + ahead)]);
        look(&KnownJournal::since(Some(t(10))), &[it], now).1.changes[1].time.seconds
    };

    assert_eq!((told_at(day), told_at(day + 1), told_at(2 * day)), (now + day, 900_000, 900_000));
}

#[test]
fn of_an_earlier_time_nothing_later_counts() {
    let known = KnownJournal::since(Some(t(10))).up_to(t(20));
    let all = vec![dated("a", Updated, 15), dated("b", Created, 20), dated("a", Deleted, 21), dated("c", Created, 30)];

    let (_, news) = look(&known, &[list("l", Some(0), None, all)], 100);

    assert_eq!(told(&news), [("a", Updated, 15), ("b", Created, 20)]);
}
