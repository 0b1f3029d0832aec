//! Messages between sync, content and the kernel.

use crate::catalog::Renewal;
use crate::content::{Content, Event};
use crate::fs::invalidator::Notices;
use crate::sync::command::Command;
use crate::sync::poller::Listeners;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What happens after a refresh: the kernel is notified of changes, and content forgets failed downloads.
pub(super) fn listeners(notices: Notices, content: Arc<Content>) -> Listeners {
    Listeners {
        invalidate: Box::new(move |invalidations| notices.changed(invalidations)),
        refreshed: Box::new(move || content.forget_failures()),
    }
}

/// Turns events of content into notices to the kernel and commands to sync. A commit may keep sync from taking commands for a while;
/// the kernel must not wait for that, because it goes on serving wrong pages.
pub(super) async fn forward(
    mut events: mpsc::UnboundedReceiver<Event>,
    commands: mpsc::Sender<Command>,
    notices: Notices,
) {
    let (sender, mut waiting) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(command) = waiting.recv().await {
            if commands.send(command).await.is_err() {
                return;
            }
        }
    });
    while let Some(event) = events.recv().await {
        notices.content(&event);
        let command = match event {
            Event::Poisoned(ino) | Event::Changed(ino) => Command::Renew(ino, Renewal::AsPublished),
            Event::Unannounced(ino) => Command::Renew(ino, Renewal::Unpublished),
            Event::Recheck(..) | Event::Sized(..) => continue,
        };
        // While the mount ends sync takes no commands; open files are still served, and their pages still dropped.
        let _ = sender.send(command);
    }
}
