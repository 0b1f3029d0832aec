//! Hosts and networks as they are: what one host or one resource does wrong takes nothing else away.

mod common;

use common::eventually;
use common::mounted::Mounted;
use common::source::{Resource, Source, hex};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A server whose answers are raw bytes, by path; what has none is 404.
struct Raw {
    url: String,
    /// Request heads in the order in which they came.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Raw {
    /// `answer` writes to the connection; the connection stays open if it returns true.
    fn start(answer: impl Fn(&str, &mut TcpStream) -> bool + Send + Sync + 'static) -> Raw {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, answer) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(answer));
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (answer, noted) = (Arc::clone(&answer), Arc::clone(&noted));
                std::thread::spawn(move || {
                    let mut head = Vec::new();
                    let mut byte = [0];
                    while matches!(stream.read(&mut byte), Ok(1)) {
                        head.push(byte[0]);
                        if head.ends_with(b"\r\n\r\n") {
                            let text = String::from_utf8_lossy(&std::mem::take(&mut head)).into_owned();
                            let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                            noted.lock().unwrap().push(text);
                            if !answer(&path, &mut stream) {
                                return;
                            }
                        }
                    }
                });
            }
        });
        Raw { url, asked }
    }

    /// A Resource List of `files` (path, bytes) of this server, with digests.
    fn list(url: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
        let entry = |(path, bytes): &(&str, &[u8])| {
            let (digest, length) = (hex(&Sha256::digest(bytes)), bytes.len());
            format!(
                "<url><loc>{url}{path}</loc><lastmod>2026-01-01</lastmod>\
                 <rs:md hash=\"sha-256:{digest}\" length=\"{length}\"/></url>"
            )
        };
        let entries: String = files.iter().map(entry).collect();
        format!(
            "<?xml version=\"1.0\"?><urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" \
             xmlns:rs=\"http://www.openarchives.org/rs/terms/\">\
             <rs:md capability=\"resourcelist\" at=\"2026-01-02T00:00:00Z\"/>{entries}</urlset>"
        )
        .into_bytes()
    }
}

/// A whole answer of 200.
fn full(stream: &mut TcpStream, lines: &[u8], body: &[u8]) -> bool {
    let head = [b"HTTP/1.1 200 OK\r\n", lines, format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes()].concat();
    stream.write_all(&[&head, body].concat()).is_ok()
}

/// The URL of a server is known only once it runs: its list is made for each request of it.
fn host_of(stream: &TcpStream) -> String {
    format!("http://{}", stream.local_addr().unwrap())
}

/// Promise: one resource of which a host breaks its connections keeps no other from being read.
#[test]
fn what_breaks_connections_takes_no_neighbour_away() {
    const BAD: [&str; 7] = ["/bad0", "/bad1", "/bad2", "/bad3", "/bad4", "/bad5", "/bad6"];
    let raw = Raw::start(|path, stream| match path {
        "/list.xml" => {
            let bad = BAD.map(|path| (path, &b"bad"[..]));
            let list =
                Raw::list(&host_of(stream), &[&bad[..], &[("/good", &b"good"[..]), ("/fair", b"fair")]].concat());
            full(stream, b"Content-Type: application/xml\r\n", &list)
        }
        "/good" => full(stream, b"", b"good"),
        "/fair" => full(stream, b"", b"fair"),
        // Closed without a word, or with something that is not an answer.
        path => path.ends_with(['1', '3', '5']) && stream.write_all(b"\0\0\0 nonsense\r\n\r\n").is_err(),
    });
    let mounted = Mounted::new(&format!("{}/list.xml", raw.url), "readahead=0,timeout=5s");

    let readers: Vec<_> = BAD
        .map(|path| mounted.join(&path[1..]))
        .into_iter()
        .map(|path| std::thread::spawn(move || std::fs::read(path)))
        .collect();
    assert!(readers.into_iter().all(|reader| reader.join().unwrap().is_err()));

    assert_eq!(std::fs::read(mounted.join("good")).unwrap(), b"good");
    assert_eq!(std::fs::read(mounted.join("fair")).unwrap(), b"fair");
}

