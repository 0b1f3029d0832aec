//! Which part of the prefetched bytes was read.

/// Beyond this both sums are halved, so that an abandoned walk does not count for ever.
const REMEMBERED: u64 = 256 << 20;

/// Bytes that may be wasted before any were used: the first walks of a mount.
const ALLOWANCE: u64 = 1 << 20;

/// Prefetching is careful once the wasted bytes are one part in so many of the used ones. The aim is less than a tenth, and files under
/// way may be wasted too.
const CAREFUL: u64 = 16;

/// Bytes fetched ahead of readers, the older ones counted less.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    used: u64,
    wasted: u64,
}

impl Ledger {
    /// Bytes fetched ahead were read.
    pub(super) fn used(&mut self, bytes: u64) {
        self.used += bytes;
        self.fade();
    }

    /// Bytes fetched ahead will not be read.
    pub(super) fn wasted(&mut self, bytes: u64) {
        self.wasted += bytes;
        self.fade();
    }

    /// Whether too much is wasted, where `doubtful` more bytes are likely to be.
    pub(super) fn is_careful(&self, doubtful: u64) -> bool {
        self.wasted.saturating_add(doubtful).saturating_sub(ALLOWANCE) > self.used / CAREFUL
    }

    fn fade(&mut self) {
        if self.used + self.wasted > REMEMBERED {
            self.used /= 2;
            self.wasted /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_makes_careful_until_enough_is_used() {
        let mut ledger = Ledger::default();
        ledger.wasted(ALLOWANCE);
        assert!(!ledger.is_careful(0) && ledger.is_careful(1));
        ledger.wasted(1 << 20);
        assert!(ledger.is_careful(0));
        ledger.used(CAREFUL << 20);
        assert!(!ledger.is_careful(0));
    }

    #[test]
    fn the_past_fades() {
        let mut ledger = Ledger::default();
        ledger.used(REMEMBERED);
        ledger.wasted(1);
        assert_eq!(ledger.used, REMEMBERED / 2);
    }
}
