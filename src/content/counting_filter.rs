//! Tells without a lock that an inode is not in a set that has one: whoever looks for another inode goes past the lock.

use fuser::INodeNo;
use std::sync::atomic::{AtomicU16, Ordering};

/// Places: so many that of a few thousand inodes in the set not one other in ten is taken for one of them.
const PLACES_LOG2: u32 = 16;

/// A place that was ever so full stays so: how many are to be taken out of it is not known any more.
const FULL: u16 = u16::MAX;

/// A counting Bloom filter of one hash function: how often inodes of each place are in the set.
///
/// Who finds none in the place of an inode sees all that was done before the last of them was taken out; so an inode is put
/// in while the set's lock is held, and taken out when nobody has to look for it there any more.
#[derive(Debug)]
pub struct CountingFilter {
    places: Box<[AtomicU16]>,
}

impl Default for CountingFilter {
    fn default() -> CountingFilter {
        CountingFilter { places: (0..1usize << PLACES_LOG2).map(|_| AtomicU16::new(0)).collect() }
    }
}

impl CountingFilter {
    /// `ino` is in the set once more.
    pub fn add(&self, ino: INodeNo) {
        self.change(ino, |count| count.saturating_add(1));
    }

    /// `ino` is in the set once less; it was there.
    pub fn remove(&self, ino: INodeNo) {
        self.change(ino, |count| if count == FULL { FULL } else { count.saturating_sub(1) });
    }

    /// `false`: it is not in the set.
    pub fn may_hold(&self, ino: INodeNo) -> bool {
        self.place(ino).load(Ordering::Acquire) > 0
    }

    fn change(&self, ino: INodeNo, change: impl Fn(u16) -> u16) {
        // That it always stores cannot be told to the compiler.
        let _ = self.place(ino).fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| Some(change(count)));
    }

    /// Inodes that are given one after the other have places far from each other.
    fn place(&self, ino: INodeNo) -> &AtomicU16 {
        let hash = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.places[(hash >> (u64::BITS - PLACES_LOG2)) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_set_is_always_told_and_hardly_any_other() {
        let filter = CountingFilter::default();
        let within = || (0..3000).map(INodeNo);
        within().chain(within()).for_each(|ino| filter.add(ino));
        within().for_each(|ino| filter.remove(ino));

        assert!(within().all(|ino| filter.may_hold(ino)), "each was put in twice");
        let others = (3000..103_000).filter(|ino| filter.may_hold(INodeNo(*ino))).count();
        assert!(others < 10_000, "{others} of 100,000 others");

        within().for_each(|ino| filter.remove(ino));
        assert!(!(0..103_000).any(|ino| filter.may_hold(INodeNo(ino))));
    }

    #[test]
    fn of_a_place_that_was_full_all_may_be_in_the_set() {
        let (filter, ino) = (CountingFilter::default(), INodeNo(7));
        (0..70_000).for_each(|_| filter.add(ino));
        (0..70_000).for_each(|_| filter.remove(ino));

        assert!(filter.may_hold(ino));
        assert!(!filter.may_hold(INodeNo(8)));
    }
}
