//! A queue that is fair between processes: whoever has least comes first, and among those who have as much, whoever was served
//! longest ago. Within a process it is the order in which it asked. Every [`TO_THE_OLDEST`]th time it is the turn of whoever was
//! served longest ago whatever it has, so that nobody who has much waits for ever while others come and go. Pure.

use super::awaited::Requester;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// See the module.
const TO_THE_OLDEST: u64 = 4;

/// What waits, and how much each process has of what it waits for. Any step takes O(log n) of those who wait.
///
/// Invariant: `order` and `oldest` hold exactly the processes that wait, each by what its share says; a share is kept only for those
/// that wait or have something.
#[derive(Debug)]
pub(super) struct Fair<T> {
    shares: HashMap<Requester, Share<T>>,
    /// By what they have, and their turn.
    order: BTreeSet<(usize, u64, Requester)>,
    /// By their turn.
    oldest: BTreeSet<(u64, Requester)>,
    last: u64,
    served: u64,
}

#[derive(Debug)]
struct Share<T> {
    has: usize,
    /// When it was served last, or began to wait.
    turn: u64,
    /// By ticket.
    waiting: BTreeMap<u64, T>,
}

impl<T> Default for Fair<T> {
    fn default() -> Self {
        Fair { shares: HashMap::new(), order: BTreeSet::new(), oldest: BTreeSet::new(), last: 0, served: 0 }
    }
}

impl<T> Fair<T> {
    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// `requester` begins to wait; the ticket is for [`Fair::leave`].
    pub(super) fn push(&mut self, requester: Requester, waiting: T) -> u64 {
        self.last += 1;
        let ticket = self.last;
        self.change(requester, |share| {
            if share.waiting.is_empty() {
                share.turn = ticket;
            }
            share.waiting.insert(ticket, waiting);
        });
        ticket
    }

    /// Whoever has this ticket waits no longer; `None` where it was served.
    pub(super) fn leave(&mut self, requester: Requester, ticket: u64) -> Option<T> {
        self.change(requester, |share| share.waiting.remove(&ticket))
    }

    /// Whose turn it is. Whether it then has one more is for [`Fair::took`].
    pub(super) fn pop(&mut self) -> Option<(Requester, T)> {
        let least = self.order.first().map(|(_, _, requester)| *requester);
        let oldest = self.oldest.first().map(|(_, requester)| *requester);
        let is_to_the_oldest = self.served % TO_THE_OLDEST == TO_THE_OLDEST - 1;
        let requester = if is_to_the_oldest { oldest } else { least }?;
        self.served += 1;
        self.last += 1;
        let turn = self.last;
        let next = self.change(requester, |share| {
            share.turn = turn;
            share.waiting.pop_first()
        });
        next.map(|(_, waiting)| (requester, waiting))
    }

    /// `requester` has one more.
    pub(super) fn took(&mut self, requester: Requester) {
        self.change(requester, |share| share.has += 1);
    }

    /// It has one less.
    pub(super) fn gave_back(&mut self, requester: Requester) {
        self.change(requester, |share| share.has = share.has.saturating_sub(1));
    }

    fn change<R>(&mut self, requester: Requester, change: impl FnOnce(&mut Share<T>) -> R) -> R {
        let share = self.shares.entry(requester).or_insert(Share { has: 0, turn: 0, waiting: BTreeMap::new() });
        self.order.remove(&(share.has, share.turn, requester));
        self.oldest.remove(&(share.turn, requester));
        let result = change(share);
        if !share.waiting.is_empty() {
            self.order.insert((share.has, share.turn, requester));
            self.oldest.insert((share.turn, requester));
        } else if share.has == 0 {
            self.shares.remove(&requester);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: Requester = Requester(7);
    const ONE: Requester = Requester(8);

    /// Serves whoever comes next, who then has it.
    fn serve<T>(queue: &mut Fair<T>) -> Option<(Requester, T)> {
        queue.pop().inspect(|(requester, _)| queue.took(*requester))
    }

    #[test]
    fn one_request_of_a_process_that_has_nothing_comes_before_all_of_one_that_has_much() {
        let mut queue = Fair::default();
        (0..8).for_each(|_| queue.took(MANY));
        for number in 0..1000 {
            queue.push(MANY, number);
        }
        queue.push(ONE, 5000);

        assert_eq!(serve(&mut queue), Some((ONE, 5000)));
        assert_eq!(serve(&mut queue), Some((MANY, 0)), "in the order in which it asked");
        assert_eq!(serve(&mut queue), Some((MANY, 1)));
    }

    #[test]
    fn who_ask_for_as_much_have_as_much_and_take_turns() {
        let mut queue = Fair::default();
        for requester in 1..=3 {
            for number in 0..100 {
                queue.push(Requester(requester), number);
            }
        }

        let served: Vec<u32> = (0..9).filter_map(|_| serve(&mut queue)).map(|(requester, _)| requester.0).collect();
        assert_eq!(served, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
        // Whoever gives back is not served again before those who have no more.
        queue.gave_back(Requester(2));
        assert_eq!(serve(&mut queue).map(|(requester, _)| requester), Some(Requester(2)));
        queue.gave_back(Requester(3));
        queue.gave_back(Requester(1));
        let served: Vec<u32> = (0..2).filter_map(|_| serve(&mut queue)).map(|(requester, _)| requester.0).collect();
        assert_eq!(served, [1, 3], "longest ago first");
    }

    #[test]
    fn who_has_much_is_served_although_others_who_have_nothing_come_and_go() {
        let mut queue = Fair::default();
        queue.took(MANY);
        queue.push(MANY, 0);
        for requester in [1, 2] {
            queue.push(Requester(requester), 1);
        }

        // One place, which each gives back and asks for again.
        let served = std::iter::from_fn(|| {
            let (requester, _) = serve(&mut queue)?;
            queue.gave_back(requester);
            queue.push(requester, 2);
            Some(requester)
        });
        let waited = served.take(100).position(|requester| requester == MANY);
        assert!(waited.is_some_and(|waited| waited < TO_THE_OLDEST as usize), "{waited:?}");
    }

    #[test]
    fn who_has_left_is_not_served_and_nothing_is_kept_of_it() {
        let mut queue = Fair::default();
        let first = queue.push(MANY, 'a');
        queue.push(MANY, 'b');
        queue.leave(MANY, first);
        queue.leave(MANY, first);
        queue.leave(ONE, 99);

        assert_eq!(queue.pop(), Some((MANY, 'b')));
        assert!(queue.pop().is_none() && queue.is_empty() && queue.shares.is_empty());
        queue.took(ONE);
        queue.gave_back(ONE);
        queue.gave_back(ONE);
        assert!(queue.shares.is_empty() && queue.order.is_empty() && queue.oldest.is_empty());
    }
}
