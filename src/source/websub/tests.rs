//! The listener against hubs and against those who pretend to be one; requests against hubs on loopback.

use super::*;
use crate::platform::error_chain::chain;
use crate::source::http::HttpConfig;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha512;
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TOPIC: &str = "http://example.com/dataset1/framework/";
/// Refused before anything is sent, so that nothing happens but what a test does; at a hub like this a secret is kept.
const LOCAL_HUB: &str = "http://127.0.0.1:9/";
/// The same, and no secret is.
const OPEN_HUB: &str = "http://10.0.0.1/";

fn uri(raw: &str) -> Uri {
    Uri::parse(raw).unwrap()
}

fn subject(hub: &str) -> Subject {
    Subject { set: None, topic: uri(TOPIC), hub: uri(hub) }
}

/// A subscriber in a folder of its own, following one channel.
struct Desk {
    subscriber: Subscriber,
    deliveries: mpsc::Receiver<Delivery>,
    address: String,
    _folder: tempfile::TempDir,
}

impl Desk {
    async fn start(hub: &str) -> Desk {
        Desk::start_within(hub, DeliveryBounds::default()).await
    }

    async fn start_within(hub: &str, bounds: DeliveryBounds) -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let config = WebsubConfig { listen: "127.0.0.1:0".into(), callback: None };
        let listener = Listener { bounds, ..Listener::bind(&config).await.unwrap() };
        let address = listener.callback().authority().to_owned();
        let allowed: Vec<Box<str>> = match hub {
            LOCAL_HUB | OPEN_HUB => Vec::new(),
            _ => vec!["127.0.0.1".into()],
        };
        let client = Client::new(HttpConfig { allowed_hosts: allowed, ..HttpConfig::default() }).unwrap();
        let state = folder.path().join("websub.json");
        let (subscriber, deliveries) = Subscriber::start(listener, state, client);
        subscriber.follow(&[subject(hub)]).unwrap();
        Desk { subscriber, deliveries, address, _folder: folder }
    }

    /// Path and secret of its one subscription.
    fn path(&self) -> (String, Option<String>) {
        let registry = self.subscriber.shared.registry();
        let (path, member) = registry.members.iter().next().unwrap();
        (format!("/{path}"), member.secret.as_deref().map(str::to_owned))
    }

    /// As if a request had just been sent to the hub.
    fn ask(&self) {
        let mut registry = self.subscriber.shared.registry();
        let member = registry.members.values_mut().next().unwrap();
        let now = SystemTime::now();
        member.subscription = Subscription::new(now);
        member.subscription.wake(now).unwrap();
    }

    fn standing(&self) -> Standing {
        self.subscriber.channels()[0].subscription.standing(SystemTime::now())
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        self.subscriber.counts().into_iter().collect()
    }

    /// Sends bytes and reads until the other side closes: status and what came.
    async fn exchange(&self, bytes: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        // A peer that is refused early does not read to the end.
        let _ = stream.write_all(bytes).await;
        answered(&mut stream).await
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> (u16, String) {
        let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        self.exchange(format!("GET {path}?{query} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await
    }

    async fn verify(&self, mode: &str, topic: &str, lease: &str) -> (u16, String) {
        let query =
            [("hub.mode", mode), ("hub.topic", topic), ("hub.challenge", "a <b> & c"), ("hub.lease_seconds", lease)];
        self.get(&self.path().0, &query).await
    }

    async fn post(&self, path: &str, fields: &str, body: &[u8]) -> u16 {
        let mut bytes =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        self.exchange(&bytes).await.0
    }

    /// A delivery as the hub would make it.
    async fn deliver(&self, body: &[u8]) -> u16 {
        let (path, secret) = self.path();
        let signature =
            secret.map_or(String::new(), |secret| format!("X-Hub-Signature: {}\r\n", signed(&secret, body)));
        self.post(&path, &format!("{LINK}{signature}"), body).await
    }
}

const LINK: &str = "Link: <http://example.com/dataset1/framework/> ; rel=\"self\", <http://www.example.com/dataset1/capabilitylist.xml> ; \
                    rel=\"resourcesync\"\r\n";

fn signed(secret: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha512>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body);
    let digits: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha512={digits}")
}

/// Status, and everything that came; 0 where nothing did.
async fn answered(stream: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        bytes.extend_from_slice(&piece[..count]);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0), text)
}

