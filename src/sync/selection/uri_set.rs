//! A set of URIs as 128-bit digests, in bounded memory.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_128;

/// Digests in memory before they are written to a file: as many as a table of 34 MiB takes.
const IN_MEMORY: usize = 7 << 18;

/// Digests in one block of a file.
const BLOCK: usize = 256;

/// Bytes of one digest.
const WIDTH: usize = 16;

/// Where a set's files come from: files without a name, on a disk with room for that many bytes.
pub type Scratch<'a> = &'a dyn Fn(u64) -> io::Result<File>;

/// A set of URIs. Ten million take the memory of two million, and a look-up then reads one block of each file.
#[derive(Debug, Default)]
pub struct UriSet {
    digests: HashSet<u128>,
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

impl UriSet {
    /// Adds a URI; any number of times.
    ///
    /// # Errors
    /// A file that cannot be created or written.
    pub fn add(&mut self, uri: &str, scratch: Scratch<'_>) -> io::Result<()> {
        self.add_within(uri, scratch, IN_MEMORY)
    }

    fn add_within(&mut self, uri: &str, scratch: Scratch<'_>, in_memory: usize) -> io::Result<()> {
        if self.digests.len() >= in_memory {
            let mut digests: Vec<u128> = self.digests.drain().collect();
            digests.sort_unstable();
            self.runs.push(Run::write(&digests, scratch((digests.len() * WIDTH) as u64)?)?);
        }
        self.digests.insert(xxh3_128(uri.as_bytes()));
        Ok(())
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty() && self.runs.is_empty()
    }

    /// Whether `uri` was added.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn contains(&self, uri: &str) -> io::Result<bool> {
        if self.is_empty() {
            return Ok(false);
        }
        let digest = xxh3_128(uri.as_bytes());
        if self.digests.contains(&digest) {
            return Ok(true);
        }
        for run in &self.runs {
            if run.contains(digest)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
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
        let mut bytes = [0; BLOCK * WIDTH];
        let start = block * BLOCK;
        let bytes = &mut bytes[..BLOCK.min(self.count - start) * WIDTH];
        self.file.read_exact_at(bytes, (start * WIDTH) as u64)?;
        Ok(bytes.chunks_exact(WIDTH).any(|there| there == digest.to_be_bytes()))
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
            let mut set = UriSet::default();
            for number in (0..4000).chain(0..100) {
                set.add_within(&uri(number), &scratch, in_memory).unwrap();
            }

            assert!((0..4000).all(|number| set.contains(&uri(number)).unwrap()), "{in_memory}");
            assert!((4000..8000).all(|number| !set.contains(&uri(number)).unwrap()), "{in_memory}");
        }
    }

    #[test]
    fn the_same_again_and_again_needs_no_file() {
        let scratch = |_| panic!("no file is needed");
        let mut set = UriSet::default();
        for number in 0..10_000 {
            set.add_within(&format!("http://h/{}", number % 7), &scratch, 20).unwrap();
        }

        assert_eq!(set.digests.len(), 7);
    }

    #[test]
    fn a_disk_without_room_is_an_error() {
        let scratch = |_| Err(io::Error::from(io::ErrorKind::StorageFull));
        let mut set = UriSet::default();

        let result = (0..100).try_for_each(|number| set.add_within(&format!("http://h/{number}"), &scratch, 20));

        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn an_empty_set_holds_nothing() {
        assert!(!UriSet::default().contains("http://h/").unwrap());
    }
}
