//! The state that is kept between looks: what is known, and what is forgotten.

use super::*;
use Change::{Created, Deleted, Updated};

#[test]
fn a_list_is_applied_from_the_time_of_the_baseline_on() {
    let all = [dated("a", Created, 5), dated("b", Updated, 10), dated("c", Deleted, 11), dated("d", Created, 12)];

    let (is_joined, news) = look(&KnownJournal::since(Some(t(10))), &[list("l", Some(0), None, all.into())], 20);

    assert!(is_joined);
    assert_eq!(told(&news), [("b", Updated, 10), ("c", Deleted, 11), ("d", Created, 12)]);
    assert_eq!(news.known.until, Some(t(12)));
}

#[test]
fn what_was_seen_is_not_told_again() {
    let mut it = list("l", Some(0), None, vec![dated("a", Created, 11), change("b", Updated)]);
    let known = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 20).1.known;

    let (is_joined, again) = look(&known, std::slice::from_ref(&it), 30);
    it.entries.push(dated("c", Created, 25));
    let (_, news) = look(&known, &[it], 30);

    assert!(is_joined && again.changes.is_empty() && again.known.knows_the_same(&known));
    assert_eq!(told(&news), [("c", Created, 25)]);
}

#[test]
fn a_baseline_of_a_later_time_leaves_nothing_earlier_to_apply() {
    let mut it = list("l", Some(0), None, vec![dated("a", Created, 11)]);
    let known = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 15).1.known;
    it.entries.extend([dated("b", Deleted, 12), dated("c", Created, 21)]);

    let (is_joined, news) = look(&known.rebased(Some(t(20))), &[it], 30);

    assert!(is_joined);
    assert_eq!(told(&news), [("c", Created, 21)]);
}

#[test]
fn the_state_of_many_dated_entries_is_small() {
    let entries: Vec<_> = (0..100_000).map(|n| dated(&format!("r{n}"), Created, 11 + n)).collect();
    let it = list("l", Some(0), None, entries);
    let mut known = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 999_999).1.known;

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
    let known = look(&KnownJournal::since(None), std::slice::from_ref(&it), 50).1.known;
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
fn the_journal_is_asked_about_what_the_last_look_did_not_see() {
    let entries: Vec<_> = (0..2000).map(|n| dated(&format!("r{n}"), Created, 11 + n)).collect();
    let mut it = list("l", Some(0), None, entries);
    let known = look(&KnownJournal::since(Some(t(10))), std::slice::from_ref(&it), 9999).1.known;
    it.entries.push(dated("new", Created, 5000));

    let grown = read(&known, &it, 9999).2;
    it.entries.remove(0);
    let rolled = read(&known, &it, 9999).2;

    assert_eq!((grown, rolled), (1, 2000));
}
