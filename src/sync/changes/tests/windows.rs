//! Continuity: documents whose interval moves on, and gaps.

use super::*;
use Change::{Created, Updated};

/// Few undated entries of a window may be those of another one: the same is told again and again.
#[test]
fn many_repeated_undated_entries_join_two_windows() {
    let entries: Vec<_> = ["a", "b", "c", "d"].map(|name| change(name, Updated)).into();
    let known = look(&KnownJournal::since(Some(t(10))), &[list("l", None, None, entries.clone())], 20).1.known;
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
    let known =
        look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries[..5].to_vec())], 20).1.known;

    let (is_joined, news) = look(&known, &[list("l", None, None, entries[4..].to_vec())], 30);

    assert!(is_joined);
    assert_eq!(news.changes.len(), 4);
}

#[test]
fn a_window_that_has_rolled_past_is_a_gap() {
    let entries: Vec<_> = (11..20).map(|time| dated(&format!("r{time}"), Created, time)).collect();
    let known =
        look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries[..3].to_vec())], 20).1.known;

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
    let mut known = look(&KnownJournal::since(Some(t(100))), &window(40), now).1.known;
    known.see(t(now));

    for seconds in (60..=600).step_by(60) {
        let (is_joined, news) = look(&known, &window(40 + seconds), now + seconds);
        assert!(is_joined, "after {seconds} s");
        known = news.known;
        known.see(t(now + seconds));
    }

    let stored = serde_json::to_string(&known.state).unwrap();
    let restarted = KnownJournal { state: serde_json::from_str(&stored).unwrap(), ..known.clone() };
    assert!(look(&restarted, &window(700), now + 9000).0, "all was seen until then");
    assert!(!look(&restarted, &window(701), now + 9000).0);
    known = look(&known, &window(700), now).1.known;
    known.see(t(i64::MAX));
    assert!(look(&known, &window(760), now).0 && !look(&known, &window(761), now).0, "our clock may be set");
}

/// A change each five seconds; the list has those of the last forty.
#[test]
fn a_window_that_slept_is_not_thought_to_reach_further() {
    let window = |now: i64| {
        let changes = (0..=now).step_by(5).filter(|time| *time >= now - 40);
        [list("l", Some(now - 40), None, changes.map(|time| dated(&format!("r{time}"), Created, time)).collect())]
    };
    let mut known = look(&KnownJournal::since(Some(t(1000))), &window(1000), 1000).1.known;
    known.see(t(1000));
    known = look(&known, &window(1030), 1030).1.known;
    known.see(t(1030));

    assert!(look(&known, &window(1070), 1070).0, "begins where the last look ended");
    assert!(!look(&known, &window(1088), 1088).0, "the changes of 18 s were seen by nobody");
}

/// A list is written once a day, and once it is not.
#[test]
fn a_list_that_stays_the_same_proves_no_time() {
    let window = |from: i64| [list("l", Some(from), None, Vec::new())];
    let mut known = look(&KnownJournal::since(Some(t(100))), &window(40), 1000).1.known;
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
    let mut known = look(&KnownJournal::since(Some(t(100))), &window(0), 900).1.known;
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
    let mut known = KnownJournal::since(Some(t(10)));

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
    let (is_joined, _) =
        look(&KnownJournal::since(Some(t(10))), &[list("l", None, None, vec![dated("a", Created, 13)])], 20);

    assert!(is_joined);
}

#[test]
fn overlapping_windows_tell_each_change_once() {
    let entries: Vec<_> = (11..20).map(|time| dated(&format!("r{time}"), Created, time)).collect();
    let first = list("1", Some(10), Some(16), entries[..6].to_vec());
    let known = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&first), 20).1.known;

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
    let known = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&open), 15).1.known;
    let closed = List { name: "closed".into(), until: Some(20), ..open };

    let (is_joined, news) = look(&known, &[closed, list("open", Some(20), None, vec![change("a", Created)])], 30);

    assert!(is_joined);
    assert_eq!(news.changes.len(), 1, "the same words, but another list");
}

#[test]
fn until_on_a_list_that_still_grows_is_no_end() {
    let mut it = list("l", Some(10), Some(15), vec![dated("a", Created, 11)]);
    let known = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 15).1.known;
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
    let known = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 15).1.known;
    it.until = Some(20);

    let news = look(&known, &[it], 20).1;

    assert!(news.changes.is_empty() && news.known.knows_the_same(&known));
}

/// A document that begins anew is read to its end once, although its first entry is the old one.
#[test]
fn a_document_that_has_replaced_the_old_one_is_read_once() {
    let entries = || ["a", "b", "c"].map(|name| change(name, Updated)).to_vec();
    let known = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(5), Some(20), entries())], 20).1.known;
    let replaced = list("l", Some(50), None, entries());

    let (document, _, visited) = read_and_count(&known, &replaced, 100);

    assert_eq!((document.has_undated, visited), (true, 4));
}

#[test]
fn intervals_follow_without_a_gap_up_to_the_wanted_time() {
    let known = KnownJournal::since(Some(t(10)));
    let follows = |known: &KnownJournal, intervals: &[(Option<i64>, Option<i64>)]| {
        let document =
            |(from, until): &(Option<i64>, Option<i64>)| read(known, &list("l", *from, *until, Vec::new()), 100).0;
        let documents: Vec<_> = intervals.iter().map(document).collect();
        known.is_followed_by(documents.iter().map(|it| &it.state), known.ends)
    };

    assert!(follows(&known, &[(Some(30), None), (Some(5), Some(20)), (Some(20), Some(30))]));
    assert!(!follows(&known, &[(Some(30), None), (Some(5), Some(20))]), "nothing tells of 20 to 30");
    assert!(!follows(&known, &[(Some(11), None)]), "begins after what is known");
    assert!(!follows(&known, &[(None, Some(20))]), "who does not say since when proves nothing");
    assert!(!follows(&known, &[]));
    assert!(follows(&known.up_to(t(15)), &[(Some(30), None), (Some(5), Some(20))]), "20 to 30 is not wanted");
}
