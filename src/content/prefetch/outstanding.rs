//! Files under way or here, fetched ahead and not read yet.

use super::WalkId;
use crate::content::counting_filter::CountingFilter;
use fuser::INodeNo;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub(super) walk: WalkId,
    /// As expected when it was ordered, then as fetched.
    pub(super) bytes: u64,
    /// Not given out by [`super::Readahead::take_next`] yet.
    pub(super) is_queued: bool,
}

/// All of them, each in the filter of what is looked out for.
#[derive(Debug)]
pub(super) struct Outstanding {
    files: HashMap<INodeNo, Ahead>,
    looked_out_for: Arc<CountingFilter>,
}

impl Outstanding {
    pub(super) fn new(looked_out_for: Arc<CountingFilter>) -> Outstanding {
        Outstanding { files: HashMap::new(), looked_out_for }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn contains(&self, ino: INodeNo) -> bool {
        self.files.contains_key(&ino)
    }

    pub(super) fn get_mut(&mut self, ino: INodeNo) -> Option<&mut Ahead> {
        self.files.get_mut(&ino)
    }

    /// `false`: it was there, and is as it was.
    pub(super) fn insert(&mut self, ino: INodeNo, ahead: Ahead) -> bool {
        let Entry::Vacant(vacant) = self.files.entry(ino) else { return false };
        vacant.insert(ahead);
        self.looked_out_for.add(ino);
        true
    }

    pub(super) fn remove(&mut self, ino: INodeNo) -> Option<Ahead> {
        self.files.remove(&ino).inspect(|_| self.looked_out_for.remove(ino))
    }

    /// Takes out those of one walk.
    pub(super) fn remove_all(&mut self, walk: WalkId, mut visit: impl FnMut(Ahead)) {
        for (ino, ahead) in self.files.extract_if(|_, ahead| ahead.walk == walk) {
            self.looked_out_for.remove(ino);
            visit(ahead);
        }
    }
}
