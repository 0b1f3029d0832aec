//! A Source that hangs, is gone or cannot be reached: an error within the deadline, and nobody else waits.

mod common;

use common::deadline::{FAST, PATIENCE, errno, read};
use common::eventually;
use common::mounted::Mounted;
use common::source::{Fault, Resource, Source, URLSET};
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// One host whose name is gone and one that swallows every connection beside the Source itself.
#[test]
fn unreachable_hosts_are_errors_in_time_and_stop_no_others() {
    let source = Source::start();
    let hole = BlackHole::new();
    source.put("here", Resource::new("of the Source"));
    let list = |foreign: &[String]| {
        let urls: String =
            foreign.iter().map(|uri| format!("<url><loc>{uri}</loc><rs:md length=\"5\"/></url>")).collect();
        format!(
            "{URLSET}<rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/>\
             <url><loc>{}here</loc><rs:md length=\"13\"/></url>{urls}</urlset>",
            source.url()
        )
    };
    let address = hole.address;
    source.document("resourcelist.xml", list(&["http://no-such-host.invalid/a".into(), format!("http://{address}/b")]));
    let mounted = Mounted::new(&source.url(), &format!("{FAST},allow-host={address}"));
    let (nameless, swallowed) =
        (mounted.join("%host/no-such-host.invalid/a"), mounted.join(&format!("%host/{address}/b")));
    assert!(nameless.exists() && swallowed.exists(), "{:?}", tree_names(&mounted.path()));

    let stuck = [nameless, swallowed].map(|path| {
        std::thread::spawn(move || {
            let began = Instant::now();
            (errno(read(&path)), began.elapsed())
        })
    });
    assert_eq!(read(&mounted.join("here")).unwrap(), b"of the Source");

    for reader in stuck {
        let (errno, took) = reader.join().unwrap();
        assert_eq!(errno, Some(libc::EIO));
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

fn tree_names(folder: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A listener that accepts nothing and whose queue is full: the kernel drops what knocks.
struct BlackHole {
    address: std::net::SocketAddr,
    _listener: std::net::TcpListener,
    _queued: Vec<std::net::TcpStream>,
}

impl BlackHole {
    fn new() -> BlackHole {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        // SAFETY: the descriptor is open; listening again only changes the length of the queue.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            queued.push(stream);
        }
        BlackHole { address, _listener: listener, _queued: queued }
    }
}

#[test]
fn a_source_that_is_down_is_said_to_be_so() {
    for (source, says) in [
        ("http://127.0.0.1:1/".to_owned(), "127.0.0.1:1"),
        ("http://no-such-host.invalid/".to_owned(), "no-such-host.invalid"),
    ] {
        let mounted = Mounted::prepared(&source, FAST);
        let began = Instant::now();

        let said = mounted.try_start().unwrap_err();

        assert!(said.contains(says), "{said}");
        assert!(began.elapsed() < PATIENCE);
    }
}

/// The first mount waits for it all the same: it may be about to start.
#[test]
fn a_closed_port_is_reported_and_a_late_server_is_mounted() {
    let port = tokio::net::TcpSocket::new_v4().unwrap();
    port.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = port.local_addr().unwrap();
    let mounted = Mounted::prepared(&format!("http://{address}/resourcelist.xml"), "poll=1h");

    let _source = std::thread::scope(|scope| {
        let starting = scope.spawn(|| mounted.try_start());
        eventually("the reason is reported", || mounted.said().contains("refused"));
        assert!(!starting.is_finished(), "{}", mounted.said());
        assert!(mounted.said().contains("trying again"), "{}", mounted.said());
        let port = port.into_raw_fd();
        // SAFETY: takes no pointers; the socket is open, and nobody else's from here on.
        let listener = unsafe {
            assert_eq!(libc::listen(port, 128), 0);
            TcpListener::from_raw_fd(port)
        };
        listener.set_nonblocking(false).unwrap();
        let source = Source::on(listener);
        source.put("a", Resource::new("bytes"));
        starting.join().unwrap().unwrap();
        source
    });

    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
    assert_eq!(mounted.said().matches("trying again").count(), 1, "once: {}", mounted.said());
}

/// A reader of each of 80 files of a dead host; what it ends with.
fn read_all_of_the_dead(mounted: &Mounted) -> Vec<std::thread::JoinHandle<Option<i32>>> {
    let read_one = |number| {
        let path = mounted.join(&format!("dead/{number}"));
        std::thread::spawn(move || errno(fs::read(path)))
    };
    (0..80).map(read_one).collect()
}

/// Readers stuck on a dead host do not stop readers of what is here, nor names.
#[test]
fn readers_stuck_on_a_dead_host_stop_nobody_else() {
    let source = Source::start();
    source.put("here", Resource::new("cached"));
    for number in 0..80 {
        source.put(&format!("dead/{number}"), Resource::new(format!("never {number}")));
        source.fault(&format!("dead/{number}"), Fault::StallHead(Duration::from_secs(60)), u64::MAX);
    }
    let mounted = Mounted::new(&source.url(), "timeout=4s,poll=1h");
    read(&mounted.join("here")).unwrap();
    let stuck = read_all_of_the_dead(&mounted);
    std::thread::sleep(Duration::from_millis(300));

    assert_eq!(read(&mounted.join("here")).unwrap(), b"cached");
    assert_eq!(fs::read_dir(mounted.join("dead")).unwrap().count(), 80);
    assert!(!mounted.join("dead/absent").exists());
    assert!(stuck.iter().any(|reader| !reader.is_finished()), "nobody was stuck");

    for reader in stuck {
        assert_eq!(reader.join().unwrap(), Some(libc::EIO));
    }
}

#[test]
fn readers_of_a_dead_host_leave_those_of_another_their_turns() {
    let (dead, alive) = (Source::start(), Source::start());
    let mut entries = format!("<url><loc>{}alive</loc></url>", alive.url());
    alive.put("alive", Resource::new("bytes"));
    for number in 0..80 {
        let path = format!("dead/{number}");
        entries.push_str(&format!("<url><loc>{}{path}</loc><rs:md length=\"3\"/></url>", dead.url()));
        dead.fault(&path, Fault::StallHead(Duration::from_secs(60)), u64::MAX);
    }
    dead.document("list.xml", format!("{URLSET}{entries}</urlset>"));
    let other = alive.url().replace("http://", "").replace('/', "");
    let mounted = Mounted::new(&format!("{}list.xml", dead.url()), &format!("timeout=20s,poll=1h,allow-host={other}"));
    let stuck = read_all_of_the_dead(&mounted);
    let mut asked = 0;
    eventually("as many are asked for as may be at once", || {
        asked += dead.take_log().iter().filter(|logged| logged.path.starts_with("/dead/")).count();
        asked >= 16
    });

    assert_eq!(read(&mounted.join(&format!("%host/{other}/alive"))).unwrap(), b"bytes");
    assert!(stuck.iter().all(|reader| !reader.is_finished()), "nobody was stuck any more");
}

#[test]
fn an_unmount_while_somebody_reads_ends_cleanly() {
    let source = Source::start();
    source.put("slow", Resource::new(vec![1; 30 << 20]));
    source.fault("slow", Fault::Slow(Duration::from_millis(5)), u64::MAX);
    let mounted = Mounted::new(&source.url(), FAST);
    let path = mounted.join("slow");
    let reader = std::thread::spawn(move || fs::read(path).map(|bytes| bytes.len()));
    eventually("the file is being fetched", || !source.requests_of("slow").is_empty());

    mounted.signal(libc::SIGTERM);
    eventually("the mount point is free", || !mounted.is_mounted());

    let read = reader.join().unwrap();
    assert!(
        read.as_ref().map_or_else(|cause| cause.kind() != ErrorKind::NotFound, |length| *length == 30 << 20),
        "{read:?}"
    );
}

/// A list has its own connection: readers stuck on the Source's own host do not delay its changes.
#[test]
fn readers_stuck_on_the_source_do_not_hold_up_a_refresh() {
    let source = Source::start();
    for number in 0..4 {
        source.put(&format!("stuck/{number}"), Resource::new(format!("never {number}")));
        source.fault(&format!("stuck/{number}"), Fault::StallHead(Duration::from_secs(120)), u64::MAX);
    }
    let mounted = Mounted::new(&source.url(), "timeout=60s,poll=1h,connections=4");
    for number in 0..4 {
        let path = mounted.join(&format!("stuck/{number}"));
        std::thread::spawn(move || fs::read(path));
    }
    eventually("every connection is taken", || source.log().iter().filter(|it| it.path.contains("stuck")).count() >= 4);

    source.put("new", Resource::new("bytes"));
    mounted.refresh();

    eventually("the new name is seen", || mounted.join("new").exists());
}
