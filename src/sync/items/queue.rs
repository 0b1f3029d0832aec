//! The landing pages that are due: which is read next, and which rest after a failure. Pure.

use crate::platform::ino::Ino;
use crate::platform::penalty_box::PenaltyBox;
use crate::sync::status::PagesStatus;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The pauses of a page that fails.
const RETRIED_AFTER: RangeInclusive<Duration> = Duration::from_secs(15)..=Duration::from_secs(6 * 3600);

/// A page: a digest of its address.
pub type PageKey = u64;

/// State of a page that is not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageState {
    Waiting,
    Reading,
    Resting,
}

/// A page that is not read yet in its present version.
struct Unread {
    state: PageState,
    /// True if it was never read, in any version.
    is_new: bool,
    ino: Ino,
    /// True if another version came while this one was read.
    is_outdated: bool,
}

/// The pages that are due.
#[derive(Default)]
pub struct PageQueue {
    unread: HashMap<PageKey, Unread>,
    by_inode: HashMap<u64, PageKey>,
    /// Pages that programs wait for, then the others. Those that are not [`PageState::Waiting`] any more are passed over.
    first: VecDeque<PageKey>,
    waiting: VecDeque<PageKey>,
    resting: HashSet<PageKey>,
    failed: PenaltyBox<PageKey>,
    /// Pages that were never read.
    new: u64,
}

impl PageQueue {
    /// Adds a page that is due, or its new inode. `is_new`: it was never read, in any version.
    pub fn push(&mut self, key: PageKey, ino: Ino, is_new: bool) {
        match self.unread.entry(key) {
            Entry::Vacant(unread) => {
                unread.insert(Unread { state: PageState::Waiting, is_new, ino, is_outdated: false });
                self.waiting.push_back(key);
                self.new += u64::from(is_new);
            }
            Entry::Occupied(mut unread) => {
                let unread = unread.get_mut();
                unread.is_outdated |= unread.state == PageState::Reading && unread.ino != ino;
                let before = std::mem::replace(&mut unread.ino, ino);
                self.by_inode.remove(&before.0);
            }
        }
        self.by_inode.insert(ino.0, key);
    }

    /// True if a page has not been read yet.
    pub fn holds(&self, ino: Ino) -> bool {
        self.by_inode.contains_key(&ino.0)
    }

    /// Lets a page that waits or rests come first.
    pub fn bring_forward(&mut self, ino: Ino) {
        let Some(key) = self.by_inode.get(&ino.0) else { return };
        if let Some(unread) = self.unread.get_mut(key).filter(|unread| unread.state != PageState::Reading) {
            unread.state = PageState::Waiting;
            self.resting.remove(key);
            self.first.push_back(*key);
        }
    }

    /// The next page to read; `only_first`: only one that a program waits for.
    pub fn next(&mut self, only_first: bool) -> Option<(PageKey, Ino)> {
        loop {
            let key = match self.first.pop_front() {
                None if only_first => return None,
                None => self.waiting.pop_front()?,
                Some(key) => key,
            };
            if let Some(unread) = self.unread.get_mut(&key).filter(|unread| unread.state == PageState::Waiting) {
                unread.state = PageState::Reading;
                return Some((key, unread.ino));
            }
        }
    }

    /// A page was read, and its items are committed, or it is due no more. One of which another version came meanwhile waits again.
    pub fn done(&mut self, key: PageKey) {
        if let Some(unread) = self.unread.get_mut(&key).filter(|unread| unread.is_outdated) {
            (unread.state, unread.is_outdated) = (PageState::Waiting, false);
            self.waiting.push_back(key);
            return;
        }
        if let Some(unread) = self.unread.remove(&key) {
            self.by_inode.remove(&unread.ino.0);
            self.new -= u64::from(unread.is_new);
        }
        self.resting.remove(&key);
        self.failed.forgive(&key);
    }

    /// A page failed: it rests, longer each time.
    pub fn failed(&mut self, key: PageKey, now: Instant) {
        if let Some(unread) = self.unread.get_mut(&key) {
            unread.state = PageState::Resting;
            self.resting.insert(key);
            self.failed.punish_longer(key, RETRIED_AFTER, (), now);
        }
    }

