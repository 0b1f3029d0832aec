//! Folders whose children are still to come, in the order in which they do.
//!
//! All folders of a level wait while the one above is gone through: of ten million files that may be millions. Inodes were mostly
//! given in this very order, so what each has more than the one before is noted, in an octet or two.

use super::store::codec::push_varint;
use std::collections::VecDeque;

/// A queue of (inode, new in this commit).
#[derive(Debug, Default)]
pub(super) struct Coming {
    octets: VecDeque<u8>,
    /// The inodes that were put in and taken out last.
    last_in: u64,
    last_out: u64,
    /// Room for one.
    varint: Vec<u8>,
}

impl Coming {
    /// Puts in another; inodes take 40 bits.
    pub(super) fn push(&mut self, ino: u64, fresh: bool) {
        let more = ino.wrapping_sub(self.last_in).cast_signed();
        let zigzag = (more << 1 ^ more >> 63).cast_unsigned();
        self.last_in = ino;
        self.varint.clear();
        push_varint(&mut self.varint, zigzag << 1 | u64::from(fresh));
        self.octets.extend(&self.varint);
    }

    /// Takes out the one that was put in first of those that are here.
    pub(super) fn pop(&mut self) -> Option<(u64, bool)> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let octet = self.octets.pop_front()?;
            value |= u64::from(octet & 0x7f) << shift;
            if octet < 0x80 {
                break;
            }
        }
        let zigzag = value >> 1;
        self.last_out = self.last_out.wrapping_add(zigzag >> 1 ^ (zigzag & 1).wrapping_neg());
        Some((self.last_out, value & 1 == 1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::codec::NUMBER_LIMIT;
    use super::*;

    #[test]
    fn folders_come_in_the_order_that_they_were_noted_in() {
        let mut seed = 5u64;
        let mut below = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % limit
        };
        let (mut coming, mut expected, mut ino) = (Coming::default(), VecDeque::new(), 1);
        for _ in 0..20_000 {
            match below(5) {
                0 | 1 => ino += 1,
                2 => ino = below(1 << 30) << 10 | 3,
                3 => ino = NUMBER_LIMIT - 1 - below(2),
                _ => {
                    assert_eq!(coming.pop(), expected.pop_front());
                    continue;
                }
            }
            let fresh = below(2) == 0;
            coming.push(ino, fresh);
            expected.push_back((ino, fresh));
        }
        while let Some(next) = expected.pop_front() {
            assert_eq!(coming.pop(), Some(next));
        }
        assert_eq!(coming.pop(), None);
    }

    #[test]
    fn a_million_folders_whose_inodes_follow_each_other_take_an_octet_each() {
        let mut coming = Coming::default();

        (0..1_000_000).for_each(|number| coming.push((1 << 33) + number, number % 3 == 0));

        assert!(coming.octets.len() < 1_000_010, "{} octets", coming.octets.len());
        assert!((0..1_000_000).all(|number| coming.pop() == Some(((1 << 33) + number, number % 3 == 0))));
    }
}
