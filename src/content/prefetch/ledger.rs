//! What reading ahead has brought and what of it was read.

/// Beyond this the past counts half, so that one bad hour is not held against a walk for ever.
const REMEMBERED: u64 = 256 << 20;

/// So much may be wasted before anything was used: the first walks of a mount.
const LEEWAY: u64 = 1 << 20;

/// Bytes fetched ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Since the mount began.
    pub fetched: u64,
    /// Of these, read afterwards.
    pub used: u64,
    /// Of these, never read.
    pub wasted: u64,
    recent_used: u64,
    recent_wasted: u64,
}

/// How much evidence is wanted before files are fetched ahead, and how far that carries. What is wasted is to stay below a tenth
/// of what is used: it is much well before that, since what is under way may be wasted too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Caution {
    /// What is fetched ahead is read.
    None,
    /// One part in [`SOME`] of what is used is wasted beside.
    Some,
    /// One part in [`MUCH`] is.
    Much,
}

/// See [`Caution`].
const SOME: u64 = 20;
const MUCH: u64 = 12;

impl Ledger {
    pub(super) fn fetched(&mut self, bytes: u64) {
        self.fetched += bytes;
    }

    pub(super) fn used(&mut self, bytes: u64) {
        self.used += bytes;
        self.recent_used += bytes;
        self.fade();
    }

    pub(super) fn wasted(&mut self, bytes: u64) {
        self.wasted += bytes;
        self.recent_wasted += bytes;
        self.fade();
    }

    /// Where so many bytes besides are likely to be wasted.
    pub(super) fn caution(&self, doubtful: u64) -> Caution {
        let wasted = self.recent_wasted.saturating_add(doubtful).saturating_sub(LEEWAY);
        if wasted > self.recent_used / MUCH {
            Caution::Much
        } else if wasted > self.recent_used / SOME {
            Caution::Some
        } else {
            Caution::None
        }
    }

    fn fade(&mut self) {
        if self.recent_used + self.recent_wasted > REMEMBERED {
            self.recent_used /= 2;
            self.recent_wasted /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_makes_cautious_well_before_it_is_a_tenth_of_what_was_used_and_use_makes_up_for_it() {
        let mut ledger = Ledger::default();
        ledger.wasted(LEEWAY);
        assert_eq!((ledger.caution(0), ledger.caution(1)), (Caution::None, Caution::Much));
        ledger.wasted(1 << 20);
        assert_eq!(ledger.caution(0), Caution::Much);
        ledger.used(12 << 20);
        assert_eq!(ledger.caution(0), Caution::Some);
        ledger.used(8 << 20);
        assert_eq!(ledger.caution(0), Caution::None);
    }

    #[test]
    fn the_past_fades() {
        let mut ledger = Ledger::default();
        ledger.used(REMEMBERED);
        ledger.wasted(1);
        assert_eq!(ledger.recent_used, REMEMBERED / 2);
        assert_eq!(ledger.used, REMEMBERED);
    }
}