    /// The pages that rest.
    pub fn resting(&self) -> Vec<(PageKey, Ino)> {
        self.resting.iter().filter_map(|key| Some((*key, self.unread.get(key)?.ino))).collect()
    }

    /// Lets all pages that rest wait again.
    pub fn wake_all(&mut self) {
        self.failed.clear();
        self.wake(Instant::now());
    }

    /// Lets pages that have rested long enough wait again.
    pub fn wake(&mut self, now: Instant) {
        let rested: Vec<_> = self.resting.iter().copied().filter(|key| !self.failed.is_punished(key, now)).collect();
        for key in rested {
            self.resting.remove(&key);
            if let Some(unread) = self.unread.get_mut(&key) {
                unread.state = PageState::Waiting;
                self.waiting.push_back(key);
            }
        }
    }

    /// The time until the next page wakes.
    pub fn wakes_in(&self, now: Instant) -> Option<Duration> {
        let left = |key: &PageKey| Some(self.failed.until(key)?.saturating_duration_since(now));
        self.resting.iter().filter_map(left).min()
    }

    /// Counts of pages, of which `known` were read in some version.
    pub fn status(&self, known: u64) -> PagesStatus {
        let all = known + self.new;
        let failed = self.resting.len() as u64;
        PagesStatus { read: all.saturating_sub(self.unread.len() as u64), all, failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(pages: &[u64]) -> PageQueue {
        let mut queue = PageQueue::default();
        pages.iter().for_each(|page| queue.push(*page, Ino(10 * page), true));
        queue
    }

    fn order(queue: &mut PageQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.next(false)).map(|(key, _)| key).collect()
    }

    #[test]
    fn a_page_that_is_opened_comes_first_and_is_read_once() {
        let mut queue = queue(&[1, 2, 3]);
        assert_eq!(queue.next(true), None);

        queue.bring_forward(Ino(30));

        assert_eq!(queue.next(true), Some((3, Ino(30))));
        assert_eq!(order(&mut queue), [1, 2]);
        queue.bring_forward(Ino(10));
        assert_eq!(queue.next(false), None, "it is being read");
    }

    #[test]
    fn a_new_version_of_a_page_takes_the_place_of_the_old_one() {
        let mut queue = queue(&[1]);

        queue.push(1, Ino(11), false);

        assert!(queue.holds(Ino(11)) && !queue.holds(Ino(10)));
        assert_eq!(queue.status(0), PagesStatus { read: 0, all: 1, failed: 0 });
        assert_eq!(queue.next(false), Some((1, Ino(11))));
    }

    #[test]
    fn a_page_that_changes_while_it_is_read_is_read_again() {
        let mut queue = queue(&[1]);
        let (key, _) = queue.next(false).unwrap();

        queue.push(1, Ino(11), false);
        queue.done(key);

        assert_eq!(queue.next(false), Some((1, Ino(11))));
        queue.done(key);
        assert_eq!((queue.next(false), queue.status(1).all), (None, 1));
    }

    #[test]
    fn a_page_that_fails_rests_longer_each_time() {
        let (mut queue, mut now) = (queue(&[1]), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..3 {
            let (key, _) = queue.next(false).unwrap();
            queue.failed(key, now);
            queue.wake(now);
            assert_eq!(queue.next(false), None);
            rests.push(queue.wakes_in(now).unwrap().as_secs());
            now += queue.wakes_in(now).unwrap();
            queue.wake(now);
        }

        assert_eq!(rests, [15, 30, 60]);
        let (again, _) = queue.next(false).unwrap();
        queue.done(again);
        assert_eq!(queue.wakes_in(now), None);
    }

    #[test]
    fn pages_are_counted_by_what_was_read_in_some_version() {
        let mut queue = queue(&[1, 2, 3]);
        queue.push(4, Ino(40), false);
        assert_eq!(queue.status(10), PagesStatus { read: 9, all: 13, failed: 0 });

        let (first, _) = queue.next(false).unwrap();
        queue.done(first);
        let (second, _) = queue.next(false).unwrap();
        queue.failed(second, Instant::now());

        assert_eq!(queue.status(11), PagesStatus { read: 10, all: 13, failed: 1 });
    }
}
