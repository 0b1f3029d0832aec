//! Which inodes keep their objects from eviction: orphans that a process may have open, however many there are.

use super::store::ObjectKey;
use crate::inodes::InodeSet;
use fuser::INodeNo;
use std::collections::HashMap;

/// An object is known by the hash of its name here: of two that share one, the one stays pinned that need not.
#[derive(Default)]
pub(super) struct Pins {
    /// By inode, the object that is pinned for it.
    held: HashMap<INodeNo, u64>,
    /// How many inodes share an object: the store does not count pins.
    sharing: HashMap<u64, u32>,
    /// Inodes whose object is to be pinned once it is here.
    awaited: InodeSet,
}

impl Pins {
    /// `ino` is pinned; `object` is pinned in the store, `None` while it is not here.
    pub(super) fn pin(&mut self, ino: INodeNo, object: Option<&ObjectKey>) {
        self.release(ino);
        match object {
            Some(object) => {
                let object = object.hash();
                self.held.insert(ino, object);
                *self.sharing.entry(object).or_default() += 1;
            }
            None => {
                self.awaited.insert(ino);
            }
        }
    }

    /// Whether `ino` is pinned, its object here or not.
    pub(super) fn has(&self, ino: INodeNo) -> bool {
        self.held.contains_key(&ino) || self.awaited.contains(ino)
    }

    /// `ino` is not pinned any more; whether `object`, which it has, is to be unpinned in the store.
    pub(super) fn unpin(&mut self, ino: INodeNo, object: Option<&ObjectKey>) -> bool {
        let alone = self.release(ino);
        alone.is_some() && alone == object.map(ObjectKey::hash)
    }

    /// The object that `ino` alone held.
    fn release(&mut self, ino: INodeNo) -> Option<u64> {
        self.awaited.remove(ino);
        let object = self.held.remove(&ino)?;
        let sharing = self.sharing.get_mut(&object)?;
        *sharing -= 1;
        (*sharing == 0).then(|| {
            self.sharing.remove(&object);
            object
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_released_by_the_last_inode_that_has_it() {
        let object = |number| ObjectKey::inode("s", number);
        let mut pins = Pins::default();
        pins.pin(INodeNo(1), Some(&object(1)));
        pins.pin(INodeNo(2), Some(&object(1)));
        pins.pin(INodeNo(3), None);
        assert!(pins.has(INodeNo(1)) && pins.has(INodeNo(3)) && !pins.has(INodeNo(4)));

        assert!(!pins.unpin(INodeNo(1), Some(&object(1))), "another has it too");
        assert!(pins.unpin(INodeNo(2), Some(&object(1))));
        assert!(!pins.unpin(INodeNo(2), Some(&object(1))), "it was not pinned any more");
        assert!(!pins.unpin(INodeNo(3), None), "nothing was here");

        // What was awaited comes, and comes again as another object.
        pins.pin(INodeNo(3), None);
        pins.pin(INodeNo(3), Some(&object(5)));
        pins.pin(INodeNo(3), Some(&object(6)));
        assert!(!pins.unpin(INodeNo(3), Some(&object(5))));
        assert!(!pins.has(INodeNo(3)));
        assert!(pins.held.is_empty() && pins.sharing.is_empty() && pins.awaited.is_empty());
    }
}
