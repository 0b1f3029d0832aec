//! The queue of one host: ordered by class, and within a class by process in turns. Pure.

use crate::source::http::Requester;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// The classes, the first one served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Class {
    Reader,
    Prefetch,
    Background,
}

/// The requester of all documents. They wait among the readers, and take turns with them as one process.
pub(super) const DOCUMENTS: Requester = Requester(u32::MAX);

/// Place of a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source::http) struct Ticket {
    pub(super) number: u64,
    pub(super) class: Class,
    pub(super) requester: Requester,
}

/// Invariant: `order` holds each process that waits in its class, once.
#[derive(Debug)]
struct Turns<T> {
    waiting: HashMap<Requester, BTreeMap<u64, T>>,
    order: VecDeque<Requester>,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns { waiting: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T> Turns<T> {
    fn push(&mut self, requester: Requester, number: u64, item: T) {
        let own = self.waiting.entry(requester).or_insert_with(|| {
            self.order.push_back(requester);
            BTreeMap::new()
        });
        own.insert(number, item);
    }

    fn remove(&mut self, requester: Requester, number: u64) -> Option<T> {
        let own = self.waiting.get_mut(&requester)?;
        let item = own.remove(&number);
        if own.is_empty() {
            self.waiting.remove(&requester);
            self.order.retain(|other| *other != requester);
        }
        item
    }

    /// The first request of the process whose turn it is. That process goes to the end.
    fn pop(&mut self) -> Option<T> {
        let requester = *self.order.front()?;
        self.order.rotate_left(1);
        self.pop_of(requester)
    }

    fn pop_of(&mut self, requester: Requester) -> Option<T> {
        let number = *self.waiting.get(&requester)?.first_key_value()?.0;
        self.remove(requester, number)
    }
}

/// Requests that wait for a host.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    classes: [Turns<T>; 3],
    last: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue { classes: Default::default(), last: 0 }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn push(&mut self, class: Class, requester: Requester, item: T) -> Ticket {
        self.last += 1;
        self.classes[class as usize].push(requester, self.last, item);
        Ticket { number: self.last, class, requester }
    }

    /// Takes a request out; `None` where it was served.
    pub(super) fn remove(&mut self, ticket: &Ticket) -> Option<T> {
        self.classes[ticket.class as usize].remove(ticket.requester, ticket.number)
    }

    pub(super) fn has(&self, class: Class) -> bool {
        !self.classes[class as usize].order.is_empty()
    }

    /// Readers that wait, without documents.
    pub(super) fn readers(&self) -> usize {
        let waiting = &self.classes[Class::Reader as usize].waiting;
        waiting.iter().filter(|(requester, _)| **requester != DOCUMENTS).map(|(_, own)| own.len()).sum()
    }

    pub(super) fn has_document(&self) -> bool {
        self.classes[Class::Reader as usize].waiting.contains_key(&DOCUMENTS)
    }

    pub(super) fn pop(&mut self, class: Class) -> Option<T> {
        self.classes[class as usize].pop()
    }

    pub(super) fn pop_document(&mut self) -> Option<T> {
        self.classes[Class::Reader as usize].pop_of(DOCUMENTS)
    }

    /// Takes all requests out.
    pub(super) fn drain(&mut self) -> Vec<T> {
        let all = self.classes.iter_mut().flat_map(|turns| std::mem::take(turns).waiting.into_values());
        all.flat_map(BTreeMap::into_values).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(queue: &mut FairQueue<u32>, class: Class) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(class)).collect()
    }

    #[test]
    fn processes_are_served_in_turns_however_much_they_ask() {
        let mut queue = FairQueue::default();
        for item in [10, 11, 12, 13] {
            queue.push(Class::Reader, Requester(1), item);
        }
        queue.push(Class::Reader, Requester(2), 20);
        queue.push(Class::Reader, Requester(3), 30);
        queue.push(Class::Reader, Requester(2), 21);
        assert_eq!(served(&mut queue, Class::Reader), [10, 20, 30, 11, 21, 12, 13]);
    }

    #[test]
    fn a_process_that_comes_back_waits_one_turn_of_each_other() {
        let mut queue = FairQueue::default();
        for item in 0..100 {
            queue.push(Class::Reader, Requester(1), item);
        }
        assert_eq!(queue.pop(Class::Reader), Some(0));
        for round in 0..10 {
            queue.push(Class::Reader, Requester(2), 1000 + round);
            let two = [queue.pop(Class::Reader), queue.pop(Class::Reader)];
            assert!(two.contains(&Some(1000 + round)), "{two:?}");
        }
    }

    #[test]
    fn a_request_that_left_is_not_served() {
        let mut queue = FairQueue::default();
        let first = queue.push(Class::Reader, Requester(1), 1);
        queue.push(Class::Reader, Requester(2), 2);
        assert_eq!(queue.remove(&first), Some(1));
        assert_eq!(queue.remove(&first), None);
        assert_eq!(served(&mut queue, Class::Reader), [2]);
        assert!(!queue.has(Class::Reader));
    }

    #[test]
    fn a_document_is_served_once_in_either_way() {
        let mut queue = FairQueue::default();
        for item in [1, 2] {
            queue.push(Class::Reader, DOCUMENTS, item);
        }
        assert_eq!((queue.pop_document(), queue.pop(Class::Reader)), (Some(1), Some(2)));
        assert!(!queue.has_document() && queue.pop(Class::Reader).is_none());
    }

    #[test]
    fn documents_take_turns_with_readers_as_one_process() {
        let mut queue = FairQueue::default();
        for item in 0..3 {
            queue.push(Class::Reader, DOCUMENTS, item);
        }
        queue.push(Class::Reader, Requester(1), 10);
        queue.push(Class::Reader, Requester(1), 11);
        assert_eq!(served(&mut queue, Class::Reader), [0, 10, 1, 11, 2]);
    }
}
