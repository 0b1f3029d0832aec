//! The demo's Source: the papers of an invented harbour office, over HTTP on loopback, and beside them a landing page that no list names.

use crate::document::Timestamp;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The times at which letters beyond the first edition were published.
type Published = Arc<Mutex<Vec<Timestamp>>>;

/// Serves the Source on a free port of loopback, in a thread that ends with the process.
pub fn start() -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let app = Router::new().fallback(
        move |state: State<Published>, method: Method, uri: Uri, headers: HeaderMap| async move {
            answer(&state, &method, uri.path(), &headers, address)
        },
    );
    std::thread::Builder::new().name("demo-source".into()).spawn(move || {
        runtime.block_on(async move {
            let served = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => axum::serve(listener, app.with_state(Published::default())).await,
                Err(cause) => Err(cause),
            };
            if let Err(cause) = served {
                tracing::error!(%cause, "the server of the demo failed");
            }
        });
    })?;
    Ok(address)
}

fn answer(published: &Published, method: &Method, path: &str, request: &HeaderMap, address: SocketAddr) -> Response {
    let mut published = published.lock().unwrap_or_else(PoisonError::into_inner);
    if method == Method::POST && path == "/publish" {
        published.push(Timestamp::now());
        return "published\n".into_response();
    }
    let collection = resources(&published);
    let base = format!("http://{address}");
    let list = DemoResource::first("resourcelist.xml", "application/xml", &resource_list(&base, &collection));
    let fixed = FIXED.iter().map(|(path, kind, text)| DemoResource::first(path, kind, &text.replace("{base}", &base)));
    let served = collection.into_iter().chain([list]).chain(fixed).find(|resource| resource.path == path[1..]);
    let Some(DemoResource { media_type, bytes, .. }) = served else {
        return (StatusCode::NOT_FOUND, "not found\n").into_response();
    };
    let etag = format!("\"{:016x}\"", xxhash_rust::xxh3::xxh3_64(&bytes));
    if request.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response();
    }
    ([(header::CONTENT_TYPE, media_type.to_owned()), (header::ETAG, etag)], bytes).into_response()
}

fn resource_list(base: &str, collection: &[DemoResource]) -> String {
    let newest = collection.iter().map(|resource| resource.lastmod).max();
    let at = newest.map(|at| at.to_string()).unwrap_or_default();
    let mut list = include_str!("papers/resourcelist.xml").replace("{base}", base).replace("{at}", &at);
    for resource in collection {
        let _ = writeln!(
            list,
            "<url><loc>{base}/{}</loc><lastmod>{}</lastmod><rs:md hash=\"sha-256:{}\" length=\"{}\" type=\"{}\"/></url>",
            resource.path,
            resource.lastmod,
            resource.sha256(),
            resource.bytes.len(),
            resource.media_type
        );
    }
    list.push_str("</urlset>\n");
    list
}

/// One resource as the demo's Source publishes it.
struct DemoResource {
    /// Path below the Source's root, percent-encoded, without leading slash.
    path: String,
    /// Media type.
    media_type: &'static str,
    /// The time of its last change.
    lastmod: Timestamp,
    /// Its bytes.
    bytes: Vec<u8>,
}

impl DemoResource {
    /// A resource of the first edition.
    fn first(path: &str, media_type: &'static str, text: &str) -> DemoResource {
        DemoResource {
            path: path.to_owned(),
            media_type,
            lastmod: Timestamp { seconds: FIRST_EDITION, nanos: 0 },
            bytes: text.as_bytes().to_vec(),
        }
    }

    /// The published digest, hexadecimal.
    fn sha256(&self) -> String {
        Sha256::digest(&self.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

const LETTERS: [(&str, &str); 3] = [
    ("1851-02-14", include_str!("papers/1851-02-14.txt")),
    ("1851-03-02", include_str!("papers/1851-03-02.txt")),
    ("1851-03-09", include_str!("papers/1851-03-09.txt")),
];
const NOTICE: &str = include_str!("papers/README");
const REGISTER: &str = include_str!("papers/register.xml");

/// The time of the first edition.
const FIRST_EDITION: i64 = 1_700_000_000;

/// The collection after `published` letters were added to the first edition.
fn resources(published: &[Timestamp]) -> Vec<DemoResource> {
    let first = DemoResource::first;
    let mut all =
        vec![first("README", "text/plain", NOTICE), first("register%20of%20ships.xml", "application/xml", REGISTER)];
    all.extend(LETTERS.iter().map(|(date, text)| first(&format!("letters/{date}.txt"), "text/plain", text)));
    all.extend((1..=12).map(|month| first(&format!("weather/1851/{month:02}.csv"), "text/csv", &weather(month))));
    all.extend(published.iter().enumerate().map(|(number, when)| DemoResource {
        path: format!("letters/new-{}.txt", number + 1),
        media_type: "text/plain",
        lastmod: *when,
        bytes:
            format!("Sir,\n\nthis is letter {} since you mounted the office.\n\n\tH. Maas\n", number + 1).into_bytes(),
    }));
    all
}

/// The resources that no list names: the documents above the list, and a data set as repositories publish it. That is a landing page whose links lead to
/// two files, which have numbers for addresses, and to a description (Croissant) with their paths, sizes and digests. `{base}` stands for the
/// address of the Source.
const FIXED: [(&str, &str, &str); 6] = [
    (".well-known/resourcesync", "application/xml", include_str!("papers/description.xml")),
    ("capabilitylist.xml", "application/xml", include_str!("papers/capabilitylist.xml")),
    ("records/1", "text/html", include_str!("papers/survey.html")),
    ("records/1/croissant.json", "application/ld+json", include_str!("papers/croissant.json")),
    ("files/1", "text/csv", include_str!("papers/soundings.csv")),
    ("files/2", "text/plain", include_str!("papers/boat.txt")),
];

/// A month of made-up weather, the same each time.
fn weather(month: u32) -> String {
    let mut table = String::from("day,wind,force,glass\n");
    for day in 1..=28 {
        let seed = month * 31 + day * 7;
        let wind = ["N", "NE", "E", "SE", "S", "SW", "W", "NW"][(seed % 8) as usize];
        table.push_str(&format!("1851-{month:02}-{day:02},{wind},{},{}\n", seed % 11, 980 + seed % 50));
    }
    table
}