#[tokio::test]
async fn a_verification_is_answered_with_its_challenge() {
    let desk = Desk::start(LOCAL_HUB).await;
    desk.ask();
    let (status, text) = desk.verify("subscribe", TOPIC, "300").await;

    assert_eq!(status, 200);
    assert!(text.ends_with("\r\n\r\na <b> & c"), "{text}");
    assert!(text.contains("text/plain") && text.contains("nosniff"), "{text}");
    let channel = &desk.subscriber.channels()[0];
    assert_eq!(channel.subscription.standing(SystemTime::now()), Standing::Active);
    let lease = channel.subscription.lease_ends().unwrap().duration_since(SystemTime::now()).unwrap().as_secs();
    assert!((290..=300).contains(&lease), "{lease}");
    assert_eq!(desk.counted(), [("verified", 1)]);
}

#[tokio::test]
async fn a_verification_of_anything_else_is_not_found() {
    let desk = Desk::start(LOCAL_HUB).await;
    desk.ask();
    let wrong = [
        desk.verify("unsubscribe", TOPIC, "300").await,
        desk.verify("subscribe", "http://example.com/other/", "300").await,
        desk.verify("publish", TOPIC, "300").await,
        desk.get(&desk.path().0, &[("hub.mode", "subscribe"), ("hub.topic", TOPIC)]).await,
        desk.get(&desk.path().0, &[("hub.mode", "denied"), ("hub.topic", "http://example.com/other/")]).await,
        desk.get(&desk.path().0, &[]).await,
    ];
    assert!(wrong.iter().all(|(status, text)| *status == 404 && !text.contains("<b>")), "{wrong:?}");
    assert_eq!(desk.counted(), [("not-asked", 6)]);
    assert_eq!(desk.standing(), Standing::Asked);
}

#[tokio::test]
async fn an_unknown_path_does_not_exist() {
    let desk = Desk::start(LOCAL_HUB).await;
    let guessed = "/00112233445566778899aabbccddeeff0011223344556677";

    assert_eq!(
        desk.get(guessed, &[("hub.mode", "subscribe"), ("hub.topic", TOPIC), ("hub.challenge", "x")]).await.0,
        404
    );
    assert_eq!(desk.post(guessed, LINK, b"").await, 404);
    assert_eq!(desk.post("/", LINK, b"").await, 404);
    for method in ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let request = format!("{method} {} HTTP/1.1\r\nHost: x\r\n\r\n", desk.path().0);
        assert_eq!(desk.exchange(request.as_bytes()).await.0, 405, "{method}");
    }
    assert_eq!(desk.counted(), [("unknown", 8)]);
}

#[tokio::test]
async fn a_delivery_is_handed_out_as_it_came() {
    for hub in [LOCAL_HUB, OPEN_HUB] {
        let mut desk = Desk::start(hub).await;
        for body in [&b"<urlset/>"[..], b"", b"\x00\xff not xml"] {
            assert_eq!(desk.deliver(body).await, 202);
            let delivery = desk.deliveries.recv().await.unwrap();
            assert_eq!((&*delivery.body, delivery.subject), (body, subject(hub)));
        }
        assert_eq!(desk.counted(), [("delivered", 3)]);
        assert_eq!(desk.subscriber.channels()[0].deliveries, 3);
    }
}

/// A proxy may put segments before the path.
#[tokio::test]
async fn what_stands_before_the_path_does_not_matter() {
    let mut desk = Desk::start(OPEN_HUB).await;
    let path = format!("/hooks/of/this{}", desk.path().0);

    assert_eq!(desk.post(&path, LINK, b"x").await, 202);
    assert_eq!(&*desk.deliveries.recv().await.unwrap().body, b"x");
}

#[tokio::test]
async fn a_delivery_without_its_signature_is_ignored() {
    let mut desk = Desk::start(LOCAL_HUB).await;
    let (path, secret) = desk.path();
    let secret = secret.unwrap();
    let forged = [
        String::new(),
        format!("X-Hub-Signature: {}\r\n", signed("another secret", b"body")),
        format!("X-Hub-Signature: {}\r\n", signed(&secret, b"another body")),
        format!("X-Hub-Signature: {}\r\n", signed(&secret, b"body").replace("sha512", "sha256")),
        "X-Hub-Signature: sha1=\r\n".to_owned(),
        "X-Hub-Signature: \u{ff}\r\n".to_owned(),
    ];
    for signature in &forged {
        assert_eq!(desk.post(&path, &format!("{LINK}{signature}"), b"body").await, 202, "the answer betrays nothing");
    }

    assert!(desk.deliveries.try_recv().is_err());
    assert_eq!(desk.counted(), [("forged", 6)]);
}

