//! The places of one host for what is under way there: requests, and what takes several of them (fetches, windows).
//!
//! Who waits for an answer comes before what nobody waits for yet: files and sizes that are asked for ahead, until a reader comes for
//! them, and questions whether bytes are current. All of that together leaves a part of the places to readers, and is given a free
//! one only while no reader stands in the queue. Between readers the places are shared out by process ([`Fair`]).

use super::awaited::{Priority, Requester};
use super::fair::Fair;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// The places of one host.
#[derive(Debug)]
pub(super) struct Places {
    /// Held for a few instructions.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many there are, and how many of them may be for nobody at a time.
    all: usize,
    beside: usize,
    taken: usize,
    taken_beside: usize,
    readers: Fair<oneshot::Sender<Place>>,
    /// Of nobody, so in the order in which it came.
    others: Fair<oneshot::Sender<Place>>,
}

impl State {
    fn queue(&mut self, kind: Kind) -> &mut Fair<oneshot::Sender<Place>> {
        match kind {
            Kind::Reader => &mut self.readers,
            Kind::Beside => &mut self.others,
        }
    }

    fn is_free(&self) -> bool {
        self.taken < self.all
    }

    fn is_free_beside(&self) -> bool {
        // With none at all nobody would see that a host recovers.
        self.is_free() && self.readers.is_empty() && self.taken_beside < self.beside.max(1)
    }
}

/// For whom a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Somebody who waits.
    Reader,
    /// Nobody yet.
    Beside,
}

/// A place that is taken, until it is dropped.
#[derive(Debug)]
pub struct Place {
    of: Of,
}

#[derive(Debug)]
enum Of {
    Host {
        places: Arc<Places>,
        kind: Kind,
        requester: Requester,
    },
    /// The one that is kept for documents.
    Document {
        _permit: OwnedSemaphorePermit,
    },
    /// It was given to who has left.
    Nobody,
}

impl Place {
    /// The one that is kept for documents.
    pub(super) fn of_document(permit: OwnedSemaphorePermit) -> Place {
        Place { of: Of::Document { _permit: permit } }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Of::Host { places, kind, requester } = &self.of {
            let mut state = places.state();
            give_back(&mut state, *kind, *requester);
            places.hand_out(&mut state);
        }
    }
}

fn give_back(state: &mut State, kind: Kind, requester: Requester) {
    state.taken -= 1;
    state.taken_beside -= usize::from(kind == Kind::Beside);
    state.queue(kind).gave_back(requester);
}

/// Leaves a queue when it is dropped; whoever was served has left it.
struct Standing<'a> {
    places: &'a Places,
    kind: Kind,
    requester: Requester,
    ticket: u64,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut state = self.places.state();
        let left = state.queue(self.kind).leave(self.requester, self.ticket);
        drop(state);
        drop(left);
    }
}

