//! A real S3 server: `s3s-fs` over a folder, behind a layer that logs each request and answers wrongly on request.
#![allow(dead_code, reason = "tests and figures use a part each")]

use crate::common::requests::{Logged, wait_for_quiet};
use crate::common::tree;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderValue, IF_NONE_MATCH, RANGE};
use hyper::service::{Service, service_fn};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::dto::StreamingBlob;
use s3s::service::{S3ServiceBuilder, SharedS3Service};
use s3s::{Body, S3Error};
use s3s_fs::FileSystem;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;

/// The user of the server.
pub const ACCESS_KEY: &str = "AKRESYNCFSTEST";

/// The user's secret.
pub const SECRET_KEY: &str = "never-in-a-command-line-0123456789";

const BUCKET: &str = "institute";

/// What goes wrong with every answer, until it is mended.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// After so many bytes of the body nothing more is sent for so long.
    Stalled(usize, Duration),
    /// Every byte is another one; the length is right.
    Lies,
    /// The body and its announced length are half of what they should be.
    Half,
    /// This status, without a look at the request.
    Status(u16),
    /// Reads are answered, writes are read to their end and refused with this status.
    Full(u16),
    /// No byte of an answer for so long.
    Slow(Duration),
    /// The same for writes alone.
    SlowWrites(Duration),
    /// Nothing is found, and that is answered after so long.
    Missing(Duration),
    /// The connection ends without an answer.
    Silent,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    log: Vec<Logged>,
    under_way: usize,
}

/// What the connections share.
struct Layer {
    s3: SharedS3Service,
    bucket: PathBuf,
    prefix: String,
    state: Mutex<State>,
    /// One conditional write at a time: between the look and the write no other comes.
    writing: tokio::sync::Mutex<()>,
}

/// The server. It ends with this value.
pub struct S3 {
    _folder: tempfile::TempDir,
    host: String,
    layer: Arc<Layer>,
    runtime: Option<Runtime>,
}

impl S3 {
    /// An empty bucket, at a free port of loopback.
    pub fn start() -> S3 {
        S3::on(TcpListener::bind(("127.0.0.1", 0)).unwrap(), "127.0.0.1")
    }

    /// An empty bucket, behind `listener`, which clients reach by the address `host`.
    pub fn on(listener: TcpListener, host: &str) -> S3 {
        let folder = tempfile::Builder::new().prefix("resyncfs-s3-").tempdir().unwrap();
        let bucket = folder.path().join(BUCKET);
        fs::create_dir(&bucket).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let layer = Arc::new(Layer {
            s3: builder.build().into_shared(),
            bucket,
            prefix: "sources/".to_owned(),
            state: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
        });
        let address = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.spawn(accept(listener, Arc::clone(&layer)));
        S3 { _folder: folder, host: address.to_string(), layer, runtime: Some(runtime) }
    }

    /// What `shared-cache=` is given.
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/{}", self.layer.prefix.trim_end_matches('/'))
    }

    /// `HOST:PORT`
    pub fn host(&self) -> &str {
        &self.host
    }

    /// What the environment says of the server and of its user.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        environment_of(&self.host, SECRET_KEY)
    }

    /// From now on this goes wrong; with `None` nothing.
    pub fn fault(&self, fault: Option<Fault>) {
        self.state(|state| state.fault = fault);
    }

    /// The requests since the last call.
    pub fn take_log(&self) -> Vec<Logged> {
        self.state(|state| std::mem::take(&mut state.log))
    }

    /// The requests since the last `take_log`.
    pub fn log(&self) -> Vec<Logged> {
        self.state(|state| state.log.clone())
    }

    /// How many requests with this method since the last `take_log`.
    pub fn count(&self, method: &str) -> usize {
        self.log().iter().filter(|logged| logged.method == method).count()
    }

    /// Requests that are not answered yet.
    pub fn under_way(&self) -> usize {
        self.state(|state| state.under_way)
    }

    /// Waits until the log has been the same for half a second and nothing is under way.
    pub fn wait_for_quiet(&self) {
        wait_for_quiet(|| self.state(|state| (state.log.len(), state.under_way)));
    }

    /// What is stored, by its key within the prefix.
    pub fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        let folder = self.layer.bucket.join(&self.layer.prefix);
        let files = if folder.exists() { tree(&folder) } else { BTreeMap::new() };
        files.into_iter().map(|(path, bytes)| (path.to_str().unwrap().to_owned(), bytes)).collect()
    }

    /// The stored contents, without the checksums of their blocks.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        self.objects().into_iter().filter(|(key, _)| !key.ends_with(".crc")).collect()
    }

    /// Changes what is stored under `key`, behind the server's back.
    pub fn damage(&self, key: &str, damage: impl Fn(&mut Vec<u8>)) {
        let path = self.layer.bucket.join(&self.layer.prefix).join(key);
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(path, bytes).unwrap();
    }

    fn state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.layer.state.lock().unwrap())
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the environment says of a server at `host`, and of a user with this secret.
pub fn environment_of(host: &str, secret: &str) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ENDPOINT", format!("http://{host}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
    ]
}

