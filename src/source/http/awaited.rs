//! Who waits for what is asked for: a process, or nobody yet.

use tokio::sync::watch;

/// A process that waits, by its number (`0`: none that can be told from others, which all count as one; nor can that for which the
/// directory of a package comes, as everybody's): what hosts take at a time is shared out between processes, however many threads
/// each of them reads with. What several wait for counts as the first one's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requester(pub u32);

/// Tells who waits for what is asked for; who begins to wait says so while the request stands in a queue.
#[derive(Clone, Debug)]
pub enum Priority {
    /// From the beginning.
    By(Requester),
    /// Whoever is told here; until then nobody.
    Once(watch::Receiver<Option<Requester>>),
}

impl Default for Priority {
    fn default() -> Priority {
        Priority::By(Requester::default())
    }
}

impl Priority {
    /// For what nobody will ever wait for.
    pub fn by_nobody() -> Priority {
        Priority::Once(watch::channel(None).1)
    }

    /// Who waits by now.
    pub fn now(&self) -> Option<Requester> {
        match self {
            Priority::By(requester) => Some(*requester),
            Priority::Once(told) => *told.borrow(),
        }
    }

    /// Who waits, as soon as somebody does; never where nobody is left who could say so.
    pub async fn once(self) -> Requester {
        let told = match self {
            Priority::By(requester) => Some(requester),
            Priority::Once(mut told) => told.wait_for(Option::is_some).await.ok().and_then(|told| *told),
        };
        match told {
            Some(requester) => requester,
            None => std::future::pending().await,
        }
    }
}
