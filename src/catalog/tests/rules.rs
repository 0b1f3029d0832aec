//! Single rules, each by the smallest example.

use super::naming::{beside_folder, disambiguated};
use super::*;
use crate::document::{Change, Href};
use std::collections::{BTreeSet, HashSet};

fn paths(catalog: &Catalog) -> Vec<String> {
    tree(catalog).into_keys().collect()
}

#[test]
fn a_new_catalog_has_no_revision_and_no_names() {
    let (_folder, catalog) = catalog();

    assert_eq!(catalog.revision().unwrap(), None);
    assert_eq!(catalog.snapshot().unwrap().attributes(Ino(1)).unwrap(), None);
    assert_eq!(paths(&catalog), [""; 0]);
}

#[test]
fn an_empty_first_baseline_makes_the_root() {
    let (_folder, catalog) = catalog();

    let committed = commit(&catalog, []);

    assert_eq!((committed.revision, committed.created), (1, 0));
    let snapshot = catalog.snapshot().unwrap();
    let root = snapshot.attributes(Ino(1)).unwrap().unwrap();
    assert_eq!(root.kind, Kind::Folder);
    assert_eq!(snapshot.inode(root.ino).unwrap(), Some(Inode { node: root, name: None, former: None }));
    assert_eq!(snapshot.path(root.ino).unwrap().as_deref(), Some(""));
    assert_eq!(snapshot.find("/").unwrap(), Some(root));
}

#[test]
fn everything_published_comes_back() {
    let (_folder, catalog) = catalog();
    let link = |href: &str| Link {
        rel: "duplicate".into(),
        href: uri(href).into(),
        pri: 7,
        media_type: Some("a/b".into()),
        encoding: Some("gzip".into()),
        length: Some(u64::MAX),
        hashes: vec![digest(Algorithm::Sha512, 1), digest(Algorithm::Sha384, 2)],
        modified: Some(Timestamp { seconds: -5, nanos: 123_456_789 }),
        path: Some("/p".into()),
    };
    let bare = Link::new("http://x/rel", uri("http://h/folder/fil"));
    let named = Link::new("profile", Href::parse("urn:h:folder").unwrap());
    let full = with("http://h/folder/file%20%C3%A9?q=%2F", |entry| {
        entry.lastmod = Some(Timestamp { seconds: 253_402_300_799, nanos: 500_000_000 });
        entry.changefreq = Some(ChangeFrequency::Weekly);
        entry.length = Some(1 << 40);
        entry.hashes = [Algorithm::Sha256, Algorithm::Sha224, Algorithm::Sha1, Algorithm::Md5]
            .map(|algorithm| digest(algorithm, 9))
            .to_vec();
        entry.media_type = Some("x".repeat(1000).into());
        entry.encoding = Some("br".into());
        entry.links = vec![link("https://mirror/%C3%A9"), link("http://h/folder/file%20%C3%AA"), bare, named];
    });

    commit(&catalog, [&full]);

    let name = tree(&catalog).into_values().find(|name| name.resource.is_some()).unwrap();
    let resource = name.resource.unwrap();
    assert_eq!(resource.links, full.links);
    assert_eq!(resource.hashes, full.hashes);
    assert_eq!((&resource.uri, resource.lastmod, resource.length), (&full.loc, full.lastmod, full.length));
    assert_eq!(resource.changefreq, full.changefreq);
    assert_eq!((resource.media_type, resource.encoding), (full.media_type, full.encoding));
    assert_eq!(name.node.size, None, "length counts coded bytes here");
    assert_eq!(Some(name.node.mtime), full.lastmod);
}

#[test]
fn types_beyond_the_dictionary_come_back_too() {
    let (folder, catalog) = catalog();
    let entries: Vec<_> = (0..5000)
        .map(|index| with(&format!("http://h/{index}"), |entry| entry.media_type = Some(format!("t/{index}").into())))
        .collect();
    commit(&catalog, &entries);
    drop(catalog);

    let catalog = open(folder.path());

    for (path, name) in tree(&catalog) {
        assert_eq!(name.resource.unwrap().media_type.unwrap().into_string(), format!("t/{path}"));
    }
    assert_eq!(commit(&catalog, &entries).revision, 1, "nothing differs");
}

