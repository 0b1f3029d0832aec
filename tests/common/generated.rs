//! A Source whose files are computed as they are served, so that they may be of any size.

use super::server::{Act, Received, Reply, Server};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The Source: names with their lengths in bytes. It serves ranges under a strong ETag and publishes lengths alone.
pub struct GeneratedSource(Server);

impl GeneratedSource {
    /// Serves `files` on a free port.
    pub fn start(files: impl IntoIterator<Item = (String, u64)>) -> GeneratedSource {
        let files: BTreeMap<String, u64> = files.into_iter().collect();
        GeneratedSource(Server::start(move |request| answer(request, &files)))
    }

    /// The Resource List.
    pub fn list_url(&self) -> String {
        format!("http://{}/resourcelist.xml", self.0.authority())
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

/// The bytes of a file, computed as they are sent.
fn pieces(name: String, bytes: Range<usize>) -> impl Iterator<Item = Bytes> {
    const PIECE: usize = 64 << 10;
    bytes.clone().step_by(PIECE).map(move |at| {
        let mut piece = vec![0; PIECE.min(bytes.end - at)];
        fill(&name, at as u64, &mut piece);
        piece.into()
    })
}

fn answer(request: &Received, files: &BTreeMap<String, u64>) -> Vec<Act> {
    let name = request.path.trim_start_matches('/');
    if name == "resourcelist.xml" {
        let list = list(request.field("host").unwrap(), files);
        return Reply::full(list.as_bytes()).with("Content-Type", "application/xml").acts(request.is_head());
    }
    let Some(length) = files.get(name).map(|length| *length as usize) else {
        return Reply::status(404).acts(request.is_head());
    };
    let range = request.range(length);
    let bytes = range.clone().unwrap_or(0..length);
    let reply = match range {
        Some(Range { start, end }) => {
            Reply::status(206).with("Content-Range", &format!("bytes {start}-{}/{length}", end - 1))
        }
        None => Reply::status(200),
    };
    let reply = reply.with("ETag", &format!("\"{name}\"")).with("Accept-Ranges", "bytes");
    let mut acts = reply.announcing(Some(bytes.len())).acts(true);
    if !request.is_head() {
        acts.push(Act::Pieces(Box::new(pieces(name.to_owned(), bytes))));
    }
    acts
}

fn list(address: &str, files: &BTreeMap<String, u64>) -> String {
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
