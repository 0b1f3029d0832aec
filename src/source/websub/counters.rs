//! What came to the listener, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// What became of one request of a hub, or of somebody who pretends to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A delivery that was taken.
    Delivered,
    /// A delivery without the signature that the secret asks for.
    Forged,
    /// A delivery whose `Link` names no topic or another one.
    WrongTopic,
    /// A delivery that is no notification document.
    Malformed,
    /// A delivery that had come before.
    Replayed,
    /// A delivery of more bytes than are taken.
    TooLarge,
    /// A delivery while those before it were not looked at yet; the hub was told to come again.
    Busy,
    /// A delivery for a subscription that is no longer wanted.
    Gone,
    /// A request for a path that was never given to a hub, or with a method that hubs do not use.
    Unknown,
    /// A connection that did not bring its request in time.
    TooSlow,
    /// A verification of what was asked for.
    Verified,
    /// A verification of what was not.
    NotAsked,
    /// A denial.
    Denied,
}

impl Seen {
    /// All of them, in the order of their declaration.
    pub const ALL: [Seen; 13] = [
        Seen::Delivered,
        Seen::Forged,
        Seen::WrongTopic,
        Seen::Malformed,
        Seen::Replayed,
        Seen::TooLarge,
        Seen::Busy,
        Seen::Gone,
        Seen::Unknown,
        Seen::TooSlow,
        Seen::Verified,
        Seen::NotAsked,
        Seen::Denied,
    ];

    /// The name in `status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Seen::Delivered => "delivered",
            Seen::Forged => "forged",
            Seen::WrongTopic => "wrong-topic",
            Seen::Malformed => "malformed",
            Seen::Replayed => "replayed",
            Seen::TooLarge => "too-large",
            Seen::Busy => "busy",
            Seen::Gone => "gone",
            Seen::Unknown => "unknown",
            Seen::TooSlow => "too-slow",
            Seen::Verified => "verified",
            Seen::NotAsked => "not-asked",
            Seen::Denied => "denied",
        }
    }
}

/// How often each was seen since the mount began.
#[derive(Debug, Default)]
pub struct Counters {
    counts: [AtomicU64; Seen::ALL.len()],
}

impl Counters {
    /// Counts one more and tells how many there are now.
    pub fn add(&self, seen: Seen) -> u64 {
        self.counts[seen as usize].fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many there are.
    pub fn count(&self, seen: Seen) -> u64 {
        self.counts[seen as usize].load(Ordering::Relaxed)
    }

    /// (name, count) of those that were seen at all.
    pub fn seen(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Seen::ALL.into_iter().map(|seen| (seen.as_str(), self.count(seen))).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_itself() {
        let counters = Counters::default();
        for (number, seen) in Seen::ALL.into_iter().enumerate() {
            assert_eq!(seen as usize, number);
            for _ in 0..=number {
                counters.add(seen);
            }
        }

        let counts: Vec<_> = counters.seen().map(|(_, count)| count).collect();
        assert_eq!(counts, (1..=13).collect::<Vec<u64>>());
    }
}
