//! Deletions that are held back: each rule by the smallest example.

use super::changes::{ONE, OTHER, apply, files, held, list, measured, paths, statement};
use super::*;
use crate::document::Change;
use std::collections::BTreeSet;

#[test]
fn deletions_alone_are_held_back_until_they_are_accepted() {
    let (folder, catalog) = catalog();
    let (a, b, c) = (measured("http://h/a", 1), measured("http://h/b", 1), measured("http://h/f/c", 1));
    list(&catalog, &[(ONE, Some(10), &[a.clone(), b])], &[], Held::Nothing);
    let updated = measured("http://h/b", 2);
    let mut changes = catalog.commit_of_changes();
    changes.apply(statement(ONE, Change::Deleted, 20, &a)).unwrap();
    changes.apply(statement(ONE, Change::Updated, 20, &updated)).unwrap();
    changes.apply(statement(ONE, Change::Created, 20, &c)).unwrap();
    let mut told = Losses::default();

    let hold = &mut |losses: &Losses| {
        told = losses.clone();
        (Held::All, b"held".to_vec())
    };
    changes.finish(None, hold).unwrap();

    assert_eq!((told.present, told.going(), told.coming), (2, 1, 1));
    assert_eq!(told.going_by_set(), BTreeMap::from([(ONE, 1)]));
    assert_eq!(told.sets, [SetCounts { set: ONE, present: 2, coming: 1 }]);
    assert_eq!(held(&catalog), [(0, "http://h/a".to_string())]);
    assert_eq!(files(&catalog).iter().map(|file| file.1).collect::<Vec<_>>(), [Some(1), Some(2), Some(1)]);
    assert_eq!(catalog.snapshot().unwrap().sets()[&ONE], 3);
    drop(catalog);
    let catalog = open(folder.path());
    let mut changes = catalog.commit_of_changes();
    assert_eq!(changes.accept_held().unwrap(), 1);
    let accepted = &mut |losses: &Losses| {
        assert_eq!(losses.going(), 0, "that is decided");
        (Held::All, Vec::new())
    };
    changes.finish(None, accepted).unwrap();
    assert_eq!((paths(&catalog), held(&catalog)), (vec!["b".to_string(), "f/c".to_string()], vec![]));
}

#[test]
fn held_deletions_stay_until_a_list_has_the_resource() {
    let (_folder, catalog) = catalog();
    let all: Vec<_> = ["a/x", "a/y", "b", "c"].map(|path| entry(&format!("http://h/{path}"))).into();
    list(&catalog, &[(ONE, Some(10), &all)], &[], Held::Nothing);
    let before = tree(&catalog);

    let (losses, committed) = list(&catalog, &[(ONE, Some(20), &all[3..])], &[], Held::All);
    assert_eq!((losses.present, losses.going()), (4, 3));
    assert_eq!((tree(&catalog), committed.invalidations.len()), (before.clone(), 0));
    assert_eq!(held(&catalog).len(), 3);

    let (losses, _) = list(&catalog, &[(ONE, Some(30), &all[3..])], &[], Held::Nothing);
    assert_eq!((losses.present, losses.going()), (4, 0), "it was asked for them before");
    assert_eq!(tree(&catalog), before);

    let (losses, _) = list(&catalog, &[(ONE, Some(40), &all[2..3])], &[], Held::Nothing);
    assert_eq!(losses.going(), 1);
    assert_eq!(paths(&catalog), ["a/x", "a/y", "b"]);
    assert_eq!(held(&catalog).len(), 2, "one is listed again");

    apply(&catalog, &[statement(ONE, Change::Updated, 50, &all[0])]);
    assert_eq!(held(&catalog), [(0, "http://h/a/y".to_string())]);
    let mut changes = catalog.commit_of_changes();
    assert_eq!(changes.accept_held().unwrap(), 1);
    changes.finish(None, &mut |_| (Held::Nothing, Vec::new())).unwrap();
    assert_eq!(paths(&catalog), ["a/x", "b"]);
}

