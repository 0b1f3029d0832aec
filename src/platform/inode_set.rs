//! A set of inode numbers, of which there may be tens of millions: they are given one after the other, so a bit each is enough.

use fuser::INodeNo;
use std::collections::BTreeMap;

/// Words and numbers of one page: so few that a lone number takes little, so many that a dense million takes 300 kB.
const WORDS: usize = 8;
const NUMBERS: u64 = WORDS as u64 * 64;

/// Ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InodeSet {
    pages: BTreeMap<u64, [u64; WORDS]>,
    len: usize,
}

/// Page, word and bit of a number.
fn place(ino: INodeNo) -> (u64, usize, u64) {
    let within = ino.0 % NUMBERS;
    (ino.0 / NUMBERS, (within / 64) as usize, 1 << (within % 64))
}

impl InodeSet {
    /// Adds a number; `false`: it was there.
    pub fn insert(&mut self, ino: INodeNo) -> bool {
        let (page, word, bit) = place(ino);
        let words = self.pages.entry(page).or_default();
        let is_new = words[word] & bit == 0;
        words[word] |= bit;
        self.len += usize::from(is_new);
        is_new
    }

    /// Takes a number out; `false`: it was not there.
    pub fn remove(&mut self, ino: INodeNo) -> bool {
        let (page, word, bit) = place(ino);
        let Some(words) = self.pages.get_mut(&page) else { return false };
        if words[word] & bit == 0 {
            return false;
        }
        words[word] &= !bit;
        self.len -= 1;
        if *words == [0; WORDS] {
            self.pages.remove(&page);
        }
        true
    }

    /// Whether a number is there.
    pub fn contains(&self, ino: INodeNo) -> bool {
        let (page, word, bit) = place(ino);
        self.pages.get(&page).is_some_and(|words| words[word] & bit != 0)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = INodeNo> {
        self.pages.iter().flat_map(|(page, words)| {
            let bits = (0..NUMBERS).filter(|number| words[(number / 64) as usize] & 1 << (number % 64) != 0);
            bits.map(move |number| INodeNo(page * NUMBERS + number))
        })
    }
}

impl Extend<INodeNo> for InodeSet {
    fn extend<T: IntoIterator<Item = INodeNo>>(&mut self, inodes: T) {
        inodes.into_iter().for_each(|ino| {
            self.insert(ino);
        });
    }
}

impl FromIterator<INodeNo> for InodeSet {
    fn from_iter<T: IntoIterator<Item = INodeNo>>(inodes: T) -> InodeSet {
        let mut set = InodeSet::default();
        set.extend(inodes);
        set
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
                assert_eq!(set.insert(INodeNo(ino)), model.insert(ino));
            } else {
                assert_eq!(set.remove(INodeNo(ino)), model.remove(&ino));
            }
            assert_eq!(set.contains(INodeNo(ino)), model.contains(&ino));
            assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
        }
        assert!(set.iter().map(|ino| ino.0).eq(model.iter().copied()), "all of them, ascending");
        for ino in &model {
            assert!(set.remove(INodeNo(*ino)));
        }
        assert_eq!(set, InodeSet::default());
    }
}
