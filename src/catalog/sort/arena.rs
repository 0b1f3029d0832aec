//! The pairs of an arena, and their order.

use super::super::store::codec::Decoder;

/// The key and value that begin at `start`.
#[inline]
pub(super) fn pair(arena: &[u8], start: u32) -> (&[u8], &[u8]) {
    let mut bytes = Decoder(&arena[start as usize..]);
    let (key, value) = bytes.value::<(usize, usize)>().unwrap_or_default();
    (bytes.take(key).unwrap_or_default(), bytes.take(value).unwrap_or_default())
}

/// The starts in the order of their keys, of equal keys in the order in which they were added. Most lists are in order but for the folders
/// between, and a sort by runs passes by what is.
pub(super) fn sorted(arena: &[u8], starts: &[u32]) -> impl Iterator<Item = u32> {
    let mut order: Vec<(&[u8], u32)> = starts.iter().map(|start| (pair(arena, *start).0, *start)).collect();
    order.sort();
    order.into_iter().map(|(_, start)| start)
}

/// How many bytes both begin with.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let equal = 8 * a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count();
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}