/// A list that was cut off for a moment: what it lacked then is no reason to keep what is really gone.
#[test]
fn where_most_is_listed_again_the_rest_is_decided_again() {
    for most_in_place in [u64::MAX, 0] {
        let (_folder, catalog) = catalog();
        let all: Vec<_> = ["a", "b", "c/d", "e", "f/g"].map(|path| entry(&format!("http://h/{path}"))).into();
        list(&catalog, &[(ONE, Some(10), &all)], &[], Held::Nothing);
        list(&catalog, &[(ONE, Some(20), &all[4..])], &[], Held::All);
        assert_eq!(held(&catalog).len(), 4);
        catalog.write_in_place(most_in_place);

        let (losses, _) = list(&catalog, &[(ONE, Some(30), &[&all[..2], &all[3..]].concat())], &[], Held::Nothing);

        assert_eq!((losses.going(), losses.released), (1, BTreeMap::from([(ONE, 4)])));
        assert_eq!((paths(&catalog), held(&catalog)), (["a", "b", "e", "f/g"].map(String::from).to_vec(), vec![]));

        list(&catalog, &[(ONE, Some(40), &all[4..])], &[], Held::All);
        let (losses, _) = list(&catalog, &[(ONE, Some(50), &[&all[..2], &all[4..]].concat())], &[], Held::All);
        assert_eq!((losses.going(), losses.released), (1, BTreeMap::from([(ONE, 3)])));
        assert_eq!(held(&catalog), [(0, "http://h/e".to_string())], "it is held back again");
    }
}

#[test]
fn names_are_settled_with_what_is_held_back() {
    let (_folder, catalog) = catalog();
    list(&catalog, &[(ONE, None, &[entry("http://h/a/b"), entry("http://h/c")])], &[], Held::Nothing);

    let (losses, _) =
        list(&catalog, &[(ONE, None, &[measured("http://h/a", 3), entry("https://h/c")])], &[], Held::All);

    assert_eq!((losses.present, losses.going(), losses.coming), (2, 2, 2));
    assert_eq!(paths(&catalog), ["a%file", "a/b", "c", &naming::disambiguated("c", &uri("https://h/c"))]);
    let mut changes = catalog.commit_of_changes();
    changes.accept_held().unwrap();
    changes.finish(None, &mut |_| (Held::Nothing, Vec::new())).unwrap();
    assert_eq!(paths(&catalog), ["a", "c"]);
}

#[test]
fn a_rename_by_conflict_is_no_loss() {
    let (_folder, catalog) = catalog();
    let (a, below) = (measured("https://h/a", 1), entry("http://h/a/b"));
    list(&catalog, &[(ONE, None, &[a.clone(), entry("http://h/a")])], &[], Held::Nothing);

    let (losses, _) = list(&catalog, &[(ONE, None, &[a.clone(), below])], &[], Held::Nothing);
    assert_eq!((losses.present, losses.going(), losses.coming), (2, 1, 1));
    let (losses, _) = list(&catalog, &[(ONE, None, &[a])], &[], Held::All);
    assert_eq!((losses.present, losses.going(), losses.coming), (2, 1, 0));
    assert_eq!(paths(&catalog), ["a%file", "a/b"]);
}

/// Commits lists of which what goes from the set `held` is held back, and the rest is let go; what still goes then.
fn list_holding(catalog: &Catalog, lists: &[(SetId, &[Entry])], held: SetId, decided: Option<SetId>) -> Losses {
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    for (set, entries) in lists {
        baseline.begin_list(*set, None);
        entries.iter().for_each(|entry| baseline.add(entry).unwrap());
    }
    decided.into_iter().for_each(|set| baseline.decide_again(set));
    let held = Held::Of(BTreeSet::from([held]));
    let mut left = None;
    let decide = &mut |losses: &Losses| {
        assert!(left.replace(losses.holding(&held)).is_none(), "asked once");
        (held.clone(), b"listed".to_vec())
    };
    baseline.finish(None, decide).unwrap();
    left.unwrap()
}

#[test]
fn a_baseline_holds_deletions_of_one_set_alone() {
    let (_folder, catalog) = catalog();
    let [own, shared, others, gone] =
        ["own", "shared", "f/others", "f/gone"].map(|name| entry(&format!("http://h/{name}")));
    let lists = [(ONE, None, &[own, shared.clone()][..]), (OTHER, None, &[shared, others.clone(), gone][..])];
    list(&catalog, &lists, &[], Held::Nothing);

    let losses = list_holding(&catalog, &[(OTHER, &[others])], ONE, None);

    assert_eq!((losses.present, losses.going()), (4, 1), "what is held back is there");
    let sets: Vec<_> = files(&catalog).into_iter().map(|(path, _, sets)| (path, sets)).collect();
    assert_eq!(sets, [("f/others".into(), vec![7]), ("own".into(), vec![0]), ("shared".into(), vec![0])]);
    assert_eq!(held(&catalog), [(0, "http://h/shared".to_string()), (0, "http://h/own".to_string())]);
    let snapshot = catalog.snapshot().unwrap();
    assert_eq!((snapshot.held_of(ONE).unwrap(), snapshot.held_of(OTHER).unwrap()), (2, 0));
}

