//! What is present of a partial object, on disk beside it as `KEY.present`.
//!
//! ```text
//! ┌─────────┬─────────────┬─────────────────────┬────────────┬───────────────────────┬────────┐
//! │ magic 8 │ version u32 │ key fingerprint u64 │ length u64 │ validator: u32, UTF-8 │ CRC32C │
//! │         │             │                     │ (max: none)│                       │        │
//! └─────────┴─────────────┴─────────────────────┴────────────┴───────────────────────┴────────┘
//! ┌───────────────────────┬────────┐
//! │ blocks: u32, each     │ CRC32C │ for each time that something was noted
//! │ number u64, CRC32C    │        │
//! └───────────────────────┴────────┘
//! ```
//!
//! All numbers are little-endian; the CRC32C at the end of a part is that of all parts so far but for such CRCs, so that none counts where
//! another lies before it. Only whole blocks are told, each with its CRC: after a power loss the sidecar may be newer than the bytes, and
//! the CRC tells. A part that a kill or a power loss cut is the end.
//!
//! What is new is added behind what is told: all of it would else be written again and again, the more the larger the object is, and
//! a file that is replaced gives its blocks back before that call returns. Some filesystems tell the disk so (ext4(5), `discard`), and
//! wait for it while it is busy with what is being written.

use super::ObjectKey;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"rsyncprt";
/// Of the layout in this module's header. A file of another version is none.
const VERSION: u32 = 2;

/// Bytes of a block's number and CRC.
const RECORD: usize = 12;

/// What is known of a partial object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sidecar {
    pub(super) length: Option<u64>,
    pub(super) validator: Option<String>,
    /// Whole blocks, by number, with their CRCs. Of a block that is told twice the last one counts.
    pub(super) checks: Vec<(u64, u32)>,
}

impl Sidecar {
    /// What follows the name of the partial's file.
    pub(super) const SUFFIX: &str = ".present";

    pub(super) fn path(partial: &Path) -> PathBuf {
        let mut path = partial.as_os_str().to_owned();
        path.push(Sidecar::SUFFIX);
        path.into()
    }

    /// The sidecar of the partial file at that path; `None` where there is none, or it is not this key's.
    pub(super) fn read(partial: &Path, key: &ObjectKey) -> Option<Sidecar> {
        Sidecar::decode(&std::fs::read(Sidecar::path(partial)).ok()?, key)
    }

    pub(super) fn remove(partial: &Path) {
        // Most partials never had one.
        let _ = std::fs::remove_file(Sidecar::path(partial));
    }

    /// A new file of it, in place of what had that name.
    fn create(&self, partial: &Path, key: &ObjectKey) -> io::Result<Grown> {
        let path = Sidecar::path(partial);
        let mut aside = path.as_os_str().to_owned();
        aside.push("~");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        let (head, crc) = self.encode_head(key);
        let (part, crc) = encode_part(&self.checks, crc);
        file.write_all(&[head, part].concat())?;
        std::fs::rename(&aside, &path)?;
        Ok(Grown { file, crc })
    }

    fn encode_head(&self, key: &ObjectKey) -> (Vec<u8>, u32) {
        let validator = self.validator.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(64 + validator.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&key.fingerprint().to_le_bytes());
        bytes.extend_from_slice(&self.length.unwrap_or(u64::MAX).to_le_bytes());
        bytes.extend_from_slice(&(validator.len() as u32).to_le_bytes());
        bytes.extend_from_slice(validator.as_bytes());
        with_crc(bytes, 0)
    }

    fn decode(bytes: &[u8], key: &ObjectKey) -> Option<Sidecar> {
        let rest = bytes.strip_prefix(&MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
        let rest = rest.strip_prefix(&key.fingerprint().to_le_bytes())?;
        let (length, rest) = rest.split_first_chunk()?;
        let (validator_length, rest) = rest.split_first_chunk()?;
        let (validator, rest) = rest.split_at_checked(u32::from_le_bytes(*validator_length) as usize)?;
        let mut parts = Parts { rest: bytes, crc: 0 };
        parts.take(bytes.len() - rest.len())?;
        let mut checks = Vec::new();
        while let Some(blocks) = parts.blocks() {
            checks.extend(blocks);
        }
        Some(Sidecar {
            length: Some(u64::from_le_bytes(*length)).filter(|length| *length != u64::MAX),
            validator: Some(std::str::from_utf8(validator).ok()?.to_owned()).filter(|v| !v.is_empty()),
            checks,
        })
    }
}

/// A part behind others of that CRC; with it they have the other one that is answered.
fn encode_part(checks: &[(u64, u32)], before: u32) -> (Vec<u8>, u32) {
    let mut bytes = Vec::with_capacity(8 + checks.len() * RECORD);
    bytes.extend_from_slice(&(checks.len() as u32).to_le_bytes());
    for (block, crc) in checks {
        bytes.extend_from_slice(&block.to_le_bytes());
        bytes.extend_from_slice(&crc.to_le_bytes());
    }
    with_crc(bytes, before)
}

fn with_crc(mut bytes: Vec<u8>, before: u32) -> (Vec<u8>, u32) {
    let crc = crc32c::crc32c_append(before, &bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    (bytes, crc)
}

/// Parts that are read one behind the other.
struct Parts<'a> {
    rest: &'a [u8],
    /// Of those that were read.
    crc: u32,
}

impl<'a> Parts<'a> {
    /// The next one, of so many bytes; `None` where it is not whole.
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.rest.split_at_checked(length)?;
        let (told, rest) = rest.split_first_chunk()?;
        let crc = crc32c::crc32c_append(self.crc, part);
        if crc != u32::from_le_bytes(*told) {
            return None;
        }
        *self = Parts { rest, crc };
        Some(part)
    }

