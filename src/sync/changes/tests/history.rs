//! Sources with random histories, published in every way that was seen, and looked at at random times: the tree is always
//! what the Source has, or it is known that something may be missing.

use super::*;

/// Enough to meet every style many times.
const SOURCES: u64 = 2000;

/// Numbers that are the same at every run (SplitMix64).
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Times {
    Datetime,
    LastMod,
    /// Some entries bear a `datetime`, some nothing.
    Some,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum WrittenOrder {
    OldestFirst,
    NewestFirst,
    Shuffled,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// One list that only grows.
    Growing,
    /// One list of the last so many changes.
    LastChanges(usize),
    /// One list of the last so many seconds.
    LastSeconds(i64),
    /// A list for so many seconds, the last one open; children carry their interval in the index.
    Index { every: i64 },
    /// The same; a list has one name as long as it is open and another afterwards.
    Rotated { every: i64 },
}

#[derive(Clone, Copy, Debug)]
struct Style {
    shape: Shape,
    times: Times,
    written: WrittenOrder,
    says_from: bool,
    says_until_now: bool,
    says_modified: bool,
}

impl Style {
    fn random(random: &mut SplitMix) -> Style {
        let shape = match random.below(5) {
            0 => Shape::Growing,
            1 => Shape::LastChanges(1 + random.below(12) as usize),
            2 => Shape::LastSeconds(20 + random.below(100) as i64),
            3 => Shape::Index { every: 20 + random.below(100) as i64 },
            _ => Shape::Rotated { every: 20 + random.below(100) as i64 },
        };
        let written = random.one_of(&[
            WrittenOrder::OldestFirst,
            WrittenOrder::OldestFirst,
            WrittenOrder::NewestFirst,
            WrittenOrder::Shuffled,
        ]);
        // What bears no time cannot be put in order where the places say nothing, or are believed to go the other way.
        let times = match written {
            WrittenOrder::OldestFirst => random.one_of(&[Times::Datetime, Times::LastMod, Times::Some, Times::None]),
            WrittenOrder::NewestFirst | WrittenOrder::Shuffled => random.one_of(&[Times::Datetime, Times::LastMod]),
        };
        let in_index = matches!(shape, Shape::Index { .. } | Shape::Rotated { .. });
        let says_from = in_index || times == Times::LastMod || random.chance(70);
        Style {
            shape,
            times,
            written,
            says_from,
            says_until_now: !in_index && random.chance(20),
            says_modified: random.chance(50),
        }
    }
}

#[derive(Clone, Debug)]
struct ModelEvent {
    time: i64,
    name: String,
    change: Change,
    version: u64,
    /// Whether it is published with its time.
    is_dated: bool,
}

type Tree = BTreeMap<String, u64>;

struct ModelSource {
    style: Style,
    events: Vec<ModelEvent>,
    now: i64,
}

impl ModelSource {
    fn new(style: Style) -> ModelSource {
        ModelSource { style, events: Vec::new(), now: 1000 }
    }

    fn live(&mut self, random: &mut SplitMix, events: u64) {
        for _ in 0..events {
            self.now += 1 + random.below(15) as i64;
            let name = format!("r{}", random.below(12));
            let change = match self.tree_at(self.now).contains_key(&name) {
                false => Change::Created,
                true if random.chance(50) => Change::Updated,
                true => Change::Deleted,
            };
            let (time, version) = (self.now, self.events.len() as u64);
            self.events.push(ModelEvent { time, name, change, version, is_dated: random.chance(60) });
        }
        self.now += 1;
    }

    fn tree_at(&self, time: i64) -> Tree {
        let mut tree = Tree::new();
        for event in self.events.iter().filter(|event| event.time <= time) {
            match event.change {
                Change::Deleted => _ = tree.remove(&event.name),
                _ => _ = tree.insert(event.name.clone(), event.version),
            }
        }
        tree
    }

    fn entry(&self, event: &ModelEvent) -> Entry {
        let mut entry = change(&event.name, event.change);
        if event.change != Change::Deleted {
            entry.length = Some(event.version);
        }
        match self.style.times {
            Times::Datetime => entry.datetime = Some(t(event.time)),
            Times::LastMod => entry.lastmod = Some(t(event.time)),
            Times::Some if event.is_dated => entry.datetime = Some(t(event.time)),
            Times::Some | Times::None => {}
        }
        entry
    }

    fn list(&self, random: &mut SplitMix, name: &str, from: i64, until: Option<i64>, events: &[ModelEvent]) -> List {
        let style = &self.style;
        let mut entries: Vec<Entry> = events.iter().map(|event| self.entry(event)).collect();
        match style.written {
            WrittenOrder::OldestFirst => {}
            WrittenOrder::NewestFirst => entries.reverse(),
            WrittenOrder::Shuffled => random.shuffle(&mut entries),
        }
        let until = until.or(style.says_until_now.then_some(self.now));
        let last = events.last().map_or(from, |event| event.time);
        let modified = style.says_modified.then(|| until.map_or(last, |until| until.min(self.now)).max(last));
        List { modified, ..list(name, style.says_from.then_some(from), until, entries) }
    }

    /// The lists that there are now, oldest first, each with the entry of its index where there is one.
    fn publish(&self, random: &mut SplitMix) -> Vec<List> {
        let events = &self.events[..];
        let since = |from: i64| &events[events.partition_point(|event| event.time < from)..];
        match self.style.shape {
            Shape::Growing => vec![self.list(random, "list", 0, None, events)],
            Shape::LastChanges(count) => {
                let window = &events[events.len().saturating_sub(count)..];
                let from = if window.len() == events.len() { 0 } else { window.first().map_or(0, |event| event.time) };
                vec![self.list(random, "list", from, None, window)]
            }
            Shape::LastSeconds(age) => vec![self.list(random, "list", self.now - age, None, since(self.now - age))],
            Shape::Index { every } | Shape::Rotated { every } => {
                let oldest = self.now / every - 4;
                let lists = (oldest.max(0)..=self.now / every).map(|number| {
                    let (from, end) = (number * every, (number + 1) * every);
                    let is_open = end > self.now;
                    let within = since(from);
                    let within = &within[..within.partition_point(|event| event.time < end)];
                    let rotates = matches!(self.style.shape, Shape::Rotated { .. });
                    let name = if is_open && rotates { "open".to_owned() } else { format!("list{number}") };
                    let until = (!is_open).then_some(end);
                    let mut it = self.list(random, &name, from, until, within);
                    let entry = Entry { from: Some(t(from)), until: until.map(t), ..Entry::new(uri(&name)) };
                    it.listed = Some(entry);
                    it
                });
                lists.collect()
            }
        }
    }
}

/// What the mount shows: of each resource that was ever heard of its version and the time of the statement.
#[derive(Default)]
struct ModelMount {
    known: KnownJournal,
    listed: Option<Timestamp>,
    tree: BTreeMap<String, (Option<u64>, Timestamp)>,
    baselines: u64,
}

impl ModelMount {
    fn list(&mut self, source: &ModelSource, at: i64) {
        let listed = source.tree_at(at);
        for (name, (version, time)) in &mut self.tree {
            if *time <= t(at) {
                (*version, *time) = (listed.get(name).copied(), t(at));
            }
        }
        for (name, version) in listed {
            self.tree.entry(name).or_insert((Some(version), t(at)));
        }
        self.listed = self.listed.max(Some(t(at)));
        self.baselines += 1;
    }

    fn apply(&mut self, mut news: Looked, source: &ModelSource) {
        let now = source.tree_at(i64::MAX);
        for change in news.changes {
            let name = change.entry.loc.path()[1..].to_owned();
            if change.is_doubtful {
                if now.contains_key(&name) {
                    continue;
                }
                news.known.journal.insert(change.entry.loc.clone(), (change.time, change.entry.clone()));
            }
            let version = (change.change != Change::Deleted).then_some(change.entry.length).flatten();
            let before = self.tree.get(&name).map(|(_, time)| *time).or(self.listed);
            if before.is_none_or(|before| before <= change.time) {
                self.tree.insert(name, (version, change.time));
            }
        }
        self.known = news.known;
    }

    /// Looks at the Source; `list_age` is how old its Resource List is.
    fn look(&mut self, source: &ModelSource, random: &mut SplitMix, list_age: i64) {
        let (mut lists, mut unread) = (Vec::new(), Vec::new());
        for list in source.publish(random) {
            if list.listed.as_ref().is_none_or(|entry| self.known.children().wants(entry)) {
                lists.push(list);
            } else {
                unread.push(list.location());
            }
        }
        let is_first = self.baselines == 0;
        let (is_joined, news) = look_with(&self.known, &lists, &unread, source.now);
        if is_joined && !is_first {
            return self.apply(news, source);
        }
        let at = (source.now - list_age).max(self.listed.map_or(0, |listed| listed.seconds));
        self.list(source, at);
        // The documents are read once, before it is known that a baseline is made.
        let before = self.known.clone();
        let (documents, _) = documents(&before, &lists, source.now);
        let (is_closed, _) = look_over(&before, &KnownJournal::since(Some(t(at))), &lists, &unread, source.now);
        if is_closed && before.reaches_back_to(Some(t(at)), &documents, &unread) {
            self.known.gap_since = None;
        } else if !is_joined || is_first {
            self.known.tear(t(source.now));
        }
        self.known = std::mem::take(&mut self.known).rebased(Some(t(at)));
        let (_, news) = look_over(&before, &self.known, &lists, &unread, source.now);
        self.apply(news, source);
    }

    fn shown(&self) -> Tree {
        self.tree.iter().filter_map(|(name, (version, _))| Some((name.clone(), (*version)?))).collect()
    }
}

#[test]
fn the_tree_is_the_sources_or_a_gap_is_known() {
    let (mut looks, mut announced, mut baselines) = (0u64, 0u64, 0u64);
    for seed in 0..SOURCES {
        let mut random = SplitMix(seed);
        let style = Style::random(&mut random);
        let mut source = ModelSource::new(style);
        source.live(&mut random, 20);
        let mut mount = ModelMount::default();
        for round in 0..20 {
            // A Resource List that is older than the oldest change cannot be told from another where lists say no `from`.
            let list_age = if style.says_from && random.chance(30) { random.below(60) as i64 } else { 0 };
            mount.look(&source, &mut random, list_age);

            looks += 1;
            if mount.known.gap_since.is_some() {
                announced += 1;
            } else {
                assert_eq!(mount.shown(), source.tree_at(i64::MAX), "seed {seed}, round {round}, {style:?}");
            }
            let events = if random.chance(10) { random.below(40) } else { random.below(5) };
            source.live(&mut random, events);
        }
        baselines += mount.baselines;
    }
    assert!(announced * 10 < looks, "{announced} of {looks} looks missed something");
    assert!(baselines * 5 < looks, "{baselines} baselines for {looks} looks");
}
