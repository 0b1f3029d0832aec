//! Undated deletions whose resources have not answered whether they are gone. They are asked at each look, some of them where there
//! are many.

use crate::document::Uri;
use std::hash::{BuildHasher, RandomState};
use xxhash_rust::xxh3::xxh3_64;

/// Resources that one look asks whether they are gone.
pub const MOST_ASKED: usize = 10_000;

/// What a resource is known by among those that were asked.
pub fn resource_digest(uri: &Uri) -> u64 {
    xxh3_64(uri.as_str().as_bytes())
}

/// No more of `all` than `most`, others each time: those that stay silent hold up no other.
pub fn some<T, K: std::hash::Hash>(mut all: Vec<T>, most: usize, key: impl Fn(&T) -> K) -> Vec<T> {
    if all.len() > most {
        let random = RandomState::new();
        all.sort_by_cached_key(|it| random.hash_one(key(it)));
        all.truncate(most);
    }
    all
}

/// Those of the doubts `open` that a look asks for, of whose documents there are so many; ascending.
pub(super) fn asked(open: &[u64], documents: usize) -> Vec<u64> {
    let mut some = some(open.to_vec(), MOST_ASKED.div_ceil(documents.max(1)), |digest| *digest);
    some.sort_unstable();
    some
}
