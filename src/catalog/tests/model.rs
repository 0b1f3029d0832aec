//! Random histories of baselines, compared after each step with a plain reference.

use super::naming::names_of_path::path_by_rule;
use super::naming::{beside_folder, disambiguated};
use super::*;
use std::collections::{BTreeSet, HashSet};

/// The tree that a set of resources means: path -> the entry of a file, `None` for a folder.
pub(super) fn expected<'e>(published: &'e BTreeMap<Uri, Entry>) -> BTreeMap<String, Option<&'e Entry>> {
    let mut files: BTreeMap<String, Vec<&'e Entry>> = BTreeMap::new();
    let mut folders = BTreeSet::new();
    for (uri, entry) in published {
        let path = path_by_rule(&naming(), uri, None).0;
        folders.extend(path.match_indices('/').map(|(at, _)| path[..at].to_string()));
        files.entry(path).or_default().push(entry);
    }
    let mut tree: BTreeMap<_, _> = folders.iter().map(|folder| (folder.clone(), None)).collect();
    for (path, entries) in files {
        let (folder, name) = path.rsplit_once('/').map_or(("", &path[..]), |(folder, name)| (folder, name));
        for (index, entry) in entries.into_iter().enumerate() {
            let name = match index {
                0 if !folders.contains(&path) => name.to_string(),
                0 => beside_folder(name),
                _ => disambiguated(name, &entry.loc),
            };
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            assert!(tree.insert(path, Some(entry)).is_none());
        }
    }
    tree
}

pub(super) fn as_resource(entry: &Entry) -> Resource {
    Resource {
        uri: entry.loc.clone(),
        lastmod: entry.lastmod,
        changefreq: entry.changefreq,
        length: entry.length,
        hashes: entry.hashes.clone(),
        media_type: entry.media_type.clone(),
        encoding: entry.encoding.clone(),
        links: entry.links.clone(),
        sets: vec![SetId(0)],
        member: None,
    }
}

/// DESIGN's rule, written down a second time.
pub(super) fn same_version(old: &Resource, new: &Resource) -> bool {
    let of = |resource: &Resource, algorithm| resource.hashes.iter().find(|d| d.algorithm() == algorithm).copied();
    let shared: Vec<bool> = [Algorithm::Md5, Algorithm::Sha256]
        .into_iter()
        .filter_map(|algorithm| Some(of(old, algorithm)? == of(new, algorithm)?))
        .collect();
    old.encoding == new.encoding
        && if shared.is_empty() {
            old.uri == new.uri && old.lastmod == new.lastmod && old.length == new.length
        } else {
            shared.iter().all(|agrees| *agrees)
        }
}

pub(super) fn random_uri(random: &mut XorshiftStar) -> String {
    let scheme = ["http", "https"][random.below(2) as usize];
    let host = if random.one_in(6) { "other" } else { "h" };
    let segments: Vec<_> = (0..=random.below(4)).map(|_| ["a", "b", "c.txt", "d"][random.below(4) as usize]).collect();
    let end = ["", "", "", "/", "?q", "?q=1/2"][random.below(6) as usize];
    format!("{scheme}://{host}/{}{end}", segments.join("/"))
}

pub(super) fn describe(random: &mut XorshiftStar, entry: &mut Entry) {
    let content = random.below(3) as u8;
    entry.lastmod = (!random.one_in(3)).then(|| at(1_500_000_000 + random.below(3) as i64 * 86_400));
    entry.length = (!random.one_in(3)).then(|| 10 + u64::from(content));
    entry.hashes = [Algorithm::Sha256, Algorithm::Md5]
        .into_iter()
        .filter(|_| random.one_in(3))
        .map(|algorithm| digest(algorithm, content))
        .collect();
    entry.media_type = random.one_in(2).then(|| ["text/plain", "text/html"][random.below(2) as usize].into());
    entry.encoding = random.one_in(8).then(|| "gzip".into());
}

