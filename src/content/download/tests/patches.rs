//! Versions made by patches: only where the result is proved, never at the cost of more than the whole.

use super::*;
use crate::content::Patch;
use crate::source::tests::server::{Reply, Server, honest};
use std::sync::Mutex;

/// A document as Python writes it, and its versions.
fn version(number: u32) -> Vec<u8> {
    let text = "x".repeat(2000);
    format!("{{\"title\": \"café\", \"version\": {number}, \"text\": \"{text}\", \"ratio\": 0.10}}\n").into_bytes()
}

fn patch_to(number: u32) -> Vec<u8> {
    let before = number - 1;
    let test = format!(r#"{{"op":"test","path":"/version","value":{before}}}"#);
    format!(r#"[{test},{{"op":"replace","path":"/version","value":{number}}}]"#).into_bytes()
}

/// A Source whose resource is of that version; its patches lead to each from the one before.
struct Source {
    server: Server,
    version: Arc<Mutex<u32>>,
}

impl Source {
    fn new(number: u32, patch: impl Fn(&str, Vec<u8>) -> Reply + Send + Sync + 'static) -> Source {
        let now = Arc::new(Mutex::new(number));
        let current = Arc::clone(&now);
        let server = Server::start(move |request| match request.path.strip_prefix("/patch/") {
            Some(number) => patch(&request.path, patch_to(number.parse().unwrap())),
            None => honest(request, &version(*current.lock().unwrap()), None),
        });
        Source { server, version: now }
    }

    fn honest(number: u32) -> Source {
        Source::new(number, |_, patch| Reply::full(&patch))
    }

    /// What is listed of a version, of which these patches are published.
    fn spec(&self, number: u32, patches: &[u32]) -> FetchSpec {
        *self.version.lock().unwrap() = number;
        let patch = |number: &u32| Patch {
            uri: self.server.uri(&format!("/patch/{number}")),
            media_type: Some("application/json-patch".into()),
            length: None,
            hashes: Vec::new(),
        };
        FetchSpec {
            ino: Ino(100 + u64::from(number)),
            media_type: Some("application/json".into()),
            patches: patches.iter().map(patch).collect(),
            ..FetchSpec { uri: self.server.uri("/res"), ..vouched(&self.server, &version(number)) }
        }
    }

    fn asked(&self) -> Vec<String> {
        self.server.received().into_iter().map(|request| request.path).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_comes_by_its_patches_alone() {
    let source = Source::honest(1);
    let mounted = Mounted::plain(&source.server);
    assert_eq!(mounted.read_all(&source.spec(1, &[])).await.unwrap(), version(1));
    let second = source.spec(2, &[2]);
    assert_eq!(mounted.read_all(&second).await.unwrap(), version(2));
    assert_eq!(mounted.content.state(second.ino).1, Verified::Digest(Algorithm::Sha256));
    assert_eq!(mounted.read_all(&source.spec(4, &[3, 4])).await.unwrap(), version(4), "several, in order");

    assert_eq!(source.asked(), ["/res", "/patch/2", "/patch/3", "/patch/4"]);
}

/// A version that is found under its digest is the base of the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_found_under_its_digest_is_patched() {
    let source = Source::honest(1);
    let mounted = Mounted::plain(&source.server);
    mounted.read_all(&source.spec(1, &[])).await.unwrap();

    // The version before is remembered until the end of the mount.
    let mounted = mounted.restarted(&source.server).await;
    mounted.read_all(&FetchSpec { ino: Ino(9), ..source.spec(1, &[]) }).await.unwrap();
    assert_eq!(mounted.read_all(&source.spec(2, &[2])).await.unwrap(), version(2));

    assert_eq!(source.asked(), ["/res", "/patch/2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_patches_do_not_make_is_fetched_whole() {
    let source = Source::honest(1);
    let mounted = Mounted::plain(&source.server);
    mounted.read_all(&source.spec(1, &[])).await.unwrap();

    assert_eq!(mounted.read_all(&source.spec(3, &[3])).await.unwrap(), version(3), "of another version");
    assert_eq!(mounted.read_all(&source.spec(5, &[5, 4])).await.unwrap(), version(5), "in the wrong order");
    assert_eq!(source.asked(), ["/res", "/patch/3", "/res", "/patch/5", "/patch/4", "/res"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patch_that_cannot_count_is_not_requested() {
    let source = Source::honest(1);
    let mounted = Mounted::plain(&source.server);
    // Another Source of the same documents; nothing of it is kept here.
    let elsewhere = FetchSpec { uri: source.server.uri("/elsewhere"), ..source.spec(2, &[2]) };
    assert_eq!(mounted.read_all(&elsewhere).await.unwrap(), version(2));
    assert_eq!(mounted.read_all(&source.spec(1, &[1])).await.unwrap(), version(1));

    let changed = |number, change: fn(&mut FetchSpec)| {
        let mut spec = source.spec(number, &[number]);
        change(&mut spec);
        spec
    };
    let unknown = changed(3, |spec| spec.patches[0].media_type = Some("application/x-tiff-diff".into()));
    assert_eq!(mounted.read_all(&unknown).await.unwrap(), version(3), "an unknown type");
    let dear = changed(4, |spec| spec.patches[0].length = spec.length);
    assert_eq!(mounted.read_all(&dear).await.unwrap(), version(4), "as long as the whole");
    let unproved = changed(5, |spec| spec.hashes.clear());
    assert_eq!(mounted.read_all(&unproved).await.unwrap(), version(5), "no digest is published");

    assert_eq!(source.asked(), ["/elsewhere", "/res", "/res", "/res", "/res"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_patches_cost_the_patch_and_no_more() {
    let lies: [fn(Vec<u8>) -> Reply; 6] = [
        |_| Reply::status(404),
        |patch| Reply::full(&patch[..patch.len() - 1]),
        |patch| Reply::full(&patch).cut_at(9),
        |_| Reply::full(&bytes(1 << 20, 1)).announcing(None),
        |_| Reply::full(br#"[{"op":"copy","from":"","path":"/a"}]"#),
        |patch| Reply::full(&patch).with("Content-Encoding", "gzip"),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let source = Source::new(1, move |_, patch| lie(patch));
        let mounted = Mounted::plain(&source.server);
        mounted.read_all(&source.spec(1, &[])).await.unwrap();

        assert_eq!(mounted.read_all(&source.spec(2, &[2])).await.unwrap(), version(2), "lie {number}");
        assert_eq!(source.asked(), ["/res", "/patch/2", "/res"], "lie {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patch_must_be_the_one_that_is_published() {
    let source = Source::honest(1);
    let mounted = Mounted::plain(&source.server);
    mounted.read_all(&source.spec(1, &[])).await.unwrap();
    let mut right = source.spec(2, &[2]);
    right.patches[0].hashes = vec![digest(Algorithm::Md5, &patch_to(2))];
    right.patches[0].length = Some(patch_to(2).len() as u64);
    assert_eq!(mounted.read_all(&right).await.unwrap(), version(2));
    let mut wrong = source.spec(3, &[3]);
    wrong.patches[0].hashes = vec![digest(Algorithm::Md5, b"another")];
    assert_eq!(mounted.read_all(&wrong).await.unwrap(), version(3));

    assert_eq!(source.asked(), ["/res", "/patch/2", "/patch/3", "/res"]);
}