#[test]
fn of_one_uri_the_latest_lastmod_counts_else_the_last_added() {
    let (_folder, catalog) = catalog();
    let listed = |lastmod: Option<i64>, length| {
        with("http://h/a", |entry| (entry.lastmod, entry.length) = (lastmod.map(at), Some(length)))
    };
    let length = |catalog: &Catalog| catalog.snapshot().unwrap().find("a").unwrap().unwrap().size.unwrap();

    commit(&catalog, &[listed(Some(2), 1), listed(Some(3), 2), listed(None, 3), listed(Some(1), 4)]);
    assert_eq!(length(&catalog), 2);
    commit(&catalog, &[listed(Some(3), 5), listed(Some(3), 6)]);
    assert_eq!(length(&catalog), 6);
    commit(&catalog, &[listed(None, 7), listed(None, 8)]);
    assert_eq!(length(&catalog), 8);
    assert_eq!(catalog.revision().unwrap().unwrap().totals.files, 1);
}

#[test]
fn what_threads_add_counts_in_the_order_in_which_it_is_joined() {
    let (_folder, catalog) = catalog();
    let listed = |name: &str, length| {
        with(&format!("http://h/{name}"), |entry| (entry.lastmod, entry.length) = (Some(at(1)), Some(length)))
    };
    let mut baseline = catalog.commit_of_lists(naming()).unwrap();
    baseline.add(&listed("a/x", 1)).unwrap();
    let naming = naming();
    let [mut second, mut third] = [0, 1].map(|_| catalog.share(&naming, SetId(0)));
    third.add(&listed("c/z", 9)).unwrap();
    third.add(&listed("b/y", 3)).unwrap();
    second.add(&listed("a/x", 2)).unwrap();
    second.add(&listed("b/y", 2)).unwrap();
    second.add(&with("http://h/b/dated", |entry| entry.lastmod = Some(at(5)))).unwrap();

    let (second, third) = (second.part().unwrap(), third.part().unwrap());
    baseline.join(second).unwrap();
    baseline.join(third).unwrap();
    baseline.add(&listed("c/z", 4)).unwrap();
    baseline.commit(None, b"").unwrap();

    let tree = tree(&catalog);
    let sizes = ["a/x", "b/y", "c/z"].map(|path| tree[path].node.size);
    assert_eq!(sizes, [Some(2), Some(3), Some(4)]);
    assert_eq!(tree.keys().collect::<Vec<_>>(), ["a", "a/x", "b", "b/dated", "b/y", "c", "c/z"]);
    assert_eq!(tree["b"].node.mtime, at(5));
}

#[test]
fn of_uris_that_meet_the_smallest_keeps_the_name() {
    let (_folder, catalog) = catalog();

    commit(&catalog, &[entry("https://h/a.txt"), entry("http://h/a.txt")]);

    let other = disambiguated("a.txt", &uri("https://h/a.txt"));
    let tree = tree(&catalog);
    let uri_of = |path: &str| tree[path].resource.as_ref().unwrap().uri.to_string();
    assert_eq!(tree.len(), 2);
    assert_eq!((uri_of("a.txt"), uri_of(&other)), ("http://h/a.txt".into(), "https://h/a.txt".into()));
}

#[test]
fn a_file_that_becomes_a_prefix_is_renamed_and_back() {
    let (_folder, catalog) = catalog();
    commit(&catalog, [&entry("http://h/a")]);
    let file = tree(&catalog)["a"].clone();

    commit(&catalog, &[entry("http://h/a"), entry("http://h/a/b")]);
    let both = tree(&catalog);
    commit(&catalog, [&entry("http://h/a")]);
    let again = tree(&catalog);

    let beside = beside_folder("a");
    assert_eq!(both.keys().collect::<Vec<_>>(), ["a", &beside, "a/b"]);
    assert_eq!(both["a"].node.kind, Kind::Folder);
    assert_eq!(both["a"].id, file.id, "the entry id stays with the path");
    assert_eq!(both[&beside].resource, file.resource);
    assert_eq!(again.keys().collect::<Vec<_>>(), ["a"]);
    let inodes = HashSet::from([file.node.ino, both["a"].node.ino, both[&beside].node.ino, again["a"].node.ino]);
    assert_eq!(inodes.len(), 4);
}

