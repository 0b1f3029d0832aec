//! Random histories of changes and baselines of two sets, compared after each step with a plain reference and with the one
//! baseline that says the same.

use super::model::{as_resource, check_step, describe, expected, random_uri, same_version};
use super::*;
use crate::document::Change;
use std::collections::{BTreeSet, HashSet};

/// What a list speaks for, and what it lists.
type List = (i64, BTreeMap<Uri, Entry>);

const SETS: [SetId; 2] = [SetId(0), SetId(5)];

/// What a Source has published, and what the rules make of it.
#[derive(Clone, Default)]
struct HistoryModel {
    clock: i64,
    /// What each set has, as the last list or change of it says.
    sets: BTreeMap<SetId, BTreeMap<Uri, Entry>>,
    /// The list of each set that was merged last: what it speaks for.
    at: BTreeMap<SetId, Option<i64>>,
    /// Earlier lists of each set, which a Source may show again.
    lists: BTreeMap<SetId, Vec<List>>,
    journal: BTreeMap<(SetId, Uri), (i64, Option<Entry>)>,
    /// Deletions held back: `sets` still has them.
    held: BTreeSet<(SetId, Uri)>,
    /// What each resource is shown as: what was said of it last.
    shown: BTreeMap<Uri, Entry>,
}

impl HistoryModel {
    fn sets_of(&self, uri: &Uri) -> Vec<SetId> {
        SETS.into_iter().filter(|set| self.sets.get(set).is_some_and(|listed| listed.contains_key(uri))).collect()
    }

    fn said(&self, set: SetId, uri: &Uri) -> Option<i64> {
        match self.journal.get(&(set, uri.clone())) {
            Some((time, _)) => Some(*time),
            None => self.at.get(&set).copied().flatten(),
        }
    }

    /// One change, as far as membership goes; answers whether it is believed.
    fn apply(&mut self, before: &HistoryModel, set: SetId, time: i64, uri: &Uri, entry: Option<&Entry>) -> bool {
        let key = (set, uri.clone());
        let journaled = self.journal.get(&key);
        if journaled.is_some_and(|(known, _)| *known > time) || journaled == Some(&(time, entry.cloned())) {
            return false;
        }
        if self.at.get(&set).copied().flatten().is_some_and(|at| at > time) {
            return false;
        }
        self.journal.insert(key, (time, entry.cloned()));
        let listed = self.sets.entry(set).or_default();
        match entry {
            Some(entry) => {
                listed.insert(uri.clone(), entry.clone());
                self.held.remove(&(set, uri.clone()));
            }
            // What was held back stays so: it was not changed to stay.
            None if before.held.contains(&(set, uri.clone())) => drop(self.held.insert((set, uri.clone()))),
            None => drop(listed.remove(uri)),
        }
        true
    }

    /// What the resource is shown as behind a commit: the last of what its sets said in it, (set, time, whether it has it), unless another set
    /// said something later before. Answers whether it is one of these.
    fn show(&mut self, before: &HistoryModel, uri: &Uri, said: &[(SetId, i64, bool)]) -> bool {
        if self.sets_of(uri).is_empty() {
            self.shown.remove(uri);
            return false;
        }
        // Of each set the last counts. Of sets the latest counts, by time, then by `lastmod`, then by their order.
        let last: BTreeMap<SetId, (i64, bool)> = said.iter().map(|(set, time, has)| (*set, (*time, *has))).collect();
        let stated = last.iter().filter(|(_, (_, has))| *has);
        let rank = |(set, (time, _)): (&SetId, &(i64, bool))| (Some(*time), self.sets[set][uri].lastmod, *set);
        let Some((time, lastmod, set)) = stated.map(rank).max() else { return false };
        let rests = |set: &SetId| !last.contains_key(set) && !before.held.contains(&(*set, uri.clone()));
        let resting: Vec<SetId> = before.sets_of(uri).into_iter().filter(rests).collect();
        let known = resting.iter().map(|set| (before.said(*set, uri), before.shown[uri].lastmod)).max();
        if known > Some((time, lastmod)) {
            return false;
        }
        self.shown.insert(uri.clone(), self.sets[&set][uri].clone());
        true
    }