#[tokio::test]
async fn a_delivery_that_does_not_name_the_topic_is_ignored() {
    let mut desk = Desk::start(OPEN_HUB).await;
    let (path, _) = desk.path();
    let other = "Link: <http://example.com/dataset2/framework/>; rel=\"self\"\r\n";
    for link in
        ["", other, &format!("{LINK}{other}"), "Link: <http://example.com/dataset1/framework/>; rel=\"hub\"\r\n"]
    {
        assert_eq!(desk.post(&path, link, b"body").await, 202, "{link}");
    }
    assert!(desk.deliveries.try_recv().is_err());
    assert_eq!(desk.counted(), [("wrong-topic", 4)]);

    let split = "Link: <http://hub.example.org/websub/>; rel=hub\r\nLink: <http://EXAMPLE.com:80/dataset1/framework/>;rel=self\r\n";
    assert_eq!(desk.post(&path, split, b"body").await, 202);
    assert!(desk.deliveries.try_recv().is_ok(), "several lines, another spelling");
}

#[tokio::test]
async fn a_huge_body_is_refused_before_it_has_come() {
    let mut desk = Desk::start_within(OPEN_HUB, DeliveryBounds { body: 1000, ..DeliveryBounds::default() }).await;
    let (path, _) = desk.path();
    let message = format!("POST {path} HTTP/1.1\r\nHost: x\r\n{LINK}Content-Length: 99999999999\r\n\r\n");
    assert_eq!(desk.exchange(message.as_bytes()).await.0, 413);
    let mut chunked =
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n{LINK}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..100 {
        chunked.extend_from_slice(format!("64\r\n{}\r\n", "a".repeat(100)).as_bytes());
    }
    assert_eq!(desk.exchange(&chunked).await.0, 413);

    assert!(desk.deliveries.try_recv().is_err());
    assert_eq!(desk.counted(), [("too-large", 2)]);
    assert_eq!(desk.deliver(&[b'a'; 1000]).await, 202);
}

/// Heads and bodies that drip are given up, and others are answered meanwhile.
#[tokio::test]
async fn a_slow_request_is_given_up() {
    let bounds = DeliveryBounds { time: Duration::from_millis(300), ..DeliveryBounds::default() };
    let mut desk = Desk::start_within(OPEN_HUB, bounds).await;
    let (path, _) = desk.path();
    let begun = [
        String::new(),
        "POST /".to_owned(),
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n{LINK}Content-Length: 100\r\n\r\n"),
        format!("POST {path} HTTP/1.1\r\nHost: x\r\n{LINK}Content-Length: 100\r\n\r\nhalf of it"),
    ];
    let mut streams = Vec::new();
    for bytes in &begun {
        let mut stream = TcpStream::connect(&desk.address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    assert_eq!(desk.deliver(b"in time").await, 202);

    for stream in &mut streams {
        // 408 or nothing: what counts is that it ends.
        let (status, _) = answered(stream).await;
        assert!(matches!(status, 0 | 408), "{status}");
    }
    assert_eq!(&*desk.deliveries.recv().await.unwrap().body, b"in time");
    assert!(desk.deliveries.try_recv().is_err());
}

#[tokio::test]
async fn more_connections_than_are_served_wait_their_turn() {
    let bounds = DeliveryBounds { connections: 4, time: Duration::from_millis(200), ..DeliveryBounds::default() };
    let mut desk = Desk::start_within(OPEN_HUB, bounds).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(&desk.address).await.unwrap());
    }

    assert_eq!(desk.deliver(b"after them").await, 202);
    assert_eq!(&*desk.deliveries.recv().await.unwrap().body, b"after them");
}

#[tokio::test]
async fn deliveries_at_once_are_all_answered() {
    let mut desk = Desk::start(LOCAL_HUB).await;
    let bodies: Vec<Vec<u8>> = (0..WAITING).map(|n| format!("delivery {n}").into_bytes()).collect();
    let answers = futures_util::future::join_all(bodies.iter().map(|body| desk.deliver(body))).await;

    assert!(answers.iter().all(|status| *status == 202));
    let mut came = Vec::new();
    while let Ok(delivery) = desk.deliveries.try_recv() {
        came.push(delivery.body.to_vec());
    }
    came.sort();
    let mut sent = bodies;
    sent.sort();
    assert_eq!(came, sent);
}

