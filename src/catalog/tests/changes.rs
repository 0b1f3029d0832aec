//! Changes, sets, journal and packages: each rule by the smallest example.

use super::*;
use crate::document::Change;

pub(super) const ONE: SetId = SetId(0);
pub(super) const OTHER: SetId = SetId(7);

pub(super) fn measured(loc: &str, length: u64) -> Entry {
    Entry { length: Some(length), ..entry(loc) }
}

pub(super) fn statement(set: SetId, change: Change, time: i64, entry: &Entry) -> StatedChange<'_> {
    StatedChange { set, change, time: at(time), is_left_out: false, entry, member: None }
}

/// Applies these statements in one commit, deletions too.
pub(super) fn apply(catalog: &Catalog, statements: &[StatedChange<'_>]) -> Committed {
    let mut changes = catalog.commit_of_changes();
    statements.iter().for_each(|statement| changes.apply(*statement).unwrap());
    changes.finish(None, &mut |_| (Held::Nothing, b"applied".to_vec())).unwrap()
}

/// Commits lists of several sets; the losses that `decide` was asked about.
pub(super) fn list(
    catalog: &Catalog,
    lists: &[(SetId, Option<i64>, &[Entry])],
    statements: &[StatedChange<'_>],
    held: Held,
) -> (Losses, Committed) {
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    for (set, time, entries) in lists {
        baseline.begin_list(*set, time.map(at));
        entries.iter().for_each(|entry| baseline.add(entry).unwrap());
    }
    statements.iter().for_each(|statement| baseline.apply(*statement).unwrap());
    let mut asked = None;
    let committed = baseline
        .finish(None, &mut |losses| {
            assert!(asked.replace(losses.clone()).is_none(), "asked once");
            (held.clone(), b"listed".to_vec())
        })
        .unwrap();
    (asked.unwrap(), committed)
}

/// The files by path, with length and sets.
pub(super) fn files(catalog: &Catalog) -> Vec<(String, Option<u64>, Vec<u32>)> {
    let files = tree(catalog).into_iter().filter_map(|(path, name)| {
        let resource = name.resource?;
        Some((path, resource.length, resource.sets.iter().map(|set| set.0).collect()))
    });
    files.collect()
}

pub(super) fn paths(catalog: &Catalog) -> Vec<String> {
    files(catalog).into_iter().map(|(path, ..)| path).collect()
}

pub(super) fn held(catalog: &Catalog) -> Vec<(u32, String)> {
    let snapshot = catalog.snapshot().unwrap();
    let held: Vec<_> = snapshot.held().into_iter().map(|(set, uri)| (set.0, uri.as_str().to_owned())).collect();
    assert_eq!(snapshot.held_count().unwrap(), held.len() as u64);
    held
}

#[test]
fn there_is_nothing_to_change_before_the_first_baseline() {
    let (_folder, catalog) = catalog();
    let entry = entry("http://h/a");
    let mut changes = catalog.commit_of_changes();
    changes.apply(statement(ONE, Change::Created, 1, &entry)).unwrap();

    let committed = changes.finish(None, &mut |_| (Held::Nothing, Vec::new()));

    assert!(matches!(committed, Err(CatalogError::NoRevision)));
    assert!(!catalog.is_distrusted());
}

#[test]
fn changes_create_update_and_delete_and_are_kept() {
    let (_folder, catalog) = catalog();
    list(&catalog, &[(ONE, Some(10), &[measured("http://h/a", 1), measured("http://h/b", 1)])], &[], Held::Nothing);
    let (a, b, c, d) =
        (measured("http://h/a", 2), entry("http://h/b"), measured("http://h/f/c", 3), entry("http://h/d"));

    let committed = apply(
        &catalog,
        &[
            statement(ONE, Change::Created, 20, &a),
            statement(ONE, Change::Deleted, 20, &b),
            statement(ONE, Change::Updated, 20, &c),
            statement(ONE, Change::Deleted, 20, &d),
        ],
    );

    assert_eq!(committed.unknown, 1, "one was never there");
    assert_eq!((committed.created, committed.updated, committed.deleted), (1, 1, 1));
    assert_eq!(files(&catalog), [("a".into(), Some(2), vec![0]), ("f/c".into(), Some(3), vec![0])]);
    let snapshot = catalog.snapshot().unwrap();
    assert_eq!(snapshot.position().unwrap().as_deref(), Some(&b"applied"[..]));
    assert_eq!(snapshot.sets()[&ONE], 2);
    let journaled = snapshot.journaled(ONE, &b.loc).unwrap();
    assert_eq!(journaled.map(|it| (it.change, it.time)), Some((Change::Deleted, at(20))));
    assert_eq!(snapshot.journaled(OTHER, &b.loc).unwrap(), None);
}

#[test]
fn the_last_of_several_statements_counts_by_time_then_by_order() {
    let (_folder, catalog) = catalog();
    list(&catalog, &[(ONE, Some(10), &[])], &[], Held::Nothing);
    let (first, second, third) = (measured("http://h/a", 1), measured("http://h/a", 2), measured("http://h/a", 3));

    apply(
        &catalog,
        &[
            statement(ONE, Change::Updated, 30, &first),
            statement(ONE, Change::Created, 20, &second),
            statement(ONE, Change::Updated, 30, &third),
        ],
    );

    assert_eq!(files(&catalog)[0].1, Some(3));
    let committed = apply(&catalog, &[statement(ONE, Change::Updated, 29, &second)]);
    assert_eq!((committed.revision, files(&catalog)[0].1), (2, Some(3)));
}

#[test]
fn the_same_statement_again_changes_nothing() {
    let (_folder, catalog) = catalog();
    list(&catalog, &[(ONE, Some(10), &[entry("http://h/a")])], &[], Held::Nothing);
    let a = entry("http://h/a");
    let update = [statement(ONE, Change::Updated, 20, &a)];
    let ino = || catalog.snapshot().unwrap().find("a").unwrap().unwrap().ino;
    let listed = ino();

    apply(&catalog, &update);
    assert_ne!(ino(), listed, "an update that nothing vouches for is another content");
    let updated = ino();
    let committed = apply(&catalog, &update);
    assert_eq!((committed.revision, ino(), committed.invalidations.len()), (2, updated, 0));
}

#[test]
fn a_digest_or_a_lastmod_keeps_the_inode_of_an_update() {
    let (_folder, catalog) = catalog();
    let dated = Entry { lastmod: Some(at(5)), ..measured("http://h/a", 1) };
    let hashed = Entry { hashes: vec![digest(Algorithm::Md5, 1)], ..entry("http://h/b") };
    let bare = measured("http://h/c", 1);
    // A file may change twice on the day that is all its `lastmod` says.
    let daily = Entry { lastmod: Some(at(86_400)), ..measured("http://h/d", 1) };
    let listed = [dated, hashed, bare, daily];
    list(&catalog, &[(ONE, None, &listed)], &[], Held::Nothing);
    let before = tree(&catalog);

    let said = listed.each_ref().map(|entry| statement(ONE, Change::Updated, 20, entry));
    apply(&catalog, &said);

    let after = tree(&catalog);
    let same = |path: &str| before[path].node.ino == after[path].node.ino;
    assert_eq!(["a", "b", "c", "d"].map(same), [true, true, false, false]);
}

/// Whether its entry says that it is an update or says nothing.
#[test]
fn a_resource_left_out_by_choice_is_known_again() {
    let (_folder, catalog) = catalog();
    let listed = [entry("http://h/a")];
    list(&catalog, &[(ONE, Some(10), &listed)], &[], Held::Nothing);
    let chosen_not = measured("http://h/b", 1);
    apply(&catalog, &[StatedChange { is_left_out: true, ..statement(ONE, Change::Updated, 20, &chosen_not) }]);

    for change in [None, Some(Change::Updated)] {
        let again = Entry { change, ..chosen_not.clone() };
        let compared = catalog.snapshot().unwrap().compare_journal(ONE, None, (&again, None)).unwrap();
        assert_eq!(compared, Some(std::cmp::Ordering::Equal), "{change:?}");
    }
    assert_eq!(files(&catalog).len(), 1);
}

#[test]
fn the_time_of_a_change_stands_in_for_a_lastmod() {
    let (_folder, catalog) = catalog();
    list(&catalog, &[(ONE, None, &[])], &[], Held::Nothing);
    let timed = Entry { datetime: Some(at(1_600_000_000)), ..measured("http://h/f/a", 1) };
    let dated = Entry { lastmod: Some(at(1_500_000_000)), ..timed.clone() };
    let mtime = |path: &str| catalog.snapshot().unwrap().find(path).unwrap().unwrap().mtime;

    apply(&catalog, &[statement(ONE, Change::Created, 20, &timed)]);
    assert_eq!((mtime("f/a"), mtime("f")), (at(1_600_000_000), at(1_600_000_000)));
    apply(&catalog, &[statement(ONE, Change::Updated, 30, &dated)]);
    assert_eq!(mtime("f/a"), at(1_500_000_000));
}

#[test]
fn a_file_yields_its_name_to_a_folder_until_that_is_empty() {
    let (_folder, catalog) = catalog();
    list(&catalog, &[(ONE, None, &[entry("http://h/a"), entry("https://h/a")])], &[], Held::Nothing);
    let plain = paths(&catalog);
    let (below, ino) = (entry("http://h/a/b/c"), tree(&catalog)["a"].node.ino);

    let committed = apply(&catalog, &[statement(ONE, Change::Created, 20, &below)]);

    let displaced = naming::disambiguated("a", &uri("https://h/a"));
    assert_eq!(paths(&catalog), ["a%file", &displaced, "a/b/c"]);
    assert!(committed.invalidations.contains(&Invalidation::Name {
        parent: Ino(1),
        name: b"a"[..].into(),
        orphan: Some(ino)
    }));
    assert!(committed.invalidations.contains(&Invalidation::Name {
        parent: Ino(1),
        name: b"a%file"[..].into(),
        orphan: None
    }));
    apply(&catalog, &[statement(ONE, Change::Deleted, 30, &below)]);
    assert_eq!(paths(&catalog), plain);
    assert_eq!(catalog.revision().unwrap().unwrap().totals.folders, 1);
}

#[test]
fn a_plain_name_returns_when_the_smaller_uri_goes() {
    let (_folder, catalog) = catalog();
    list(&catalog, &[(ONE, None, &[measured("https://h/a", 5)])], &[], Held::Nothing);
    let http = measured("http://h/a", 4);
    let displaced = naming::disambiguated("a", &uri("https://h/a"));

    apply(&catalog, &[statement(ONE, Change::Created, 20, &http)]);
    assert_eq!(files(&catalog), [("a".into(), Some(4), vec![0]), (displaced, Some(5), vec![0])]);
    assert!(catalog.snapshot().unwrap().locate(&uri("https://h/a")).unwrap().is_some());
    apply(&catalog, &[statement(ONE, Change::Deleted, 30, &http)]);
    assert_eq!(files(&catalog), [("a".into(), Some(5), vec![0])]);
    assert_eq!(catalog.snapshot().unwrap().locate(&http.loc).unwrap(), None);
}

#[test]
fn cut_paths_are_found_changed_and_deleted() {
    let (_folder, catalog) = catalog();
    list(&catalog, &[(ONE, None, &[])], &[], Held::Nothing);
    let deep = measured(&format!("http://h/{}x", "d/".repeat(300)), 1);
    let long = measured(&format!("http://h/{}", "n".repeat(400)), 1);
    let both = [&deep, &long];

    apply(&catalog, &both.map(|entry| statement(ONE, Change::Created, 20, entry)));
    assert_eq!(paths(&catalog).len(), 2);
    assert!(both.iter().all(|entry| catalog.snapshot().unwrap().locate(&entry.loc).unwrap().is_some()));
    let committed = apply(&catalog, &both.map(|entry| statement(ONE, Change::Deleted, 30, entry)));
    assert_eq!(committed.unknown, 0);
    assert!(tree(&catalog).is_empty());
}

/// Its sets give one resource types with different extensions: a name for each.
#[test]
fn with_extensions_by_type_a_set_changes_its_own_name() {
    for (mine, others) in [("text/plain", "application/pdf"), ("application/pdf", "text/plain"), ("x/y", "text/html")] {
        let (_folder, catalog) = catalog();
        let typed = |it: &str| Entry { media_type: Some(it.into()), ..entry("http://h/a") };
        let mut baseline = catalog.commit_of_lists(Naming { extension_by_type: true, ..naming() }).unwrap();
        for (set, it) in [(ONE, mine), (OTHER, others)] {
            baseline.begin_list(set, Some(at(10)));
            baseline.add(&typed(it)).unwrap();
        }
        baseline.commit(None, b"").unwrap();
        let of_other = naming::Naming { extension_by_type: true, ..naming() }.path(&uri("http://h/a"), Some(others)).0;
        assert_eq!(files(&catalog).len(), 2);

        let committed = apply(&catalog, &[statement(ONE, Change::Deleted, 20, &entry("http://h/a"))]);

        assert_eq!(committed.unknown, 0);
        assert_eq!(files(&catalog), [(of_other, None, vec![7])]);
        assert_eq!(catalog.snapshot().unwrap().sets(), BTreeMap::from([(ONE, 0), (OTHER, 1)]));
    }
}

#[test]
fn with_extensions_by_type_a_change_finds_the_name_it_changes() {
    let (_folder, catalog) = catalog();
    let naming = Naming { extension_by_type: true, ..naming() };
    let typed = |media_type: &str| Entry { media_type: Some(media_type.into()), ..entry("http://h/f/a") };
    let mut baseline = catalog.commit_of_lists(naming.clone()).unwrap();
    baseline.add(&typed("application/pdf")).unwrap();
    baseline.commit(None, b"").unwrap();
    assert_eq!(paths(&catalog), ["f/a.pdf"]);

    apply(&catalog, &[statement(ONE, Change::Updated, 20, &typed("text/csv"))]);
    assert_eq!(paths(&catalog), ["f/a.csv"]);
    let mut baseline = catalog.commit_of_lists(naming).unwrap();
    baseline.begin_list(ONE, None);
    baseline.add(&typed("application/pdf")).unwrap();
    baseline.finish(None, &mut |_| (Held::Nothing, Vec::new())).unwrap();
    assert_eq!(paths(&catalog), ["f/a.csv"], "the change is later than a list without a time");
    apply(&catalog, &[statement(ONE, Change::Deleted, 30, &entry("http://h/f/a"))]);
    assert!(tree(&catalog).is_empty());
}

#[test]
fn two_types_of_a_resource_give_two_names_in_either_writer() {
    let naming = Naming { extension_by_type: true, ..naming() };
    let (html, pdf) = ((ONE, "text/html"), (OTHER, "application/pdf"));
    let histories = [u64::MAX, 0].map(|most_in_place| {
        let (_folder, catalog) = catalog();
        catalog.write_in_place(most_in_place);
        let shown = |content: u8, sets: &[(SetId, &str)]| {
            let mut baseline = catalog.commit_of_lists(naming.clone()).unwrap();
            for (set, media_type) in sets {
                baseline.begin_list(*set, None);
                let hashes = vec![digest(Algorithm::Md5, content)];
                let typed = Entry { media_type: Some((*media_type).into()), hashes, ..entry("http://h/a") };
                baseline.add(&typed).unwrap();
            }
            baseline.commit(None, b"").unwrap();
            let files = tree(&catalog).into_iter().map(|(path, name)| (path, name.resource.unwrap().hashes));
            files.collect::<Vec<_>>()
        };
        let both = &[html, pdf];
        [shown(1, &[html]), shown(1, both), shown(2, both), shown(2, both), shown(3, &[pdf])]
    });

    let names = |number: usize| histories[0][number].iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>();
    assert_eq!(names(1), ["a.html", "a.pdf"]);
    assert_eq!(names(4), ["a.pdf"]);
    assert_eq!(histories[0], histories[1]);
}

#[test]
fn a_resource_of_two_sets_goes_when_the_last_drops_it() {
    let (_folder, catalog) = catalog();
    let a = measured("http://h/a", 1);
    list(
        &catalog,
        &[(ONE, Some(10), std::slice::from_ref(&a)), (OTHER, Some(11), &[measured("http://h/a", 2)])],
        &[],
        Held::Nothing,
    );
    assert_eq!(files(&catalog), [("a".into(), Some(2), vec![0, 7])], "the later list counts");

    apply(&catalog, &[statement(ONE, Change::Deleted, 20, &a)]);
    assert_eq!(files(&catalog), [("a".into(), Some(2), vec![7])]);
    apply(&catalog, &[statement(OTHER, Change::Deleted, 20, &a)]);
    assert!(files(&catalog).is_empty());
}

#[test]
fn where_sets_differ_the_later_statement_counts() {
    let (_folder, catalog) = catalog();
    let (older, newer) = (measured("http://h/a", 3), measured("http://h/a", 4));
    list(&catalog, &[(ONE, Some(10), &[]), (OTHER, Some(50), &[measured("http://h/a", 2)])], &[], Held::Nothing);

    apply(&catalog, &[statement(ONE, Change::Created, 40, &older)]);
    assert_eq!(files(&catalog), [("a".into(), Some(2), vec![0, 7])]);
    apply(&catalog, &[statement(ONE, Change::Updated, 60, &newer)]);
    assert_eq!(files(&catalog), [("a".into(), Some(4), vec![0, 7])]);
}

#[test]
fn an_older_list_leaves_later_changes_in_force() {
    let (_folder, catalog) = catalog();
    let listed = [measured("http://h/gone/a", 1), measured("http://h/b", 1), measured("http://h/d", 1)];
    list(&catalog, &[(ONE, Some(10), &listed)], &[], Held::Nothing);
    let (b, c) = (measured("http://h/b", 2), measured("http://h/f/c", 3));
    apply(
        &catalog,
        &[
            statement(ONE, Change::Deleted, 20, &listed[0]),
            statement(ONE, Change::Updated, 20, &b),
            statement(ONE, Change::Created, 20, &c),
        ],
    );
    let before = tree(&catalog);

    let (losses, committed) = list(&catalog, &[(ONE, Some(10), &listed)], &[], Held::Nothing);

    assert_eq!((losses.going(), losses.coming, committed.revision), (0, 0, 2));
    assert_eq!(tree(&catalog), before);
    let (_, _) = list(&catalog, &[(ONE, None, &listed)], &[], Held::Nothing);
    assert_eq!(tree(&catalog), before, "a list without a time is older than all");
    let (losses, _) = list(&catalog, &[(ONE, Some(21), &listed)], &[], Held::Nothing);
    assert_eq!((losses.going(), losses.coming), (1, 1));
    assert_eq!(paths(&catalog), ["b", "d", "gone/a"]);
    assert_eq!(catalog.snapshot().unwrap().journaled(ONE, &b.loc).unwrap(), None);
}

#[test]
fn changes_given_with_a_list_are_in_the_same_commit() {
    let (_folder, catalog) = catalog();
    let (a, b, c) = (measured("http://h/a", 1), measured("http://h/f/b", 1), measured("http://h/c", 1));
    let updated = measured("http://h/a", 2);
    let older = measured("http://h/c", 9);

    let (_, committed) = list(
        &catalog,
        &[(ONE, Some(10), &[a, b.clone(), c])],
        &[
            statement(ONE, Change::Deleted, 20, &b),
            statement(ONE, Change::Updated, 30, &updated),
            statement(ONE, Change::Created, 20, &measured("http://h/a", 7)),
            statement(ONE, Change::Updated, 5, &older),
        ],
        Held::Nothing,
    );

    assert_eq!(committed.revision, 1);
    assert_eq!(files(&catalog), [("a".into(), Some(2), vec![0]), ("c".into(), Some(1), vec![0])]);
    assert_eq!(catalog.snapshot().unwrap().journaled(ONE, &updated.loc).unwrap().unwrap().time, at(30));
    assert_eq!(catalog.snapshot().unwrap().journaled(ONE, &older.loc).unwrap(), None);
    apply(&catalog, &[statement(ONE, Change::Deleted, 20, &updated)]);
    assert_eq!(catalog.snapshot().unwrap().journaled(ONE, &updated.loc).unwrap().unwrap().time, at(30));
}

/// Sources that date by the second say two things of a resource in one.
#[test]
fn a_change_in_the_second_of_the_journaled_one_counts() {
    let (_folder, catalog) = catalog();
    let listed = [measured("http://h/a", 1)];
    list(&catalog, &[(ONE, Some(10), &listed)], &[], Held::Nothing);
    apply(&catalog, &[statement(ONE, Change::Updated, 20, &measured("http://h/a", 2))]);

    let third = measured("http://h/a", 3);
    list(&catalog, &[(ONE, Some(10), &listed)], &[statement(ONE, Change::Updated, 20, &third)], Held::Nothing);

    assert_eq!(files(&catalog), [("a".into(), Some(3), vec![0])]);
}

#[test]
fn of_equal_times_across_sets_the_last_statement_counts() {
    let (_folder, catalog) = catalog();
    let lists = [1, 2].map(|length| [measured("http://h/a", length)]);
    for sets in [[ONE, OTHER], [OTHER, ONE]] {
        let listed: Vec<_> = sets.into_iter().zip(&lists).map(|(set, list)| (set, Some(10), &list[..])).collect();
        list(&catalog, &listed, &[], Held::Nothing);
        assert_eq!(files(&catalog), [("a".into(), Some(2), vec![0, 7])]);
    }

    // A change counts more than the list of another set that speaks for its very time.
    apply(&catalog, &[statement(ONE, Change::Updated, 10, &measured("http://h/a", 3))]);
    assert_eq!(files(&catalog), [("a".into(), Some(3), vec![0, 7])]);
    // Of changes in two sets at one time that of the later set counts, in any order.
    let (fourth, fifth) = (measured("http://h/a", 4), measured("http://h/a", 5));
    apply(&catalog, &[statement(OTHER, Change::Updated, 20, &fourth), statement(ONE, Change::Updated, 20, &fifth)]);
    assert_eq!(files(&catalog), [("a".into(), Some(4), vec![0, 7])]);
}

#[test]
fn a_deletion_older_than_the_listing_is_ignored() {
    let (_folder, catalog) = catalog();
    let a = entry("http://h/a");
    list(&catalog, &[(ONE, Some(10), std::slice::from_ref(&a))], &[], Held::Nothing);

    let committed = apply(&catalog, &[statement(ONE, Change::Deleted, 9, &a)]);

    assert_eq!((committed.unknown, paths(&catalog)), (0, vec!["a".to_string()]));
    let committed = apply(&catalog, &[statement(ONE, Change::Deleted, 10, &a)]);
    assert_eq!((committed.unknown, paths(&catalog)), (0, vec![]));
}

#[test]
fn a_package_member_is_kept_for_provably_its_version_alone() {
    let (_folder, catalog) = catalog();
    let member = |path: &str| PackageMember { package: uri("http://h/p.zip"), path: path.into() };
    let hashed = |content| Entry { hashes: vec![digest(Algorithm::Md5, content)], ..entry("http://h/hashed") };
    let dated = |length| Entry { lastmod: Some(at(5)), length, ..entry("http://h/dated") };
    let listed = [hashed(1), dated(Some(3)), measured("http://h/bare", 1)];
    let members = |manifest: &[Entry]| {
        let mut baseline = catalog.commit_of_lists(naming()).unwrap();
        listed.iter().for_each(|entry| baseline.add(entry).unwrap());
        for entry in manifest {
            baseline.add_member(entry, &member("/m")).unwrap();
        }
        baseline.commit(None, b"").unwrap();
        let held =
            tree(&catalog).into_iter().filter(|(_, name)| name.resource.as_ref().is_some_and(|r| r.member.is_some()));
        held.map(|(path, _)| path).collect::<Vec<_>>()
    };

    assert_eq!(members(&[hashed(1), dated(Some(3))]), ["dated", "hashed"]);
    assert_eq!(members(&[hashed(2), dated(None), measured("http://h/bare", 1)]), [""; 0]);
    assert_eq!(members(&[entry("http://h/other"), entry("http://h/folder/other")]), [""; 0]);
    assert_eq!(paths(&catalog).len(), 3, "a manifest lists nothing");

    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    baseline.add_with_member(&hashed(1), &member("/resources/hashed")).unwrap();
    baseline.commit(None, b"").unwrap();
    assert_eq!(tree(&catalog)["hashed"].resource.as_ref().unwrap().member, Some(member("/resources/hashed")));
    let changed = hashed(3);
    let packed = member("/resources/changed");
    apply(&catalog, &[StatedChange { member: Some(&packed), ..statement(ONE, Change::Updated, 20, &changed) }]);
    assert_eq!(tree(&catalog)["hashed"].resource.as_ref().unwrap().member, Some(packed));
}

#[test]
fn files_are_visited_in_chunks() {
    let (_folder, catalog) = catalog();
    let entries: Vec<_> = (0..10).map(|index| measured(&format!("http://h/f/{index}"), index)).collect();
    commit(&catalog, &entries);

    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let (before, behind) = (seen.len(), after);
        let visit = &mut |ino, path: &str, resource: Resource| {
            seen.push((path.to_owned(), resource.length));
            after = Some(ino);
            seen.len() - before < 3
        };
        catalog.snapshot().unwrap().files(behind, visit).unwrap();
        if seen.len() == before {
            break;
        }
    }

    seen.sort();
    assert_eq!(seen, (0..10).map(|index| (format!("f/{index}"), Some(index))).collect::<Vec<_>>());
}

#[test]
fn changes_dropped_leave_no_trace_and_report_damage() {
    let (_folder, catalog) = catalog();
    let a = entry("http://h/a");
    list(&catalog, &[(ONE, None, std::slice::from_ref(&a))], &[], Held::Nothing);
    let before = tree(&catalog);
    let mut changes = catalog.commit_of_changes();
    changes.apply(statement(ONE, Change::Deleted, 20, &a)).unwrap();
    drop(changes);
    assert_eq!((tree(&catalog), catalog.snapshot().unwrap().journaled(ONE, &a.loc).unwrap()), (before, None));

    let store = catalog.store();
    let mut txn = store.env.write_txn().unwrap();
    store.table(TableId::Journal).put(&mut txn, &super::store::keys::resource_key(ONE, &a.loc), b"nonsense").unwrap();
    txn.commit().unwrap();
    let mut changes = catalog.commit_of_changes();
    changes.apply(statement(ONE, Change::Deleted, 20, &a)).unwrap();
    let committed = changes.finish(None, &mut |_| (Held::Nothing, Vec::new()));
    assert!(matches!(committed, Err(CatalogError::Damaged(_))) && catalog.is_distrusted());

    list(&catalog, &[(ONE, None, &[a])], &[], Held::Nothing);
    assert!(!catalog.is_distrusted());
}

#[test]
fn a_rebuilt_store_keeps_the_journal_and_holds_nothing_back() {
    let (_folder, catalog) = catalog();
    let (a, b) = (entry("http://h/a"), entry("http://h/b"));
    let listed = [a.clone(), b.clone()];
    list(&catalog, &[(ONE, Some(10), &listed)], &[], Held::Nothing);
    apply(&catalog, &[statement(ONE, Change::Deleted, 20, &a)]);
    catalog.distrust();

    let refused = {
        let mut baseline = catalog.commit_of_lists(naming()).unwrap();
        baseline.begin_list(ONE, Some(at(30)));
        baseline.finish(None, &mut |losses| {
            assert_eq!((losses.present, losses.going()), (1, 1));
            (Held::All, Vec::new())
        })
    };
    assert!(matches!(refused, Err(CatalogError::Undecided)));
    assert_eq!(paths(&catalog), ["b"]);
    list(&catalog, &[(ONE, Some(10), &listed)], &[], Held::Nothing);

    assert!(!catalog.is_distrusted());
    assert_eq!(paths(&catalog), ["b"]);
    assert!(catalog.snapshot().unwrap().journaled(ONE, &a.loc).unwrap().is_some());
}
