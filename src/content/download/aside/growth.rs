//! How long a window is: short at the first look at a place, and twice as long each time that its reader goes on there. Pure.

use crate::content::fixity::BLOCK;
use std::ops::Range;

/// Bytes of a window, at most, however far its reader has gone on: a multiple of [`BLOCK`].
pub(super) const MOST: u64 = 1 << 20;

/// And of one that a single read asks for, which may begin amid a block.
pub(super) const LONGEST: u64 = MOST + BLOCK;

/// Who looks at the end first is given so many bytes at least, for the last block may be of a few: `tail` reads backwards, and
/// so does who looks for the directory of an archive.
const END: u64 = 64 << 10;

/// The window in which the bytes of `gap` come, of an object of `length` bytes. `gap` is what a read asks for and none of the
/// object's `others` has, in whole blocks; so is what comes, and none of the others has any of it.
///
/// A first look is given what it asks for. Where `gap` begins at the end of another window its reader goes on, and is given twice as
/// many bytes as that window has, at most [`MOST`]; where it ends at the beginning of one its reader goes backwards, and so
/// does the window. A gap between two is filled.
pub(super) fn window(gap: &Range<u64>, others: &[Range<u64>], length: u64) -> Range<u64> {
    let twice = |other: &Range<u64>| (2 * (other.end - other.start).max(BLOCK)).min(MOST) / BLOCK * BLOCK;
    let before = others.iter().find(|other| other.end == gap.start).map(twice);
    let behind = others.iter().find(|other| other.start == gap.end).map(twice);
    let backwards = |bytes: u64| {
        let start = gap.end.saturating_sub(bytes);
        let reach = others.iter().map(|other| other.end).filter(|end| *end <= gap.start).max().unwrap_or(0);
        (start - start % BLOCK).max(reach).min(gap.start)..gap.end
    };
    match (before, behind) {
        (Some(bytes), None) => {
            let next = others.iter().map(|other| other.start).filter(|start| *start >= gap.end).min().unwrap_or(length);
            gap.start..(gap.start + bytes).min(next).max(gap.end)
        }
        (None, Some(bytes)) => backwards(bytes),
        (None, None) if gap.end == length => backwards(END),
        _ => gap.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an object whose last block has a tenth of the bytes of one.
    const LENGTH: u64 = 1000 * BLOCK + BLOCK / 10;

    /// How many bytes the windows have in which a reader comes to see all of `reads`, one after the other.
    fn windows(reads: impl Iterator<Item = Range<u64>>) -> Vec<u64> {
        let mut others: Vec<Range<u64>> = Vec::new();
        for read in reads {
            let mut block = read.start - read.start % BLOCK;
            while block < read.end {
                let gap = block..(block + BLOCK).min(LENGTH);
                if !others.iter().any(|other| other.contains(&block)) {
                    let window = window(&gap, &others, LENGTH);
                    assert!(window.start <= gap.start && gap.end <= window.end && window.end <= LENGTH);
                    assert!(
                        window.start.is_multiple_of(BLOCK)
                            && (window.end.is_multiple_of(BLOCK) || window.end == LENGTH)
                    );
                    assert!(others.iter().all(|other| other.end <= window.start || window.end <= other.start));
                    others.push(window);
                }
                block += BLOCK;
            }
        }
        others.iter().map(|window| window.end - window.start).collect()
    }

    const STEP: u64 = 8 << 10;

    #[test]
    fn who_goes_on_is_given_twice_as_much_each_time_and_who_looks_here_and_there_what_was_asked_for() {
        let forwards = (0..1000).map(|step| 50 * BLOCK + step * STEP..50 * BLOCK + (step + 1) * STEP);
        assert_eq!(windows(forwards), [1, 2, 4, 8, 8, 8, 8, 8, 8, 8].map(|blocks| blocks * BLOCK));

        let here_and_there = [700, 100, 400, 900].map(|block| block * BLOCK + 5..block * BLOCK + 6);
        assert_eq!(windows(here_and_there.into_iter()), [BLOCK; 4]);
    }

    #[test]
    fn who_goes_backwards_from_the_end_needs_few_windows() {
        let backwards = (1..=1024 / 8).map(|step| LENGTH - step * STEP..LENGTH - (step - 1) * STEP);
        assert_eq!(windows(backwards), [BLOCK + BLOCK / 10, 2 * BLOCK, 4 * BLOCK, 8 * BLOCK]);
    }

    #[test]
    fn the_end_alone_is_one_window_of_64_kib_or_little_more() {
        assert_eq!(window(&(1000 * BLOCK..LENGTH), &[], LENGTH), 999 * BLOCK..LENGTH);
        let longer = 1000 * BLOCK + END;
        assert_eq!(window(&(1000 * BLOCK..longer), &[], longer), 1000 * BLOCK..longer);
        assert_eq!(window(&(0..10), &[], 10), 0..10);
        let before = 0..1000 * BLOCK;
        assert_eq!(
            window(&(1000 * BLOCK..LENGTH), &[before], LENGTH),
            1000 * BLOCK..LENGTH,
            "as far as there is something"
        );
    }

    #[test]
    fn no_window_reaches_into_another() {
        let others = [2 * BLOCK..4 * BLOCK, 5 * BLOCK..9 * BLOCK];
        assert_eq!(window(&(4 * BLOCK..5 * BLOCK), &others, LENGTH), 4 * BLOCK..5 * BLOCK);
        assert_eq!(window(&(BLOCK..2 * BLOCK), &others, LENGTH), 0..2 * BLOCK);
        let others = [2 * BLOCK..6 * BLOCK, 8 * BLOCK..9 * BLOCK];
        assert_eq!(window(&(6 * BLOCK..7 * BLOCK), &others, LENGTH), 6 * BLOCK..8 * BLOCK);
        let others = [0..5 * BLOCK, 8 * BLOCK..12 * BLOCK];
        assert_eq!(window(&(7 * BLOCK..8 * BLOCK), &others, LENGTH), 5 * BLOCK..8 * BLOCK);
    }
}
