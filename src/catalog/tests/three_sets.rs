//! Random histories of three sets with held deletions, packages, renewals and shared paths: what is counted is what is there, and where
//! nothing is held back the names are those of the one baseline that says the same.

use super::model::describe;
use super::*;
use crate::document::Change;
use std::collections::BTreeSet;

const SETS: [SetId; 3] = [SetId(0), SetId(5), SetId(9)];

/// A change that a commit was given.
struct Said {
    set: SetId,
    change: Change,
    time: i64,
    entry: Entry,
    member: Option<PackageMember>,
}

impl Said {
    fn statement(&self) -> StatedChange<'_> {
        let Said { set, change, time, entry, member } = self;
        StatedChange { set: *set, change: *change, time: at(*time), is_left_out: false, entry, member: member.as_ref() }
    }
}

/// The list of each set that was merged last: what it speaks for, and its entries.
type Lists = BTreeMap<SetId, (i64, Vec<Entry>)>;

struct History {
    random: XorshiftStar,
    clock: i64,
    naming: Naming,
    lists: Lists,
    /// The changes since.
    said: Vec<Said>,
    uris: BTreeSet<Uri>,
}

impl History {
    fn tick(&mut self) -> i64 {
        self.clock += 10;
        self.clock
    }

    fn set(&mut self) -> SetId {
        SETS[self.random.below(3) as usize]
    }

    /// A description of a resource, most often of one that was named before.
    fn entry(&mut self) -> Entry {
        let random = &mut self.random;
        let known = self.uris.len() as u64;
        let uri = match known == 0 || random.one_in(3) {
            true => {
                let scheme = ["http", "https"][random.below(2) as usize];
                let names = ["a", "b", "c.txt", "a,b", "a%2Cb", "d"];
                let path: Vec<_> = (0..=random.below(3)).map(|_| names[random.below(6) as usize]).collect();
                uri(&format!("{scheme}://h/{}{}", path.join("/"), ["", "", "/", "?q"][random.below(4) as usize]))
            }
            false => self.uris.iter().nth(random.below(known) as usize).unwrap().clone(),
        };
        self.uris.insert(uri.clone());
        let mut entry = Entry::new(uri);
        describe(random, &mut entry);
        entry
    }

    fn member(&mut self) -> Option<PackageMember> {
        let path = format!("m{}", self.random.below(3));
        self.random.one_in(4).then(|| PackageMember { package: uri("http://h/package.zip"), path: path.into() })
    }

    fn say(&mut self) -> Said {
        let (set, time, entry, member) = (self.set(), self.tick(), self.entry(), self.member());
        let change =
            [Change::Created, Change::Updated, Change::Deleted, Change::Deleted][self.random.below(4) as usize];
        Said { set, change, time, entry, member: member.filter(|_| change != Change::Deleted) }
    }

    fn held(&mut self) -> Held {
        match self.random.below(6) {
            0 => Held::All,
            1 => Held::Of(BTreeSet::from([self.set()])),
            2 => Held::Of(BTreeSet::from([self.set(), self.set()])),
            _ => Held::Nothing,
        }
    }

    fn change(&mut self, catalog: &Catalog) {
        let mut news: Vec<_> = (0..=self.random.below(10)).map(|_| self.say()).collect();
        if self.random.one_in(6) {
            // A folder is emptied.
            let beneath: Vec<Uri> = self.uris.iter().filter(|uri| uri.as_str().contains("//h/a/")).cloned().collect();
            for (uri, set) in beneath.iter().flat_map(|uri| SETS.map(|set| (uri, set))) {
                let (time, entry) = (self.tick(), Entry::new(uri.clone()));
                news.push(Said { set, change: Change::Deleted, time, entry, member: None });
            }
        }
        self.random.shuffle(&mut news);
        let (mut changes, held) = (catalog.commit_of_changes(), self.held());
        news.iter().for_each(|said| changes.apply(said.statement()).unwrap());
        changes.finish(None, &mut |_| (held.clone(), Vec::new())).unwrap();
        self.said.extend(news);
    }

    fn list(&mut self, catalog: &Catalog) {
        for set in SETS {
            let (_, mut entries) = self.lists.remove(&set).unwrap_or_default();
            entries.retain(|_| !self.random.one_in(4));
            let more: Vec<_> = (0..self.random.below(8)).map(|_| self.entry()).collect();
            entries.retain(|known| more.iter().all(|entry| entry.loc != known.loc));
            entries.extend(more);
            self.random.shuffle(&mut entries);
            let at = self.tick();
            self.lists.insert(set, (at, entries));
        }
        let lists = &self.lists;
        self.said.retain(|said| said.time >= lists[&said.set].0);
        let news: Vec<_> = (0..self.random.below(4)).map(|_| self.say()).collect();
        catalog.write_in_place(if self.random.one_in(2) { self.random.below(4) } else { u64::MAX });
        let mut baseline = Commit::with_memory(catalog, self.naming.clone(), 512);
        self.state(&mut baseline);
        news.iter().for_each(|said| baseline.apply(said.statement()).unwrap());
        if self.random.one_in(4) {
            baseline.decide_again(self.set());
        }
        if self.random.one_in(4) {
            baseline.keep_held(&BTreeSet::from([self.set()]));
        }
        if self.random.one_in(6) {
            let forgotten = self.set();
            baseline.forget(forgotten);
            self.said.retain(|said| said.set != forgotten);
            self.said.extend(news.into_iter().filter(|said| said.set != forgotten));
        } else {
            self.said.extend(news);
        }
        let held = self.held();
        baseline.finish(None, &mut |_| (held.clone(), Vec::new())).unwrap();
        catalog.write_in_place(u64::MAX);
    }