#[test]
fn hosts_queries_and_deep_paths_are_all_shown() {
    let (_folder, catalog) = catalog();
    let deep = |last: &str| entry(&format!("http://h/{}{last}", "d/".repeat(400)));
    let entries = [entry("http://other:81/x?y=1"), entry("http://h/"), entry("http://h/x/"), deep("1"), deep("2")];

    commit(&catalog, &entries);
    assert_eq!(commit(&catalog, &entries).revision, 1);

    let tree = tree(&catalog);
    let uris: BTreeSet<_> = tree.values().filter_map(|name| name.resource.as_ref()).map(|r| r.uri.clone()).collect();
    assert_eq!(uris, entries.iter().map(|entry| entry.loc.clone()).collect());
    let deepest = tree.keys().map(|path| path.split('/').count()).max();
    assert_eq!(deepest, Some(255));
}

#[test]
fn a_shared_digest_keeps_the_inode_and_new_metadata_is_told() {
    let (_folder, catalog) = catalog();
    let listed = |lastmod, content| {
        with("http://h/a", |entry| {
            entry.lastmod = Some(at(lastmod));
            entry.hashes = vec![digest(Algorithm::Sha256, content)];
        })
    };
    commit(&catalog, [&listed(1000, 1)]);
    let first = tree(&catalog)["a"].node;

    let touched = commit(&catalog, [&listed(2000, 1)]);
    let second = tree(&catalog)["a"].node;
    let updated = commit(&catalog, [&listed(2000, 2)]);
    let third = tree(&catalog)["a"].node;

    assert_eq!((touched.touched, touched.updated), (1, 0));
    assert_eq!((second.ino, second.mtime), (first.ino, at(2000)));
    assert!(touched.invalidations.contains(&Invalidation::Attributes(first.ino)));
    assert_eq!((updated.touched, updated.updated), (0, 1));
    assert_ne!(third.ino, second.ino);
    assert_ne!(third.mtime.seconds, 2000, "size and mtime never both stay");
    assert_eq!(
        updated.invalidations,
        [
            Invalidation::Name { parent: Ino(1), name: (*b"a").into(), orphan: Some(second.ino) },
            Invalidation::Folder(Ino(1))
        ]
    );
}

#[test]
fn an_unchanged_baseline_writes_nothing_but_a_new_position() {
    let (folder, catalog) = catalog();
    let entries = [entry("http://h/a/b"), entry("http://h/c")];
    let commit_at = |at_, position: &[u8]| {
        let mut baseline = catalog.commit_of_lists(naming()).unwrap();
        entries.iter().for_each(|entry| baseline.add(entry).unwrap());
        baseline.commit(Some(at(at_)), position).unwrap()
    };
    let last_write = || catalog.store().env.info().last_txn_id;
    commit_at(1, b"one");
    let (before, first) = (last_write(), catalog.revision().unwrap().unwrap());

    let same = commit_at(1, b"one");
    assert_eq!((same.revision, last_write()), (1, before));
    assert_eq!(same.invalidations, []);

    commit_at(2, b"two");
    assert_eq!(last_write(), before + 1);
    let second = catalog.revision().unwrap().unwrap();
    assert_eq!(second, Revision { at: Some(at(2)), ..first });
    assert_eq!(catalog.snapshot().unwrap().position().unwrap().as_deref(), Some(&b"two"[..]));
    drop(folder);
}

#[test]
fn a_folder_is_as_new_as_what_lies_beneath_and_never_goes_back() {
    let (folder, catalog) = catalog();
    let dated = |loc: &str, lastmod| with(loc, |entry| entry.lastmod = Some(at(lastmod)));
    let future = Timestamp::now().seconds + 1_000_000;
    let listed = [
        dated("http://h/a/b/1", 1000),
        dated("http://h/a/2", 3000),
        dated("http://h/a/b/3", 2000),
        dated("http://h/f/x", future),
    ];
    commit(&catalog, &listed);
    let mtime = |catalog: &Catalog, path: &str| catalog.snapshot().unwrap().find(path).unwrap().unwrap().mtime;

    assert_eq!((mtime(&catalog, "a"), mtime(&catalog, "a/b")), (at(3000), at(2000)));
    assert!(mtime(&catalog, "f") <= Timestamp::now() && mtime(&catalog, "") <= Timestamp::now());
    assert_eq!(mtime(&catalog, "f/x"), at(future));

    let touched = [dated("http://h/a/b/1", 1000), dated("http://h/a/2", 3000), dated("http://h/a/b/3", 9000)];
    let committed = commit(&catalog, touched.iter().chain(&listed[3..]));
    assert_eq!((committed.updated, mtime(&catalog, "a/b"), mtime(&catalog, "a")), (1, at(9000), at(9000)));

    let before = mtime(&catalog, "a");
    commit(&catalog, [&listed[0], &listed[3]]);
    assert!(mtime(&catalog, "a") > before, "a name went now");
    let (a, b) = (mtime(&catalog, "a"), mtime(&catalog, "a/b"));
    drop(catalog);
    let catalog = open(folder.path());
    assert_eq!((mtime(&catalog, "a"), mtime(&catalog, "a/b")), (a, b), "the same after a restart");
}

