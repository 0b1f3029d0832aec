//! Who waits for a download: a fetch that was begun ahead of every reader gives way to all else, and ends when whoever asked
//! for it has left.

use super::Joining;
use crate::content::store::Victims;
use crate::source::http::{Priority, Requester};
use std::sync::{Mutex, PoisonError};
use tokio::sync::{Notify, watch};

/// Who waits for one download.
///
/// Invariant: as long as nobody demanded it, its victims are those that its prefetchers allow.
pub(in crate::content) struct Urgency {
    waiting: Mutex<Waiting>,
    victims: Victims,
    left: Notify,
}

#[derive(Default)]
struct Waiting {
    /// Who was the first to ask for a read or a size, which may be asked for again: the download goes on to its end.
    demanded: Option<Requester>,
    /// Of the reads that were asked for the one that begins first: where, and how many bytes.
    nearest: Option<(u64, u32)>,
    /// Prefetches that wait for it.
    ahead: usize,
    /// The first who asked for it was a prefetch.
    began_ahead: bool,
    /// Tells its requests who waits for them; none where somebody always did.
    awaited: Option<watch::Sender<Option<Requester>>>,
}

impl Default for Urgency {
    fn default() -> Urgency {
        Urgency { waiting: Mutex::default(), victims: Victims::any(), left: Notify::new() }
    }
}

impl Urgency {
    /// `requester` begins to wait. Each [`Joining::Ahead`] ends with [`Urgency::leave`].
    pub(super) fn join(&self, joining: Joining, requester: Requester) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Joining::Read(offset, length) = joining
            && waiting.nearest.is_none_or(|(nearest, _)| offset < nearest)
        {
            waiting.nearest = Some((offset, length));
        }
        match joining {
            Joining::Read(..) | Joining::Size => {
                waiting.demanded.get_or_insert(requester);
                if let Some(awaited) = waiting.awaited.take() {
                    awaited.send_replace(Some(requester));
                }
                self.victims.spare_nothing();
            }
            Joining::Ahead(begun) => {
                waiting.ahead += 1;
                waiting.began_ahead |= waiting.demanded.is_none();
                if waiting.demanded.is_none() && waiting.ahead == 1 {
                    self.victims.spare_since(begun);
                }
            }
        }
    }

    /// A prefetch waits no longer; whether nobody does. To be called where nobody can join meanwhile.
    pub(super) fn leave(&self) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.ahead = waiting.ahead.saturating_sub(1);
        waiting.demanded.is_none() && waiting.ahead == 0
    }

    /// Ends the download: nobody waits, and nobody can find it any more.
    pub(super) fn give_up(&self) {
        self.left.notify_one();
    }

    /// Ready once the download was given up; for the download's own task.
    pub(super) async fn left(&self) {
        self.left.notified().await;
    }

    /// Whether it was begun for nobody yet.
    pub(super) fn began_ahead(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).began_ahead
    }

    /// Whether somebody asked for its bytes or its size.
    pub(super) fn is_demanded(&self) -> bool {
        self.demanded().is_some()
    }

    /// Who was the first to ask for its bytes or its size.
    pub(super) fn demanded(&self) -> Option<Requester> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).demanded
    }

    /// Of the reads that were asked for so far the one that begins first: where, and how many bytes.
    pub(super) fn nearest_read(&self) -> Option<(u64, u32)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).nearest
    }

    /// Tells a request of it who waits.
    pub(super) fn awaited(&self) -> Priority {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.demanded {
            Some(requester) => Priority::Reader(requester),
            None => Priority::Prefetch(
                Requester::default(),
                waiting.awaited.get_or_insert_with(|| watch::channel(None).0).subscribe(),
            ),
        }
    }

    /// Whether a prefetch waits for all of it.
    pub(super) fn is_wanted_whole(&self) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).ahead > 0
    }

    /// What may go for its object.
    pub(super) fn victims(&self) -> Victims {
        self.victims.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::store::Moment;

    #[test]
    fn a_flight_is_left_when_the_last_prefetch_leaves_and_nobody_demanded_it() {
        let ahead = Joining::Ahead(Moment::now());
        let prefetched = Urgency::default();
        prefetched.join(ahead, Requester(7));
        prefetched.join(ahead, Requester(7));
        assert!(!prefetched.leave());
        assert!(prefetched.leave());

        let demanded = Urgency::default();
        demanded.join(ahead, Requester(7));
        let told = demanded.awaited();
        assert_eq!(told.reader(), None, "for nobody, whoever it is fetched ahead of");
        demanded.join(Joining::Read(0, 1), Requester(8));
        demanded.join(Joining::Size, Requester(9));
        assert_eq!(
            (told.reader(), demanded.awaited().reader()),
            (Some(Requester(8)), Some(Requester(8))),
            "its request learns of it"
        );
        assert!(!demanded.leave());
        assert!(demanded.is_demanded());
    }
}