    /// States the lists as they were merged last.
    fn state(&self, baseline: &mut Commit<'_>) {
        for (set, (time, entries)) in &self.lists {
            baseline.begin_list(*set, Some(at(*time)));
            entries.iter().for_each(|entry| baseline.add(entry).unwrap());
        }
    }

    fn accept(&mut self, catalog: &Catalog) {
        catalog.write_in_place(if self.random.one_in(2) { 1 + self.random.below(3) } else { u64::MAX });
        let mut changes = catalog.commit_of_changes();
        changes.accept_held().unwrap();
        changes.finish(None, &mut |_| (Held::All, Vec::new())).unwrap();
        catalog.write_in_place(u64::MAX);
    }

    fn renew(&mut self, catalog: &Catalog) {
        let node = catalog.snapshot().unwrap().locate(&self.entry().loc).unwrap();
        let renewal = [Renewal::AsPublished, Renewal::Unpublished][self.random.below(2) as usize];
        catalog.renew(node.map(|node| (node.ino, renewal))).unwrap();
    }
}

/// Each file by path with its URI and sets; folders with neither.
fn named(catalog: &Catalog) -> BTreeMap<String, Option<(Uri, Vec<SetId>)>> {
    let of = |name: TreeEntry| name.resource.map(|resource| (resource.uri, resource.sets));
    tree(catalog).into_iter().map(|(path, name)| (path, of(name))).collect()
}

/// Sums, sets and held deletions are those of the files that are there, and no folder is empty.
fn check(catalog: &Catalog, named: &BTreeMap<String, Option<(Uri, Vec<SetId>)>>, when: &str) {
    let snapshot = catalog.snapshot().unwrap();
    let mut counted = BTreeMap::<SetId, u64>::new();
    for set in named.values().flatten().flat_map(|(_, sets)| sets) {
        *counted.entry(*set).or_default() += 1;
    }
    let sets: BTreeMap<_, _> = snapshot.sets().into_iter().filter(|(_, files)| *files > 0).collect();
    assert_eq!(sets, counted, "{when}");
    let files = named.values().flatten().count() as u64;
    assert_eq!(catalog.revision().unwrap().unwrap().totals.files, files, "{when}");
    for (folder, _) in named.iter().filter(|(_, file)| file.is_none()) {
        assert!(named.keys().any(|path| path.starts_with(&format!("{folder}/"))), "{when}: {folder} is empty");
    }
    for (set, uri) in snapshot.held() {
        let is_kept = named.values().flatten().any(|(other, sets)| *other == uri && sets.contains(&set));
        assert!(is_kept, "{when}: {uri} is held back, and not in {set:?}");
    }
}

#[test]
fn random_histories_of_three_sets_agree_with_one_baseline() {
    let mut compared = 0;
    for seed in 1..=8 {
        let folder = tempfile::tempdir().unwrap();
        let mut catalog = open(folder.path());
        let naming = Naming { extension_by_type: seed % 4 == 0, ..naming() };
        let (random, lists, said, uris) = (XorshiftStar(seed), BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut history = History { random, clock: 0, naming, lists, said, uris };
        for step in 0..25 {
            match if step == 0 { 60 } else { history.random.below(100) } {
                0..55 => history.change(&catalog),
                55..75 => history.list(&catalog),
                75..87 => history.accept(&catalog),
                87..94 => history.renew(&catalog),
                _ => {
                    drop(catalog);
                    catalog = open(folder.path());
                }
            }

            let named = named(&catalog);
            check(&catalog, &named, &format!("seed {seed}, step {step}"));
            if catalog.snapshot().unwrap().held_count().unwrap() > 0 {
                continue;
            }
            let fresh = tempfile::tempdir().unwrap();
            let other = open(fresh.path());
            let mut baseline = other.commit_of_lists(history.naming.clone()).unwrap();
            history.state(&mut baseline);
            history.said.iter().for_each(|said| baseline.apply(said.statement()).unwrap());
            baseline.commit(None, b"").unwrap();
            assert_eq!(named, self::named(&other), "seed {seed}, step {step}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared} steps were compared");
}