#[test]
fn a_deletion_takes_all_beneath_and_names_return_new() {
    let (_folder, catalog) = catalog();
    let all = [entry("http://h/a/b/c"), entry("http://h/a/b/d"), entry("http://h/e")];
    commit(&catalog, &all);
    let before = tree(&catalog);

    let committed = commit(&catalog, &all[2..]);

    assert_eq!((committed.deleted, paths(&catalog)), (2, vec!["e".to_string()]));
    let snapshot = catalog.snapshot().unwrap();
    assert_eq!(snapshot.lookup(before["a"].node.ino, b"b").unwrap(), None);
    assert_eq!(snapshot.orphans(Ino(0), usize::MAX).unwrap().len(), 4);
    drop(snapshot);
    commit(&catalog, &all);
    assert!(tree(&catalog)["a"].id > before.values().map(|name| name.id).max().unwrap());
}

#[test]
fn renewing_gives_a_new_inode_for_the_same_resource() {
    let (_folder, catalog) = catalog();
    let listed = with("http://h/a/b", |entry| (entry.lastmod, entry.length) = (Some(at(5)), Some(6)));
    commit(&catalog, [&listed]);
    let before = tree(&catalog);

    let told = catalog.renew([(before["a/b"].node.ino, Renewal::AsPublished)]).unwrap();

    let after = tree(&catalog);
    let (old, new, folder) = (&before["a/b"], &after["a/b"], &before["a"]);
    assert_ne!(old.node.ino, new.node.ino);
    assert_ne!(old.node.mtime.seconds, new.node.mtime.seconds);
    assert_eq!((old.id, &old.resource, old.node.size), (new.id, &new.resource, new.node.size));
    assert_eq!(
        told,
        [
            Invalidation::Name { parent: folder.node.ino, name: (*b"b").into(), orphan: Some(old.node.ino) },
            Invalidation::Folder(Ino(1)),
            Invalidation::Folder(folder.node.ino)
        ]
    );
    assert_eq!(catalog.snapshot().unwrap().resource(old.node.ino).unwrap(), old.resource, "as an orphan");
    assert_eq!(catalog.revision().unwrap().unwrap().number, 2);
    assert_eq!(catalog.renew([(old.node.ino, Renewal::AsPublished)]).unwrap(), [], "it has no name any more");
    assert_eq!(catalog.renew([(folder.node.ino, Renewal::AsPublished)]).unwrap(), []);
    assert_eq!(commit(&catalog, [&listed]).revision, 2, "the list says nothing new");
}

#[test]
fn another_naming_moves_names_and_keeps_every_resource() {
    let (_folder, catalog) = catalog();
    let entries = [entry("http://h/a/b"), entry("http://other/c")];
    commit(&catalog, &entries);

    let other = Naming { own_authority: "other".into(), ..Naming::default() };
    let mut baseline = catalog.commit_of_lists(other.clone()).unwrap();
    entries.iter().for_each(|entry| baseline.add(entry).unwrap());
    baseline.commit(None, b"").unwrap();

    let uris: BTreeSet<_> = tree(&catalog).into_values().filter_map(|name| Some(name.resource?.uri)).collect();
    assert_eq!(uris, entries.iter().map(|entry| entry.loc.clone()).collect());
    assert!(paths(&catalog).contains(&"c".to_string()));
    assert_eq!(catalog.snapshot().unwrap().naming().unwrap(), Some(other));
}

