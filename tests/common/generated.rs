//! A Source whose files are computed as they are served, so that they may be of any size.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The Source: names with their lengths in bytes. It serves ranges under a strong ETag and publishes lengths alone.
pub struct GeneratedSource {
    address: SocketAddr,
}

impl GeneratedSource {
    /// Serves `files` on a free port.
    pub fn start(files: impl IntoIterator<Item = (String, u64)>) -> GeneratedSource {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let files: Arc<BTreeMap<String, u64>> = Arc::new(files.into_iter().collect());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let files = Arc::clone(&files);
                // A client that leaves ends its connection, not the test.
                std::thread::spawn(move || serve(stream, address, &files));
            }
        });
        GeneratedSource { address }
    }

    /// The Resource List.
    pub fn list_url(&self) -> String {
        format!("http://{}/resourcelist.xml", self.address)
    }
}

/// Bytes a block: each begins with a word of its own.
const BLOCK: u64 = 512;

/// Fills `buffer` with the bytes of the file `name` from `offset` on.
pub fn fill(name: &str, offset: u64, buffer: &mut [u8]) {
    let seed = name.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let (mut at, mut rest) = (offset, buffer);
    while !rest.is_empty() {
        let mut block = [name.len() as u8; BLOCK as usize];
        block[..8].copy_from_slice(&mixed(seed ^ (at / BLOCK)).to_le_bytes());
        let skipped = (at % BLOCK) as usize;
        let taken = rest.len().min(block.len() - skipped);
        rest[..taken].copy_from_slice(&block[skipped..skipped + taken]);
        at += taken as u64;
        rest = &mut rest[taken..];
    }
}

/// Reads `length` bytes at `offset` of the file `name`, and compares them with what the Source serves.
pub fn check(file: &File, name: &str, offset: u64, length: usize) {
    let (mut read, mut expected) = (vec![0; length], vec![0; length]);
    fill(name, offset, &mut expected);
    file.read_exact_at(&mut read, offset).unwrap_or_else(|error| panic!("{name} at {offset}: {error}"));
    assert!(read == expected, "{name} at {offset}: other bytes");
}

/// Reads the file `name` of a mount from its first byte to its last, and compares it.
pub fn read_whole(folder: &Path, name: &str, length: u64) {
    const STEP: u64 = 1 << 20;
    let file = File::open(folder.join(name)).unwrap();
    (0..length).step_by(STEP as usize).for_each(|at| check(&file, name, at, STEP.min(length - at) as usize));
}

/// SplitMix64: a word that differs at each block of each file.
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

fn serve(stream: TcpStream, address: SocketAddr, files: &BTreeMap<String, u64>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if input.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        answer(&head, &mut output, address, files)?;
    }
}

fn answer(
    head: &str,
    output: &mut TcpStream,
    address: SocketAddr,
    files: &BTreeMap<String, u64>,
) -> std::io::Result<()> {
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let name = path.trim_start_matches('/');
    if name == "resourcelist.xml" {
        let list = list(address, files);
        write!(output, "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n", list.len())?;
        return output.write_all(list.as_bytes());
    }
    let Some(length) = files.get(name).copied() else {
        return output.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    };
    let range = head.lines().find_map(|line| {
        let (field, value) = line.split_once(": ")?;
        field.eq_ignore_ascii_case("range").then(|| value.trim_start_matches("bytes=").to_owned())
    });
    let (first, end) = match range.as_deref().and_then(|range| range.split_once('-')) {
        Some(("", last)) => (length.saturating_sub(last.parse().unwrap_or(0)), length),
        Some((first, "")) => (first.parse().unwrap_or(0), length),
        Some((first, last)) => {
            (first.parse().unwrap_or(0), last.parse::<u64>().map_or(length, |last| (last + 1).min(length)))
        }
        None => (0, length),
    };
    match range {
        Some(_) => {
            write!(output, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{}/{length}\r\n", end - 1)?
        }
        None => write!(output, "HTTP/1.1 200 OK\r\n")?,
    }
    write!(
        output,
        "ETag: \"{name}\"\r\nAccept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
        end - first
    )?;
    let mut piece = vec![0; 64 << 10];
    let mut at = first;
    while method != "HEAD" && at < end {
        let taken = piece.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        fill(name, at, &mut piece[..taken]);
        output.write_all(&piece[..taken])?;
        at += taken as u64;
    }
    Ok(())
}

fn list(address: SocketAddr, files: &BTreeMap<String, u64>) -> String {
    let entry = |(name, length): (&String, &u64)| {
        format!(
            "<url><loc>http://{address}/{name}</loc><lastmod>2026-01-02T03:04:05Z</lastmod><rs:md length=\"{length}\"/></url>\n"
        )
    };
    format!(
        "<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" xmlns:rs=\"http://www.openarchives.org/rs/terms/\">\n\
         <rs:md capability=\"resourcelist\" at=\"2026-01-03T00:00:00Z\"/>\n{}</urlset>\n",
        files.iter().map(entry).collect::<String>()
    )
}
