//! resync-simulator 1.1.0, a Source that creates, updates and deletes by itself, mounted under constant reading.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::nginx::free_port;
use common::random::Random;
use common::{eventually, rounds, tree, venv_program};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Events between two quiet points: some seconds of them.
const EVENTS: u64 = 600;

/// The simulator; it changes only on orders.
struct Simulator {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    port: u16,
}

impl Simulator {
    fn start(spec_version: &str) -> Simulator {
        let port = free_port();
        let mut process = Command::new(venv_program("SIMULATOR_VENV", "resync-simulator-1.1.0", "python"))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/simulated_source.py"))
            .args([&port.to_string(), spec_version])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, answers) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        eventually("the simulator listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Simulator { process, orders, answers, port }
    }

    /// Has so many events begin.
    fn begin(&mut self, events: u64) {
        writeln!(self.orders, "{events}").unwrap();
    }

    /// Waits until they are over; what must be shown from then on.
    fn quiet(&mut self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let lengths: BTreeMap<String, usize> = serde_json::from_str(&line).unwrap();
        lengths.iter().map(|(name, length)| (Path::new("resources").join(name), payload(name, *length))).collect()
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the simulator serves as version `length` of `name`: no two versions have a mixture that is a third.
fn payload(name: &str, length: usize) -> Vec<u8> {
    let mut bytes = name.repeat(length / name.len()).into_bytes();
    bytes.resize(length, b'x');
    bytes
}

/// What the readers have met.
#[derive(Default)]
struct Met {
    stop: AtomicBool,
    read: AtomicU64,
    refused: AtomicU64,
}

/// Reads files of `folder` at random until stopped. A read may fail while the Source changes; what it returns must be one version.
fn read_constantly(folder: &Path, seed: u64, met: &Met) {
    let mut random = Random::new(seed);
    while !met.stop.load(Ordering::Relaxed) {
        let listing = match fs::read_dir(folder) {
            // It shrinks at random, sometimes to nothing: then there is no folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            listing => listing.unwrap(),
        };
        let names: Vec<_> = listing.map(|entry| entry.unwrap().file_name()).collect();
        for _ in 0..names.len() {
            let name = names[random.below(names.len() as u64) as usize].to_str().unwrap();
            match fs::read(folder.join(name)) {
                Ok(bytes) => {
                    assert_eq!(bytes, payload(name, bytes.len()), "{name} is no version that ever was");
                    met.read.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => {
                    met.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            if met.stop.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

fn follows(spec_version: &str) {
    let mut simulator = Simulator::start(spec_version);
    // It cannot make a Change List without changes.
    simulator.begin(10);
    simulator.quiet();
    let mounted = Mounted::new(&format!("http://localhost:{}/", simulator.port), "poll=1h,max-delete=100");
    let met = Arc::new(Met::default());
    let readers: Vec<_> = (0..3)
        .map(|seed| {
            let (folder, met) = (mounted.join("resources"), met.clone());
            std::thread::spawn(move || read_constantly(&folder, seed, &met))
        })
        .collect();

    for round in 0..rounds() {
        simulator.begin(EVENTS);
        for _ in 0..5 {
            // It may fail: a list made while the simulator changes is an error of its server now and then.
            let _ = mounted.try_refresh();
        }
        let expected = simulator.quiet();
        mounted.try_refresh().unwrap();
        // It grows and shrinks at random: where none of the few files of a look is left, that is held back for a person to accept.
        let accepted =
            Command::new(PROGRAM).args(["refresh", "--accept-deletions"]).arg(mounted.path()).output().unwrap();
        assert!(accepted.status.success(), "{}", String::from_utf8_lossy(&accepted.stderr));

        let shown = tree(&mounted.path());

        let names = |tree: &BTreeMap<PathBuf, Vec<u8>>| tree.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&shown), names(&expected), "round {round}");
        for (path, bytes) in &shown {
            assert!(*bytes == expected[path], "round {round}: {} is not what the Source has", path.display());
        }
    }
    met.stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    let (read, refused) = (met.read.load(Ordering::Relaxed), met.refused.load(Ordering::Relaxed));
    assert!(read > 1000 && refused < read, "{read} files were read, {refused} refused");
}

/// Promise: what a read returns is what the Source published, and at every quiet point the mount equals the Source.
#[test]
fn the_simulator_of_version_1_1_is_followed() {
    follows("1.1");
}

#[test]
fn the_simulator_of_version_1_0_is_followed() {
    follows("1.0");
}