/// Promise: what curl reads is read.
#[test]
fn files_behind_malformed_header_lines_are_read() {
    let raw = Raw::start(|path, stream| match path {
        "/list.xml" => {
            let files = ["/blank", "/colon", "/fold", "/latin", "/many"].map(|path| (path, &b"contents"[..]));
            let list = Raw::list(&host_of(stream), &files);
            full(stream, b"Content-Type : application/xml\r\nnonsense\r\n", &list)
        }
        "/blank" => full(stream, b"X-A : a\r\n", b"contents"),
        "/colon" => full(stream, b"PHP Notice\r\n", b"contents"),
        "/fold" => full(stream, b"X-A: a\r\n b\r\n\tc\r\n", b"contents"),
        "/latin" => full(stream, b"X-Caf\xe9: \xe9\r\n", b"contents"),
        _ => full(stream, &b"X-A: y\r\n".repeat(300), b"contents"),
    });
    let mounted = Mounted::new(&format!("{}/list.xml", raw.url), "timeout=5s");
    for name in ["blank", "colon", "fold", "latin", "many"] {
        assert_eq!(std::fs::read(mounted.join(name)).unwrap(), b"contents", "{name}");
    }
}

/// Promise: a read waits for `timeout=` without progress of its file, however often it is asked for within that.
#[test]
fn mirrors_that_drip_do_not_put_off_a_readers_deadline() {
    let drips = |_: &str, stream: &mut TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        while stream.write_all(b"q").is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
        false
    };
    let mirrors: Vec<Raw> = (0..6).map(|_| Raw::start(drips)).collect();
    let links: String = (mirrors.iter().enumerate())
        .map(|(at, mirror)| format!("<rs:ln rel=\"duplicate\" pri=\"{}\" href=\"{}/a\"/>", at + 1, mirror.url))
        .collect();
    let raw = Raw::start(move |path, stream| match path {
        "/list.xml" => {
            let list = String::from_utf8(Raw::list(&host_of(stream), &[("/a", &[b'q'; 100_000])])).unwrap();
            let list = list.replace("</url>", &format!("{links}</url>"));
            full(stream, b"Content-Type: application/xml\r\n", list.as_bytes())
        }
        path => drips(path, stream),
    });
    let mounted = Mounted::new(&format!("{}/list.xml", raw.url), "timeout=2s,allow-host=127.0.0.1");

    let begun = Instant::now();
    assert!(std::fs::read(mounted.join("a")).is_err());
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

/// Promise: a pause that one list asked for keeps no file from being read, and `refresh` ends it.
#[test]
fn a_pause_of_a_list_is_not_one_of_readers() {
    let is_busy = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy = Arc::clone(&is_busy);
    let raw = Raw::start(move |path, stream| match path {
        "/list.xml" if busy.load(std::sync::atomic::Ordering::SeqCst) => {
            stream.write_all(b"HTTP/1.1 503 Busy\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n").is_ok()
        }
        "/list.xml" => {
            let list = Raw::list(&host_of(stream), &[("/a", &b"a"[..])]);
            full(stream, b"Content-Type: application/xml\r\n", &list)
        }
        _ => full(stream, b"", b"a"),
    });
    let mounted = Mounted::new(&format!("{}/list.xml", raw.url), "timeout=5s");
    is_busy.store(true, std::sync::atomic::Ordering::SeqCst);

    assert!(mounted.try_refresh().is_err());
    assert_eq!(std::fs::read(mounted.join("a")).unwrap(), b"a");

    is_busy.store(false, std::sync::atomic::Ordering::SeqCst);
    mounted.refresh();
}

