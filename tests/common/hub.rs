//! A WebSub hub on loopback that relays what a Source posts to it, as the standard's examples 3 and 7 show, and that can be
//! made to misbehave.

use super::eventually;
use super::source::hex;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What the hub does with requests.
#[derive(Clone, Debug)]
pub struct Manner {
    /// Verifies before it answers, in place of after.
    pub verifies_first: bool,
    /// The lease granted, in seconds.
    pub lease: u64,
    /// Denies in place of verifying.
    pub denies: bool,
    /// Answers with this.
    pub status: u16,
    /// Verifies nothing.
    pub forgets: bool,
    /// Never answers.
    pub hangs: bool,
}

impl Default for Manner {
    fn default() -> Manner {
        Manner { verifies_first: false, lease: 86_400, denies: false, status: 202, forgets: false, hangs: false }
    }
}

/// A request of a Destination.
#[derive(Clone, Debug)]
pub struct Asked {
    pub mode: String,
    pub topic: String,
    pub callback: String,
    pub lease: Option<String>,
    pub secret: Option<String>,
    pub at: Instant,
    /// What the callback said to the challenge: whether it agreed.
    pub verified: Option<bool>,
}

#[derive(Default)]
struct State {
    manner: Manner,
    asked: Vec<Asked>,
    /// (topic, callback) -> secret
    subscribers: BTreeMap<(String, String), Option<String>>,
    /// Status of each delivery.
    delivered: Vec<u16>,
    challenges: u64,
}

/// The hub.
pub struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Clone)]
struct Desk {
    state: Arc<Mutex<State>>,
    client: reqwest::Client,
}

impl Hub {
    /// On a free port.
    pub fn start() -> Hub {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        // The client wants one although it never speaks TLS; a test before may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = runtime.block_on(async { reqwest::Client::builder().no_proxy().build().unwrap() });
        let desk = Desk { state: state.clone(), client };
        let router = Router::new().route("/websub/", axum::routing::post(take)).with_state(desk);
        runtime.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Hub { address, state, _runtime: runtime }
    }

    /// `http://127.0.0.1:PORT/websub/`
    pub fn url(&self) -> String {
        format!("http://{}/websub/", self.address)
    }

    /// From now on.
    pub fn behave(&self, manner: Manner) {
        self.state.lock().unwrap().manner = manner;
    }

    /// Every request so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state.lock().unwrap().asked.clone()
    }

    /// The secret that came with the last request.
    pub fn last_secret(&self) -> Option<String> {
        self.asked().last().and_then(|asked| asked.secret.clone())
    }

    /// The statuses of all deliveries so far.
    pub fn delivered(&self) -> Vec<u16> {
        self.state.lock().unwrap().delivered.clone()
    }

    /// How many callbacks are subscribed to `topic`.
    pub fn subscribers(&self, topic: &str) -> usize {
        self.state.lock().unwrap().subscribers.keys().filter(|(subscribed, _)| subscribed == topic).count()
    }

    /// Waits until somebody is subscribed to `topic`, and tells the callback.
    pub fn wait_for_subscriber(&self, topic: &str) -> String {
        eventually(&format!("somebody subscribes to {topic}"), || self.subscribers(topic) > 0);
        let state = self.state.lock().unwrap();
        state.subscribers.keys().find(|(subscribed, _)| subscribed == topic).unwrap().1.clone()
    }

    /// What the Source does to announce something: it posts the notification to the hub (example 3).
    pub fn publish(&self, topic: &str, capability_list: &str, notification: &str) {
        let links = format!(
            "<{topic}> ; rel=\"self\", <{}> ; rel=\"hub\", <{capability_list}> ; rel=\"resourcesync\"",
            self.url()
        );
        let headers = [("Content-Type", "application/xml"), ("Link", links.as_str())];
        assert_eq!(post(&self.url(), &headers, notification.as_bytes()), 204);
    }
}

/// Posts something; the status of the answer.
pub fn post(url: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
    ask("POST", url, headers, body)
}

/// Asks for something; the status of the answer.
pub fn get(url: &str) -> u16 {
    ask("GET", url, &[], b"")
}

/// Octets that no delivery has.
const REFUSED: usize = 1 << 20;

