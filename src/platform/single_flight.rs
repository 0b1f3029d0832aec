//! Many requesters, one task: it runs to its end even if all of them stop waiting.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;

/// The result of a task, for all its requesters. `None`: the task panicked or the runtime ends.
pub type SharedAnswer<V> = Shared<BoxFuture<'static, Option<V>>>;
type TasksInFlight<K, V, H> = Arc<Mutex<HashMap<K, (H, SharedAnswer<V>)>>>;

/// The tasks in flight, one for each key. Requesters steer theirs by a handle `H`, which they all have.
pub struct SingleFlight<K, V, H = ()> {
    in_flight: TasksInFlight<K, V, H>,
}

impl<K, V, H> Default for SingleFlight<K, V, H> {
    fn default() -> Self {
        SingleFlight { in_flight: Arc::default() }
    }
}

impl<K, V, H> SingleFlight<K, V, H>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
    H: Clone + Send + 'static,
{
    /// The answer of the task in flight for `key`, if there is one.
    pub fn joined(&self, key: &K) -> Option<SharedAnswer<V>> {
        let in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        in_flight.get(key).map(|(_, answer)| answer.clone())
    }

    /// The handle and the answer of the task in flight for `key`, or of the one that `begin` makes, which is spawned on `runtime`.
    pub fn join<F: Future<Output = V> + Send + 'static>(
        &self,
        runtime: &Handle,
        key: K,
        begin: impl FnOnce() -> (H, F),
    ) -> (H, SharedAnswer<V>) {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((handle, answer)) = in_flight.get(&key) {
            return (handle.clone(), answer.clone());
        }
        let (handle, task) = begin();
        let entry = (Arc::clone(&self.in_flight), key.clone());
        let task = runtime.spawn(async move {
            // Made when the task runs: a runtime that ends drops the task at once, under the lock taken above.
            let _removal = RemovalAtEnd(entry);
            task.await
        });
        let answer = task.map(Result::ok).boxed().shared();
        in_flight.insert(key, (handle.clone(), answer.clone()));
        (handle, answer)
    }
}

/// Removes a task from those in flight at its end, also by a panic.
struct RemovalAtEnd<K: Eq + Hash, V, H>((TasksInFlight<K, V, H>, K));

impl<K: Eq + Hash, V, H> Drop for RemovalAtEnd<K, V, H> {
    fn drop(&mut self) {
        let RemovalAtEnd((in_flight, key)) = self;
        in_flight.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn requesters_share_one_task_that_outlives_them() {
        let flights = SingleFlight::<u32, u32, &str>::default();
        let runtime = Handle::current();
        let (go, started) = oneshot::channel::<()>();
        let (handle, first) = flights.join(&runtime, 1, || {
            let task = async {
                let _ = started.await;
                7
            };
            ("first", task)
        });
        drop(first);
        let (joined, second) = flights.join(&runtime, 1, || ("second", async { 8 }));
        assert_eq!((handle, joined), ("first", "first"));
        drop(go);
        assert_eq!(second.await, Some(7));
        assert_eq!(flights.join(&runtime, 1, || ("third", async { 9 })).1.await, Some(9), "a new one");
    }

    #[tokio::test]
    async fn a_task_that_panics_leaves_no_entry() {
        let flights = SingleFlight::<u32, u32>::default();
        let runtime = Handle::current();
        let (_, answer) = flights.join(&runtime, 1, || ((), async { panic!("on purpose") }));
        assert_eq!(answer.await, None);
        assert_eq!(flights.join(&runtime, 1, || ((), async { 8 })).1.await, Some(8));
    }
}