/// A server of the files `/00` to `/NN`, which allows `limit` requests for them in each two seconds and announces that. The statuses of its answers.
fn limited(files: usize, limit: u64) -> (Raw, Arc<Mutex<Vec<u16>>>) {
    const WINDOW: Duration = Duration::from_secs(2);
    let (answers, window) = (Arc::<Mutex<Vec<u16>>>::default(), Mutex::new((Instant::now(), 0)));
    let noted = Arc::clone(&answers);
    let raw = Raw::start(move |path, stream| {
        if path == "/list.xml" {
            let paths: Vec<String> = (0..files).map(|number| format!("/{number:02}")).collect();
            let files: Vec<(&str, &[u8])> = paths.iter().map(|path| (path.as_str(), path.as_bytes())).collect();
            return full(stream, b"Content-Type: application/xml\r\n", &Raw::list(&host_of(stream), &files));
        }
        let mut window = window.lock().unwrap();
        if window.0.elapsed() >= WINDOW {
            *window = (Instant::now(), 0);
        }
        window.1 += 1;
        let (left, reset) = (limit.saturating_sub(window.1), WINDOW.saturating_sub(window.0.elapsed()).as_secs() + 1);
        let lines = format!("RateLimit-Limit: {limit}\r\nRateLimit-Remaining: {left}\r\nRateLimit-Reset: {reset}\r\n");
        noted.lock().unwrap().push(if window.1 > limit { 429 } else { 200 });
        match window.1 > limit {
            true => stream.write_all(format!("HTTP/1.1 429 No\r\n{lines}Content-Length: 0\r\n\r\n").as_bytes()).is_ok(),
            false => full(stream, lines.as_bytes(), path.as_bytes()),
        }
    });
    (raw, answers)
}

/// Promise: where a host says when it will answer again, a read waits for it.
#[test]
fn a_limit_that_a_host_announces_is_no_error() {
    let (raw, answers) = limited(20, 8);
    let mounted = Mounted::new(&format!("{}/list.xml", raw.url), "timeout=1s");
    let begun = Instant::now();

    let found = Command::new("grep").args(["-rc", "/"]).arg(mounted.path()).output().unwrap();

    assert!(found.status.success() && found.stderr.is_empty(), "{found:?}");
    assert_eq!(found.stdout.iter().filter(|byte| **byte == b'\n').count(), 20);
    let (took, answers) = (begun.elapsed(), answers.lock().unwrap().clone());
    assert!(took < Duration::from_secs(9), "{took:?}");
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 20, "{answers:?}");
    assert!(answers.iter().filter(|status| **status == 429).count() <= 3, "{answers:?}");
    eventually("the beginning and the end are logged", || mounted.said().contains("does not pace readers any more"));
    assert_eq!(mounted.said().matches("readers are paced").count(), 1, "{}", mounted.said());
}

/// Promise: a read waits out an announced pause up to `patience=`, a program that waits can be ended, and a longer pause fails at once.
#[test]
fn a_pause_is_waited_out_can_be_ended_and_is_bounded() {
    let pauses = Arc::new(Mutex::new(std::collections::HashMap::from([("/a", 2), ("/b", 20), ("/c", 3000)])));
    let left = Arc::clone(&pauses);
    let raw = Raw::start(move |path, stream| match (path, left.lock().unwrap().remove(path)) {
        ("/list.xml", _) => {
            let files = ["/a", "/b", "/c", "/d"].map(|path| (path, path.as_bytes()));
            full(stream, b"Content-Type: application/xml\r\n", &Raw::list(&host_of(stream), &files))
        }
        (_, Some(pause)) => {
            let head = format!("HTTP/1.1 429 No\r\nRetry-After: {pause}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).is_ok()
        }
        _ => full(stream, b"", path.as_bytes()),
    });
    let mounted = Mounted::new(&format!("{}/list.xml", raw.url), "timeout=1s,patience=30s,readahead=0");
    let begun = Instant::now();
    assert_eq!(std::fs::read(mounted.join("a")).unwrap(), b"/a");
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());

    // Not SIGINT, which programs ignore that a shell began in the background.
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut cat = Command::new("cat").arg(mounted.join("b")).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1300));
        assert!(cat.try_wait().unwrap().is_none(), "it waits past its timeout");
        // SAFETY: takes no pointers.
        unsafe { libc::kill(cat.id() as i32, signal) };
        let signalled = Instant::now();
        assert!(!cat.wait().unwrap().success());
        assert!(signalled.elapsed() < Duration::from_secs(6), "{:?}", signalled.elapsed());
    }

    mounted.refresh();
    let begun = Instant::now();
    assert!(std::fs::read(mounted.join("c")).is_err() && std::fs::read(mounted.join("d")).is_err());
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert!(mounted.said().contains("allows no requests for another"), "{}", mounted.said());
}

