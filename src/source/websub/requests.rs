//! Requests to hubs: each subscription's, when it is due.

use super::Shared;
use super::registry::{Subject, is_private, save};
use super::subscription::{LEASE_ASKED, Mode};
use crate::causes::chain;
use crate::source::http::Posted;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A hub answers a request within this or has failed.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// Hubs that a request is passed on to.
const REDIRECTS: usize = 5;
/// The wall clock may jump, so that it is read this often.
const CLOCK: Duration = Duration::from_secs(60);

struct HubRequest {
    path: Box<str>,
    subject: Subject,
    mode: Mode,
    secret: Option<Box<str>>,
}

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
                    tracing::warn!(file = %state.display(), %cause, "subscriptions will not outlive this mount");
                }
            }
        }
        for request in requests {
            tokio::spawn(send(shared.clone(), request));
        }
        let due = shared.registry().due();
        let pause = due.map_or(CLOCK, |due| due.duration_since(SystemTime::now()).unwrap_or_default());
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause.min(CLOCK)) => {}
        }
    }
}

fn due(shared: &Shared, now: SystemTime) -> Vec<HubRequest> {
    let mut registry = shared.registry();
    let due = registry.members.iter_mut().filter_map(|(path, member)| {
        let mode = member.subscription.wake(now)?;
        let secret = member.secret.clone().filter(|_| mode == Mode::Subscribe);
        Some(HubRequest { path: path.clone(), subject: member.subject.clone(), mode, secret })
    });
    due.collect()
}

/// The form of a request (WebSub, 5.1).
fn form(shared: &Shared, request: &HubRequest) -> String {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.append_pair("hub.mode", request.mode.as_str());
    form.append_pair("hub.topic", request.subject.topic.as_str());
    form.append_pair("hub.callback", &format!("{}{}", shared.callback, request.path));
    if request.mode == Mode::Subscribe {
        form.append_pair("hub.lease_seconds", &LEASE_ASKED.as_secs().to_string());
    }
    if let Some(secret) = &request.secret {
        form.append_pair("hub.secret", secret);
    }
    form.finish()
}

async fn send(shared: Arc<Shared>, request: HubRequest) {
    let Subject { hub, topic, .. } = &request.subject;
    let mode = request.mode.as_str();
    let (is_accepted, retry_after) = match post(&shared, &request).await {
        Ok(posted) if (200..300).contains(&posted.status) => (true, None),
        Ok(Posted { status, text, retry_after, .. }) => {
            tracing::warn!(%hub, %topic, mode, status, ?text, "the hub refuses");
            (false, retry_after)
        }
        Err(why) => {
            tracing::warn!(%hub, %topic, mode, "the hub cannot be reached: {why}");
            (false, None)
        }
    };
    if let Some(member) = shared.registry().members.get_mut(&request.path) {
        member.subscription.answered(SystemTime::now(), request.mode, is_accepted, retry_after);
    }
    shared.changed();
}

/// Posts to the hub, or to the hub that it redirects to (307 and 308, WebSub 5.1.2). A secret is sent over private ways only.
async fn post(shared: &Shared, request: &HubRequest) -> Result<Posted, String> {
    let form = form(shared, request);
    let mut hub = request.subject.hub.clone();
    for _ in 0..=REDIRECTS {
        let posted = shared.client.post_form(&hub, &form, ANSWERED_WITHIN).await.map_err(|cause| chain(&cause))?;
        let Some(next) = posted.location.clone().filter(|_| matches!(posted.status, 307 | 308)) else {
            return Ok(posted);
        };
        if request.secret.is_some() && !is_private(&next) {
            return Err(format!("redirected to {next}, where the secret could be read on the way"));
        }
        hub = next;
    }
    Err(format!("redirected more than {REDIRECTS} times"))
}
