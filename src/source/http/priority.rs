//! What a request is for, which decides when its host is asked.

use tokio::sync::watch;

/// A process that reads, by its number. `0` stands for every process that cannot be identified, and for work that several share. What several
/// processes wait for counts as the first one's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requester(pub u32);

/// The class of a request and the process that it is for. Within a class processes are served in turns.
#[derive(Clone, Debug)]
pub enum Priority {
    /// A reader waits.
    Reader(Requester),
    /// A reader of this process may want it soon. The channel names the process of a reader that waits for it: the request moves up to the readers.
    Prefetch(Requester, watch::Receiver<Option<Requester>>),
    /// No process reads towards it. The channel is that of a prefetch.
    Background(watch::Receiver<Option<Requester>>),
}

impl Default for Priority {
    fn default() -> Priority {
        Priority::Reader(Requester::default())
    }
}

impl Priority {
    /// Priority of a request that no reader will ever wait for.
    pub fn background() -> Priority {
        Priority::Background(watch::channel(None).1)
    }

    /// The process whose reader waits, if one does.
    pub fn reader(&self) -> Option<Requester> {
        match self {
            Priority::Reader(requester) => Some(*requester),
            Priority::Prefetch(_, reader) | Priority::Background(reader) => *reader.borrow(),
        }
    }

    /// The process whose reader waits, as soon as one does.
    pub async fn raised(self) -> Requester {
        let reader = match self {
            Priority::Reader(requester) => Some(requester),
            Priority::Prefetch(_, mut reader) | Priority::Background(mut reader) => {
                reader.wait_for(Option::is_some).await.ok().and_then(|reader| *reader)
            }
        };
        match reader {
            Some(requester) => requester,
            None => std::future::pending().await,
        }
    }
}
