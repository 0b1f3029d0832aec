//! A network with delay: a TUN device that gives every packet back after half the round trip, source and destination swapped.
//!
//! Who connects to [`FAR`] reaches this very machine, as if from [`FAR`], over true TCP: handshake, slow start and all. A
//! checksum is a sum, so it stays right when addresses change places. Works as root, in a network namespace of its own.
//! A [`Line`] may have a rate: then packets wait in a queue, and what finds it full is lost.
//!
//! Segments are as long as on an Ethernet: with longer ones a connection begins with ten times as many bytes as elsewhere,
//! and then waits for a receive window that holds one of them, or two, so that the same transfer takes 0.5 s or 1.6 s. So that
//! many of them cost no more than a few, the device takes what a network card with segmentation offload takes
//! (`Documentation/networking/tuntap.rst`): up to 64 KiB at a time, behind a header that says how they are cut.

use crate::measure::percentile;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The address at which servers of this machine are reached through the delay; they listen on [`NEAR`] or on all addresses.
pub const FAR: &str = "10.77.0.2";

/// The address of this end.
pub const NEAR: &str = "10.77.0.1";

/// The address at which the same servers are reached through a second line, and that of its near end.
pub const STORE: &str = "10.78.0.2";
const NEAR_STORE: &str = "10.78.0.1";

/// The longest packet of an Ethernet.
const LONGEST: usize = 1500;

/// `struct virtio_net_hdr`, which says how what follows is cut into packets. It holds no address, and goes back as it came.
const HEAD: usize = 10;

/// The head, and what an IPv4 packet can hold.
const AT_ONCE: usize = HEAD + (64 << 10);

/// `struct ifreq` as TUNSETIFF takes it (netdevice(7)).
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// The network between here and [`FAR`].
#[derive(Clone, Copy)]
pub struct Line {
    pub round_trip: Duration,
    /// Bytes a second, of both directions together; `None`: as many as the processors move.
    pub rate: Option<u64>,
}

impl Line {
    /// When a packet of so many bytes has left a line that is free from `from` on.
    fn left(self, from: Instant, bytes: usize) -> Instant {
        self.rate.map_or(from, |rate| from + Duration::from_secs_f64(bytes as f64 / rate as f64))
    }

    /// Bytes that wait for a line at most: what it moves in two round trips, twice what it needs to be kept busy.
    fn most_waiting(self) -> usize {
        self.rate.map_or(usize::MAX, |rate| (2.0 * rate as f64 * self.round_trip.as_secs_f64()) as usize)
    }
}

/// Up to here a packet is copied into memory of its own; what is longer keeps the memory that it was read into.
const SMALL: usize = 4 << 10;

/// A packet is what the memory that it was read into begins with.
struct Packet {
    memory: Vec<u8>,
    bytes: usize,
}

/// Packets on their way, with the moment at which each is there.
#[derive(Default)]
struct OnTheWay {
    packets: VecDeque<(Instant, Packet)>,
    /// Memory of long packets that are there, for those to come: what has to be had of the system for each of them takes as much
    /// of the processors, which what is measured needs, as all else that is done here.
    spare: Vec<Vec<u8>>,
    /// When the last of them has left the line's queue.
    free: Option<Instant>,
}

type Queue = Arc<(Mutex<OnTheWay>, Condvar)>;

/// Moves this thread, and what it starts from now on, into a network namespace where [`FAR`] is behind `line`.
pub fn enter(line: Line) -> io::Result<()> {
    // SAFETY: unshare has no preconditions; it changes this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // What one connection learns of the way is not passed to the next: each round begins as the first.
    std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")?;
    ip(&["link", "set", "lo", "up"])?;
    open("delay0", NEAR, line)
}

/// Opens a second line in the namespace that [`enter`] has made: [`STORE`] is behind it.
pub fn open_second(line: Line) -> io::Result<()> {
    open("delay1", NEAR_STORE, line)
}

fn open(name: &str, near: &str, line: Line) -> io::Result<()> {
    let device = interface(name)?;
    ip(&["addr", "add", &format!("{near}/24"), "dev", name])?;
    ip(&["link", "set", name, "up", "mtu", &LONGEST.to_string(), "txqueuelen", "20000"])?;
    let queue = Queue::default();
    let (out, waiting) = (device.try_clone()?, Arc::clone(&queue));
    std::thread::spawn(move || take_in(device, &queue, line));
    std::thread::spawn(move || give_back(out, &waiting));
    Ok(())
}

/// Connections to `server` must take `round_trip`, or what is measured there is not what its row says.
pub fn assert_away(server: SocketAddr, round_trip: Duration) {
    let mut times: Vec<Duration> = (0..5)
        .map(|_| {
            let began = Instant::now();
            TcpStream::connect(server).unwrap();
            began.elapsed()
        })
        .collect();
    let median = percentile(&mut times, 50);
    let most = round_trip + Duration::from_millis(5);
    assert!(
        (round_trip..=most).contains(&median),
        "a connection to {server} takes {median:?}: there is no network of {round_trip:?} between"
    );
}

fn interface(name: &str) -> io::Result<File> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = InterfaceRequest {
        name: [0; libc::IFNAMSIZ],
        flags: (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short,
        rest: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the request is as long as a `struct ifreq` and lives through the call.
    if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let taken: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
    // SAFETY: TUNSETOFFLOAD takes its flags as the argument itself.
    if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(taken)) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device)
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

fn take_in(mut device: File, queue: &Queue, line: Line) {
    let mut packet = vec![0; AT_ONCE];
    while let Ok(bytes) = device.read(&mut packet) {
        // An IPv4 header holds the source at 12 and the destination at 16.
        if bytes < HEAD + 20 || packet[HEAD] >> 4 != 4 {
            continue;
        }
        let (head, tail) = packet.split_at_mut(HEAD + 16);
        head[HEAD + 12..].swap_with_slice(&mut tail[..4]);
        let mut on_the_way = queue.0.lock().unwrap();
        let now = Instant::now();
        let free = on_the_way.free.map_or(now, |free| free.max(now));
        if line.left(now, line.most_waiting()) < free {
            continue;
        }
        let left = line.left(free, bytes);
        on_the_way.free = Some(left);
        let memory = match bytes <= SMALL {
            true => packet[..bytes].to_vec(),
            false => {
                let spare = on_the_way.spare.pop().unwrap_or_else(|| vec![0; AT_ONCE]);
                std::mem::replace(&mut packet, spare)
            }
        };
        if on_the_way.packets.is_empty() {
            queue.1.notify_one();
        }
        on_the_way.packets.push_back((left + line.round_trip / 2, Packet { memory, bytes }));
    }
}

fn give_back(mut device: File, queue: &Queue) {
    let mut there: Vec<u8> = Vec::new();
    loop {
        let mut waiting = queue.0.lock().unwrap();
        if there.len() == AT_ONCE {
            waiting.spare.push(there);
        }
        let (due, packet) = loop {
            match waiting.packets.pop_front() {
                Some(next) => break next,
                None => waiting = queue.1.wait(waiting).unwrap(),
            }
        };
        drop(waiting);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A packet that the device does not take is lost, as packets are.
        let _ = device.write_all(&packet.memory[..packet.bytes]);
        there = packet.memory;
    }
}