impl Places {
    /// So many, of which `beside` may be for nobody.
    pub(super) fn new(all: usize, beside: usize) -> Arc<Places> {
        let (readers, others) = (Fair::default(), Fair::default());
        Arc::new(Places { state: Mutex::new(State { all, beside, taken: 0, taken_beside: 0, readers, others }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that are taken.
    pub(super) fn taken(&self) -> usize {
        self.state().taken
    }

    /// There are so many from now on; those that are taken beyond that go when they are given back.
    pub(super) fn resize(self: &Arc<Self>, all: usize, beside: usize) {
        let mut state = self.state();
        if (state.all, state.beside) != (all, beside) {
            (state.all, state.beside) = (all, beside);
            self.hand_out(&mut state);
        }
    }

    /// A place, once there is one; in the queue of those for nobody until `awaited` says who waits.
    pub(super) async fn take(self: &Arc<Self>, awaited: Priority) -> Place {
        let requester = match awaited.now() {
            Some(requester) => requester,
            None => tokio::select! {
                biased;
                place = self.wait(Kind::Beside, Requester::default()) => return place,
                // Who will never be waited for stays where it is.
                requester = awaited.once() => requester,
            },
        };
        self.wait(Kind::Reader, requester).await
    }

    async fn wait(self: &Arc<Self>, kind: Kind, requester: Requester) -> Place {
        loop {
            let (given, ticket) = {
                let mut state = self.state();
                let is_free = match kind {
                    Kind::Reader => state.is_free() && state.readers.is_empty(),
                    Kind::Beside => state.is_free_beside(),
                };
                if is_free {
                    return self.take_one(&mut state, kind, requester);
                }
                let (give, given) = oneshot::channel();
                (given, state.queue(kind).push(requester, give))
            };
            let _standing = Standing { places: self, kind, requester, ticket };
            // Whoever is in a queue is served, unless it has left.
            if let Ok(place) = given.await {
                return place;
            }
        }
    }

    fn take_one(self: &Arc<Self>, state: &mut State, kind: Kind, requester: Requester) -> Place {
        state.taken += 1;
        state.taken_beside += usize::from(kind == Kind::Beside);
        state.queue(kind).took(requester);
        Place { of: Of::Host { places: Arc::clone(self), kind, requester } }
    }

    /// Gives what is free to those who wait.
    fn hand_out(self: &Arc<Self>, state: &mut State) {
        loop {
            let kind = if state.is_free() && !state.readers.is_empty() {
                Kind::Reader
            } else if state.is_free_beside() {
                Kind::Beside
            } else {
                return;
            };
            let Some((requester, waiting)) = state.queue(kind).pop() else { return };
            let place = self.take_one(state, kind, requester);
            if let Err(mut refused) = waiting.send(place) {
                // Dropped as it is, it would take the lock that is held here.
                refused.of = Of::Nobody;
                give_back(state, kind, requester);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::sync::watch;

    fn nobody() -> (watch::Sender<Option<Requester>>, Priority) {
        let (tell, told) = watch::channel(None);
        (tell, Priority::Once(told))
    }

    fn waiting() -> Priority {
        Priority::default()
    }

    #[tokio::test]
    async fn a_reader_comes_before_all_that_nobody_waits_for() {
        let places = Places::new(2, 1);
        let (_tell, awaited) = nobody();
        let first = places.take(awaited.clone()).await;
        let mut others: Vec<_> = (0..64).map(|_| Box::pin(places.take(awaited.clone()))).collect();
        assert!(others.iter_mut().all(|other| other.now_or_never().is_none()), "one place is for readers");
        let reader = places.take(waiting()).await;
        let mut second = Box::pin(places.take(waiting()));
        assert!((&mut second).now_or_never().is_none());

        drop(first);

        assert!((&mut others[0]).now_or_never().is_none());
        let second = (&mut second).now_or_never().unwrap();
        drop((reader, second));
        assert_eq!(others.iter_mut().filter_map(|other| other.now_or_never()).count(), 64, "one after the other");
        assert_eq!(places.taken(), 0);
    }

    #[tokio::test]
    async fn who_is_waited_for_meanwhile_goes_to_the_readers_queue() {
        let places = Places::new(1, 1);
        let taken = places.take(waiting()).await;
        let (_never, unawaited) = nobody();
        let (tell, awaited) = nobody();
        let mut first = Box::pin(places.take(unawaited));
        let mut second = Box::pin(places.take(awaited));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());

        tell.send_replace(Some(Requester(5)));
        assert!((&mut second).now_or_never().is_none());
        drop(taken);

        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_has_left_the_queue_takes_no_place() {
        let places = Places::new(1, 1);
        let taken = places.take(waiting()).await;
        let mut left = Box::pin(places.take(waiting()));
        assert!((&mut left).now_or_never().is_none());
        drop(left);
        let mut served = Box::pin(places.take(waiting()));
        assert!((&mut served).now_or_never().is_none());
        drop(taken);
        // Given, and never looked at.
        drop(served);
        assert!(places.take(waiting()).now_or_never().is_some());
    }

    /// Promise: no process keeps another waiting by the number of its threads.
    #[tokio::test]
    async fn a_reader_of_another_process_waits_for_one_place_however_many_stand_before_it() {
        let places = Places::new(4, 0);
        let take = |process| Box::pin(places.take(Priority::By(Requester(process))));
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(take(1).await);
        }
        let mut many: Vec<_> = (0..64).map(|_| take(1)).collect();
        assert!(many.iter_mut().all(|one| one.now_or_never().is_none()));
        let mut lone = take(2);
        assert!((&mut lone).now_or_never().is_none());

        drop(taken.pop());

        let lone = (&mut lone).now_or_never().expect("the first that is given back");
        assert!(many.iter_mut().all(|one| one.now_or_never().is_none()));
        drop((lone, taken));
        assert_eq!(many.iter_mut().filter_map(|one| one.now_or_never()).count(), 64);
        assert_eq!(places.taken(), 0);
    }

    #[tokio::test]
    async fn what_nobody_waited_for_stands_in_the_queue_of_whoever_begins_to() {
        let places = Places::new(2, 1);
        let take = |process| Box::pin(places.take(Priority::By(Requester(process))));
        let mut taken = vec![take(1).await, take(1).await];
        let (tell, awaited) = nobody();
        let mut ahead = Box::pin(places.take(awaited));
        let mut many: Vec<_> = (0..8).map(|_| take(1)).collect();
        assert!(many.iter_mut().all(|one| one.now_or_never().is_none()));
        assert!((&mut ahead).now_or_never().is_none());

        tell.send_replace(Some(Requester(2)));
        assert!((&mut ahead).now_or_never().is_none());
        taken.pop();

        assert!((&mut ahead).now_or_never().is_some());
    }

    #[tokio::test]
    async fn fewer_places_are_so_few_once_they_are_given_back() {
        let places = Places::new(4, 3);
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(places.take(waiting()).await);
        }
        places.resize(1, 0);
        taken.truncate(1);
        assert!(places.take(waiting()).now_or_never().is_none());
        taken.clear();
        let (_tell, awaited) = nobody();
        assert!(places.take(awaited).now_or_never().is_some(), "one is left at least");
        places.resize(2, 1);
        let both = (places.take(waiting()).now_or_never(), places.take(waiting()).now_or_never());
        assert!(both.0.is_some() && both.1.is_some());
    }
}