    /// A baseline of these lists, `None` for one that does not tell its time; what goes from the sets `held` is held back.
    fn list(&mut self, lists: &BTreeMap<SetId, (Option<i64>, BTreeMap<Uri, Entry>)>, held: &BTreeSet<SetId>) {
        let (before, shown) = (std::mem::take(&mut self.sets), std::mem::take(&mut self.shown));
        for (set, (at, listed)) in lists {
            self.at.insert(*set, *at);
            self.sets.insert(*set, listed.clone());
        }
        let at = self.at.clone();
        self.journal.retain(|(set, _), (time, _)| at[set].is_none_or(|at| *time >= at));
        for ((set, uri), (_, entry)) in &self.journal {
            let listed = self.sets.entry(*set).or_default();
            match entry {
                Some(entry) => drop(listed.insert(uri.clone(), entry.clone())),
                None => drop(listed.remove(uri)),
            }
        }
        let uris: BTreeSet<Uri> = self.sets.values().flat_map(|listed| listed.keys().cloned()).collect();
        for uri in uris {
            // Later, or no earlier and with the later `lastmod`, or added last.
            let latest = self.sets_of(&uri).into_iter().max_by_key(|set| {
                (self.said(*set, &uri), self.sets[set][&uri].lastmod, self.journal.contains_key(&(*set, uri.clone())))
            });
            self.shown.insert(uri.clone(), self.sets[&latest.unwrap()][&uri].clone());
        }
        // Where most of what was held back of a set is there again the rest is decided again.
        for set in SETS {
            let held: Vec<_> = self.held.iter().filter(|(of, _)| *of == set).map(|(_, uri)| uri).collect();
            let again = held.iter().filter(|uri| self.sets.get(&set).is_some_and(|listed| listed.contains_key(uri)));
            if 2 * again.count() > held.len() {
                self.held.retain(|(of, _)| *of != set);
            }
        }
        for (set, uri) in before.iter().flat_map(|(set, listed)| listed.keys().map(move |uri| (*set, uri))) {
            let listed = self.sets.entry(set).or_default();
            if listed.contains_key(uri) {
                self.held.remove(&(set, uri.clone()));
            } else if held.contains(&set) || self.held.contains(&(set, uri.clone())) {
                self.held.insert((set, uri.clone()));
                listed.insert(uri.clone(), shown[uri].clone());
                self.shown.entry(uri.clone()).or_insert_with(|| shown[uri].clone());
            }
        }
    }

    fn resources(&self) -> BTreeMap<String, Option<Resource>> {
        let as_member = |entry: &Entry| Resource { sets: self.sets_of(&entry.loc), ..as_resource(entry) };
        expected(&self.shown).into_iter().map(|(path, entry)| (path, entry.map(as_member))).collect()
    }
}

fn journal_rows(catalog: &Catalog) -> u64 {
    let store = catalog.store();
    let txn = store.env.read_txn().unwrap();
    store.table(TableId::Journal).len(&txn).unwrap()
}

fn resources(tree: &BTreeMap<String, TreeEntry>) -> BTreeMap<String, Option<Resource>> {
    tree.iter().map(|(path, name)| (path.clone(), name.resource.clone())).collect()
}

