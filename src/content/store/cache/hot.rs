//! Objects whose descriptors are kept open, found without a lock: every read of what is cached looks here.
//!
//! A key belongs to one set of a few slots. Who looks loads these slots; who changes the table holds `changing`. Of a set the object that
//! was used least recently gives its slot to the next ([`Object::last_use`]): sets fill unevenly, so that of as many objects as there are
//! slots some are closed while others have room.

use super::super::ObjectKey;
use super::super::object::Object;
use super::lock;
use arc_swap::ArcSwapOption;
use std::sync::{Arc, Mutex};

/// So many objects at most, each with a descriptor: sets, and the slots of each.
const SETS: usize = 16;
const SLOTS: usize = 16;

/// Invariant: an object lies in the set of its key, and no set has two of one key.
pub(super) struct Hot {
    slots: Box<[ArcSwapOption<Object>]>,
    /// Held by the one thread that changes slots.
    changing: Mutex<()>,
}

impl Default for Hot {
    fn default() -> Hot {
        Hot { slots: (0..SETS * SLOTS).map(|_| ArcSwapOption::empty()).collect(), changing: Mutex::default() }
    }
}

impl Hot {
    /// The object, damaged or not. Takes no lock.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.set(key).iter().find_map(|slot| {
            let object = slot.load();
            object.as_ref().filter(|object| object.key() == key).cloned()
        })
    }

    /// Keeps it open; what it takes the place of, another object.
    pub(super) fn put(&self, object: Arc<Object>) -> Option<Arc<Object>> {
        let changing = lock(&self.changing);
        let set = self.set(object.key());
        // The same, else a free slot, else what was used least recently.
        let rank = |slot: &&ArcSwapOption<Object>| match &*slot.load() {
            Some(held) if held.key() == object.key() => (0, 0),
            None => (1, 0),
            Some(held) => (2, held.last_use()),
        };
        let before = set.iter().min_by_key(rank)?.swap(Some(Arc::clone(&object)));
        // The last close of a large file may wait for the disk.
        drop(changing);
        before.filter(|before| before.key() != object.key())
    }

    /// Keeps the object no more that `key` names, where `is_meant`.
    pub(super) fn pop(&self, key: &ObjectKey, is_meant: impl Fn(&Arc<Object>) -> bool) {
        let changing = lock(&self.changing);
        let slot = self.set(key).iter().find(|slot| {
            let object = slot.load();
            object.as_ref().is_some_and(|object| object.key() == key && is_meant(object))
        });
        let popped = slot.and_then(|slot| slot.swap(None));
        drop(changing);
        drop(popped);
    }

    /// Keeps none; those it kept.
    pub(super) fn clear(&self) -> Vec<Arc<Object>> {
        let _changing = lock(&self.changing);
        self.slots.iter().filter_map(|slot| slot.swap(None)).collect()
    }

    /// Those it keeps.
    pub(super) fn all(&self) -> impl Iterator<Item = Arc<Object>> {
        self.slots.iter().filter_map(ArcSwapOption::load_full)
    }

    fn set(&self, key: &ObjectKey) -> &[ArcSwapOption<Object>] {
        let first = key.hash() as usize % SETS * SLOTS;
        &self.slots[first..first + SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::store::Store;
    use std::fs::File;
    use std::sync::Weak;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn object(number: u64, used: u64) -> Arc<Object> {
        let file = Arc::new(File::open("/dev/null").unwrap());
        let object = Object::new(ObjectKey::inode("http://h/", number), 0, Box::default(), file, Weak::new());
        object.use_at(used);
        Arc::new(object)
    }

    /// Objects of one set, so many.
    fn of_one_set(hot: &Hot, count: usize) -> Vec<Arc<Object>> {
        let set = |object: &Arc<Object>| hot.set(object.key()).as_ptr();
        let first = set(&object(0, 0));
        (0..).map(|number| object(number, 100 + number)).filter(|object| set(object) == first).take(count).collect()
    }

    #[test]
    fn of_a_full_set_what_was_used_least_recently_gives_way() {
        let hot = Hot::default();
        let objects = of_one_set(&hot, SLOTS + 1);
        for object in &objects[..SLOTS] {
            assert!(hot.put(Arc::clone(object)).is_none());
        }
        objects[0].use_at(u64::MAX);

        let displaced = hot.put(Arc::clone(&objects[SLOTS])).unwrap();

        assert!(Arc::ptr_eq(&displaced, &objects[1]));
        for (place, object) in objects.iter().enumerate() {
            assert_eq!(hot.get(object.key()).is_some(), place != 1, "{place}");
        }
        assert_eq!(hot.all().count(), SLOTS);
    }

    #[test]
    fn an_object_takes_the_place_of_the_one_with_its_key() {
        let hot = Hot::default();
        let (first, second) = (object(1, 1), object(1, 2));
        hot.put(Arc::clone(&first));

        assert!(hot.put(Arc::clone(&second)).is_none());

        assert!(hot.get(first.key()).is_some_and(|found| Arc::ptr_eq(&found, &second)));
        hot.pop(first.key(), |held| Arc::ptr_eq(held, &first));
        assert!(hot.get(first.key()).is_some(), "another one was meant");
        hot.pop(first.key(), |_| true);
        assert!(hot.get(first.key()).is_none());
        assert_eq!(Arc::strong_count(&second), 1, "nothing else keeps it open");
    }

    #[test]
    fn who_reads_what_is_kept_open_waits_for_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Store::open(folder.path(), None, 0).unwrap();
        let key = ObjectKey::inode("http://h/", 1);
        let partial = disk.begin(&key, Some(3)).unwrap();
        partial.write_at(0, b"abc").unwrap();
        partial.commit(&key, 3).unwrap();
        let (done, is_done) = channel();
        let cache = Arc::clone(&disk.cache);
        let _all = (lock(&cache.evicting), lock(&cache.flushing), lock(&disk.pinned), lock(&cache.hot.changing));
        let _more = (lock(&cache.pending), lock(&cache.unsynced), lock(&cache.stopped));

        let reader = Arc::clone(&disk);
        std::thread::spawn(move || done.send(reader.get(&key).unwrap().read(0, 3).unwrap()));

        assert_eq!(is_done.recv_timeout(Duration::from_secs(20)).expect("it waits for no lock"), &b"abc"[..]);
    }

    #[test]
    fn that_it_was_used_is_told_once_and_only_by_who_used_it() {
        let held = object(1, 0);
        assert_eq!(held.unnoted_use(), None, "never");
        held.use_at(7);
        held.use_at(5);
        assert_eq!((held.unnoted_use(), held.unnoted_use(), held.last_use()), (Some(7), None, 7));
        held.use_at(9);
        assert_eq!((held.unnoted_use(), held.unnoted_use()), (Some(9), None));
    }
}
