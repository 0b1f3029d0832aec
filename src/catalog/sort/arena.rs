//! The pairs of an arena, and their order.

use super::super::store::codec::Decoder;

/// The key and value that begin at `start`.
#[inline]
pub(super) fn pair(arena: &[u8], start: u32) -> (&[u8], &[u8]) {
    let mut bytes = Decoder(&arena[start as usize..]);
    let (key, value) = bytes.value::<(usize, usize)>().unwrap_or_default();
    (bytes.take(key).unwrap_or_default(), bytes.take(value).unwrap_or_default())
}

/// The starts in the order of their keys, of equal keys in the order in which they were added. Most keys of a list share long prefixes:
/// eight bytes at a time behind what all of a group share decide nearly every comparison without touching the arena.
pub(super) fn sorted(arena: &[u8], starts: &[u32]) -> impl Iterator<Item = u32> {
    let mut order: Vec<(u64, u32)> = starts.iter().map(|start| (0, *start)).collect();
    // Ranges of pairs with an equal beginning that are yet to be sorted, and the length of that beginning.
    let mut groups = vec![(0..order.len(), 0)];
    while let Some((range, compared)) = groups.pop() {
        let mut end = range.start;
        let group = &mut order[range];
        let key = |start: u32| pair(arena, start).0.get(compared..).unwrap_or_default();
        let least = group.first().map_or(&[][..], |(_, start)| key(*start));
        let shared = group.iter().fold(least.len(), |shared, (_, start)| common_prefix(&least[..shared], key(*start)));
        let rest = |start: u32| &key(start)[shared..];
        // Most lists are in order, but for the folders between.
        if group.is_sorted_by(|(_, a), (_, b)| (rest(*a), a) < (rest(*b), b)) {
            continue;
        }
        group.iter_mut().for_each(|(bytes, start)| *bytes = eight_bytes(rest(*start)));
        group.sort_unstable();
        for equal in group.chunk_by_mut(|a, b| a.0 == b.0) {
            let begin = end;
            end += equal.len();
            // Keys that end here may differ in NULs alone.
            if equal.len() <= SMALL_GROUP || equal.iter().any(|(_, start)| rest(*start).len() <= 8) {
                equal.sort_unstable_by(|a, b| rest(a.1).cmp(rest(b.1)).then(a.1.cmp(&b.1)));
            } else {
                groups.push((begin..end, compared + shared + 8));
            }
        }
    }
    order.into_iter().map(|(_, start)| start)
}

/// Pairs of an equal beginning, at most, that are compared as a whole.
const SMALL_GROUP: usize = 16;

/// The first eight bytes as a number, those that are missing as NUL.
fn eight_bytes(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => bytes.iter().rev().fold(0, |number, byte| number >> 8 | u64::from(*byte) << 56),
    }
}

/// How many bytes both begin with.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let equal = 8 * a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count();
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}