/// Promise: a size waits out an announced pause too, and one of hours fails at once.
#[test]
fn a_size_waits_out_a_short_pause() {
    let pauses = Arc::new(Mutex::new(std::collections::HashMap::from([("/a", 2), ("/b", 3000)])));
    let raw = Raw::start(move |path, stream| match (path, pauses.lock().unwrap().remove(path)) {
        ("/list.xml", _) => {
            let url = host_of(stream);
            full(stream, b"Content-Type: text/plain\r\n", format!("{url}/a\n{url}/b\n").as_bytes())
        }
        (_, Some(pause)) => {
            let head = format!("HTTP/1.1 429 No\r\nRetry-After: {pause}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).is_ok()
        }
        _ => full(stream, b"", b""),
    });
    let mounted = Mounted::new(&format!("{}/list.xml", raw.url), "timeout=1s");
    let begun = Instant::now();
    assert_eq!(std::fs::metadata(mounted.join("a")).unwrap().len(), 0);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());

    let begun = Instant::now();
    assert!(std::fs::metadata(mounted.join("b")).is_err());
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

/// Those who run a host can see what asks, and to which address to write.
#[test]
fn requests_name_the_program_and_a_contact() {
    let source = Source::start();
    source.put("a", Resource::new(*b"a"));
    let mounted = Mounted::new(&source.list_url(), "user-agent=mailto:ann@example.org");
    std::fs::read(mounted.join("a")).unwrap();
    let log = source.log();
    assert!(!log.is_empty());
    for logged in log {
        let agent = logged.field("user-agent").unwrap().to_owned();
        assert!(agent.starts_with("resyncfs/") && agent.contains(" (ResourceSync file system)"), "{agent}");
        assert!(agent.ends_with(" mailto:ann@example.org"), "{agent}");
    }
}

/// A setting of many machines: a proxy for all but some hosts.
#[test]
fn a_proxy_is_left_out_for_exceptions_and_named_when_unusable() {
    let source = Source::start();
    source.put("a", Resource::new(*b"a"));
    for except in ["127.0.0.1", "*"] {
        let mounted = Mounted::prepared(&source.list_url(), "")
            .with_environment("ALL_PROXY", "socks5h://127.0.0.1:1")
            .with_environment("no_proxy", except);
        mounted.start();
        assert_eq!(std::fs::read(mounted.join("a")).unwrap(), b"a");
    }
    let unusable = Mounted::prepared(&source.list_url(), "").with_environment("all_proxy", "ftp://ann:secret@proxy:1");
    let said = unusable.try_start().unwrap_err();
    assert!(said.contains("all_proxy=\"ftp://proxy:1\""), "{said}");
    assert!(!said.contains("secret"), "{said}");
}

/// `Crawl-delay` of robots.txt bounds the rate.
#[test]
fn a_host_is_asked_as_slowly_as_robots_txt_wants() {
    let raw = Raw::start(|path, stream| match path {
        "/robots.txt" => {
            let robots = format!("User-agent: *\nCrawl-delay: 1\nSitemap: {}/list.xml\n", host_of(stream));
            full(stream, b"Content-Type: text/plain\r\n", robots.as_bytes())
        }
        "/list.xml" => {
            let list = Raw::list(&host_of(stream), &[("/a", &b"/a"[..]), ("/b", b"/b"), ("/c", b"/c")]);
            full(stream, b"Content-Type: application/xml\r\n", &list)
        }
        "/a" | "/b" | "/c" => full(stream, b"", path.as_bytes()),
        _ => stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").is_ok(),
    });
    let mounted = Mounted::new(&raw.url, "readahead=0");
    let (asked, begun) = (raw.asked.lock().unwrap().len(), Instant::now());
    for name in ["a", "b", "c"] {
        assert_eq!(std::fs::read(mounted.join(name)).unwrap(), format!("/{name}").as_bytes());
    }
    assert_eq!(raw.asked.lock().unwrap().len(), asked + 3);
    assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
}

/// Promise: a pace that we keep without the host's word is not a stall either.
#[test]
fn a_slow_rate_is_no_error() {
    let source = Source::start();
    for name in ["a", "b", "c"] {
        source.put(name, Resource::new(name));
    }
    let mounted = Mounted::new(&source.url(), "timeout=1s,rate=0.4,readahead=0");
    let readers = ["a", "b"].map(|name| {
        let path = mounted.join(name);
        std::thread::spawn(move || std::fs::read(path))
    });
    for reader in readers {
        assert_eq!(reader.join().unwrap().unwrap().len(), 1);
    }
}
