//! What an audit finds: of what is kept here, and of what the Source serves.

use super::*;
use crate::content::verify::{Asked, Checked, digests_shown};
use crate::source::tests::server::Reply;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cached_object_is_absent_intact_or_corrupt() {
    let body = bytes(300_000, 1);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    assert_eq!(mounted.content.check(&spec), Checked::Absent);
    mounted.read_all(&spec).await.unwrap();
    assert_eq!(mounted.content.check(&spec), Checked::Intact(body.len() as u64));

    flip_bits(&mounted.config.folder.join("objects"));

    let found = mounted.content.check(&spec);
    assert_eq!(found, Checked::Corrupt("the cached copy is damaged after 0 bytes".to_owned()));
    assert_eq!(mounted.content.check(&spec), Checked::Absent, "it is gone, and is fetched again");
    assert_eq!(mounted.read_all(&spec).await.unwrap(), body);
    assert_eq!(mounted.content.check(&spec), Checked::Intact(body.len() as u64));
}

/// The disk fails for a time: a read of the open object is an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_cannot_be_read_now_is_kept() {
    let body = bytes(300_000, 6);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    let spec = vouched(&server, &body);
    mounted.read_all(&spec).await.unwrap();
    let below = mounted.config.folder.join("objects");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_object = |link: &std::path::PathBuf| std::fs::read_link(link).is_ok_and(|file| file.starts_with(&below));
    let [link] = &descriptors.filter(is_object).collect::<Vec<_>>()[..] else { panic!("one object is open") };
    let open: i32 = link.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let unreadable = std::fs::File::options().write(true).open(std::fs::read_link(link).unwrap()).unwrap();
    // SAFETY: takes no pointers; both descriptors are open, and the object keeps its own number.
    let (readable, replaced) = unsafe { (libc::dup(open), libc::dup2(unreadable.as_raw_fd(), open)) };
    assert!(readable >= 0 && replaced == open);

    let found = mounted.content.check(&spec);

    // SAFETY: as above; the copy is closed once.
    assert!(unsafe { libc::dup2(readable, open) == open && libc::close(readable) == 0 });
    assert!(matches!(&found, Checked::Failed(why) if why.contains("Bad file descriptor")), "{found:?}");
    assert_eq!(mounted.content.check(&spec), Checked::Intact(body.len() as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_bytes_are_held_to_a_digest_published_later() {
    let body = bytes(5_000, 2);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    mounted.read_all(&bare(&server, "/a")).await.unwrap();
    assert_eq!(mounted.content.check(&bare(&server, "/a")), Checked::Intact(body.len() as u64));

    let of_others = FetchSpec { hashes: vec![digest(Algorithm::Md5, b"others")], ..bare(&server, "/a") };

    assert!(matches!(mounted.content.check(&of_others), Checked::Corrupt(what) if what.contains("is published")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_bytes_are_checked_and_not_cached() {
    let body = bytes(5_000, 3);
    let server = Server::of(&body, None);
    let mounted = Mounted::plain(&server);
    let ask = async |spec: &FetchSpec| mounted.content.ask(spec, PLENTY, &AtomicU64::default()).await;
    let of_others = FetchSpec { hashes: vec![digest(Algorithm::Md5, b"others")], ..measured(&server, &body) };
    let longer = FetchSpec { length: Some(5_001), ..bare(&server, "/a") };

    assert_eq!(ask(&vouched(&server, &body)).await, Asked::Same);
    assert_eq!(ask(&measured(&server, &body)).await, Asked::Same);
    assert_eq!(ask(&bare(&server, "/a")).await, Asked::There);
    assert!(matches!(ask(&of_others).await, Asked::Changed(_)));
    assert!(matches!(ask(&longer).await, Asked::Changed(_)));
    assert_eq!(mounted.content.check(&vouched(&server, &body)), Checked::Absent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_published_facts_earlier_bytes_show_a_change() {
    let served = Arc::new(Mutex::new(bytes(5_000, 4)));
    let serving = Arc::clone(&served);
    let server = Server::start(move |_| Reply::full(&serving.lock().unwrap()));
    let mounted = Mounted::plain(&server);
    let spec = bare(&server, "/a");
    mounted.read_all(&spec).await.unwrap();
    assert_eq!(mounted.content.ask(&spec, PLENTY, &AtomicU64::default()).await, Asked::Same);

    served.lock().unwrap()[7] ^= 1;

    assert!(matches!(mounted.content.ask(&spec, PLENTY, &AtomicU64::default()).await, Asked::Changed(_)));
    assert_eq!(mounted.content.check(&spec), Checked::Intact(5_000), "what is kept is what it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_no_change_and_a_page_is_no_resource() {
    let replies = Mutex::new(vec![
        Reply::full(b"<html>").with("Content-Type", "text/html"),
        Reply::status(403),
        Reply::status(410),
        Reply::status(404),
    ]);
    let server = Server::start(move |_| replies.lock().unwrap().pop().unwrap());
    let mounted = Mounted::plain(&server);
    let spec = FetchSpec { media_type: Some("application/pdf".into()), ..bare(&server, "/a") };
    let ask = async || mounted.content.ask(&spec, PLENTY, &AtomicU64::default()).await;

    assert!(matches!(ask().await, Asked::Gone(_)));
    assert!(matches!(ask().await, Asked::Gone(_)));
    assert!(matches!(ask().await, Asked::Failed(_)));
    assert!(matches!(ask().await, Asked::Failed(what) if what.contains("login page")));
}

#[test]
fn digests_of_coded_bytes_are_not_those_of_a_read() {
    let plain = FetchSpec {
        hashes: vec![digest(Algorithm::Md5, b"x")],
        ..FetchSpec::new(Ino(2), crate::document::Uri::parse("http://h/a").unwrap())
    };
    let coded = FetchSpec { encoding: Some("gzip".into()), ..plain.clone() };
    let as_it_comes = FetchSpec { encoding: Some("br".into()), ..plain.clone() };

    assert_eq!(digests_shown(&plain).len(), 1);
    assert_eq!(digests_shown(&coded).len(), 0);
    assert_eq!(digests_shown(&as_it_comes).len(), 1, "what cannot be decoded is shown as it comes");
}
