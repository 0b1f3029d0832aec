//! Each rule of incremental synchronization by name.

use super::*;
use crate::document::{Limits, Reader};
use Change::{Created, Deleted, Updated};

#[test]
fn a_list_is_applied_from_the_time_of_the_baseline_on() {
    let all = [dated("a", Created, 5), dated("b", Updated, 10), dated("c", Deleted, 11), dated("d", Created, 12)];

    let (is_joined, news) = look(&Known::since(Some(t(10))), &[list("l", Some(0), None, all.into())], 20);

    assert!(is_joined);
    assert_eq!(told(&news), [("b", Updated, 10), ("c", Deleted, 11), ("d", Created, 12)]);
    assert_eq!(news.known.until, Some(t(12)));
}

#[test]
fn what_was_seen_is_not_told_again() {
    let mut it = list("l", Some(0), None, vec![dated("a", Created, 11), change("b", Updated)]);
    let known = look(&Known::since(Some(t(10))), std::slice::from_ref(&it), 20).1.known;

    let (is_joined, again) = look(&known, std::slice::from_ref(&it), 30);
    it.entries.push(dated("c", Created, 25));
    let (_, news) = look(&known, &[it], 30);

    assert!(is_joined && again.changes.is_empty() && again.known.knows_the_same(&known));
    assert_eq!(told(&news), [("c", Created, 25)]);
}

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
    let known = Known::since(Some(time("2013-01-03T00:00:00Z")));
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
        let (_, news) = look(&Known::since(Some(t(10))), &[list("l", from, None, vec![entries[0].clone()])], 20);
        assert_eq!(told(&news).len(), 1, "alone, from {from:?}");

        let (_, news) = look(&Known::since(Some(t(10))), &[list("l", from, None, entries.clone())], 20);
        assert_eq!(told(&news).len(), 2, "beside another, from {from:?}");
    }
}

#[test]
fn without_datetime_a_lastmod_in_the_interval_is_the_time() {
    let entries = vec![modified("a", Created, 5), modified("b", Updated, 15)];

    let (_, news) = look(&Known::since(Some(t(10))), &[list("l", Some(0), None, entries)], 20);

    assert_eq!(told(&news), [("b", Updated, 15)]);
}

#[test]
fn a_list_may_be_written_newest_first() {
    let entries = vec![change("a", Deleted), dated("b", Updated, 14), dated("a", Created, 12), dated("c", Created, 11)];

    let (_, news) = look(&Known::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

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
        let news = look(&Known::since(Some(t(10))), &[list("l", Some(10), None, entries)], 90).1;
        let mut told = told(&news);
        told.sort_unstable_by_key(|it| it.0);
        assert_eq!(told, [("f", Updated, 50), ("g", Deleted, 45), ("h", Updated, 40), ("i", Updated, 40)]);
    }
}