/// Pages of a listing go on at a cookie whatever happened to the tree in between.
#[test]
fn paging_a_changing_folder_repeats_no_name_and_loses_none() {
    let (_folder, catalog) = catalog();
    let mut random = XorshiftStar(5);
    let name = |index: u64| format!("{index}");
    let lasting: BTreeSet<u64> = (0..3000).collect();
    let mut listed = lasting.clone();
    let publish = |listed: &BTreeSet<u64>, version: u64| {
        let entries: Vec<_> = listed
            .iter()
            .map(|index| with(&format!("http://h/flat/{index}"), |entry| entry.length = Some((index * version) % 5)))
            .collect();
        commit(&catalog, &entries);
    };
    listed.extend(10_000..10_400);
    publish(&listed, 0);
    let folder = tree(&catalog)["flat"].node.ino;

    let mut seen = Vec::new();
    let mut cookie = EntryId(0);
    for version in 1.. {
        let mut page = 0;
        let (page_before, length) = (seen.len(), 1 + random.below(700));
        let snapshot = catalog.snapshot().unwrap();
        snapshot
            .children(folder, cookie, &mut |id, name, _| {
                seen.push(String::from_utf8(name.to_vec()).unwrap());
                cookie = id;
                page += 1;
                page < length
            })
            .unwrap();
        drop(snapshot);
        if seen.len() == page_before {
            break;
        }
        if version < 8 {
            listed.retain(|index| *index < 3000 || !random.one_in(3));
            listed.extend((0..50).map(|_| 10_000 + random.below(5000)));
            publish(&listed, version);
        }
    }

    let distinct: BTreeSet<_> = seen.iter().cloned().collect();
    assert!(lasting.iter().all(|index| distinct.contains(&name(*index))), "none lost that was there throughout");
    let lasting_seen = seen.iter().filter(|name| name.parse::<u64>().unwrap() < 3000).count();
    assert_eq!(lasting_seen, 3000, "no lasting name twice");
}

#[test]
fn a_snapshot_shows_one_revision_while_others_are_committed() {
    let (_folder, catalog) = catalog();
    commit(&catalog, &[entry("http://h/a"), entry("http://h/b")]);
    let snapshot = catalog.snapshot().unwrap();
    let again = catalog.snapshot().unwrap();

    std::thread::scope(|scope| {
        scope.spawn(|| commit(&catalog, [&entry("http://h/c")]));
    });

    let held = std::thread::scope(|scope| scope.spawn(move || snapshot.find("a").unwrap()).join().unwrap());
    assert!(held.is_some());
    assert_eq!(again.revision().unwrap().unwrap().number, 1);
    assert_eq!(catalog.snapshot().unwrap().find("a").unwrap(), None);
}

/// Names and times come from this machine at once, whatever sync is doing.
#[test]
fn lookups_go_on_while_a_commit_is_written() {
    let (_folder, catalog) = catalog();
    commit(&catalog, [&entry("http://h/a")]);
    let store = catalog.store();

    let writing = store.env.write_txn().unwrap();

    assert!(catalog.snapshot().unwrap().lookup(Ino(1), b"a").unwrap().is_some());
    drop(writing);
}

#[test]
fn a_catalog_is_shared_by_threads_and_a_snapshot_may_move() {
    fn shared<T: Send + Sync>() {}
    fn movable<T: Send>() {}
    shared::<Catalog>();
    movable::<Snapshot<'static>>();
    movable::<Commit<'static>>();
}

#[test]
fn a_list_of_a_hundred_bytes_never_touches_the_disk() {
    let (folder, catalog) = catalog();
    std::fs::remove_dir(folder.path().join("tmp")).unwrap();
    let entry = with("http://h/a", |entry| entry.change = Some(Change::Created));

    assert_eq!(commit(&catalog, [&entry]).created, 1);
}

#[test]
fn a_compacted_store_is_smaller_and_the_same() {
    let (folder, catalog) = catalog();
    let entries: Vec<_> = (0..3000).map(|index| entry(&format!("http://h/{}/{index}", index % 7))).collect();
    commit(&catalog, &entries);
    commit(&catalog, &entries[..100]);
    let inodes = catalog.snapshot().unwrap().orphans(Ino(0), usize::MAX).unwrap();
    catalog.drop_orphans(&inodes).unwrap();
    let (before, held) = (tree(&catalog), catalog.snapshot().unwrap());
    let size = || catalog.store().env.real_disk_size().unwrap();
    let before_size = size();

    assert!(!catalog.compact().unwrap(), "so small a file is no waste");
    assert!(catalog.compact_beyond(3, 0).unwrap());

    assert!(size() < before_size / 3 && is_durable(&catalog));
    assert_eq!(tree(&catalog), before);
    assert_eq!(held.find("1/1").unwrap(), catalog.snapshot().unwrap().find("1/1").unwrap());
    drop(held);
    assert_eq!(commit(&catalog, &entries).deleted, 0);
    let (after, number) = (tree(&catalog), catalog.revision().unwrap());
    drop(catalog);
    let catalog = open(folder.path());
    assert_eq!((tree(&catalog), catalog.revision().unwrap()), (after, number));
    store_folder(folder.path());
}

