//! Indexes, and several lists of one root.

use super::*;
use Change::{Created, Deleted, Updated};

#[test]
fn from_and_until_may_stand_in_the_index_only() {
    let entry = Entry { from: Some(t(12)), until: Some(t(14)), ..Entry::new(uri("l")) };
    let mut it = list("l", None, None, vec![modified("a", Created, 13), modified("b", Created, 2)]);
    it.listed = Some(entry);

    let (is_joined, news) = look(&KnownJournal::since(Some(t(10))), &[it], 20);

    assert!(!is_joined, "it begins after what is known");
    assert_eq!(told(&news), [("a", Created, 13), ("b", Created, 13)]);
    assert_eq!(news.known.until, Some(t(14)), "closed by its index");
}

#[test]
fn the_lists_own_interval_decides_over_its_index() {
    let mut it = list("l", Some(5), None, vec![dated("a", Created, 13)]);
    it.listed = Some(Entry { from: Some(t(12)), until: Some(t(19)), ..Entry::new(uri("l")) });

    let (is_joined, news) = look(&KnownJournal::since(Some(t(10))), &[it], 20);

    assert!(is_joined);
    assert_eq!(news.known.until, Some(t(13)), "it is open");
}

#[test]
fn of_an_index_lists_that_end_later_and_the_newest_are_asked() {
    let child = |name: &str, from: Option<i64>, until: Option<i64>| Entry {
        from: from.map(t),
        until: until.map(t),
        ..Entry::new(uri(name))
    };
    let known = KnownJournal::since(Some(t(20)));
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
    assert!(
        KnownJournal::since(Some(t(10))).children().wants(&child("1", 15)),
        "its lastmod says nothing of its changes"
    );

    let known = look(&KnownJournal::since(Some(t(10))), &[closed, open], 20).1.known;

    assert!(!known.children().wants(&child("1", 15)), "closed by its own account");
    assert!(known.children().wants(&child("1", 16)), "its index says something new of it");
    assert!(known.children().wants(&child("2", 16)));
}

#[test]
fn an_index_is_joined_by_lists_that_need_no_reading() {
    let known = KnownJournal::since(Some(t(20)));
    let newest = list("2", Some(25), None, vec![dated("a", Created, 26)]);

    let (is_joined, _) = look_with(&known, std::slice::from_ref(&newest), &["http://example.org/1".into()], 30);
    let (is_joined_alone, _) = look(&known, &[newest], 30);

    assert!(is_joined && !is_joined_alone);
}

#[test]
fn several_lists_of_a_root_are_one_history() {
    let one = list("1", Some(10), Some(15), vec![dated("a", Created, 11), dated("b", Created, 14)]);
    let two = list("2", Some(15), None, vec![dated("a", Deleted, 16)]);

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[two, one], 20);

    assert_eq!(told(&news), [("b", Created, 14), ("a", Deleted, 16)]);
}

#[test]
fn lists_that_cannot_change_any_more_are_forgotten() {
    let mut known = KnownJournal::since(Some(t(0)));
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
