//! What reading ahead has brought and what of it was read.

/// Beyond this the past counts half, so that one bad hour is not held against a walk for ever.
const REMEMBERED: u64 = 256 << 20;

/// So much may be wasted before anything was used: the first walks of a mount.
const LEEWAY: u64 = 1 << 20;

/// Octets fetched ahead.
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

/// How much evidence is wanted before files are fetched ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Caution {
    /// What is fetched ahead is read.
    None,
    /// More than a tenth of it is not.
    Some,
    /// More than a fifth of it is not.
    Much,
}

impl Ledger {
    pub(super) fn fetched(&mut self, octets: u64) {
        self.fetched += octets;
    }

    pub(super) fn used(&mut self, octets: u64) {
        self.used += octets;
        self.recent_used += octets;
        self.fade();
    }

    pub(super) fn wasted(&mut self, octets: u64) {
        self.wasted += octets;
        self.recent_wasted += octets;
        self.fade();
    }

    pub(super) fn caution(&self) -> Caution {
        let wasted = self.recent_wasted.saturating_sub(LEEWAY);
        if wasted > self.recent_used / 5 {
            Caution::Much
        } else if wasted > self.recent_used / 10 {
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
    fn waste_beyond_a_tenth_of_what_was_used_makes_cautious_and_use_makes_up_for_it() {
        let mut ledger = Ledger::default();
        ledger.wasted(LEEWAY);
        assert_eq!(ledger.caution(), Caution::None);
        ledger.wasted(1 << 20);
        assert_eq!(ledger.caution(), Caution::Much);
        ledger.used(6 << 20);
        assert_eq!(ledger.caution(), Caution::Some);
        ledger.used(6 << 20);
        assert_eq!(ledger.caution(), Caution::None);
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
