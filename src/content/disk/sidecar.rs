//! What is present of a partial object, on disk beside it as `KEY.present`.
//!
//! ```text
//! ┌─────────┬─────────────┬─────────────────────┬────────────┬───────────────────────┬──────────────────────┬────────┐
//! │ magic 8 │ version u32 │ key fingerprint u64 │ length u64 │ validator: u32, UTF-8 │ blocks: u64, each    │ CRC32C │
//! │         │             │                     │ (max: none)│                       │ number u64, CRC u32  │ of all │
//! └─────────┴─────────────┴─────────────────────┴────────────┴───────────────────────┴──────────────────────┴────────┘
//! ```
//!
//! All numbers are little-endian. Only whole blocks are told, each with its CRC: after a power loss the sidecar may be newer
//! than the octets, and the CRC tells.

use super::ObjectKey;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"rsyncprt";
/// Of the layout in this module's header. A file of another version is none.
const VERSION: u32 = 1;

/// What is known of a partial object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sidecar {
    pub(super) length: Option<u64>,
    pub(super) validator: Option<String>,
    /// Whole blocks, by number, with their CRCs.
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

    /// Replaces the sidecar of the partial file at that path.
    pub(super) fn write(&self, partial: &Path, key: &ObjectKey) -> io::Result<()> {
        let path = Sidecar::path(partial);
        let mut aside = path.as_os_str().to_owned();
        aside.push("~");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(&self.encode(key))?;
        std::fs::rename(&aside, &path)
    }

    /// The sidecar of the partial file at that path; `None` where there is none, or it is not this key's.
    pub(super) fn read(partial: &Path, key: &ObjectKey) -> Option<Sidecar> {
        Sidecar::decode(&std::fs::read(Sidecar::path(partial)).ok()?, key)
    }

    pub(super) fn remove(partial: &Path) {
        // Most partials never had one.
        let _ = std::fs::remove_file(Sidecar::path(partial));
    }

    fn encode(&self, key: &ObjectKey) -> Vec<u8> {
        let validator = self.validator.as_deref().unwrap_or_default();
        let mut octets = Vec::with_capacity(64 + validator.len() + self.checks.len() * 12);
        octets.extend_from_slice(&MAGIC);
        octets.extend_from_slice(&VERSION.to_le_bytes());
        octets.extend_from_slice(&key.fingerprint().to_le_bytes());
        octets.extend_from_slice(&self.length.unwrap_or(u64::MAX).to_le_bytes());
        octets.extend_from_slice(&(validator.len() as u32).to_le_bytes());
        octets.extend_from_slice(validator.as_bytes());
        octets.extend_from_slice(&(self.checks.len() as u64).to_le_bytes());
        for (block, crc) in &self.checks {
            octets.extend_from_slice(&block.to_le_bytes());
            octets.extend_from_slice(&crc.to_le_bytes());
        }
        let crc = crc32c::crc32c(&octets);
        octets.extend_from_slice(&crc.to_le_bytes());
        octets
    }

    fn decode(octets: &[u8], key: &ObjectKey) -> Option<Sidecar> {
        let (octets, crc) = octets.split_last_chunk()?;
        if crc32c::crc32c(octets) != u32::from_le_bytes(*crc) {
            return None;
        }
        let rest = octets.strip_prefix(&MAGIC)?.strip_prefix(&VERSION.to_le_bytes())?;
        let rest = rest.strip_prefix(&key.fingerprint().to_le_bytes())?;
        let (length, rest) = rest.split_first_chunk()?;
        let (validator_length, rest) = rest.split_first_chunk()?;
        let (validator, rest) = rest.split_at_checked(u32::from_le_bytes(*validator_length) as usize)?;
        let (_, rest) = rest.split_first_chunk::<8>()?;
        let block = |record: &[u8]| {
            let (number, crc) = record.split_first_chunk()?;
            Some((u64::from_le_bytes(*number), u32::from_le_bytes(crc.try_into().ok()?)))
        };
        Some(Sidecar {
            length: Some(u64::from_le_bytes(*length)).filter(|length| *length != u64::MAX),
            validator: Some(std::str::from_utf8(validator).ok()?.to_owned()).filter(|v| !v.is_empty()),
            checks: rest.chunks_exact(12).map(block).collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_written_and_never_damaged_nor_for_another_key() {
        let key = ObjectKey::inode("s", 1);
        let sidecar =
            Sidecar {
                length: Some(300_000), validator: Some("\"é\"".to_owned()), checks: vec![(0, 7), (9, u32::MAX)]
            };
        let octets = sidecar.encode(&key);

        assert_eq!(Sidecar::decode(&octets, &key), Some(sidecar));
        assert_eq!(Sidecar::decode(&octets, &ObjectKey::inode("s", 2)), None);
        for at in 0..octets.len() {
            let mut damaged = octets.clone();
            damaged[at] ^= 0x10;
            assert_eq!(Sidecar::decode(&damaged, &key), None, "octet {at}");
            assert_eq!(Sidecar::decode(&octets[..at], &key), None, "cut at {at}");
        }
    }
}
