//! Which bytes of a file are present.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of bytes as disjoint ranges, never touching each other: start -> end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    runs: BTreeMap<u64, u64>,
}

impl Ranges {
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Everything that overlaps or touches becomes one run. Runs are disjoint, so walking back from `end` meets all of them.
        while let Some((&run, &run_end)) = self.runs.range(..=end).next_back() {
            if run_end < start {
                break;
            }
            start = start.min(run);
            end = end.max(run_end);
            self.runs.remove(&run);
        }
        self.runs.insert(start, end);
    }

    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&run, &run_end)) = self.runs.range(..range.end).next_back() {
            if run_end <= range.start {
                break;
            }
            self.runs.remove(&run);
            if run < range.start {
                self.runs.insert(run, range.start);
            }
            if run_end > range.end {
                self.runs.insert(range.end, run_end);
            }
        }
    }

    pub(super) fn contains(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.runs.range(..=range.start).next_back().is_some_and(|(_, &end)| end >= range.end)
    }

    /// The first gap within `window`.
    pub(super) fn gap(&self, window: Range<u64>) -> Option<Range<u64>> {
        let start = match self.runs.range(..=window.start).next_back() {
            Some((_, &end)) if end > window.start => end,
            _ => window.start,
        };
        if start >= window.end {
            return None;
        }
        let end = self.runs.range(start..window.end).next().map_or(window.end, |(&run, _)| run);
        Some(start..end)
    }

    /// Bytes in the set.
    pub(super) fn count(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }

    /// Where the run that begins at 0 ends.
    pub(super) fn prefix(&self) -> u64 {
        self.runs.get(&0).copied().unwrap_or(0)
    }

    /// The set's last byte and one.
    pub(super) fn end(&self) -> u64 {
        self.runs.last_key_value().map_or(0, |(_, &end)| end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The set against the plainest model of one: a flag for each byte.
        #[test]
        fn behaves_like_a_flag_for_each_byte(steps in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..64), 1..40)) {
            let mut ranges = Ranges::default();
            let mut flags = [false; 64];
            for (insert, a, b) in steps {
                let range = a.min(b)..a.max(b);
                if insert { ranges.insert(range.clone()) } else { ranges.remove(range.clone()) }
                flags[range.start as usize..range.end as usize].fill(insert);
                prop_assert_eq!(ranges.count(), flags.iter().filter(|f| **f).count() as u64);
                prop_assert_eq!(ranges.prefix(), flags.iter().take_while(|f| **f).count() as u64);
                prop_assert_eq!(ranges.end(), flags.iter().rposition(|f| *f).map_or(0, |i| i as u64 + 1));
                for start in 0..64 {
                    let end = (start + 9).min(64);
                    let window = &flags[start..end];
                    prop_assert_eq!(ranges.contains(start as u64..end as u64), window.iter().all(|f| *f));
                    let gap = window.iter().position(|f| !f).map(|i| {
                        let length = window[i..].iter().take_while(|f| !**f).count();
                        (start + i) as u64..(start + i + length) as u64
                    });
                    prop_assert_eq!(ranges.gap(start as u64..end as u64), gap);
                }
            }
        }
    }
}
