//! A way to a server of this machine as if that stood far away: every octet arrives later, none is lost, and none waits for another.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The way.
pub struct Far {
    address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    open: AtomicUsize,
    most: AtomicUsize,
    /// All connections so far, and how many of them bring nothing any more.
    begun: AtomicUsize,
    dead: AtomicUsize,
}

impl Far {
    /// To `port`, half of `round_trip` in each direction.
    pub fn to(port: u16, round_trip: Duration) -> Far {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let far = Far { address: listener.local_addr().unwrap(), counts: Arc::default() };
        let counts = Arc::clone(&far.counts);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let counts = Arc::clone(&counts);
                std::thread::spawn(move || {
                    let open = counts.open.fetch_add(1, Ordering::SeqCst) + 1;
                    counts.most.fetch_max(open, Ordering::SeqCst);
                    // Whoever leaves ends the conversation, not the test.
                    let number = counts.begun.fetch_add(1, Ordering::SeqCst);
                    let is_dead = || number < counts.dead.load(Ordering::SeqCst);
                    let _ = both_ways(near, port, round_trip / 2, &is_dead);
                    counts.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        far
    }

    /// Where it begins.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// From now on all connections that there are swallow every octet, as after a change of network. Returns how many there are.
    pub fn forget_connections(&self) -> usize {
        self.counts.dead.store(self.counts.begun.load(Ordering::SeqCst), Ordering::SeqCst);
        self.counts.open.load(Ordering::SeqCst)
    }

    /// The most connections that were open at once.
    pub fn most_open(&self) -> usize {
        self.counts.most.load(Ordering::SeqCst)
    }
}

fn both_ways(near: TcpStream, port: u16, late: Duration, is_dead: &(dyn Fn() -> bool + Sync)) -> std::io::Result<()> {
    let there = TcpStream::connect(("127.0.0.1", port))?;
    near.set_nodelay(true)?;
    there.set_nodelay(true)?;
    let (from, to) = (near.try_clone()?, there.try_clone()?);
    std::thread::scope(|scope| {
        scope.spawn(move || one_way(there, near, late, is_dead));
        one_way(from, to, late, is_dead);
    });
    Ok(())
}

fn one_way(mut from: TcpStream, mut to: TcpStream, late: Duration, is_dead: &dyn Fn() -> bool) {
    // What is under way is bounded: a sender that is faster than its receiver waits.
    let (sender, pieces) = mpsc::sync_channel::<(Instant, Vec<u8>)>(256);
    let written = std::thread::spawn(move || {
        for (arrives, piece) in pieces {
            std::thread::sleep(arrives.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if is_dead() {
            continue;
        }
        if sender.send((Instant::now() + late, bytes[..count].to_vec())).is_err() {
            break;
        }
    }
    drop(sender);
    let _ = written.join();
    let _ = from.shutdown(Shutdown::Both);
}
