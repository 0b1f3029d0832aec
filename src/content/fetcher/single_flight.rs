//! Many askers, one task: it runs to its end whoever gives up waiting.

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;

/// What the askers of one key share.
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