    /// The next one's blocks.
    fn blocks(&mut self) -> Option<impl Iterator<Item = (u64, u32)> + use<'a>> {
        let (count, _) = self.rest.split_first_chunk()?;
        let length = (u32::from_le_bytes(*count) as usize).checked_mul(RECORD)?;
        let records = &self.take(length.checked_add(size_of_val(count))?)?[size_of_val(count)..];
        Some(records.chunks_exact(RECORD).filter_map(|record| {
            let (number, crc) = record.split_first_chunk()?;
            Some((u64::from_le_bytes(*number), u32::from_le_bytes(crc.try_into().ok()?)))
        }))
    }
}

/// A sidecar that is open at its end.
#[derive(Debug)]
struct Grown {
    file: File,
    /// Of all its parts.
    crc: u32,
}

impl Grown {
    fn add(&mut self, checks: &[(u64, u32)]) -> io::Result<()> {
        let (part, crc) = encode_part(checks, self.crc);
        self.file.write_all(&part)?;
        self.crc = crc;
        Ok(())
    }

    /// Another process that goes on with the key may have taken it away with what went before.
    fn has_name(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }
}

/// The sidecar of a partial that this process writes.
///
/// Invariant: `grown`, where it is open, tells at least `told`, and ends with a whole part.
#[derive(Debug, Default)]
pub(super) struct Notes {
    grown: Option<Grown>,
    told: Sidecar,
    /// There may be one, of this process or one before.
    is_there: bool,
}

impl Notes {
    /// `is_there`: an earlier process may have left one. The first note takes its place.
    pub(super) fn new(is_there: bool) -> Notes {
        Notes { is_there, ..Notes::default() }
    }

    /// Writes down what is known `now`, with its blocks in order, of the partial file at that path. A block that was lost since it was
    /// told is told still: what is there has another CRC.
    pub(super) fn note(&mut self, now: Sidecar, partial: &Path, key: &ObjectKey) -> io::Result<()> {
        self.is_there = true;
        let is_of_the_same = now.length == self.told.length && now.validator == self.told.validator;
        // After an error it begins anew: it may end within a part.
        let grown = match self.grown.take().filter(|grown| is_of_the_same && grown.has_name()) {
            Some(mut grown) => {
                let is_new = |check: &(u64, u32)| self.told.checks.binary_search(check).is_err();
                grown.add(&now.checks.iter().copied().filter(is_new).collect::<Vec<_>>())?;
                grown
            }
            None => now.create(partial, key)?,
        };
        self.grown = Some(grown);
        self.told = now;
        Ok(())
    }

