//! One cache for many machines: the Source is far away, the store is near.

use crate::common::eventually;
use crate::common::mounted::Mounted;
use crate::common::nginx::Nginx;
use crate::delay::{self, FAR, Line, STORE};
use crate::measure::{ROUNDS, Row, forget, keep, percentile, settle};
use crate::s3::{Fault, S3};
use crate::wire::{Asked, far, far_away, grep_all, make_some, wait_for_the_last_connection};
use std::net::TcpListener;
use std::time::Duration;

/// From here to the store and back.
const TO_THE_STORE: Duration = Duration::from_millis(1);

/// How the paths of the files of the Source begin; those of its documents begin with `/do`.
const FILES: &str = "/d0";

const WORK: &str = "`grep -r`, 726 files, cold, RTT 40 ms to the Source and 1 ms to the shared cache";

/// An empty store at the end of the second line.
fn store() -> S3 {
    let listener = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let store = S3::on(listener, STORE);
    delay::assert_away((STORE.parse::<std::net::IpAddr>().unwrap(), port).into(), TO_THE_STORE);
    store
}

/// A machine that has nothing in its own cache.
fn machine(nginx: &Nginx, store: Option<&S3>) -> Mounted {
    let source = format!("{}documents/resourcelist.xml", nginx.url());
    let options = store.map_or("poll=1h".to_owned(), |store| format!("poll=1h,shared-cache={}", store.url()));
    let environment = store.map(S3::environment).unwrap_or_default();
    let mounted = Mounted::prepared(&source, &options);
    let mounted = environment.iter().fold(mounted, |mounted, (name, value)| mounted.with_environment(name, value));
    mounted.start();
    mounted
}

/// The seconds of its `grep -r`, and what that asked of the Source; then `until`, and its end.
fn timed(nginx: &Nginx, store: Option<&S3>, until: impl FnOnce()) -> (Duration, u64) {
    settle();
    let before = Asked::so_far(nginx, FILES);
    let mounted = machine(nginx, store);
    let took = grep_all(&mounted.path());
    until();
    mounted.unmount();
    forget(mounted.cache());
    keep(mounted);
    wait_for_the_last_connection();
    (took, Asked::so_far(nginx, FILES).since(before).requests)
}

fn seconds(times: &mut [Duration]) -> f64 {
    percentile(times, 50).as_secs_f64()
}

fn far_away_with_a_store(rows: impl FnOnce() -> Vec<Row> + Send + 'static) -> Vec<Row> {
    far_away(WORK, &[], || match delay::open_second(Line { round_trip: TO_THE_STORE, rate: None }) {
        Ok(()) => rows(),
        Err(cause) => vec![Row::not_measured(WORK, &format!("no second line can be made: {cause}"))],
    })
}

/// A machine that reads what another has read before, compared with that other, and that with one without a shared cache.
pub fn second_machine() -> Vec<Row> {
    far_away_with_a_store(|| {
        let nginx = far(Nginx::serving_at(FAR, make_some));
        let files = crate::measure::files(&nginx.files()).len();
        let (mut alone, mut first, mut second, mut requests) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            alone.push(timed(&nginx, None, || ()).0);
            let store = store();
            let uploaded = || eventually("everything is uploaded", || store.contents().len() == files);
            first.push(timed(&nginx, Some(&store), uploaded).0);
            let (took, asked) = timed(&nginx, Some(&store), || ());
            second.push(took);
            requests = requests.max(asked);
            keep(store);
        }
        keep(nginx);
        let [alone, first, second] = [&mut alone, &mut first, &mut second].map(|times| seconds(times));
        let row = |work: &str, ours: f64, asked: &str, peer: &str, theirs: f64, most: f64, holds: bool| Row {
            work: format!("{work}: {WORK}"),
            measured: format!("{ours:.2} s{asked}"),
            peer: format!("{peer} {theirs:.2} s"),
            ratio: format!("{:.2}", ours / theirs),
            bar: format!("<= {most}"),
            holds: holds && ours <= most * theirs,
        };
        let asked = format!(", {requests} requests to the Source");
        vec![
            row("second machine", second, &asked, "the first machine", first, 0.4, requests == 0),
            row("first machine, which fills it", first, "", "without a shared cache", alone, 1.15, true),
        ]
    })
}

/// What a store costs that is of no use.
pub fn broken_stores() -> Vec<Row> {
    far_away_with_a_store(|| {
        let nginx = far(Nginx::serving_at(FAR, make_some));
        let alone = timed(&nginx, None, || ()).0.as_secs_f64();
        let faults = [
            ("answers nothing", Fault::Slow(Duration::from_secs(10)), 6.0),
            ("refuses everything", Fault::Status(403), 2.0),
            ("ends every connection", Fault::Silent, 2.0),
            ("lies about every byte", Fault::Lies, 3.0),
        ];
        let rows = faults.map(|(name, fault, most)| {
            let store = store();
            let files = crate::measure::files(&nginx.files()).len();
            if fault == Fault::Lies {
                timed(&nginx, Some(&store), || eventually("it is full", || store.contents().len() == files));
            }
            store.fault(Some(fault));
            let took = timed(&nginx, Some(&store), || ()).0.as_secs_f64();
            keep(store);
            Row {
                work: format!("a shared cache that {name}: {WORK}"),
                measured: format!("{took:.2} s"),
                peer: format!("without a shared cache {alone:.2} s"),
                ratio: format!("{:.2} s more", took - alone),
                bar: format!("<= {most} s more"),
                holds: took <= alone + most,
            }
        });
        keep(nginx);
        rows.to_vec()
    })
}
