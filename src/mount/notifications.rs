//! Deliveries of hubs, passed on to the synchronizer: subscribes to the channels that discovery finds, and reports whether they are alive.

use crate::platform::error_chain::chain;
use crate::source::http::Client;
use crate::source::websub::{Delivery, Listener, Member, Standing, Subject, Subscriber};
use crate::sync::command::{Announcement, Command};
use crate::sync::push::{NotificationInbox, SetChannel, SetChannels};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};

/// A set whose channels have been silent for so long is polled like one without channels.
const SILENCE: Duration = Duration::from_secs(24 * 3600);
/// How often the state of silent channels is computed again: leases end.
const LEASES: Duration = Duration::from_secs(60);

/// Starts to answer hubs on `listener`, and to subscribe to `channels`, whenever they change. Within a runtime.
pub(super) fn start(
    listener: Listener,
    state: PathBuf,
    client: Client,
    channels: watch::Receiver<Option<SetChannels>>,
    commands: mpsc::Sender<Command>,
) -> Subscriber {
    tracing::info!(callback = %listener.callback(), "hubs can deliver notifications");
    let (subscriber, deliveries) = Subscriber::start(listener, state, client);
    tokio::spawn(pass_on(subscriber.clone(), deliveries, channels, commands));
    subscriber
}

/// Runs until the synchronizer has ended.
async fn pass_on(
    subscriber: Subscriber,
    mut deliveries: mpsc::Receiver<Delivery>,
    mut channels: watch::Receiver<Option<SetChannels>>,
    commands: mpsc::Sender<Command>,
) {
    let mut inbox = NotificationInbox::default();
    let mut changes = subscriber.changes();
    let mut reported = false;
    channels.mark_changed();
    loop {
        let known = channels.borrow().clone().unwrap_or_default();
        let live = are_live(&known, &subscriber.channels(), SystemTime::now());
        if live != reported && commands.send(Command::Channels(live)).await.is_ok() {
            reported = live;
        }
        tokio::select! {
            changed = channels.changed() => {
                if changed.is_err() {
                    return;
                }
                // Until discovery has found channels, subscriptions of an earlier mount stay as they are.
                if let Some(channels) = &*channels.borrow_and_update() {
                    follow(&subscriber, &channels.all);
                }
            }
            delivery = deliveries.recv() => {
                let Some(delivery) = delivery else { return };
                // They may have been found since the loop began to wait.
                let announced = match &*channels.borrow() {
                    Some(known) => take(&subscriber, &mut inbox, &known.all, &delivery),
                    None => Vec::new(),
                };
                if !announced.is_empty() && commands.send(Command::Announced(announced)).await.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(LEASES) => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

fn subject(channel: &SetChannel) -> Subject {
    Subject { set: channel.set.clone(), topic: channel.channel.topic.clone(), hub: channel.channel.hub.clone() }
}

fn follow(subscriber: &Subscriber, channels: &[SetChannel]) {
    let wanted: Vec<Subject> = channels.iter().map(subject).collect();
    if let Err(cause) = subscriber.follow(&wanted) {
        tracing::warn!("channels are not subscribed to: {}", chain(&cause));
    }
}

/// The new announcements of a delivery.
fn take(
    subscriber: &Subscriber,
    inbox: &mut NotificationInbox,
    channels: &[SetChannel],
    delivery: &Delivery,
) -> Vec<Announcement> {
    // A channel of an earlier mount that is not found again yet: the discovery under way reads everything anyway.
    let Some(channel) = channels.iter().find(|channel| subject(channel) == delivery.subject) else { return Vec::new() };
    match inbox.take(&delivery.body, channel) {
        Ok(announced) => {
            if announced.is_empty() {
                subscriber.count("replayed");
            }
            tracing::debug!(?announced, "a delivery");
            announced
        }
        Err(cause) => {
            let count = subscriber.count("malformed");
            if count.is_power_of_two() {
                let topic = &delivery.subject.topic;
                tracing::warn!(%topic, count, "a delivery is ignored: it is not a notification: {}", chain(&cause));
            }
            Vec::new()
        }
    }
}

/// True if each set has a channel on which notifications arrive.
fn are_live(channels: &SetChannels, members: &[Member], now: SystemTime) -> bool {
    let lives = |channel: &SetChannel| {
        let member = members.iter().find(|member| member.subject == subject(channel));
        member.is_some_and(|member| {
            let silent = member.last_delivery.and_then(|last| now.duration_since(last).ok());
            member.subscription.standing(now) == Standing::Active
                && member.last_delivery.is_some()
                && silent.is_none_or(|silent| silent < SILENCE)
        })
    };
    let all = &channels.all;
    let has_one = |one: &SetChannel| all.iter().any(|other| other.set == one.set && lives(other));
    channels.are_complete && !all.is_empty() && all.iter().all(has_one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Capability, Uri};
    use crate::source::Channel;
    use crate::source::http::HttpConfig;
    use crate::source::websub::WebsubConfig;

    /// A subscription of an earlier mount may deliver as soon as its channel is found again.
    #[tokio::test]
    async fn a_delivery_belongs_to_the_channels_of_its_time() {
        let uri = |path: &str| Uri::parse(&format!("http://h/{path}")).unwrap();
        let channel = Channel { topic: uri("topic"), hub: uri("hub"), capability: Capability::Other("".into()) };
        let own_authority = "h".into();
        let channel = SetChannel { set: None, channel, change_lists: Vec::new(), own_authority };
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let listen = WebsubConfig { listen: "127.0.0.1:0".into(), callback: None };
            let (client, state) = (Client::new(HttpConfig::default()).unwrap(), folder.path().join("websub.json"));
            let (subscriber, _) = Subscriber::start(Listener::bind(&listen).await.unwrap(), state, client);
            let (found, channels) = watch::channel(None);
            let ((deliver, deliveries), (commands, mut received)) = (mpsc::channel(1), mpsc::channel(9));
            let passing = tokio::spawn(pass_on(subscriber, deliveries, channels, commands));
            tokio::task::yield_now().await;

            found.send_replace(Some(SetChannels { all: vec![channel.clone()], are_complete: true }));
            let delivery = Delivery { subject: subject(&channel), body: bytes::Bytes::new() };
            deliver.send(delivery).await.unwrap();

            let next = tokio::time::timeout(Duration::from_secs(10), received.recv()).await;
            assert!(matches!(next, Ok(Some(Command::Announced(_)))), "{next:?}");
            passing.abort();
        }
    }
}
