//! Many requesters, one task: it runs to its end whoever gives up waiting.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// What the requesters of one key share.
type Answer<V> = Shared<BoxFuture<'static, Option<V>>>;

/// Tasks under way, one for each key.
pub(in crate::content) struct SingleFlight<K, V> {
    under_way: Arc<Mutex<HashMap<K, Answer<V>>>>,
}

impl<K, V> Default for SingleFlight<K, V> {
    fn default() -> Self {
        SingleFlight { under_way: Arc::default() }
    }
}

impl<K, V> SingleFlight<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The answer of the task under way for `key`, or of `task`, which is started on `runtime` if there is none.
    /// `None`: the task panicked or the runtime ends.
    pub(super) fn join(
        &self,
        runtime: &Handle,
        key: K,
        task: impl Future<Output = V> + Send + 'static,
    ) -> impl Future<Output = Option<V>> + Send + 'static {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = under_way.get(&key) {
            return answer.clone();
        }
        let (all, its) = (Arc::clone(&self.under_way), key.clone());
        let task = runtime.spawn(async move {
            // Made when the task runs: a runtime that ends drops the task at once, under the lock taken above.
            let _landing = Landing { under_way: all, key: its };
            task.await
        });
        let answer = task.map(Result::ok).boxed().shared();
        under_way.insert(key, answer.clone());
        answer
    }

    /// Runs what `begin` makes where it is called, unless a task is under way for `key`: who joins gets its answer, `None` where it is
    /// dropped. `begin` is called before anybody can join, and under the lock.
    pub(super) async fn lead<F: Future<Output = V>>(&self, key: K, begin: impl FnOnce() -> F) -> Option<V> {
        let (give, given) = oneshot::channel();
        let (landing, task) = {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            let Entry::Vacant(vacant) = under_way.entry(key.clone()) else { return None };
            let task = begin();
            vacant.insert(given.map(Result::ok).boxed().shared());
            (Landing { under_way: Arc::clone(&self.under_way), key }, task)
        };
        let answer = task.await;
        drop(landing);
        // Nobody has joined, it may be.
        let _ = give.send(answer.clone());
        Some(answer)
    }
}

/// Takes a task out of those under way when it ends, however it ends.
struct Landing<K: Eq + Hash, V> {
    under_way: Arc<Mutex<HashMap<K, Answer<V>>>>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_joins_one_that_is_led_gets_its_answer_and_none_where_it_is_given_up() {
        let in_flight = SingleFlight::<u32, u32>::default();
        let (go, gone) = oneshot::channel::<()>();
        let mut led = Box::pin(in_flight.lead(1, || async {
            let _ = gone.await;
            7
        }));
        assert!((&mut led).now_or_never().is_none());
        let joined = in_flight.join(&Handle::current(), 1, async { unreachable!("one is under way") });
        assert_eq!(in_flight.lead(1, || async { unreachable!("one is under way") }).await, None);
        drop(go);
        assert_eq!((led.await, joined.await), (Some(7), Some(7)));
        assert_eq!(in_flight.lead(1, || async { 8 }).await, Some(8), "a new one");

        let mut left = Box::pin(in_flight.lead(2, std::future::pending));
        assert!((&mut left).now_or_never().is_none());
        let joined = in_flight.join(&Handle::current(), 2, async { unreachable!("one is under way") });
        drop(left);
        assert_eq!(joined.await, None);
    }
}
