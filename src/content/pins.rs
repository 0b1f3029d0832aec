//! Which inodes keep their objects from eviction: orphans that a process may have open, however many there are.

use super::store::{ObjectKey, Store};
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The pins of a mount in its store.
pub(super) struct Pins {
    store: Arc<Store>,
    /// Held through the store's own steps: another inode may release the same object.
    pinned: Mutex<PinnedInodes>,
}

impl Pins {
    pub(super) fn new(store: &Arc<Store>) -> Pins {
        Pins { store: Arc::clone(store), pinned: Mutex::default() }
    }

    /// Pins the object that `find` returns for `ino`; where there is none yet, the one that lands for it.
    pub(super) fn pin(&self, ino: Ino, find: impl FnOnce() -> Option<ObjectKey>) {
        // Locked first: an object that lands meanwhile is found, or finds its inode pinned.
        let mut pinned = self.lock();
        self.pin_object(&mut pinned, ino, find());
    }

    /// The object of `ino` is here.
    pub(super) fn completed(&self, ino: Ino, key: &ObjectKey) {
        let mut pinned = self.lock();
        if pinned.has(ino) {
            self.pin_object(&mut pinned, ino, Some(key.clone()));
        }
    }

    pub(super) fn unpin(&self, ino: Ino) {
        let mut pinned = self.lock();
        if let Some(released) = pinned.unpin(ino) {
            self.store.unpin(&released);
        }
    }

    fn pin_object(&self, pinned: &mut PinnedInodes, ino: Ino, key: Option<ObjectKey>) {
        if let Some(released) = pinned.pin(ino, key.filter(|key| self.store.pin(key))) {
            self.store.unpin(&released);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PinnedInodes> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Invariant: an inode is in one of `objects` and `awaited` at most.
#[derive(Default)]
pub(super) struct PinnedInodes {
    /// By inode, the object that is pinned for it.
    objects: HashMap<Ino, ObjectKey>,
    /// How many inodes share an object: the store does not count pins.
    sharing: HashMap<ObjectKey, u32>,
    /// Inodes whose object is to be pinned once it is here.
    awaited: InodeSet,
}

impl PinnedInodes {
    /// `ino` is pinned; `object` is pinned in the store, `None` while it is not here. Returns an object that no inode needs any
    /// more: it is to be unpinned in the store.
    #[must_use]
    pub(super) fn pin(&mut self, ino: Ino, object: Option<ObjectKey>) -> Option<ObjectKey> {
        // Counted first: it may be the one that is released.
        object.iter().for_each(|object| *self.sharing.entry(object.clone()).or_default() += 1);
        let released = self.unpin(ino);
        match object {
            Some(object) => drop(self.objects.insert(ino, object)),
            None => drop(self.awaited.insert(ino)),
        }
        released
    }

    /// Returns whether `ino` is pinned, its object here or not.
    pub(super) fn has(&self, ino: Ino) -> bool {
        self.objects.contains_key(&ino) || self.awaited.contains(ino)
    }

    /// `ino` is not pinned any more. Returns what [`PinnedInodes::pin`] does.
    #[must_use]
    pub(super) fn unpin(&mut self, ino: Ino) -> Option<ObjectKey> {
        self.awaited.remove(ino);
        let object = self.objects.remove(&ino)?;
        let sharing = self.sharing.get_mut(&object)?;
        *sharing -= 1;
        if *sharing > 0 {
            return None;
        }
        self.sharing.remove(&object);
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_released_by_the_last_inode_that_has_it() {
        let object = |number| Some(ObjectKey::inode("s", number));
        let mut pins = PinnedInodes::default();
        assert_eq!([(1, 1), (2, 1)].map(|(ino, number)| pins.pin(Ino(ino), object(number))), [None, None]);
        assert_eq!(pins.pin(Ino(3), None), None);
        assert!(pins.has(Ino(1)) && pins.has(Ino(3)) && !pins.has(Ino(4)));

        assert_eq!(pins.unpin(Ino(1)), None, "another has it too");
        assert_eq!(pins.unpin(Ino(2)), object(1));
        assert_eq!(pins.unpin(Ino(2)), None, "it was not pinned any more");
        assert_eq!(pins.unpin(Ino(3)), None, "nothing was here");
        assert!(pins.objects.is_empty() && pins.sharing.is_empty() && !pins.has(Ino(3)));
    }

    #[test]
    fn a_second_object_of_an_inode_releases_the_first() {
        let object = |number| Some(ObjectKey::inode("s", number));
        let mut pins = PinnedInodes::default();
        assert_eq!(pins.pin(Ino(3), None), None);
        assert_eq!(pins.pin(Ino(3), object(5)), None, "it was awaited");
        assert_eq!(pins.pin(Ino(3), object(5)), None, "the same");
        assert_eq!(pins.pin(Ino(3), object(6)), object(5));
        assert_eq!(pins.pin(Ino(3), None), object(6));
        assert_eq!(pins.unpin(Ino(3)), None);
        assert!(pins.objects.is_empty() && pins.sharing.is_empty() && !pins.has(Ino(3)));
    }
}
