//! A set of URIs as 128-bit digests, in bounded memory.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_128;

/// Digests in memory before they are written to a file: 32 MiB.
const IN_MEMORY: usize = 2 << 20;

/// Digests in one block of a file.
const BLOCK: usize = 256;

/// Octets of one digest.
const WIDTH: usize = 16;

/// Where a set's files come from: files without a name, on a disk with room for so many octets.
pub type Scratch<'a> = &'a dyn Fn(u64) -> io::Result<File>;

/// A set being collected.
#[derive(Debug, Default)]
pub struct Collected {
    digests: Vec<u128>,
    /// Whether `digests` are ascending.
    is_sorted: bool,
    runs: Vec<Run>,
}

/// A set that is complete. Ten million URIs take the memory of two million, and a read from the page cache for each further
/// two millions at a look-up.
#[derive(Debug, Default)]
pub struct UriSet {
    /// Ascending.
    digests: Vec<u128>,
    runs: Vec<Run>,
}

/// Digests in a file, ascending, in blocks.
#[derive(Debug)]
struct Run {
    file: File,
    count: usize,
    /// The first digest of each block.
    firsts: Vec<u128>,
}

impl Collected {
    /// Adds a URI; any number of times.
    pub fn add(&mut self, uri: &str, scratch: Scratch<'_>) -> io::Result<()> {
        self.add_within(uri, scratch, IN_MEMORY)
    }

    fn add_within(&mut self, uri: &str, scratch: Scratch<'_>, in_memory: usize) -> io::Result<()> {
        if self.digests.len() >= in_memory {
            self.digests.sort_unstable();
            self.digests.dedup();
            // A list that names the same few again and again does not fill files with them.
            if self.digests.len() > in_memory / 2 {
                let octets = (self.digests.len() * WIDTH) as u64;
                self.runs.push(Run::write(&self.digests, scratch(octets)?)?);
                self.digests.clear();
            }
        }
        self.digests.push(xxh3_128(uri.as_bytes()));
        self.is_sorted = false;
        Ok(())
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty() && self.runs.is_empty()
    }

    /// Whether `uri` was added so far. To be asked when all were: else it sorts anew each time.
    pub fn contains(&mut self, uri: &str) -> io::Result<bool> {
        if !self.is_sorted {
            self.digests.sort_unstable();
            self.is_sorted = true;
        }
        contains(&self.digests, &self.runs, uri)
    }

    /// Everything was added.
    pub fn finish(mut self) -> UriSet {
        self.digests.sort_unstable();
        self.digests.dedup();
        self.digests.shrink_to_fit();
        UriSet { digests: self.digests, runs: self.runs }
    }
}

impl UriSet {
    /// Whether `uri` was added.
    pub fn contains(&self, uri: &str) -> io::Result<bool> {
        contains(&self.digests, &self.runs, uri)
    }
}

/// Whether `uri` is among `digests`, ascending, or in one of the `runs`.
fn contains(digests: &[u128], runs: &[Run], uri: &str) -> io::Result<bool> {
    if digests.is_empty() && runs.is_empty() {
        return Ok(false);
    }
    let digest = xxh3_128(uri.as_bytes());
    if digests.binary_search(&digest).is_ok() {
        return Ok(true);
    }
    for run in runs {
        if run.contains(digest)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Run {
    fn write(digests: &[u128], file: File) -> io::Result<Run> {
        let mut writer = BufWriter::with_capacity(1 << 18, &file);
        for digest in digests {
            writer.write_all(&digest.to_be_bytes())?;
        }
        writer.flush()?;
        drop(writer);
        let firsts = digests.iter().step_by(BLOCK).copied().collect();
        Ok(Run { file, count: digests.len(), firsts })
    }

    fn contains(&self, digest: u128) -> io::Result<bool> {
        let block = match self.firsts.binary_search(&digest) {
            Ok(_) => return Ok(true),
            Err(0) => return Ok(false),
            Err(behind) => behind - 1,
        };
        let mut octets = [0; BLOCK * WIDTH];
        let start = block * BLOCK;
        let octets = &mut octets[..BLOCK.min(self.count - start) * WIDTH];
        self.file.read_exact_at(octets, (start * WIDTH) as u64)?;
        Ok(octets.chunks_exact(WIDTH).any(|held| held == digest.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_found_in_memory_and_in_files() {
        let scratch = |_| tempfile::tempfile();
        let uri = |number: u32| format!("http://h/{number}");
        for in_memory in [10, 600, 5000, IN_MEMORY] {
            let mut set = Collected::default();
            for number in (0..4000).chain(0..100) {
                set.add_within(&uri(number), &scratch, in_memory).unwrap();
            }
            let set = set.finish();

            assert!((0..4000).all(|number| set.contains(&uri(number)).unwrap()), "{in_memory}");
            assert!((4000..8000).all(|number| !set.contains(&uri(number)).unwrap()), "{in_memory}");
        }
    }

    #[test]
    fn the_same_again_and_again_needs_no_file() {
        let scratch = |_| panic!("no file is needed");
        let mut set = Collected::default();
        for number in 0..10_000 {
            set.add_within(&format!("http://h/{}", number % 7), &scratch, 20).unwrap();
        }

        assert_eq!(set.finish().digests.len(), 7);
    }

    #[test]
    fn a_disk_without_room_is_an_error() {
        let scratch = |_| Err(io::Error::from(io::ErrorKind::StorageFull));
        let mut set = Collected::default();

        let result = (0..100).try_for_each(|number| set.add_within(&format!("http://h/{number}"), &scratch, 20));

        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn an_empty_set_holds_nothing() {
        assert!(!Collected::default().finish().contains("http://h/").unwrap());
    }
}