async fn accept(listener: TcpListener, layer: Arc<Layer>) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let layer = Arc::clone(&layer);
        tokio::spawn(async move {
            let service = service_fn(|request| layer.answer(request));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Layer {
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let key = request.uri().path().trim_start_matches('/');
        let key = key.strip_prefix(BUCKET).unwrap_or(key).trim_start_matches('/');
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut logged = Logged {
            method: request.method().to_string(),
            path: key.strip_prefix(&self.prefix).unwrap_or(key).to_owned(),
            range: request.headers().get(RANGE).map(text),
            if_range: None,
            head: request.headers().iter().map(|(name, value)| format!("{name}: {}\r\n", text(value))).collect(),
            status: 0,
        };
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.under_way += 1;
            state.fault.clone()
        };
        let answer = self.answer_wrongly(request, key_path(&self.bucket, &logged.path, &self.prefix), fault).await;
        logged.status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
        let mut state = self.state.lock().unwrap();
        state.under_way -= 1;
        state.log.push(logged);
        answer
    }

    async fn answer_wrongly(
        &self,
        request: Request<Incoming>,
        path: PathBuf,
        fault: Option<Fault>,
    ) -> io::Result<Response<Body>> {
        let is_write = matches!(*request.method(), Method::PUT | Method::POST | Method::DELETE);
        match fault {
            Some(Fault::Silent) => return Err(io::ErrorKind::ConnectionReset.into()),
            Some(Fault::Status(status)) => return Ok(empty(status)),
            Some(Fault::Full(status)) if is_write => {
                let mut body = Body::from(request.into_body());
                while body.next().await.is_some() {}
                return Ok(empty(status));
            }
            Some(Fault::Missing(pause)) if !is_write => {
                tokio::time::sleep(pause).await;
                return Ok(empty(404));
            }
            Some(Fault::Slow(pause)) => tokio::time::sleep(pause).await,
            Some(Fault::SlowWrites(pause)) if is_write => tokio::time::sleep(pause).await,
            _ => {}
        }
        let answer = match request.headers().get(IF_NONE_MATCH).is_some_and(|value| value == "*") {
            true => {
                // This version of s3s-fs ignores the condition, which the stores that it stands for keep.
                let _alone = self.writing.lock().await;
                if path.exists() {
                    return Ok(empty(412));
                }
                self.s3.call(request).await
            }
            false => self.s3.call(request).await,
        };
        let answer = answer.map_err(|error: S3Error| io::Error::other(error.to_string()))?;
        match fault {
            Some(fault) if !is_write && answer.status().is_success() => broken(answer, &fault).await,
            _ => Ok(answer),
        }
    }
}

fn key_path(bucket: &Path, key: &str, prefix: &str) -> PathBuf {
    bucket.join(prefix).join(key)
}

fn empty(status: u16) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}

/// A right answer, as `fault` sends it.
async fn broken(answer: Response<Body>, fault: &Fault) -> io::Result<Response<Body>> {
    let (mut head, mut body) = answer.into_parts();
    let needed = match fault {
        Fault::Cut(after) | Fault::Stalled(after, _) => *after,
        _ => usize::MAX,
    };
    let mut bytes = Vec::new();
    while bytes.len() < needed {
        let Some(part) = body.next().await else { break };
        bytes.extend_from_slice(&part.map_err(|error| io::Error::other(error.to_string()))?);
    }
    let first = |length: usize| Bytes::copy_from_slice(&bytes[..length.min(bytes.len())]);
    let body = match *fault {
        Fault::Lies => Body::from(bytes.iter().map(|byte| !byte).collect::<Vec<u8>>()),
        Fault::Half => {
            head.headers.insert(CONTENT_LENGTH, (bytes.len() / 2).into());
            Body::from(first(bytes.len() / 2))
        }
        Fault::Cut(after) => ending(first(after), Duration::from_millis(20)),
        Fault::Stalled(after, pause) => ending(first(after), pause),
        _ => Body::from(bytes),
    };
    Ok(Response::from_parts(head, body))
}

/// `bytes`, then nothing for so long, then the end of the connection.
fn ending(bytes: Bytes, pause: Duration) -> Body {
    let end = async move {
        tokio::time::sleep(pause).await;
        Err(io::Error::from(io::ErrorKind::ConnectionReset))
    };
    Body::from(StreamingBlob::wrap(stream::iter([Ok(bytes)]).chain(stream::once(end))))
}
