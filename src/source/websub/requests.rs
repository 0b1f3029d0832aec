//! Requests to hubs: each subscription's, when it is due.

use super::Shared;
use super::registry::{Member, Subject, is_private, save};
use super::subscription::{LEASE_ASKED, Mode};
use crate::document::Uri;
use crate::platform::error_chain::chain;
use crate::source::http::{Client, Posted};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A hub answers a request within this or has failed.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// Hubs that a request is passed on to.
const REDIRECTS: usize = 5;
/// The wall clock may jump, so that it is read this often.
const CLOCK: Duration = Duration::from_secs(60);

/// Sends what the subscriptions ask for, when they ask for it, as long as the mount lives. The file `state` is written before
/// a hub hears of it; it holds `saved` now.
pub(super) async fn send_due(shared: Arc<Shared>, state: PathBuf, mut saved: String) {
    let mut changes = shared.changes.subscribe();
    loop {
        changes.borrow_and_update();
        let (requests, text) = (due(&shared, SystemTime::now()), shared.registry().text());
        if text != saved {
            let (file, writing) = (state.clone(), text.clone());
            let written = tokio::task::spawn_blocking(move || save(&file, &writing)).await;
            match written.unwrap_or_else(|cause| Err(cause.into())) {
                Ok(()) => saved = text,
                Err(cause) => {
                    tracing::warn!(file = %state.display(), %cause, "subscriptions cannot be saved for the next mount");
                }
            }
        }
        for (path, member, mode) in requests {
            tokio::spawn(send(shared.clone(), path, member, mode));
        }
        let due = shared.registry().due();
        let pause = due.map_or(CLOCK, |due| due.duration_since(SystemTime::now()).unwrap_or_default());
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause.min(CLOCK)) => {}
        }
    }
}

/// The subscriptions that have a request to send: path, state, what to ask for.
fn due(shared: &Shared, now: SystemTime) -> Vec<(Box<str>, Member, Mode)> {
    let mut registry = shared.registry();
    let due = registry.members.iter_mut().filter_map(|(path, member)| {
        let mode = member.subscription.wake(now)?;
        Some((path.clone(), member.clone(), mode))
    });
    due.collect()
}

/// The form of a request (WebSub, 5.1).
fn form(shared: &Shared, path: &str, member: &Member, mode: Mode) -> String {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.append_pair("hub.mode", mode.as_str());
    form.append_pair("hub.topic", member.subject.topic.as_str());
    form.append_pair("hub.callback", &format!("{}{path}", shared.callback));
    if mode == Mode::Subscribe {
        form.append_pair("hub.lease_seconds", &LEASE_ASKED.as_secs().to_string());
        form.extend_pairs(member.secret.as_ref().map(|secret| ("hub.secret", secret)));
    }
    form.finish()
}

async fn send(shared: Arc<Shared>, path: Box<str>, member: Member, mode: Mode) {
    let Subject { hub, topic, .. } = &member.subject;
    let form = form(&shared, &path, &member, mode);
    let has_secret = mode == Mode::Subscribe && member.secret.is_some();
    let (is_accepted, retry_after) = match post(&shared.client, hub, &form, has_secret).await {
        Ok(posted) if (200..300).contains(&posted.status) => (true, None),
        Ok(Posted { status, text, retry_after, .. }) => {
            tracing::warn!(%hub, %topic, mode = mode.as_str(), status, ?text, "the hub refuses the request");
            (false, retry_after)
        }
        Err(why) => {
            tracing::warn!(%hub, %topic, mode = mode.as_str(), "the hub cannot be reached: {why}");
            (false, None)
        }
    };
    if let Some(member) = shared.registry().members.get_mut(&path) {
        member.subscription.answered(SystemTime::now(), mode, is_accepted, retry_after);
    }
    shared.changed();
}

/// Posts to the hub, or to the hub that it redirects to (307 and 308, WebSub 5.1.2). A secret is sent over private ways only.
async fn post(client: &Client, hub: &Uri, form: &str, has_secret: bool) -> Result<Posted, String> {
    let mut hub = hub.clone();
    for _ in 0..=REDIRECTS {
        let posted = client.post_form(&hub, form, ANSWERED_WITHIN).await.map_err(|cause| chain(&cause))?;
        let Some(next) = posted.location.clone().filter(|_| matches!(posted.status, 307 | 308)) else {
            return Ok(posted);
        };
        if has_secret && !is_private(&next) {
            return Err(format!("redirected to {next}, where the secret could be read on the way"));
        }
        hub = next;
    }
    Err(format!("redirected more than {REDIRECTS} times"))
}
