//! Changes without a time: their position counts, and the time at which their document was written.

use super::*;
use Change::{Created, Deleted, Updated};

#[test]
fn an_undated_entry_happened_right_after_the_one_before_it() {
    let entries = vec![dated("a", Created, 12), change("b", Deleted), change("c", Deleted), dated("d", Created, 40)];
    let last = change("e", Deleted);

    let (_, news) =
        look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), Some(60), [entries, vec![last]].concat())], 90);

    assert_eq!(
        told(&news),
        [("a", Created, 12), ("b", Deleted, 12), ("c", Deleted, 12), ("d", Created, 40), ("e", Deleted, 40)]
    );
    assert!(news.changes[0].time < news.changes[1].time && news.changes[1].time <= news.changes[2].time);
}

#[test]
fn an_undated_entry_is_no_later_than_the_next_dated_one() {
    let entries = vec![dated("a", Created, 12), change("b", Deleted), dated("b", Created, 12)];

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries)], 90);

    assert_eq!(told(&news), [("a", Created, 12), ("b", Created, 12)]);
}

/// The Source's clock may be years behind ours: what our clock says would outlast its later changes, and its next list.
#[test]
fn no_undated_entry_is_later_than_what_the_source_says_next() {
    for at in [Some(t(10)), None] {
        let mut it = list("l", None, None, vec![change("a", Updated)]);
        let now = 1_000_000_000;
        let first = look(&KnownJournal::since(at), std::slice::from_ref(&it), now).1;
        assert!(first.changes[0].time < t(11), "{:?}", first.changes);
        it.entries.extend([dated("a", Deleted, 12), dated("b", Created, 13), change("b", Deleted)]);

        let second = look(&first.known, std::slice::from_ref(&it), now + 60).1;

        assert_eq!(told(&second), [("a", Deleted, 12), ("b", Deleted, 13)]);
        it.entries.push(change("b", Created));
        let third = look(&second.known, &[it], now + 120).1;
        assert_eq!(told(&third).last(), Some(&("b", Created, 13)));
        assert!(third.changes.last().unwrap().time > second.changes[1].time, "another change, and a later one");
    }
}

#[test]
fn an_end_that_is_yet_to_come_is_no_time_of_what_bears_none() {
    let entries = vec![dated("a", Created, 12), change("b", Updated), dated("c", Created, 95)];
    let ends_later = list("l", Some(10), Some(1000), entries[..2].to_vec());
    let runs_ahead = list("l", Some(10), None, entries.clone());

    for it in [ends_later, runs_ahead] {
        let (_, news) = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 60);
        assert_eq!(told(&news)[..2], [("a", Created, 12), ("b", Updated, 12)], "{it:?}");
    }
}

/// The deletion is told by its place to have come after 12, no more: what is told late keeps its place before it.
#[test]
fn a_change_that_is_told_late_stays_before_what_came_after_it() {
    let (a, b) = (dated("a", Created, 12), change("b", Deleted));
    let (late, last) = (dated("x", Updated, 30), dated("x", Deleted, 40));
    let before = list("l", Some(10), None, vec![a.clone(), b.clone(), last.clone()]);
    let after = list("l", Some(10), None, vec![a, late, b, last]);
    let known = look(&KnownJournal::since(Some(t(10))), &[before], 60).1.known;

    let (_, news) = look(&known, &[after], 70);

    assert!(news.changes.is_empty(), "{:?}", news.changes);
}

#[test]
fn a_lastmod_outside_the_interval_leaves_the_place_to_decide() {
    let entries =
        vec![dated("a", Created, 12), modified("a", Deleted, 2), modified("b", Created, 99), dated("c", Created, 14)];

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), Some(20), entries)], 30);

    assert_eq!(told(&news), [("a", Deleted, 12), ("b", Created, 12), ("c", Created, 14)]);
}

#[test]
fn one_datetime_among_lastmods_leaves_their_order() {
    let entries = vec![modified("x", Created, 30), modified("x", Deleted, 20)];
    let known = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries.clone())], 60).1.known;
    let newest_first = [vec![dated("n", Created, 50)], entries].concat();

    let (_, news) = look(&known, &[list("l", Some(10), None, newest_first)], 60);

    assert_eq!(told(&news), [("n", Created, 50)], "the deletion of `x` is not the later one");
}

#[test]
fn a_lastmod_that_contradicts_its_neighbours_is_no_time() {
    let entries = vec![dated("a", Created, 15), modified("a", Deleted, 11), dated("b", Created, 17)];

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(10), None, entries)], 30);

    assert_eq!(told(&news), [("a", Deleted, 15), ("b", Created, 17)]);
}

