//! Doubtful deletions whose resources have not answered.

use super::*;
use Change::{Created, Deleted};

fn unanswered(names: &[&str]) -> HashSet<u64> {
    names.iter().map(|name| resource_digest(&uri(name))).collect()
}

#[test]
fn an_unanswered_doubt_of_a_closed_list_is_asked_again() {
    let closed =
        list("1", Some(0), Some(15), vec![change("a", Deleted), dated("b", Created, 12), change("c", Deleted)]);
    let lists = [closed, list("2", Some(15), None, vec![dated("d", Created, 20)])];
    let child = Entry { until: Some(t(15)), ..Entry::new(uri("1")) };
    let first = look(&KnownJournal::since(None), &lists, 30).1;
    assert!(first.changes.iter().all(|it| it.is_doubtful == (it.change == Deleted)));

    let mut known = first.known;
    known.answered(&unanswered(&["a", "another"]));
    assert!(
        known.doubts() == 1
            && known.children().wants(&child)
            && !known.children().is_done_with(&lists[0].location(), lists[0].digest())
    );
    let stored = serde_json::to_string(&known.state).unwrap();
    known.state = serde_json::from_str(&stored).unwrap();
    let (is_joined, second) = look(&known, &lists, 40);

    assert!(is_joined);
    let told: Vec<_> = second.changes.iter().map(|it| (it.entry.loc.path(), it.change, it.is_doubtful)).collect();
    assert_eq!(told, [("/a", Deleted, true)], "it stays doubtful");
    let mut again = second.known.clone();
    again.answered(&unanswered(&["a"]));
    assert!(again.knows_the_same(&known));
    let mut settled = second.known;
    settled.answered(&HashSet::new());
    assert!(settled.doubts() == 0 && !settled.children().wants(&child) && !settled.knows_the_same(&known));
    assert!(look(&settled, &lists, 50).1.changes.is_empty());
}

#[test]
fn a_doubt_ends_with_its_entry_or_with_a_newer_baseline() {
    let lists = [list("l", None, None, vec![change("a", Deleted), dated("b", Created, 12)])];
    let mut known = look(&KnownJournal::since(None), &lists, 30).1.known;
    known.answered(&unanswered(&["a"]));
    assert_eq!(known.doubts(), 1);

    let rolled = [list("l", None, None, vec![dated("b", Created, 12), dated("c", Created, 35)])];
    let mut without = look(&known, &rolled, 40).1.known;
    without.answered(&HashSet::new());
    let written = List { modified: Some(30), ..lists[0].clone() };
    let mut covered = look(&known.rebased(Some(t(50))), &[written], 60).1;
    covered.known.answered(&HashSet::new());

    assert_eq!((without.doubts(), covered.known.doubts(), covered.changes.len()), (0, 0, 0));
}
