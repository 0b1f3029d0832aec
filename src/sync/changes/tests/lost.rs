//! Documents that could not be had.

use super::*;
use Change::{Created, Deleted};

fn child(name: &str, from: i64, until: Option<i64>) -> Entry {
    Entry { from: Some(t(from)), until: until.map(t), ..Entry::new(uri(name)) }
}

fn lacking(known: KnownJournal, children: &[Entry], gone: &[&str], failed: &[&str], now: i64) -> KnownJournal {
    let locations = |names: &[&str]| names.iter().map(|name| uri(name).as_str().to_owned()).collect();
    let asked = AskedChildren { entries: children.to_vec(), gone: locations(gone), failed: locations(failed) };
    let lost = known.lost_beside("root", &asked, t(now));
    KnownJournal { state: known.state.lacking(lost, Timestamp { seconds: now, nanos: 0 }), ..known }
}

#[test]
fn what_a_lost_list_says_late_undoes_nothing_undated() {
    let next = [list("c", Some(20), None, vec![change("x", Created), dated("z", Created, 25)])];
    let children = [child("b", 10, Some(20)), child("c", 20, None)];
    let known = look(&KnownJournal::since(Some(t(10))), &next, 30).1.known;
    let known = lacking(known, &children, &["b"], &[], 30);
    assert!(known.children().wants(&children[0]));
    assert_eq!(known.missing_since(), Some(t(10)));

    let late = [list("b", Some(10), Some(20), vec![dated("x", Deleted, 15), dated("y", Created, 16)]), next[0].clone()];
    let news = look(&known, &late, 40).1;

    assert_eq!(told(&news), [("y", Created, 16)]);
    let known = lacking(news.known, &children, &[], &[], 40);
    assert_eq!(known.missing_since(), None);
    assert!(!known.children().wants(&children[0]));
}

#[test]
fn closed_lists_that_fail_are_lost_and_all_that_are_gone() {
    let children = [child("b", 10, Some(20)), child("c", 20, None)];
    let known = KnownJournal::since(Some(t(10)));

    let failed = lacking(known.clone(), &children, &[], &["b", "c"], 30);
    let twice = [&children[..], &children[..]].concat();
    let gone = lacking(known.clone(), &twice, &["b", "c"], &[], 30);

    assert_eq!((failed.lost.len(), gone.lost.len()), (1, 2));
    assert!(known.loses(&gone.lost) && known.loses(&failed.lost) && failed.loses(&gone.lost));
    assert!(!gone.loses(&gone.lost) && !gone.knows_the_same(&known));
    let stored = serde_json::to_string(&gone.state).unwrap();
    assert_eq!(serde_json::from_str::<ChangeState>(&stored).unwrap(), gone.state);
    let rebased = gone.rebased(Some(t(25)));
    assert_eq!((rebased.lost.len(), rebased.missing_since()), (1, Some(t(25))), "the open one may tell more");
}