fn ask(method: &str, url: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
    let (authority, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(authority).unwrap();
    let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{method} /{path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n"
    );
    // What is refused for its announced length is answered, and closed, before it has come: sent, it would race with the answer.
    let sent = if length > REFUSED { &[] } else { body };
    stream.write_all(&[head.as_bytes(), sent].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

/// `X-Hub-Signature` of a body.
pub fn signature(secret: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body);
    format!("sha256={}", hex(&mac.finalize().into_bytes()))
}

async fn take(Shared(desk): Shared<Desk>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if headers["content-type"] == "application/xml" {
        tokio::spawn(relay(desk, headers["link"].to_str().unwrap().to_owned(), body));
        return StatusCode::NO_CONTENT;
    }
    let form: BTreeMap<String, String> = url::form_urlencoded::parse(&body).into_owned().collect();
    let field = |name: &str| form.get(name).cloned();
    let asked = Asked {
        mode: field("hub.mode").unwrap(),
        topic: field("hub.topic").unwrap(),
        callback: field("hub.callback").unwrap(),
        lease: field("hub.lease_seconds"),
        secret: field("hub.secret"),
        at: Instant::now(),
        verified: None,
    };
    let (manner, number) = {
        let mut state = desk.state.lock().unwrap();
        state.asked.push(asked.clone());
        (state.manner.clone(), state.asked.len() - 1)
    };
    if manner.hangs {
        std::future::pending::<()>().await;
    }
    let accepted = (200..300).contains(&manner.status);
    if accepted && !manner.forgets {
        let verification = verify(desk, asked, manner.clone(), number);
        if manner.verifies_first {
            verification.await;
        } else {
            tokio::spawn(verification);
        }
    }
    StatusCode::from_u16(manner.status).unwrap()
}

async fn verify(desk: Desk, asked: Asked, manner: Manner, number: usize) {
    let challenge = {
        let mut state = desk.state.lock().unwrap();
        state.challenges += 1;
        format!("challenge <{}> & more", state.challenges)
    };
    let lease = manner.lease.to_string();
    let fields: &[(&str, &str)] = if manner.denies {
        &[("hub.mode", "denied"), ("hub.topic", &asked.topic), ("hub.reason", "not for you")]
    } else {
        &[
            ("hub.mode", &asked.mode),
            ("hub.topic", &asked.topic),
            ("hub.challenge", &challenge),
            ("hub.lease_seconds", &lease),
        ]
    };
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    // The subscriber may have been killed meanwhile: then it has not agreed.
    let agreed = match desk.client.get(format!("{}?{query}", asked.callback)).send().await {
        Ok(answer) => answer.status().is_success() && answer.text().await.is_ok_and(|said| said == challenge),
        Err(_) => false,
    };
    let mut state = desk.state.lock().unwrap();
    state.asked[number].verified = Some(agreed);
    let key = (asked.topic, asked.callback);
    match asked.mode.as_str() {
        "subscribe" if agreed => drop(state.subscribers.insert(key, asked.secret)),
        "unsubscribe" if agreed => drop(state.subscribers.remove(&key)),
        _ => {}
    }
}

/// Relays to all subscribers as example 7 shows: without the link to the hub, and signed where a secret was given.
async fn relay(desk: Desk, links: String, body: Bytes) {
    let links: Vec<&str> = links.split(", ").filter(|link| !link.contains("rel=\"hub\"")).collect();
    let topic = links[0].trim_start_matches('<').split('>').next().unwrap().to_owned();
    let subscribers: Vec<_> = {
        let state = desk.state.lock().unwrap();
        state
            .subscribers
            .iter()
            .filter(|((subscribed, _), _)| *subscribed == topic)
            .map(|(key, secret)| (key.1.clone(), secret.clone()))
            .collect()
    };
    for (callback, secret) in subscribers {
        let mut request =
            desk.client.post(callback).header("Content-Type", "application/xml").header("Link", links.join(", "));
        if let Some(secret) = secret {
            request = request.header("X-Hub-Signature", signature(&secret, &body));
        }
        let status = request.body(body.clone()).send().await.map_or(0, |answer| answer.status().as_u16());
        desk.state.lock().unwrap().delivered.push(status);
    }
}
