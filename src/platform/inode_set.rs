//! A set of inode numbers, of which there may be tens of millions.

use crate::platform::ino::Ino;
use roaring::RoaringTreemap;

/// Ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InodeSet(RoaringTreemap);

impl Eq for InodeSet {}

impl InodeSet {
    /// Adds a number; `false`: it was there.
    pub fn insert(&mut self, ino: Ino) -> bool {
        self.0.insert(ino.0)
    }

    /// Takes a number out; `false`: it was not there.
    pub fn remove(&mut self, ino: Ino) -> bool {
        self.0.remove(ino.0)
    }

    /// Answers whether a number is there.
    pub fn contains(&self, ino: Ino) -> bool {
        self.0.contains(ino.0)
    }

    /// The count of all numbers.
    pub fn len(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    /// Answers whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Ino> {
        self.0.iter().map(Ino)
    }
}

impl Extend<Ino> for InodeSet {
    fn extend<T: IntoIterator<Item = Ino>>(&mut self, inodes: T) {
        self.0.extend(inodes.into_iter().map(|ino| ino.0));
    }
}

impl FromIterator<Ino> for InodeSet {
    fn from_iter<T: IntoIterator<Item = Ino>>(inodes: T) -> InodeSet {
        InodeSet(inodes.into_iter().map(|ino| ino.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_set_holds_what_was_inserted_and_not_removed() {
        let (mut set, mut model) = (InodeSet::default(), BTreeSet::new());
        let mut number = 7u64;
        for step in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Dense and sparse ones.
            let ino = if step % 3 == 0 { number >> 24 } else { number >> 33 & 0xfff };
            if number >> 60 < 9 {
                assert_eq!(set.insert(Ino(ino)), model.insert(ino));
            } else {
                assert_eq!(set.remove(Ino(ino)), model.remove(&ino));
            }
            assert_eq!(set.contains(Ino(ino)), model.contains(&ino));
            assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
        }
        assert!(set.iter().map(|ino| ino.0).eq(model.iter().copied()), "all of them, ascending");
        for ino in &model {
            assert!(set.remove(Ino(*ino)));
        }
        assert_eq!(set, InodeSet::default());
    }
}
