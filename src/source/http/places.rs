//! The places of one host for requests under way. Who waits for an answer comes before what nobody waits for yet: files and
//! sizes that are asked for ahead, until a reader comes for them, and questions whether bytes are current. All of that together
//! leaves a part of the places to readers, and is given a free one only while no reader stands in the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

/// Tells whether somebody waits for what is asked for; who begins to wait says so while the request stands in the queue.
pub type Awaited = watch::Receiver<bool>;

/// For what nobody will ever wait for.
pub fn awaited_by_nobody() -> Awaited {
    watch::channel(false).1
}

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
    readers: VecDeque<oneshot::Sender<Place>>,
    others: VecDeque<oneshot::Sender<Place>>,
}

impl State {
    fn is_free(&self) -> bool {
        self.taken < self.all
    }

    fn is_free_beside(&self) -> bool {
        // With none at all nobody would see that a host recovers.
        self.is_free() && self.readers.is_empty() && self.taken_beside < self.beside.max(1)
    }
}

/// A place that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Of,
}

#[derive(Debug)]
enum Of {
    Host {
        places: Arc<Places>,
        is_beside: bool,
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
        if let Of::Host { places, is_beside } = &self.of {
            let mut state = places.state();
            state.taken -= 1;
            state.taken_beside -= usize::from(*is_beside);
            places.hand_out(&mut state);
        }
    }
}

impl Places {
    /// So many, of which `beside` may be for nobody.
    pub(super) fn new(all: usize, beside: usize) -> Arc<Places> {
        let (readers, others) = (VecDeque::new(), VecDeque::new());
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

    /// A place, once there is one; in the queue of those for nobody until `awaited` says that somebody waits.
    pub(super) async fn take(self: &Arc<Self>, awaited: Option<Awaited>) -> Place {
        let Some(mut awaited) = awaited.filter(|awaited| !*awaited.borrow()) else { return self.wait(false).await };
        let is_awaited = async move { awaited.wait_for(|is_awaited| *is_awaited).await.is_ok() };
        tokio::select! {
            biased;
            place = self.wait(true) => return place,
            // Who will never be waited for stays where it is.
            true = is_awaited => {}
        }
        self.wait(false).await
    }

    async fn wait(self: &Arc<Self>, is_beside: bool) -> Place {
        loop {
            let given = {
                let mut state = self.state();
                let is_free =
                    if is_beside { state.is_free_beside() } else { state.is_free() && state.readers.is_empty() };
                if is_free {
                    return self.take_one(&mut state, is_beside);
                }
                let (give, given) = oneshot::channel();
                let queue = if is_beside { &mut state.others } else { &mut state.readers };
                // Where nothing is given back for long, those who gave up are not to pile up.
                while queue.front().is_some_and(oneshot::Sender::is_closed) {
                    queue.pop_front();
                }
                queue.push_back(give);
                given
            };
            // Whoever is in a queue is served, unless it has left.
            if let Ok(place) = given.await {
                return place;
            }
        }
    }

    fn take_one(self: &Arc<Self>, state: &mut State, is_beside: bool) -> Place {
        state.taken += 1;
        state.taken_beside += usize::from(is_beside);
        Place { of: Of::Host { places: Arc::clone(self), is_beside } }
    }

    /// Gives what is free to those who wait.
    fn hand_out(self: &Arc<Self>, state: &mut State) {
        loop {
            let (waiting, is_beside) = if state.is_free() && !state.readers.is_empty() {
                (state.readers.pop_front(), false)
            } else if state.is_free_beside() {
                (state.others.pop_front(), true)
            } else {
                return;
            };
            let Some(waiting) = waiting else { return };
            let place = self.take_one(state, is_beside);
            if let Err(mut refused) = waiting.send(place) {
                // Dropped as it is, it would take the lock that is held here.
                refused.of = Of::Nobody;
                state.taken -= 1;
                state.taken_beside -= usize::from(is_beside);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn nobody() -> (watch::Sender<bool>, Option<Awaited>) {
        let (tell, awaited) = watch::channel(false);
        (tell, Some(awaited))
    }

    #[tokio::test]
    async fn a_reader_comes_before_all_that_nobody_waits_for() {
        let places = Places::new(2, 1);
        let (_tell, awaited) = nobody();
        let first = places.take(awaited.clone()).await;
        let mut others: Vec<_> = (0..64).map(|_| Box::pin(places.take(awaited.clone()))).collect();
        assert!(others.iter_mut().all(|other| other.now_or_never().is_none()), "one place is for readers");
        let reader = places.take(None).await;
        let mut second = Box::pin(places.take(None));
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
        let taken = places.take(None).await;
        let (_never, unawaited) = nobody();
        let (tell, awaited) = nobody();
        let mut first = Box::pin(places.take(unawaited));
        let mut second = Box::pin(places.take(awaited));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());

        tell.send_replace(true);
        assert!((&mut second).now_or_never().is_none());
        drop(taken);

        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_has_left_the_queue_takes_no_place() {
        let places = Places::new(1, 1);
        let taken = places.take(None).await;
        let mut left = Box::pin(places.take(None));
        assert!((&mut left).now_or_never().is_none());
        drop(left);
        let mut served = Box::pin(places.take(None));
        assert!((&mut served).now_or_never().is_none());
        drop(taken);
        // Given, and never looked at.
        drop(served);
        assert!(places.take(None).now_or_never().is_some());
    }

    #[tokio::test]
    async fn fewer_places_are_so_few_once_they_are_given_back() {
        let places = Places::new(4, 3);
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(places.take(None).await);
        }
        places.resize(1, 0);
        taken.truncate(1);
        assert!(places.take(None).now_or_never().is_none());
        taken.clear();
        let (_tell, awaited) = nobody();
        assert!(places.take(awaited).now_or_never().is_some(), "one is left at least");
        places.resize(2, 1);
        let both = (places.take(None).now_or_never(), places.take(None).now_or_never());
        assert!(both.0.is_some() && both.1.is_some());
    }
}