/// One step of a history: some resources go, some come, some change.
fn mutate(random: &mut XorshiftStar, published: &mut BTreeMap<Uri, Entry>) {
    let keep = if random.one_in(12) { 0 } else { 9 };
    published.retain(|_, _| random.below(10) < keep);
    for _ in 0..random.below(12) {
        let mut entry = entry(&random_uri(random));
        describe(random, &mut entry);
        published.insert(entry.loc.clone(), entry);
    }
    for entry in published.values_mut() {
        if random.one_in(6) {
            describe(random, entry);
        }
    }
}

/// Everything that one commit promises about what was and what is, given when content counts as the same.
pub(super) fn check_step(
    before: &BTreeMap<String, TreeEntry>,
    after: &BTreeMap<String, TreeEntry>,
    ever: &HashSet<Ino>,
    committed: &Committed,
    same_version: impl Fn(&Resource, &Resource) -> bool,
) {
    let oldest_new_id = before.values().map(|name| name.id).max();
    let mut told = HashSet::new();
    let mut attributes = HashSet::new();
    let mut folders = HashSet::new();
    for invalidation in &committed.invalidations {
        match invalidation {
            Invalidation::Name { parent, name, orphan } => assert!(told.insert((*parent, name.to_vec(), *orphan))),
            Invalidation::Attributes(ino) => assert!(attributes.insert(*ino)),
            Invalidation::Folder(ino) => assert!(folders.insert(*ino)),
            Invalidation::Folders(_) | Invalidation::Everything(_) => panic!("so little changed"),
        }
    }
    let name = |path: &str| path.rsplit('/').next().unwrap().as_bytes().to_vec();
    let (mut names, mut touched) = (0, 0);
    for (path, new) in after {
        match before.get(path) {
            Some(old) if old.parent == new.parent => {
                assert_eq!(old.id, new.id, "{path}: the entry id stays with the path");
                let stays = match (&old.resource, &new.resource) {
                    (Some(old), Some(new)) => same_version(old, new),
                    (None, None) => true,
                    _ => false,
                };
                assert_eq!(old.node.ino == new.node.ino, stays, "{path}: {old:?} -> {new:?}");
                if !stays {
                    names += 1;
                    assert!(!ever.contains(&new.node.ino), "{path}: inodes are never reused");
                    assert!(told.contains(&(new.parent, name(path), Some(old.node.ino))), "{path} is told");
                    assert!(folders.contains(&new.parent), "{path}: its folder is told");
                    let sizes_differ = old.node.size.zip(new.node.size).is_some_and(|(old, new)| old != new);
                    let both_files = old.resource.is_some() && new.resource.is_some();
                    assert!(
                        !both_files || sizes_differ || old.node.mtime.seconds != new.node.mtime.seconds,
                        "{path}: new content never keeps size and mtime both"
                    );
                } else if new.node.kind == Kind::Folder {
                    assert!(new.node.mtime >= old.node.mtime, "{path}: a folder's mtime never goes back");
                    assert!(old.node == new.node || folders.contains(&new.node.ino), "{path} is told");
                } else {
                    touched += u64::from(old.resource != new.resource);
                    assert_eq!(attributes.contains(&new.node.ino), old.node != new.node, "{path}");
                }
            }
            _ => {
                names += u64::from(new.node.kind == Kind::File);
                assert!(!ever.contains(&new.node.ino), "{path}: inodes are never reused");
                assert!(Some(new.id) > oldest_new_id, "{path}: a new name gets a new entry id");
                if ever.contains(&new.parent) {
                    assert!(told.contains(&(new.parent, name(path), None)), "{path} is told");
                    assert!(folders.contains(&new.parent), "{path}: its folder is told");
                }
            }
        }
    }
    for (path, old) in before {
        if after.get(path).is_none_or(|new| new.parent != old.parent) {
            names += u64::from(old.node.kind == Kind::File);
            assert!(told.contains(&(old.parent, name(path), Some(old.node.ino))), "{path} is told");
        }
    }
    assert_eq!(committed.touched, touched);
    assert_eq!(committed.created + committed.updated + committed.deleted, names, "folders do not count");
}