/// Some changes of some resources, most of them of what is there. Answers what became the resource's own description.
fn change(random: &mut XorshiftStar, catalog: &Catalog, model: &mut HistoryModel) -> (Committed, HashSet<Uri>) {
    let mut changes = catalog.commit_of_changes();
    let before = model.clone();
    let mut said: BTreeMap<Uri, Vec<(SetId, i64, bool)>> = BTreeMap::new();
    for _ in 0..=random.below(10) {
        let known: Vec<_> = model.shown.keys().cloned().collect();
        let uri = match known.is_empty() || random.one_in(3) {
            true => uri(&random_uri(random)),
            false => known[random.below(known.len() as u64) as usize].clone(),
        };
        model.clock += 10;
        let time = if random.one_in(8) { model.clock - random.below(200) as i64 } else { model.clock };
        let set = SETS[random.below(2) as usize];
        let mut entry = Entry::new(uri.clone());
        describe(random, &mut entry);
        let change = [Change::Created, Change::Updated, Change::Deleted][random.below(3) as usize];
        changes
            .apply(StatedChange { set, change, time: at(time), is_left_out: false, entry: &entry, member: None })
            .unwrap();
        let stated = (change != Change::Deleted).then_some(&entry);
        if model.apply(&before, set, time, &uri, stated) {
            said.entry(uri).or_default().push((set, time, stated.is_some()));
        }
    }
    let described = said.into_iter().filter(|(uri, said)| model.show(&before, uri, said)).map(|(uri, _)| uri).collect();
    let at = catalog.snapshot().unwrap().at().unwrap();
    (changes.finish(at, &mut |_| (Held::Nothing, b"changes".to_vec())).unwrap(), described)
}

/// Lists of all sets as they are now, or as they were, in any order.
fn relist(random: &mut XorshiftStar, catalog: &Catalog, model: &mut HistoryModel) -> Committed {
    let mut lists = BTreeMap::new();
    for set in SETS {
        model.clock += 10;
        let mut now = model.sets.get(&set).cloned().unwrap_or_default();
        now.retain(|_, _| !random.one_in(8));
        for _ in 0..random.below(6) {
            let mut entry = entry(&random_uri(random));
            describe(random, &mut entry);
            now.insert(entry.loc.clone(), entry);
        }
        let earlier = model.lists.entry(set).or_default();
        earlier.push((model.clock, now));
        let again = if random.one_in(2) { earlier.len() - 1 } else { random.below(earlier.len() as u64) as usize };
        let (at, listed) = earlier[again].clone();
        lists.insert(set, ((!random.one_in(6)).then_some(at), listed));
    }
    let mut baseline = Commit::with_memory(catalog, naming(), 512);
    for (set, (time, listed)) in &lists {
        baseline.begin_list(*set, time.map(at));
        let mut listed: Vec<_> = listed.values().collect();
        random.shuffle(&mut listed);
        let (first, shared) = listed.split_at(listed.len() / 2);
        first.iter().for_each(|entry| baseline.add(entry).unwrap());
        let naming = naming();
        let mut share = catalog.share(&naming, *set);
        shared.iter().for_each(|entry| share.add(entry).unwrap());
        let shared = share.part().unwrap();
        baseline.join(shared).unwrap();
    }
    if random.one_in(5) {
        let decided = SETS[random.below(SETS.len() as u64) as usize];
        baseline.decide_again(decided);
        model.held.retain(|(set, _)| *set != decided);
    }
    let one = BTreeSet::from([SETS[random.below(SETS.len() as u64) as usize]]);
    let (decision, held) = match random.below(6) {
        0 => (Held::Of(one.clone()), one),
        1 | 2 => (Held::All, BTreeSet::from(SETS)),
        _ => (Held::Nothing, BTreeSet::new()),
    };
    model.list(&lists, &held);
    let mut asked = 0;
    let decide = &mut |_: &Losses| {
        asked += 1;
        (decision.clone(), b"baseline".to_vec())
    };
    // Over the revision before, or as a whole.
    catalog.write_in_place(if random.one_in(2) { random.below(4) } else { u64::MAX });
    let committed = baseline.finish(None, decide).unwrap();
    assert_eq!(asked, 1);
    committed
}

/// Somebody accepts what is held back.
fn accept(catalog: &Catalog, model: &mut HistoryModel) {
    catalog.write_in_place(u64::MAX);
    let mut changes = catalog.commit_of_changes();
    assert_eq!(changes.accept_held().unwrap(), model.held.len() as u64);
    changes.finish(None, &mut |_| (Held::All, b"accepted".to_vec())).unwrap();
    for (set, uri) in std::mem::take(&mut model.held) {
        if let Some(listed) = model.sets.get_mut(&set) {
            listed.remove(&uri);
        }
        if model.sets_of(&uri).is_empty() {
            model.shown.remove(&uri);
        }
    }
    assert_eq!(resources(&tree(catalog)), model.resources());
}