#[test]
fn a_list_may_be_written_in_no_order() {
    let entries =
        vec![dated("a", Deleted, 14), dated("b", Created, 11), dated("a", Created, 12), dated("c", Created, 13)];

    let (is_joined, news) = look(&Known::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

    assert!(is_joined);
    assert_eq!(told(&news), [("b", Created, 11), ("c", Created, 13), ("a", Deleted, 14)]);
}

#[test]
fn several_changes_of_one_resource_collapse_to_the_last() {
    let entries =
        vec![dated("a", Created, 11), dated("a", Updated, 12), dated("a", Deleted, 13), dated("b", Created, 14)];

    let (_, news) = look(&Known::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

    assert_eq!(told(&news), [("a", Deleted, 13), ("b", Created, 14)]);
}

#[test]
fn equal_times_are_decided_by_the_place() {
    let entries = vec![dated("a", Created, 11), dated("a", Deleted, 11)];

    let (_, news) = look(&Known::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

    assert_eq!(told(&news), [("a", Deleted, 11)]);
}

#[test]
fn of_equal_times_the_later_document_counts() {
    let lists = [
        list("1", Some(10), Some(15), vec![dated("a", Created, 15), dated("b", Deleted, 15)]),
        list("2", Some(15), None, vec![dated("b", Created, 15), dated("a", Deleted, 15)]),
    ];
    for lists in [lists.clone(), [lists[1].clone(), lists[0].clone()]] {
        let mut told = look(&Known::since(Some(t(10))), &lists, 30).1.changes;
        told.sort_unstable_by(|one, other| one.entry.loc.cmp(&other.entry.loc));

        assert_eq!(told.iter().map(|it| it.change).collect::<Vec<_>>(), [Deleted, Created]);
    }
}

/// Few undated entries of a window may be those of another one: the same is told again and again.
#[test]
fn so_many_repeated_undated_entries_are_no_accident() {
    let entries: Vec<_> = ["a", "b", "c", "d"].map(|name| change(name, Updated)).into();
    let known = look(&Known::since(Some(t(10))), &[list("l", None, None, entries.clone())], 20).1.known;
    let rolled = |repeated: usize| {
        let window = [&entries[entries.len() - repeated..], &[change("e", Updated)]].concat();
        look(&known, &[list("l", None, None, window)], 30)
    };

    assert!(!rolled(1).0 && !rolled(2).0 && rolled(3).0);
    assert_eq!(rolled(1).1.changes.len(), 1, "it is known all the same");
}

#[test]
fn a_window_that_rolls_on_is_joined_by_an_entry_seen_before() {
    let entries: Vec<_> = (11..20).map(|time| dated(&format!("r{time}"), Created, time)).collect();
    let known = look(&Known::since(Some(t(10))), &[list("l", Some(10), None, entries[..5].to_vec())], 20).1.known;

    let (is_joined, news) = look(&known, &[list("l", None, None, entries[4..].to_vec())], 30);

    assert!(is_joined);
    assert_eq!(news.changes.len(), 4);
}

#[test]
fn a_window_that_has_rolled_past_is_a_gap() {
    let entries: Vec<_> = (11..20).map(|time| dated(&format!("r{time}"), Created, time)).collect();
    let known = look(&Known::since(Some(t(10))), &[list("l", Some(10), None, entries[..3].to_vec())], 20).1.known;

    for from in [Some(16), None] {
        let (is_joined, _) = look(&known, &[list("l", from, None, entries[6..].to_vec())], 30);

        assert!(!is_joined, "from {from:?}");
    }
}

/// A quiet Source: nothing is told, and the window rolls on at the pace of its clock, whatever that shows.
#[test]
fn a_quiet_window_that_rolls_on_is_no_gap() {
    let now = 1_000_000_000;
    let window = |from: i64| [list("l", Some(from), None, Vec::new())];
    let mut known = look(&Known::since(Some(t(100))), &window(40), now).1.known;
    known.see(t(now));

    for seconds in (60..=600).step_by(60) {
        let (is_joined, news) = look(&known, &window(40 + seconds), now + seconds);
        assert!(is_joined, "after {seconds} s");
        known = news.known;
        known.see(t(now + seconds));
    }

    let stored = serde_json::to_string(&known.state).unwrap();
    let restarted = Known { state: serde_json::from_str(&stored).unwrap(), ..known.clone() };
    assert!(look(&restarted, &window(700), now + 9000).0, "all was seen until then");
    assert!(!look(&restarted, &window(701), now + 9000).0);
    known = look(&known, &window(700), now).1.known;
    known.see(t(i64::MAX));
    assert!(look(&known, &window(760), now).0 && !look(&known, &window(761), now).0, "our clock may be set");
}

/// A list is written once a day, and once it is not.
#[test]
fn a_list_that_stays_the_same_proves_no_time() {
    let window = |from: i64| [list("l", Some(from), None, Vec::new())];
    let mut known = look(&Known::since(Some(t(100))), &window(40), 1000).1.known;
    known.see(t(1000));
    for minute in 1..=300 {
        known = look(&known, &window(40), 1000 + minute).1.known;
        known.see(t(1000 + minute));
    }

    assert!(look(&known, &window(100), 1400).0);
    assert!(!look(&known, &window(101), 1400).0);
}

#[test]
fn a_position_is_stored_before_its_window_has_rolled_past() {
    let window = |from: i64| [list("l", Some(from), None, Vec::new())];
    let mut known = look(&Known::since(Some(t(100))), &window(0), 900).1.known;
    known.see(t(900));
    let stored = known.state.clone();
    let mut goes_on = |passed: i64| {
        known = look(&known, &window(passed), 900).1.known;
        known.see(t(900 + passed));
        known.goes_on_from(&stored)
    };

    assert!(goes_on(0) && goes_on(50));
    assert!(!goes_on(51), "less than half of the window is left");
}

#[test]
fn a_list_that_begins_after_the_baseline_is_a_gap_and_applied() {
    let it = list("l", Some(12), None, vec![dated("a", Created, 13)]);
    let mut known = Known::since(Some(t(10)));

    let (is_joined, _) = look(&known, std::slice::from_ref(&it), 20);
    known.tear(t(20));
    let news = look(&known, std::slice::from_ref(&it), 20).1;
    let (is_joined_then, _) = look(&news.known, std::slice::from_ref(&it), 30);

    assert!(!is_joined && is_joined_then);
    assert_eq!(told(&news), [("a", Created, 13)]);
    assert_eq!(news.known.gap_since, Some(t(10)), "since when changes may be missing stays known");
}

#[test]
fn without_from_no_gap_can_be_seen() {
    let (is_joined, _) = look(&Known::since(Some(t(10))), &[list("l", None, None, vec![dated("a", Created, 13)])], 20);

    assert!(is_joined);
}

#[test]
fn from_and_until_may_stand_in_the_index_only() {
    let entry = Entry { from: Some(t(12)), until: Some(t(14)), ..Entry::new(uri("l")) };
    let mut it = list("l", None, None, vec![modified("a", Created, 13), modified("b", Created, 2)]);
    it.listed = Some(entry);

    let (is_joined, news) = look(&Known::since(Some(t(10))), &[it], 20);

    assert!(!is_joined, "it begins after what is known");
    assert_eq!(told(&news), [("a", Created, 13), ("b", Created, 13)]);
    assert_eq!(news.known.until, Some(t(14)), "closed by its index");
}

#[test]
fn the_lists_own_interval_decides_over_its_index() {
    let mut it = list("l", Some(5), None, vec![dated("a", Created, 13)]);
    it.listed = Some(Entry { from: Some(t(12)), until: Some(t(19)), ..Entry::new(uri("l")) });

    let (is_joined, news) = look(&Known::since(Some(t(10))), &[it], 20);

    assert!(is_joined);
    assert_eq!(news.known.until, Some(t(13)), "it is open");
}

#[test]
fn without_any_time_all_counts_and_deletions_are_doubtful() {
    let entries = vec![change("a", Created), change("b", Deleted), change("c", Created), change("c", Deleted)];

    let (is_joined, news) = look(&Known::since(None), &[list("l", None, None, entries)], 20);

    assert!(is_joined);
    let doubts: Vec<_> = news.changes.iter().map(|it| (it.entry.loc.path(), it.change, it.is_doubtful)).collect();
    assert_eq!(doubts, [("/a", Created, false), ("/b", Deleted, true), ("/c", Deleted, true)]);
}

#[test]
fn an_undated_deletion_is_doubtful_where_it_may_be_old() {
    let doubtful = |from: i64, entries: Vec<Entry>| -> Vec<bool> {
        let news = look(&Known::since(Some(t(10))), &[list("l", Some(from), None, entries)], 20).1;
        news.changes.iter().filter(|it| it.change == Deleted).map(|it| it.is_doubtful).collect()
    };

    assert_eq!(doubtful(0, vec![change("a", Deleted)]), [true]);
    assert_eq!(doubtful(0, vec![dated("b", Created, 5), change("a", Deleted)]), [true]);
    assert_eq!(doubtful(0, vec![dated("b", Created, 12), change("a", Deleted)]), [false], "behind a later change");
    assert_eq!(doubtful(10, vec![change("a", Deleted)]), [false], "the list begins with the baseline");
    assert!(doubtful(0, vec![change("a", Deleted), dated("b", Created, 9)]).is_empty(), "before an earlier change");
}

#[test]
fn undated_changes_of_a_closed_list_keep_their_order() {
    let entries = vec![change("a", Created), change("a", Updated), change("b", Deleted), change("c", Deleted)];

    let (_, news) = look(&Known::since(Some(t(10))), &[list("l", Some(5), Some(100), entries)], 120);

    let times: Vec<_> = news.changes.iter().map(|change| change.time).collect();
    assert!(times.is_sorted() && times[0] > t(10), "{times:?}");
    let doubtful: Vec<_> = news.changes.iter().filter(|it| it.change == Deleted).map(|it| it.is_doubtful).collect();
    assert_eq!(doubtful, [true, true], "each may be older than the baseline");
}

#[test]
fn an_undated_deletion_that_was_not_there_is_certain() {
    let mut it = list("l", None, None, vec![change("a", Created)]);
    let first = look(&Known::since(Some(t(10))), std::slice::from_ref(&it), 20).1;
    it.entries.push(change("a", Deleted));

    let news = look(&first.known, &[it], 30).1;

    assert!(!news.changes[0].is_doubtful);
    assert!(news.changes[0].time > first.changes[0].time, "it came after the last look");
}

#[test]
fn what_was_written_in_the_baselines_second_may_be_later() {
    let known = Known::since(Some(Timestamp { nanos: 11_000_000, ..t(100) }));
    let written =
        |second| List { modified: Some(second), ..list("changes", None, None, vec![change("a", Change::Created)]) };

    assert_eq!(look(&known, &[written(100)], 500).1.changes.len(), 1);
    assert_eq!(look(&known, &[written(99)], 500).1.changes.len(), 0);
}

#[test]
fn the_same_words_behind_the_old_ones_are_a_new_change() {
    let words = [change("a", Deleted), change("a", Created), change("a", Deleted)];
    let known = look(&Known::since(Some(t(10))), &[list("l", None, None, words[..1].to_vec())], 20).1.known;

    let (_, grown) = look(&known, &[list("l", None, None, words.to_vec())], 30);
    let (_, rolled) = look(&known, &[list("l", None, None, words[1..].to_vec())], 30);

    assert_eq!(grown.changes[0].change, Deleted);
    assert_eq!(rolled.changes[0].change, Deleted, "the first has rolled out of the window");
}

#[test]
fn a_late_change_does_not_undo_a_later_one_that_was_seen() {
    let known =
        look(&Known::since(Some(t(10))), &[list("l", Some(0), None, vec![dated("a", Deleted, 15)])], 20).1.known;

    let (_, news) =
        look(&known, &[list("l", Some(0), None, vec![dated("a", Updated, 12), dated("a", Deleted, 15)])], 30);

    assert_eq!(told(&news), [], "its last change is applied");
}

#[test]
fn overlapping_windows_tell_each_change_once() {
    let entries: Vec<_> = (11..20).map(|time| dated(&format!("r{time}"), Created, time)).collect();
    let first = list("1", Some(10), Some(16), entries[..6].to_vec());
    let known = look(&Known::since(Some(t(10))), std::slice::from_ref(&first), 20).1.known;

    let (is_joined, news) = look(
        &known,
        &[first, list("2", Some(14), None, entries[3..].to_vec()), list("3", Some(14), None, entries[3..].to_vec())],
        30,
    );

    assert!(is_joined);
    assert_eq!(news.changes.len(), 3);
    assert!(news.changes.iter().all(|it| !it.is_doubtful));
}

#[test]
fn a_list_that_begins_again_under_its_old_name_goes_on() {
    let open = list("open", Some(10), None, vec![change("a", Created), dated("b", Created, 12)]);
    let known = look(&Known::since(Some(t(10))), std::slice::from_ref(&open), 15).1.known;
    let closed = List { name: "closed".into(), until: Some(20), ..open };

    let (is_joined, news) = look(&known, &[closed, list("open", Some(20), None, vec![change("a", Created)])], 30);

    assert!(is_joined);
    assert_eq!(news.changes.len(), 1, "the same words, but another list");
}

#[test]
fn until_on_a_list_that_still_grows_is_no_end() {
    let mut it = list("l", Some(10), Some(15), vec![dated("a", Created, 11)]);
    let known = look(&Known::since(Some(t(10))), std::slice::from_ref(&it), 15).1.known;
    it.until = Some(30);
    it.entries.push(dated("b", Created, 14));
    let entry = |until| Entry { until: Some(t(until)), ..Entry::new(uri("l")) };

    let news = look(&known, &[it], 30).1;

    assert_eq!(told(&news), [("b", Created, 14)], "although it was said to be known until 15");
    assert!(news.known.children().wants(&entry(12)), "the newest is always asked");
}

#[test]
fn until_as_the_time_of_the_request_is_nothing_new() {
    let mut it = list("l", Some(10), Some(15), vec![dated("a", Created, 11)]);
    let known = look(&Known::since(Some(t(10))), std::slice::from_ref(&it), 15).1.known;
    it.until = Some(20);

    let news = look(&known, &[it], 20).1;

    assert!(news.changes.is_empty() && news.known.knows_the_same(&known));
}

#[test]
fn a_time_to_come_is_not_known_yet() {
    let news =
        look(&Known::since(Some(t(10))), &[list("l", Some(10), Some(900), vec![dated("a", Created, 800)])], 20).1;

    assert_eq!(told(&news), [("a", Created, 800)]);
    assert_eq!(news.known.until, Some(t(20)));
}

#[test]
fn of_an_index_lists_that_end_later_and_the_newest_are_asked() {
    let child = |name: &str, from: Option<i64>, until: Option<i64>| Entry {
        from: from.map(t),
        until: until.map(t),
        ..Entry::new(uri(name))
    };
    let known = Known::since(Some(t(20)));
    let chosen = [
        (child("1", Some(0), Some(10)), false),
        (child("2", Some(10), Some(20)), false),
        (child("3", Some(20), Some(30)), true),
        (child("4", Some(30), None), true),
        (child("5", None, None), true),
    ];
    for (entry, is_wanted) in &chosen {
        assert_eq!(known.children().wants(entry), *is_wanted, "{}", entry.loc);
    }

    let known = look(&known, &[list("3", Some(20), Some(30), vec![dated("a", Created, 25)])], 40).1.known;

    assert!(known.children().wants(&chosen[2].0), "the newest at the last look");
    assert!(!known.children().wants(&chosen[1].0));
}

#[test]
fn children_with_lastmod_alone_are_asked_until_they_close() {
    let child = |name: &str, lastmod| Entry { lastmod: Some(t(lastmod)), ..Entry::new(uri(name)) };
    let mut closed = list("1", Some(10), Some(15), vec![dated("a", Created, 11)]);
    closed.listed = Some(child("1", 15));
    let mut open = list("2", Some(15), None, vec![dated("b", Created, 16)]);
    open.listed = Some(child("2", 16));
    assert!(Known::since(Some(t(10))).children().wants(&child("1", 15)), "its lastmod says nothing of its changes");

    let known = look(&Known::since(Some(t(10))), &[closed, open], 20).1.known;

    assert!(!known.children().wants(&child("1", 15)), "closed by its own account");
    assert!(known.children().wants(&child("1", 16)), "its index says something new of it");
    assert!(known.children().wants(&child("2", 16)));
}

#[test]
fn an_index_is_joined_by_lists_that_need_no_reading() {
    let known = Known::since(Some(t(20)));
    let newest = list("2", Some(25), None, vec![dated("a", Created, 26)]);

    let (is_joined, _) = look_with(&known, std::slice::from_ref(&newest), &["http://example.org/1".into()], 30);
    let (is_joined_alone, _) = look(&known, &[newest], 30);

    assert!(is_joined && !is_joined_alone);
}

#[test]
fn several_lists_of_a_root_are_one_history() {
    let one = list("1", Some(10), Some(15), vec![dated("a", Created, 11), dated("b", Created, 14)]);
    let two = list("2", Some(15), None, vec![dated("a", Deleted, 16)]);

    let (_, news) = look(&Known::since(Some(t(10))), &[two, one], 20);

    assert_eq!(told(&news), [("b", Created, 14), ("a", Deleted, 16)]);
}

#[test]
fn a_disorder_that_cannot_be_resolved_is_a_gap() {
    let known =
        look(&Known::since(Some(t(10))), &[list("l", Some(0), None, vec![dated("x", Created, 11)])], 15).1.known;
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
fn a_baseline_of_a_later_time_leaves_nothing_earlier_to_apply() {
    let mut it = list("l", Some(0), None, vec![dated("a", Created, 11)]);
    let known = look(&Known::since(Some(t(10))), std::slice::from_ref(&it), 15).1.known;
    it.entries.extend([dated("b", Deleted, 12), dated("c", Created, 21)]);

    let (is_joined, news) = look(&known.rebased(Some(t(20))), &[it], 30);

    assert!(is_joined);
    assert_eq!(told(&news), [("c", Created, 21)]);
}

#[test]
fn an_entry_without_change_is_an_update_and_a_document_none() {
    let document = Entry { capability: Some(crate::document::Capability::ChangeList), ..Entry::new(uri("l2")) };
    let silent = Entry { datetime: Some(t(12)), ..Entry::new(uri("a")) };

    let news = look(&Known::since(Some(t(10))), &[list("l", Some(0), None, vec![document, silent])], 20).1;

    assert_eq!(told(&news), [("a", Updated, 12)]);
}

#[test]
fn the_state_of_many_dated_entries_is_small() {
    let entries: Vec<_> = (0..100_000).map(|n| dated(&format!("r{n}"), Created, 11 + n)).collect();
    let it = list("l", Some(0), None, entries);
    let mut known = look(&Known::since(Some(t(10))), std::slice::from_ref(&it), 999_999).1.known;

    let stored = serde_json::to_vec(&known.state).unwrap();
    let loaded: ChangeState = serde_json::from_slice(&stored).unwrap();

    assert_eq!(loaded, known.state);
    assert!(stored.len() < 4096, "{} bytes", stored.len());
    known.state = loaded;
    assert!(look(&known, &[it], 999_999).1.changes.is_empty());
}

#[test]
fn the_state_of_many_undated_entries_is_small() {
    let entries: Vec<_> = (0..30_000).map(|n| change(&format!("r{n}"), Created)).collect();
    let mut it = list("l", None, None, entries);
    let known = look(&Known::since(None), std::slice::from_ref(&it), 50).1.known;
    let stored = serde_json::to_vec(&known.state).unwrap();
    assert!(stored.len() < 4096, "{} bytes", stored.len());

    it.entries.push(change("new", Created));
    let (is_joined, grown) = look(&known, std::slice::from_ref(&it), 60);
    it.entries.drain(..25_000);
    let (is_joined_then, rolled) = look(&known, &[it], 60);

    assert!(is_joined && is_joined_then);
    assert_eq!((grown.changes.len(), rolled.changes.len()), (1, 1));
}

#[test]
fn lists_that_cannot_change_any_more_are_forgotten() {
    let mut known = Known::since(Some(t(0)));
    let mut lists = Vec::new();
    for day in 0..50 {
        let entries = (0..100).map(|n| change(&format!("r{n}"), Updated)).collect();
        lists.push(list(&format!("{day}"), Some(day * 1000), Some((day + 1) * 1000), entries));
    }

    known = look(&known, &lists, 99_999).1.known;

    assert_eq!(known.documents.len(), 2, "the last two stay");
    let mut wanted = lists.iter().map(|it| Entry { until: it.until.map(t), ..Entry::new(uri(&it.name)) });
    assert_eq!(wanted.by_ref().filter(|entry| known.children().wants(entry)).count(), 1);
}

#[test]
fn the_journal_is_asked_about_what_the_last_look_did_not_see() {
    let entries: Vec<_> = (0..2000).map(|n| dated(&format!("r{n}"), Created, 11 + n)).collect();
    let mut it = list("l", Some(0), None, entries);
    let known = look(&Known::since(Some(t(10))), std::slice::from_ref(&it), 9999).1.known;
    it.entries.push(dated("new", Created, 5000));

    let grown = read(&known, &it, 9999).2;
    it.entries.remove(0);
    let rolled = read(&known, &it, 9999).2;

    assert_eq!((grown, rolled), (1, 2000));
}

/// Sources that date by the second say two things of a resource in one.
#[test]
fn of_equal_times_only_what_says_otherwise_is_new() {
    let mut it = list("l", Some(0), None, vec![dated("a", Created, 11)]);
    let first = look(&Known::since(Some(t(10))), std::slice::from_ref(&it), 20).1.known;
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

/// The resource has said that it is there: it is asked again, and never taken for gone by its place.
#[test]
fn with_undated_lists_an_old_deletion_stays_doubtful() {
    let mut it = list("l", None, None, vec![dated("a", Deleted, 11), dated("b", Created, 12)]);
    let first = look(&Known::since(None), std::slice::from_ref(&it), 20).1;
    assert!(first.changes[0].is_doubtful);
    let mut known = first.known;
    known.answered(&HashSet::new());

    it.entries.insert(0, dated("c", Created, 9));
    it.entries.push(dated("d", Deleted, 13));
    let news = look(&known, &[it], 30).1;

    let doubtful: Vec<_> = news.changes.iter().map(|it| (it.entry.loc.path(), it.is_doubtful)).collect();
    assert_eq!(doubtful, [("/c", false), ("/a", true), ("/d", true)]);
}

#[test]
fn a_time_that_is_yet_to_come_outlasts_no_change() {
    let later = t(1_000_000_000_000);
    let far = |name: &str, what| Entry { datetime: Some(later), ..change(name, what) };
    let known = Known::since(Some(t(10)));
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
        look(&Known::since(Some(t(10))), &[it], now).1.changes[1].time.seconds
    };

    assert_eq!((told_at(day), told_at(day + 1), told_at(2 * day)), (now + day, 900_000, 900_000));
}

#[test]
fn of_an_earlier_time_nothing_later_counts() {
    let known = Known::since(Some(t(10))).up_to(t(20));
    let all = vec![dated("a", Updated, 15), dated("b", Created, 20), dated("a", Deleted, 21), dated("c", Created, 30)];

    let (_, news) = look(&known, &[list("l", Some(0), None, all)], 100);

    assert_eq!(told(&news), [("a", Updated, 15), ("b", Created, 20)]);
    assert_eq!(news.known.until, Some(t(20)));
    assert!(!known.children().wants(&Entry { from: Some(t(21)), ..Entry::new(uri("later")) }));
    assert!(known.children().wants(&Entry { from: Some(t(20)), ..Entry::new(uri("then")) }));
}

#[test]
fn intervals_follow_without_a_gap_up_to_the_wanted_time() {
    let known = Known::since(Some(t(10)));
    let follows = |known: &Known, intervals: &[(Option<i64>, Option<i64>)]| {
        let document =
            |(from, until): &(Option<i64>, Option<i64>)| read(known, &list("l", *from, *until, Vec::new()), 100).0;
        let documents: Vec<_> = intervals.iter().map(document).collect();
        known.is_followed_by(documents.iter().map(|it| &it.state))
    };

    assert!(follows(&known, &[(Some(30), None), (Some(5), Some(20)), (Some(20), Some(30))]));
    assert!(!follows(&known, &[(Some(30), None), (Some(5), Some(20))]), "nothing tells of 20 to 30");
    assert!(!follows(&known, &[(Some(11), None)]), "begins after what is known");
    assert!(!follows(&known, &[(None, Some(20))]), "who does not say since when proves nothing");
    assert!(!follows(&known, &[]));
    assert!(follows(&known.up_to(t(15)), &[(Some(30), None), (Some(5), Some(20))]), "20 to 30 is not wanted");
}
