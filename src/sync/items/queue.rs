//! The landing pages that are due: which is read next, and which rest after a failure. Pure.

use crate::source::penalty_box::PenaltyBox;
use crate::sync::status::PagesStatus;
use fuser::INodeNo;
use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// The pauses of a page that fails.
const RETRIED_AFTER: RangeInclusive<Duration> = Duration::from_secs(15)..=Duration::from_secs(6 * 3600);

/// Where a page is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Reading,
    Resting,
}

/// Pages by their inodes: a new version of a page is another page.
#[derive(Default)]
pub struct Queue {
    /// Each unread page, with whether it has never been read in any version.
    unread: HashMap<u64, (State, bool)>,
    /// In order; those that are not [`State::Waiting`] any more are passed over.
    waiting: VecDeque<INodeNo>,
    failed: PenaltyBox<u64>,
}

impl Queue {
    /// Adds a page that is due. `is_new`: it was never read, in any version.
    pub fn push(&mut self, ino: INodeNo, is_new: bool) {
        if let std::collections::hash_map::Entry::Vacant(unread) = self.unread.entry(ino.0) {
            unread.insert((State::Waiting, is_new));
            self.waiting.push_back(ino);
        }
    }

    /// True if a page has not been read yet.
    pub fn holds(&self, ino: INodeNo) -> bool {
        self.unread.contains_key(&ino.0)
    }

    /// Lets a page that waits or rests come first.
    pub fn bring_forward(&mut self, ino: INodeNo) {
        if let Some((state, _)) = self.unread.get_mut(&ino.0).filter(|(state, _)| *state != State::Reading) {
            *state = State::Waiting;
            self.waiting.push_front(ino);
        }
    }

    /// The next page to read.
    pub fn next(&mut self) -> Option<INodeNo> {
        loop {
            let ino = self.waiting.pop_front()?;
            if let Some((state, _)) = self.unread.get_mut(&ino.0).filter(|(state, _)| *state == State::Waiting) {
                *state = State::Reading;
                return Some(ino);
            }
        }
    }

    /// A page was read, and its items are committed, or it is due no more.
    pub fn done(&mut self, ino: INodeNo) {
        self.unread.remove(&ino.0);
        self.failed.forgive(&ino.0);
    }

    /// A page failed: it rests, longer each time.
    pub fn failed(&mut self, ino: INodeNo, now: Instant) {
        self.failed.punish_longer(ino.0, RETRIED_AFTER, (), now);
        self.unread.entry(ino.0).and_modify(|(state, _)| *state = State::Resting);
    }

    /// Lets all pages that rest wait again.
    pub fn wake_all(&mut self) {
        self.failed.clear();
        self.wake(Instant::now());
    }

    /// Lets pages that have rested long enough wait again.
    pub fn wake(&mut self, now: Instant) {
        for (ino, (state, _)) in &mut self.unread {
            if *state == State::Resting && !self.failed.is_punished(ino, now) {
                *state = State::Waiting;
                self.waiting.push_back(INodeNo(*ino));
            }
        }
    }

    /// The time until the next page wakes.
    pub fn wakes_in(&self, now: Instant) -> Option<Duration> {
        self.failed.iter(now).map(|(_, (), left)| left).min()
    }

    /// What is told of pages, of which `known` were read in some version.
    pub fn status(&self, known: u64) -> PagesStatus {
        let count = |is_it: &dyn Fn(&(State, bool)) -> bool| self.unread.values().filter(|it| is_it(it)).count() as u64;
        let all = known + count(&|(_, is_new)| *is_new);
        PagesStatus {
            read: all.saturating_sub(self.unread.len() as u64),
            all,
            failed: count(&|(state, _)| *state == State::Resting),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(inodes: &[u64]) -> Queue {
        let mut queue = Queue::default();
        inodes.iter().for_each(|ino| queue.push(INodeNo(*ino), true));
        queue
    }

    #[test]
    fn a_page_that_is_opened_comes_first_and_is_read_once() {
        let mut queue = queue(&[1, 2, 3]);
        queue.push(INodeNo(3), true);

        queue.bring_forward(INodeNo(3));

        let order: Vec<u64> = std::iter::from_fn(|| queue.next()).map(|ino| ino.0).collect();
        assert_eq!(order, [3, 1, 2]);
        queue.bring_forward(INodeNo(1));
        assert_eq!(queue.next(), None, "it is being read");
    }

    #[test]
    fn a_page_that_fails_rests_longer_each_time() {
        let (mut queue, mut now) = (queue(&[1]), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..3 {
            let ino = queue.next().unwrap();
            queue.failed(ino, now);
            queue.wake(now);
            assert_eq!(queue.next(), None);
            rests.push(queue.wakes_in(now).unwrap().as_secs());
            now += queue.wakes_in(now).unwrap();
            queue.wake(now);
        }

        assert_eq!(rests, [15, 30, 60]);
        let again = queue.next().unwrap();
        queue.done(again);
        assert_eq!(queue.wakes_in(now), None);
    }

    #[test]
    fn pages_are_counted_by_what_was_read_in_some_version() {
        let mut queue = queue(&[1, 2, 3]);
        queue.push(INodeNo(4), false);
        assert_eq!(queue.status(10), PagesStatus { read: 9, all: 13, failed: 0 });

        let first = queue.next().unwrap();
        queue.done(first);
        let second = queue.next().unwrap();
        queue.failed(second, Instant::now());

        assert_eq!(queue.status(11), PagesStatus { read: 10, all: 13, failed: 1 });
    }
}