/// The tree after any history of changes and baselines is that of one baseline which says the same.
#[test]
fn random_histories_agree_with_one_baseline() {
    for seed in 1..=8 {
        let folder = tempfile::tempdir().unwrap();
        let mut catalog = open(folder.path());
        let mut random = XorshiftStar(seed);
        let mut model = HistoryModel::default();
        relist(&mut random, &catalog, &mut model);
        let mut before = tree(&catalog);
        let mut ever = HashSet::from([Ino(1)]);
        ever.extend(before.values().map(|name| name.node.ino));
        for step in 0..40 {
            if random.one_in(10) {
                accept(&catalog, &mut model);
                before = tree(&catalog);
                ever.extend(before.values().map(|name| name.node.ino));
            }
            let (committed, described) = match random.one_in(5) {
                true => (relist(&mut random, &catalog, &mut model), HashSet::new()),
                false => change(&mut random, &catalog, &mut model),
            };

            let after = tree(&catalog);
            assert_eq!(resources(&after), model.resources(), "seed {seed}, step {step}");
            let vouched = |old: &Resource, new: &Resource| {
                new.lastmod.is_some()
                    || new.hashes.iter().any(|new| old.hashes.iter().any(|old| old.algorithm() == new.algorithm()))
            };
            check_step(&before, &after, &ever, &committed, |old, new| {
                same_version(old, new) && (!described.contains(&new.uri) || vouched(old, new))
            });
            let files: Vec<_> = after.values().filter(|name| name.node.kind == Kind::File).collect();
            let totals = Totals {
                files: files.len() as u64,
                folders: 1 + (after.len() - files.len()) as u64,
                bytes: files.iter().filter_map(|name| name.node.size).sum(),
                unsized_files: files.iter().filter(|name| name.node.size.is_none()).count() as u64,
            };
            assert_eq!(catalog.revision().unwrap().unwrap().totals, totals, "seed {seed}, step {step}");
            let snapshot = catalog.snapshot().unwrap();
            for set in SETS {
                let members = model.sets.get(&set).map_or(0, |listed| listed.len() as u64);
                assert_eq!(snapshot.sets().get(&set).copied().unwrap_or(0), members, "seed {seed}, step {step}");
            }
            for (uri, name) in files.iter().map(|name| (&name.resource.as_ref().unwrap().uri, name)) {
                assert_eq!(snapshot.locate(uri).unwrap(), Some(name.node), "seed {seed}, step {step}: {uri}");
            }
            let held: BTreeSet<_> = snapshot.held().into_iter().collect();
            assert_eq!(held, model.held, "seed {seed}, step {step}");
            for ((set, uri), (time, entry)) in &model.journal {
                let journaled = snapshot.journaled(*set, uri).unwrap().unwrap();
                assert_eq!((journaled.time, journaled.change == Change::Deleted), (at(*time), entry.is_none()));
            }
            assert_eq!(journal_rows(&catalog), model.journal.len() as u64);
            drop(snapshot);
            ever.extend(after.values().map(|name| name.node.ino));
            before = after;

            if random.one_in(8) {
                drop(catalog);
                catalog = open(folder.path());
                assert_eq!(tree(&catalog), before, "a restart changes nothing");
            }
        }
        let fresh = tempfile::tempdir().unwrap();
        let other = open(fresh.path());
        let mut baseline = other.commit_of_lists(naming()).unwrap();
        for set in SETS {
            baseline.begin_list(set, None);
            for uri in model.sets[&set].keys() {
                baseline.add(&model.shown[uri]).unwrap();
            }
        }
        baseline.finish(None, &mut |_| (Held::Nothing, Vec::new())).unwrap();
        assert_eq!(resources(&tree(&other)), resources(&before));
    }
}
