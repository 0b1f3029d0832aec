//! A mount, as far as its content goes.

use super::super::*;
use super::HANG;
use super::places::MOMENT;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::runtime::{Builder, Runtime};

/// Content while it is mounted.
pub(super) struct Mount {
    pub(super) runtime: Runtime,
    pub(super) content: Arc<Content>,
}

impl Mount {
    pub(super) fn new(config: &ContentConfig, server: &Server) -> (Mount, UnboundedReceiver<Event>) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let guard = runtime.enter();
        let http = HttpConfig { own_authority: Some(server.authority().into()), ..HttpConfig::default() };
        let (sender, events) = unbounded_channel();
        let client = Client::new(http).unwrap();
        let content = Content::open(config.clone(), client, runtime.handle().clone(), sender).unwrap();
        drop(guard);
        (Mount { runtime, content }, events)
    }

    /// In good order, or without a word.
    pub(super) fn end(self, is_orderly: bool) {
        if is_orderly {
            self.runtime.block_on(self.content.close());
        }
        self.runtime.shutdown_timeout(HANG);
        let begun = std::time::Instant::now();
        while Arc::strong_count(&self.content) > 1 {
            assert!(begun.elapsed() < HANG, "a task outlives its runtime");
            std::thread::sleep(MOMENT);
        }
    }
}

/// The files below `folder` by their number: the bytes of their blocks, and a name. What is pinned has two names.
pub(super) fn allocated(folder: &Path, files: &mut BTreeMap<u64, (u64, PathBuf)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => allocated(&entry.path(), files),
            Ok(metadata) => _ = files.insert(metadata.ino(), (metadata.blocks() * 512, entry.path())),
            // Evicted meanwhile.
            Err(_) => {}
        }
    }
}