#[test]
fn changes_hold_deletions_of_one_set_alone() {
    let (_folder, catalog) = catalog();
    let (a, b) = (entry("http://h/a"), entry("http://h/b"));
    list(
        &catalog,
        &[(ONE, None, std::slice::from_ref(&a)), (OTHER, None, &[a.clone(), b.clone()])],
        &[],
        Held::Nothing,
    );
    let mut changes = catalog.commit_of_changes();
    let gone = [(ONE, &a), (OTHER, &a), (OTHER, &b)].map(|(set, entry)| statement(set, Change::Deleted, 20, entry));
    gone.into_iter().for_each(|it| changes.apply(it).unwrap());
    let held_back = Held::Of(BTreeSet::from([ONE]));
    let mut told = Vec::new();

    let decide = &mut |losses: &Losses| {
        told.push((losses.going(), losses.holding(&held_back).going()));
        (held_back.clone(), Vec::new())
    };
    changes.finish(None, decide).unwrap();

    assert_eq!(told, [(2, 1)]);
    assert_eq!((paths(&catalog), held(&catalog)), (vec!["a".to_string()], vec![(0, "http://h/a".to_string())]));
}

#[test]
fn a_set_decided_again_holds_only_what_is_held_again() {
    let (_folder, catalog) = catalog();
    let [a, b, c] = ["a", "b", "c"].map(|name| entry(&format!("http://h/{name}")));
    let all = [a.clone(), b.clone()];
    list(&catalog, &[(ONE, None, &all), (OTHER, None, std::slice::from_ref(&c))], &[], Held::Nothing);
    list_holding(&catalog, &[(OTHER, std::slice::from_ref(&c))], ONE, None);
    assert_eq!(held(&catalog).len(), 2);

    let losses =
        list_holding(&catalog, &[(ONE, std::slice::from_ref(&a)), (OTHER, std::slice::from_ref(&c))], ONE, Some(ONE));
    assert_eq!((losses.present, losses.going()), (3, 0), "it was told as a loss, and is held again");
    assert_eq!(held(&catalog), [(0, "http://h/b".to_string())]);
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    for (set, listed) in [(ONE, &a), (OTHER, &c)] {
        baseline.begin_list(set, None);
        baseline.add(listed).unwrap();
    }
    baseline.decide_again(ONE);
    baseline.commit(None, b"listed").unwrap();

    assert_eq!((paths(&catalog), held(&catalog)), (vec!["a".to_string(), "c".to_string()], vec![]));
}

#[test]
fn a_set_that_vanishes_is_held_back_set_by_set() {
    let (_folder, catalog) = catalog();
    let (a, b) = (entry("http://h/a"), entry("http://h/b"));
    list(&catalog, &[(ONE, None, std::slice::from_ref(&a)), (OTHER, None, &[a.clone(), b])], &[], Held::Nothing);

    let (losses, _) = list(&catalog, &[(ONE, None, &[a])], &[], Held::All);

    assert_eq!((losses.present, losses.going()), (2, 1));
    assert_eq!(losses.sets, [SetCounts { set: OTHER, present: 2, coming: 0 }]);
    assert_eq!(losses.going_by_set(), BTreeMap::from([(OTHER, 2)]));
    assert_eq!(files(&catalog), [("a".into(), None, vec![0, 7]), ("b".into(), None, vec![7])]);
    assert_eq!(held(&catalog).len(), 2);
}

#[test]
fn names_by_another_rule_hide_no_loss_of_a_set() {
    let (_folder, catalog) = catalog();
    let (a, b) = (entry("http://h/a"), entry("http://h/b"));
    let both = [a.clone(), b];
    list(&catalog, &[(ONE, None, &both), (OTHER, None, &both)], &[], Held::Nothing);
    let mut baseline = catalog.commit_of_lists(Naming { own_authority: "other".into(), ..naming() }).unwrap();
    baseline.begin_list(ONE, None);
    both.iter().for_each(|entry| baseline.add(entry).unwrap());
    baseline.begin_list(OTHER, None);
    baseline.add(&a).unwrap();
    let mut told = Losses::default();

    let hold = &mut |losses: &Losses| {
        told = losses.clone();
        (Held::All, Vec::new())
    };
    baseline.finish(None, hold).unwrap();

    assert_eq!((told.going(), told.going_by_set()), (0, BTreeMap::from([(OTHER, 1)])));
    assert_eq!(held(&catalog), [(7, "http://h/b".to_string())]);
    let sets = |path: &str| (format!("%host/h/{path}"), None, vec![0, 7]);
    assert_eq!(files(&catalog), [sets("a"), sets("b")]);
}