    /// Takes its name away. Its blocks are given back when the file that is answered is closed.
    pub(super) fn remove(&mut self, partial: &Path) -> Option<File> {
        let Notes { grown, is_there, .. } = std::mem::take(self);
        if !is_there {
            return None;
        }
        let file = grown.map(|grown| grown.file).or_else(|| File::open(Sidecar::path(partial)).ok());
        Sidecar::remove(partial);
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sidecar(checks: &[(u64, u32)]) -> Sidecar {
        Sidecar { length: Some(300_000), validator: Some("\"é\"".to_owned()), checks: checks.to_vec() }
    }

    /// A folder, where a partial would lie in it, and its key.
    fn place() -> (tempfile::TempDir, PathBuf, ObjectKey) {
        let folder = tempfile::tempdir().unwrap();
        let partial = folder.path().join("one");
        (folder, partial, ObjectKey::inode("s", 1))
    }

    #[test]
    fn comes_back_as_written_and_never_damaged_nor_for_another_key() {
        let key = ObjectKey::inode("s", 1);
        let (first, second) = ([(0, 7), (9, u32::MAX)], [(1, 8)]);
        let (head, crc) = sidecar(&[]).encode_head(&key);
        let (part, crc) = encode_part(&first, crc);
        let (nothing, crc) = encode_part(&[], crc);
        let bytes = [&head[..], &part, &nothing, &encode_part(&second, crc).0].concat();

        assert_eq!(Sidecar::decode(&bytes, &key), Some(sidecar(&[first[0], first[1], second[0]])));
        assert_eq!(Sidecar::decode(&bytes, &ObjectKey::inode("s", 2)), None);
        let whole = |at: usize| {
            let told = [&first[..], &second].concat();
            let ends = [head.len(), head.len() + part.len(), bytes.len()];
            ends.iter().rposition(|end| at >= *end).map(|parts| sidecar(&told[..[0, 2, 3][parts]]))
        };
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(Sidecar::decode(&damaged, &key), whole(at), "byte {at}");
            assert_eq!(Sidecar::decode(&bytes[..at], &key), whole(at), "cut at {at}");
        }
    }

    /// After a power loss bytes of another sidecar may lie there, which was deleted.
    #[test]
    fn a_part_counts_behind_those_alone_that_were_before_it() {
        let (key, other) = (ObjectKey::inode("s", 1), ObjectKey::inode("s", 2));
        let (head, crc) = sidecar(&[]).encode_head(&key);
        let (_, other_crc) = sidecar(&[]).encode_head(&other);
        let (part, _) = encode_part(&[(0, 7)], crc);
        let (others, _) = encode_part(&[(0, 7)], other_crc);

        assert_eq!(Sidecar::decode(&[&head[..], &others].concat(), &key), Some(sidecar(&[])));
        assert_eq!(Sidecar::decode(&[&head[..], &part, &part].concat(), &key), Some(sidecar(&[(0, 7)])));
    }

    #[test]
    fn what_is_new_is_added_to_the_same_file() {
        let (_folder, partial, key) = place();
        let found = || (std::fs::metadata(Sidecar::path(&partial)).unwrap(), Sidecar::read(&partial, &key).unwrap());
        let mut notes = Notes::default();

        notes.note(sidecar(&[(0, 7), (2, 9)]), &partial, &key).unwrap();
        let (first, _) = found();
        notes.note(sidecar(&[(0, 7), (1, 8), (2, 9)]), &partial, &key).unwrap();
        let (second, told) = found();

        assert_eq!(told, sidecar(&[(0, 7), (2, 9), (1, 8)]));
        assert_eq!((second.ino(), second.len()), (first.ino(), first.len() + 8 + RECORD as u64));
        notes.note(sidecar(&[(0, 7), (1, 6)]), &partial, &key).unwrap();
        assert_eq!(found().1.checks.last(), Some(&(1, 6)), "lost, and written again");
    }

    #[test]
    fn of_another_version_after_an_error_and_without_its_name_it_begins_anew() {
        let (_folder, partial, key) = place();
        let mut notes = Notes::default();
        notes.note(sidecar(&[(0, 7)]), &partial, &key).unwrap();
        let other = Sidecar { validator: Some("other".into()), ..sidecar(&[(0, 5)]) };

        notes.note(other.clone(), &partial, &key).unwrap();
        assert_eq!(Sidecar::read(&partial, &key), Some(other.clone()));

        notes.grown.as_mut().unwrap().file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let more = Sidecar { checks: vec![(0, 5), (1, 6)], ..other };
        notes.note(more.clone(), &partial, &key).unwrap_err();
        notes.note(more.clone(), &partial, &key).unwrap();
        assert_eq!(Sidecar::read(&partial, &key), Some(more.clone()));

        Sidecar::remove(&partial);
        notes.note(more.clone(), &partial, &key).unwrap();
        assert_eq!(Sidecar::read(&partial, &key), Some(more), "another process took it away");
    }

    #[test]
    fn its_name_goes_before_its_blocks_do() {
        let (_folder, partial, key) = place();
        let mut written = Notes::default();
        written.note(sidecar(&[(0, 7)]), &partial, &key).unwrap();
        let held = written.remove(&partial).unwrap();
        assert_eq!((held.metadata().unwrap().nlink(), Sidecar::read(&partial, &key)), (0, None));
        assert!(written.remove(&partial).is_none());

        sidecar(&[(0, 7)]).create(&partial, &key).unwrap();
        let held = Notes::new(true).remove(&partial).unwrap();
        assert_eq!((held.metadata().unwrap().nlink(), Sidecar::read(&partial, &key)), (0, None));
    }
}