/// Whatever is published in whatever order, the tree is what the set means, and names, inodes and cookies are as stable as
/// promised.
#[test]
fn random_histories_agree_with_the_model() {
    let mut wholes = 0;
    for seed in 1..=8 {
        let folder = tempfile::tempdir().unwrap();
        let mut catalog = open(folder.path());
        let mut random = XorshiftStar(seed);
        let mut published = BTreeMap::new();
        let mut before = BTreeMap::new();
        let mut ever = HashSet::from([Ino(1)]);
        let mut orphans: BTreeMap<Ino, TreeEntry> = BTreeMap::new();
        for step in 0..30 {
            let revision = catalog.revision().unwrap();
            mutate(&mut random, &mut published);
            let mut entries: Vec<_> = published.values().collect();
            random.shuffle(&mut entries);

            // Over the revision before, or as a whole.
            catalog.write_in_place(if random.one_in(2) { random.below(4) } else { u64::MAX });
            let store = catalog.store();
            let committed =
                if random.one_in(2) { commit(&catalog, entries) } else { commit_spilling(&catalog, entries) };

            wholes += usize::from(step > 0 && is_rebuilt(&catalog, &store));
            drop(store);

            let after = tree(&catalog);
            let paths: BTreeMap<_, _> =
                after.iter().map(|(path, name)| (path.clone(), name.resource.clone())).collect();
            let model: BTreeMap<_, _> =
                expected(&published).into_iter().map(|(path, entry)| (path, entry.map(as_resource))).collect();
            assert_eq!(paths, model, "seed {seed}, step {step}");
            if step == 0 {
                assert_eq!(committed.invalidations, [], "nothing was shown before");
            } else {
                check_step(&before, &after, &ever, &committed, same_version);
            }
            let now = catalog.revision().unwrap().unwrap();
            let files: Vec<_> = after.values().filter(|name| name.node.kind == Kind::File).collect();
            let totals = Totals {
                files: files.len() as u64,
                folders: 1 + (after.len() - files.len()) as u64,
                bytes: files.iter().filter_map(|name| name.node.size).sum(),
                unsized_files: files.iter().filter(|name| name.node.size.is_none()).count() as u64,
            };
            assert_eq!(now.totals, totals);
            assert_eq!(now.number, committed.revision);
            let changed = committed.created + committed.updated + committed.touched + committed.deleted > 0;
            assert_eq!(now.number > revision.map_or(0, |revision| revision.number), changed || step == 0);

            let live: HashSet<_> = after.values().map(|name| name.node.ino).collect();
            for (_, old) in before {
                if !live.contains(&old.node.ino) {
                    orphans.insert(old.node.ino, old);
                }
            }
            let snapshot = catalog.snapshot().unwrap();
            assert_eq!(snapshot.orphans(Ino(0), usize::MAX).unwrap(), orphans.keys().copied().collect::<Vec<_>>());
            for (ino, old) in &orphans {
                let node = snapshot.attributes(*ino).unwrap().unwrap();
                assert_eq!(Node { ctime: old.node.ctime, ..node }, old.node);
                assert_eq!(snapshot.resource(*ino).unwrap(), old.resource);
            }
            drop(snapshot);
            if random.one_in(2) {
                let forgotten: Vec<_> = orphans.keys().copied().filter(|_| random.one_in(3)).collect();
                catalog.drop_orphans(&forgotten).unwrap();
                orphans.retain(|ino, _| !forgotten.contains(ino));
            }
            ever.extend(live);
            before = after;

            if random.one_in(5) {
                drop(catalog);
                catalog = open(folder.path());
                orphans.clear();
                assert_eq!(tree(&catalog), before, "a restart changes nothing");
            }
        }
    }
    assert!(wholes > 20, "{wholes} revisions were written as a whole");
}

#[test]
fn paths_depend_neither_on_order_nor_on_history() {
    let mut random = XorshiftStar(99);
    let mut published = BTreeMap::new();
    let with_history = tempfile::tempdir().unwrap();
    let catalog = open(with_history.path());
    for _ in 0..10 {
        mutate(&mut random, &mut published);
        commit(&catalog, published.values());
    }

    let fresh = tempfile::tempdir().unwrap();
    let other = open(fresh.path());
    commit(&other, published.values().rev());

    let uris = |catalog: &Catalog| -> Vec<_> {
        tree(catalog).into_iter().map(|(path, name)| (path, name.resource.map(|resource| resource.uri))).collect()
    };
    assert_eq!(uris(&catalog), uris(&other));
}