#[test]
fn what_is_new_is_later_than_what_a_place_has_settled() {
    // Without `from` a time before the baseline's is none: the place counts.
    let first =
        list("changes", None, None, vec![modified("a", Change::Updated, 90), modified("b", Change::Updated, 95)]);
    let (_, news) = look(&KnownJournal::since(Some(t(100))), std::slice::from_ref(&first), 500);
    let settled = news.changes.iter().map(|change| change.time).max().unwrap();

    let mut entries = first.entries;
    entries.extend([modified("b", Change::Deleted, 110), modified("a", Change::Deleted, 120)]);
    let (_, second) = look(&news.known, &[list("changes", None, None, entries.clone())], 600);
    let told: Vec<_> = second.changes.iter().map(|it| (&it.entry.loc.path()[1..], it.change)).collect();
    assert_eq!(told, [("b", Change::Deleted), ("a", Change::Deleted)]);
    assert!(second.changes.iter().all(|change| change.time > settled), "{:?}", second.changes);

    entries.push(modified("a", Change::Created, 130));
    let (_, third) = look(&second.known, &[list("changes", None, None, entries)], 700);
    assert_eq!(third.changes.len(), 1);
    assert!(third.changes[0].time > second.changes[1].time, "{:?}", third.changes);
}

#[test]
fn a_window_of_more_undated_entries_than_stay_rolls_on() {
    let most = 10_000;
    let entries: Vec<_> = (0..most + 20).map(|number| change(&format!("r{number}"), Change::Updated)).collect();
    let window = |from: usize, to: usize| [list("list", None, None, entries[from..to].to_vec())];
    let known = look(&KnownJournal::since(Some(t(10))), &window(0, most + 10), 20).1.known;

    let (is_joined, news) = look(&known, &window(5, most + 12), 30);

    assert!(is_joined);
    assert_eq!(news.changes.len(), 2);
}

#[test]
fn without_any_time_all_counts_and_deletions_are_doubtful() {
    let entries = vec![change("a", Created), change("b", Deleted), change("c", Created), change("c", Deleted)];

    let (is_joined, news) = look(&KnownJournal::since(None), &[list("l", None, None, entries)], 20);

    assert!(is_joined);
    let doubts: Vec<_> = news.changes.iter().map(|it| (it.entry.loc.path(), it.change, it.is_doubtful)).collect();
    assert_eq!(doubts, [("/a", Created, false), ("/b", Deleted, true), ("/c", Deleted, true)]);
}

#[test]
fn an_undated_deletion_is_doubtful_where_it_may_be_old() {
    let doubtful = |from: i64, entries: Vec<Entry>| -> Vec<bool> {
        let news = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(from), None, entries)], 20).1;
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

    let (_, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(5), Some(100), entries)], 120);

    let times: Vec<_> = news.changes.iter().map(|change| change.time).collect();
    assert!(times.is_sorted() && times[0] > t(10), "{times:?}");
    let doubtful: Vec<_> = news.changes.iter().filter(|it| it.change == Deleted).map(|it| it.is_doubtful).collect();
    assert_eq!(doubtful, [true, true], "each may be older than the baseline");
}

#[test]
fn an_undated_deletion_that_was_not_there_is_certain() {
    let mut it = list("l", None, None, vec![change("a", Created)]);
    let first = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 20).1;
    it.entries.push(change("a", Deleted));

    let news = look(&first.known, &[it], 30).1;

    assert!(!news.changes[0].is_doubtful);
    assert!(news.changes[0].time > first.changes[0].time, "it came after the last look");
}

#[test]
fn the_same_words_behind_the_old_ones_are_a_new_change() {
    let words = [change("a", Deleted), change("a", Created), change("a", Deleted)];
    let known = look(&KnownJournal::since(Some(t(10))), &[list("l", None, None, words[..1].to_vec())], 20).1.known;

    let (_, grown) = look(&known, &[list("l", None, None, words.to_vec())], 30);
    let (_, rolled) = look(&known, &[list("l", None, None, words[1..].to_vec())], 30);

    assert_eq!(grown.changes[0].change, Deleted);
    assert_eq!(rolled.changes[0].change, Deleted, "the first has rolled out of the window");
}

/// The resource has said that it is there: it is asked again, and never taken for gone by its place.
#[test]
fn with_undated_lists_an_old_deletion_stays_doubtful() {
    let mut it = list("l", None, None, vec![dated("a", Deleted, 11), dated("b", Created, 12)]);
    let first = look(&KnownJournal::since(None), std::slice::from_ref(&it), 20).1;
    assert!(first.changes[0].is_doubtful);
    let mut known = first.known;
    known.answered(&HashSet::new());

    it.entries.insert(0, dated("c", Created, 9));
    it.entries.push(dated("d", Deleted, 13));
    let news = look(&known, &[it], 30).1;

    let doubtful: Vec<_> = news.changes.iter().map(|it| (it.entry.loc.path(), it.is_doubtful)).collect();
    assert_eq!(doubtful, [("/c", false), ("/a", true), ("/d", true)]);
}