#[tokio::test]
async fn a_hub_that_is_too_fast_gets_a_503() {
    let mut desk = Desk::start(OPEN_HUB).await;
    for _ in 0..WAITING {
        assert_eq!(desk.deliver(b"").await, 202);
    }
    assert_eq!(desk.deliver(b"").await, 503);

    desk.deliveries.recv().await.unwrap();
    assert_eq!(desk.deliver(b"").await, 202);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_ignored() {
    let mut desk = Desk::start(OPEN_HUB).await;
    let request = format!("POST {} HTTP/1.1\r\nHost: x\r\n{LINK}Content-Length: 100\r\n\r\nhalf", desk.path().0);
    let mut stream = TcpStream::connect(&desk.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    answered(&mut stream).await;

    until(|| !desk.counted().is_empty()).await;
    assert_eq!(desk.counted(), [("malformed", 1)]);
    assert!(desk.deliveries.try_recv().is_err());
}

#[tokio::test]
async fn what_is_not_http_ends_the_connection_and_nothing_else() {
    let bounds = DeliveryBounds { time: Duration::from_millis(200), ..DeliveryBounds::default() };
    let mut desk = Desk::start_within(OPEN_HUB, bounds).await;
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\r\n\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        &[0; 100_000],
    ] {
        let (status, _) = desk.exchange(bytes).await;
        assert!(matches!(status, 0 | 400 | 404 | 414 | 431 | 505), "{status}");
    }
    let many_fields = format!("POST / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(10_000));
    assert_eq!(desk.exchange(many_fields.as_bytes()).await.0, 431);

    assert_eq!(desk.deliver(b"still here").await, 202);
    assert!(desk.deliveries.recv().await.is_some());
}

#[tokio::test]
async fn a_denial_is_believed_of_its_topic_and_deliveries_are_gone() {
    let desk = Desk::start(LOCAL_HUB).await;
    desk.ask();
    let denied = [("hub.mode", "denied"), ("hub.topic", TOPIC), ("hub.reason", "not for you")];
    assert_eq!(desk.get(&desk.path().0, &denied).await.0, 200);

    assert_eq!(desk.standing(), Standing::Denied);
    assert_eq!(desk.deliver(b"").await, 410);
    assert_eq!(desk.verify("subscribe", TOPIC, "300").await.0, 404);
    assert_eq!(desk.counted(), [("denied", 1), ("gone", 1), ("not-asked", 1)]);
}

#[tokio::test]
async fn deliveries_to_what_was_left_are_gone() {
    let desk = Desk::start(LOCAL_HUB).await;
    assert_eq!(desk.deliver(b"").await, 202);
    desk.subscriber.follow(&[]).unwrap();

    assert_eq!(desk.standing(), Standing::Left);
    assert_eq!(desk.deliver(b"").await, 410);
}

#[tokio::test]
async fn an_address_of_no_host_needs_a_callback() {
    let everywhere = WebsubConfig { listen: "0.0.0.0:0".into(), callback: None };
    assert!(matches!(Listener::bind(&everywhere).await, Err(WebsubError::NoCallback { .. })));

    let callback = uri("https://destination.example.net/callback/");
    let named = WebsubConfig { callback: Some(callback.clone()), ..everywhere };
    assert_eq!(*Listener::bind(&named).await.unwrap().callback(), callback);
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = first.local_addr().unwrap().to_string().into();
    let error = Listener::bind(&WebsubConfig { listen, callback: None }).await.unwrap_err();

    assert!(chain(&error).contains("127.0.0.1"), "{error}");
}

/// The forms that a hub got, and what it answers to the first, the second, ….
#[derive(Clone, Default)]
struct Hub {
    forms: Arc<Mutex<Vec<BTreeMap<String, String>>>>,
    answers: Arc<Mutex<Vec<(StatusCode, String)>>>,
}

impl Hub {
    /// A hub and its URL.
    async fn start(answers: &[(StatusCode, &str)]) -> (Hub, String) {
        let answers = answers.iter().rev().map(|(status, location)| (*status, (*location).to_owned())).collect();
        let hub = Hub { answers: Arc::new(Mutex::new(answers)), ..Hub::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hub", listener.local_addr().unwrap());
        let take = |State(hub): State<Hub>, body: bytes::Bytes| async move {
            hub.forms.lock().unwrap().push(url::form_urlencoded::parse(&body).into_owned().collect());
            let answer = hub.answers.lock().unwrap().pop();
            let (status, location) = answer.unwrap_or((StatusCode::ACCEPTED, String::new()));
            (status, [(header::LOCATION, location)]).into_response()
        };
        let router = Router::new().fallback(take).with_state(hub.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (hub, url)
    }

    fn forms(&self) -> Vec<BTreeMap<String, String>> {
        self.forms.lock().unwrap().clone()
    }
}

async fn until(mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "never came true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_hub_is_asked_to_subscribe_and_to_unsubscribe() {
    let (hub, url) = Hub::start(&[]).await;
    let desk = Desk::start(&url).await;
    until(|| hub.forms().len() == 1).await;
    let (path, secret) = desk.path();

    let form = &hub.forms()[0];
    assert_eq!(form["hub.mode"], "subscribe");
    assert_eq!(form["hub.topic"], TOPIC);
    assert_eq!(form["hub.callback"], format!("http://{}{path}", desk.address));
    assert_eq!(form["hub.lease_seconds"], "86400");
    assert_eq!(Some(&form["hub.secret"]), secret.as_ref());
    assert!(form["hub.secret"].len() < 200);
    assert_eq!(form.len(), 5);

    assert_eq!(desk.verify("subscribe", TOPIC, "300").await.0, 200);
    let leaving = tokio::spawn({
        let subscriber = desk.subscriber.clone();
        async move { subscriber.leave().await }
    });
    until(|| hub.forms().len() == 2).await;
    let form = &hub.forms()[1];
    assert_eq!((form["hub.mode"].as_str(), form["hub.topic"].as_str()), ("unsubscribe", TOPIC));
    assert_eq!(form["hub.callback"], format!("http://{}{path}", desk.address));
    assert!(!leaving.is_finished());
    // A poll that was under way finds the channel once more.
    desk.subscriber.follow(&[subject(&url)]).unwrap();
    assert_eq!(desk.verify("unsubscribe", TOPIC, "0").await.0, 200);
    leaving.await.unwrap();
    assert_eq!(desk.deliver(b"").await, 410);
}

#[tokio::test]
async fn the_state_is_on_disk_before_a_hub_is_asked() {
    let (hub, url) = Hub::start(&[]).await;
    let desk = Desk::start(&url).await;
    until(|| !hub.forms().is_empty()).await;

    let kept = std::fs::read_to_string(desk._folder.path().join("websub.json")).unwrap();
    assert!(kept.contains(desk.path().0.trim_start_matches('/')) && kept.contains(&desk.path().1.unwrap()));
}

#[tokio::test]
async fn a_hub_may_pass_a_request_on_to_another() {
    for status in [StatusCode::TEMPORARY_REDIRECT, StatusCode::PERMANENT_REDIRECT] {
        let (other, other_url) = Hub::start(&[]).await;
        let (hub, url) = Hub::start(&[(status, &other_url)]).await;
        let _desk = Desk::start(&url).await;
        until(|| !other.forms().is_empty()).await;

        assert_eq!(hub.forms(), other.forms());
    }
}

/// 301, 302 and 303 would make a GET of it; a secret is not sent where others can read it; a circle ends.
#[tokio::test]
async fn a_hub_that_redirects_elsewhere_has_refused() {
    let insecure = "http://192.0.2.1/hub";
    let statuses = [
        (StatusCode::FOUND, "http://127.0.0.1:9/hub"),
        (StatusCode::SEE_OTHER, "http://127.0.0.1:9/hub"),
        (StatusCode::TEMPORARY_REDIRECT, insecure),
        (StatusCode::TEMPORARY_REDIRECT, ""),
        (StatusCode::BAD_REQUEST, ""),
    ];
    for (status, location) in statuses {
        let (hub, url) = Hub::start(&[(status, location); 10]).await;
        let desk = Desk::start(&url).await;
        until(|| desk.standing() == Standing::Failing).await;

        let asked = hub.forms().len();
        assert!(asked == 1 || location.is_empty() && asked <= 6, "{status} {location}: asked {asked} times");
    }
}
