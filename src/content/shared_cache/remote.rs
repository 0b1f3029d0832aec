//! Gets objects from the shared cache and puts them there.

use super::super::store::decode_footer;
use super::body::SharedBody;
use super::connector::{CALL, Call};
use super::health::Health;
use super::name::Name;
use crate::source::http::Priority;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The first byte of an object must be here within this time.
const FIRST_BYTE: Duration = Duration::from_secs(2);

/// Looks at a time; one that would wait goes to the Source. A folder on a dead server holds its threads for good.
const LOOKS: usize = 64;

#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("the shared cache failed")]
    Store(#[from] object_store::Error),
    #[error("the shared cache did not answer within {} s", FIRST_BYTE.as_secs())]
    Late,
}

/// The store that holds the shared cache.
pub(super) struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    health: Arc<Health>,
    looks: Arc<Semaphore>,
}

impl Remote {
    pub(super) fn new(store: Arc<dyn ObjectStore>, prefix: Path, health: Health) -> Remote {
        Remote { store, prefix, health: Arc::new(health), looks: Arc::new(Semaphore::new(LOOKS)) }
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    pub(super) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Where the object lies, and the CRCs of its blocks.
    pub(super) fn paths(&self, name: &Name) -> (Path, Path) {
        let below = |path: &str| Path::from_iter(self.prefix.parts().chain(Path::from(path).parts()));
        (below(name.path()), below(&format!("{}.crc", name.path())))
    }

    /// The bytes of an object; `None` where it is not there, or does not come at once.
    pub(super) async fn get(&self, name: &Name, length: Option<u64>, priority: Priority) -> Option<SharedBody> {
        if self.health.is_shunned(name.key()) {
            return None;
        }
        let look = self.looks.clone().try_acquire_owned().ok()?;
        let (store, health) = (Arc::clone(&self.store), Arc::clone(&self.health));
        let (path, checks_path) = self.paths(name);
        let (key, needs_checks) = (name.key().clone(), name.needs_checks(length));
        let call = Call { priority, within: FIRST_BYTE };
        // Of its own, so that a store that does not answer holds its permit, and not the reader.
        let looking = tokio::spawn(CALL.scope(call, async move {
            let _look = look;
            let checks = match needs_checks {
                true => Some(store.get_opts(&checks_path, GetOptions::default()).await?.bytes().await?),
                false => None,
            };
            let found = store.get_opts(&path, GetOptions::default()).await?;
            Ok::<_, object_store::Error>((checks, found))
        }));
        let looked = match timeout(FIRST_BYTE, looking).await {
            Ok(Ok(looked)) => looked.map_err(LookError::from),
            Ok(Err(_)) | Err(_) => Err(LookError::Late),
        };
        let (checks, found) = match looked {
            Ok(found) => found,
            Err(LookError::Store(object_store::Error::NotFound { .. })) => {
                health.miss();
                return None;
            }
            Err(error) => {
                health.failed(&error);
                return None;
            }
        };
        let size = found.meta.size;
        let checks = match checks {
            None => None,
            Some(bytes) => {
                health.received(bytes.len());
                let Some(checks) = decode_footer(&key, size, &bytes) else {
                    health.wrong(&key);
                    return None;
                };
                Some(Arc::from(checks))
            }
        };
        Some(SharedBody::new(found.into_stream(), 0..size, size, checks, health))
    }
}
