//! Objects whose descriptors are kept open: the most recently used.

use super::super::ObjectKey;
use super::super::files::lock;
use super::super::object::Object;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

/// The lock is held for moments: the last close of a large file may wait for the disk, so objects are dropped without it.
pub(super) struct OpenObjects(Mutex<LruCache<ObjectKey, Arc<Object>>>);

impl OpenObjects {
    /// Keeps at most so many.
    pub(super) fn new(most: usize) -> OpenObjects {
        OpenObjects(Mutex::new(LruCache::new(NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN))))
    }

    /// The object, damaged or not.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        lock(&self.0).get(key).cloned()
    }

    /// Keeps it open. The object that is closed for it, if that has another key.
    pub(super) fn put(&self, object: Arc<Object>) -> Option<Arc<Object>> {
        let replaced = lock(&self.0).push(object.key().clone(), Arc::clone(&object));
        replaced.map(|(_, replaced)| replaced).filter(|replaced| replaced.key() != object.key())
    }

    /// Keeps the object of this key open no longer, where `is_meant`.
    pub(super) fn pop(&self, key: &ObjectKey, is_meant: impl Fn(&Arc<Object>) -> bool) {
        let mut objects = lock(&self.0);
        let popped = if objects.peek(key).is_some_and(is_meant) { objects.pop(key) } else { None };
        drop(objects);
        drop(popped);
    }

    /// Keeps half of them open no longer: those that were used least recently.
    pub(super) fn pop_half(&self) -> Vec<Arc<Object>> {
        let mut objects = lock(&self.0);
        (0..objects.len().div_ceil(2)).filter_map(|_| Some(objects.pop_lru()?.1)).collect()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Object>> {
        lock(&self.0).iter().map(|(_, object)| Arc::clone(object)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn object(number: u64) -> Arc<Object> {
        let file = Arc::new(File::open("/dev/null").unwrap());
        Arc::new(Object::new(ObjectKey::inode("http://h/", number), 0, Box::default(), file, None))
    }

    #[test]
    fn the_least_recently_used_is_closed_for_another() {
        let open = OpenObjects::new(5);
        let objects: Vec<_> = (0..6).map(object).collect();
        for object in &objects[..5] {
            assert!(open.put(Arc::clone(object)).is_none());
        }
        open.get(objects[0].key()).unwrap();

        let closed = open.put(Arc::clone(&objects[5])).unwrap();

        assert!(Arc::ptr_eq(&closed, &objects[1]));
        assert_eq!(open.all().len(), 5);
        let half: Vec<_> = open.pop_half().iter().map(|object| object.key().clone()).collect();
        assert_eq!(half, [2, 3, 4].map(|number: usize| objects[number].key().clone()));
        assert_eq!(open.all().len(), 2);
    }

    #[test]
    fn an_object_replaces_the_one_with_its_key() {
        let open = OpenObjects::new(5);
        let (first, second) = (object(1), object(1));
        open.put(Arc::clone(&first));

        assert!(open.put(Arc::clone(&second)).is_none());

        assert!(open.get(first.key()).is_some_and(|found| Arc::ptr_eq(&found, &second)));
        open.pop(first.key(), |held| Arc::ptr_eq(held, &first));
        assert!(open.get(first.key()).is_some(), "another one was meant");
        open.pop(first.key(), |_| true);
        assert!(open.get(first.key()).is_none());
        assert_eq!(Arc::strong_count(&second), 1, "nothing else keeps it open");
    }
}