#[test]
fn without_lastmod_and_hash_length_makes_the_version() {
    let (_folder, catalog) = catalog();
    let ino = |catalog: &Catalog| catalog.snapshot().unwrap().find("a").unwrap().unwrap().ino;
    let typed = |media_type: &str| with("http://h/a", |entry| entry.media_type = Some(media_type.into()));
    let measured = |length| with("http://h/a", |entry| entry.length = Some(length));
    commit(&catalog, [&typed("text/plain")]);
    let first = ino(&catalog);

    commit(&catalog, [&typed("text/html")]);
    assert_eq!(ino(&catalog), first);
    commit(&catalog, [&measured(5)]);
    let second = ino(&catalog);
    assert_ne!(second, first, "the size told before is not vouched for");
    commit(&catalog, [&measured(5), &entry("http://h/b")]);
    assert_eq!(ino(&catalog), second);
    commit(&catalog, [&measured(6)]);
    assert_ne!(ino(&catalog), second);
}

#[test]
fn freshness_is_asked_for_only_where_the_list_cannot_tell() {
    let (_folder, catalog) = catalog();
    let freshness = |catalog: &Catalog, path: &str| catalog.snapshot().unwrap().find(path).unwrap().unwrap().freshness;
    let often = with("http://h/f/often", |entry| entry.changefreq = Some(ChangeFrequency::Never));
    let dated = with("http://h/f/dated", |entry| entry.lastmod = Some(at(5)));
    let vouched = with("http://h/f/vouched", |entry| entry.hashes = vec![digest(Algorithm::Md5, 1)]);
    commit(&catalog, [&often, &dated, &vouched, &entry("http://h/f/bare")]);

    assert_eq!(freshness(&catalog, "f"), Freshness::Listed);
    assert_eq!(freshness(&catalog, "f/dated"), Freshness::Listed);
    assert_eq!(freshness(&catalog, "f/vouched"), Freshness::Listed);
    assert_eq!(freshness(&catalog, "f/bare"), Freshness::Asked(None));
    assert_eq!(freshness(&catalog, "f/often"), Freshness::Asked(Some(ChangeFrequency::Never)));
    let before = catalog.snapshot().unwrap().find("f/bare").unwrap().unwrap().ino;
    let slower = with("http://h/f/bare", |entry| entry.changefreq = Some(ChangeFrequency::Yearly));
    let committed = commit(&catalog, [&often, &dated, &vouched, &slower]);
    assert!(committed.invalidations.contains(&Invalidation::Attributes(before)), "how long they hold differs");
    assert_eq!(freshness(&catalog, "f/bare"), Freshness::Asked(Some(ChangeFrequency::Yearly)));
}

#[test]
fn unpublished_bytes_have_an_inode_without_length() {
    let (_folder, catalog) = catalog();
    let published = with("http://h/other%2Fname", |entry| {
        entry.lastmod = Some(at(5));
        entry.length = Some(300);
        entry.media_type = Some("text/plain".into());
        entry.hashes = vec![digest(Algorithm::Sha256, 1), digest(Algorithm::Md5, 2)];
        entry.links = vec![Link { pri: 1, ..Link::new("describedby", uri("http://h/about")) }];
    });
    commit(&catalog, [&published]);
    let (_, first) = tree(&catalog).into_iter().next().unwrap();

    let told = catalog.renew([(first.node.ino, Renewal::Unpublished)]).unwrap();

    let (_, second) = tree(&catalog).into_iter().next().unwrap();
    assert!(told.contains(&Invalidation::Name {
        parent: first.parent,
        name: b"other%2Fname"[..].into(),
        orphan: Some(first.node.ino),
    }));
    assert_ne!(second.node.ino, first.node.ino);
    assert!(second.node.mtime > first.node.mtime);
    assert_eq!(second.node.size, None);
    let kept = Resource { length: None, hashes: vec![], ..first.resource.unwrap() };
    assert_eq!(second.resource, Some(kept));
    let totals = catalog.revision().unwrap().unwrap().totals;
    assert_eq!((totals.bytes, totals.unsized_files), (0, 1));
    commit(&catalog, [&published]);
    let (_, third) = tree(&catalog).into_iter().next().unwrap();
    assert_ne!(third.node.ino, second.node.ino, "what is published counts again");
}
