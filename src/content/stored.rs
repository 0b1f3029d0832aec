//! The objects of a cache folder held to what they must be, with no mount.

use super::fixity::Verifier;
use super::store::{BLOCK, Inventory, ObjectKey, PutAway};
use crate::document::Algorithm;
use std::io;

/// What became of one object that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// It went meanwhile.
    Gone,
    /// Its bytes are what was written, and give the digest that it is named by, if it is named by one.
    Intact(u64),
    /// They are not: what is wrong. It is removed.
    Damaged(String),
    /// It cannot be read or removed.
    Failed(String),
}

/// Reads one object to its end; a damaged one is removed. Blocks on the disk.
pub fn check(inventory: &mut Inventory, key: &ObjectKey) -> Checked {
    let object = match inventory.read(key) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Checked::Gone,
        Err(cause) => return Checked::Failed(cause.to_string()),
        Ok(object) => object,
    };
    let what = match &object {
        None => "it is not whole, or no file of the cache".to_owned(),
        Some(object) => {
            let digest = key.vouching();
            let mut verifier = Verifier::new(digest.map_or(Algorithm::Sha256, |digest| digest.algorithm()));
            let damage = loop {
                if verifier.length() == object.length() {
                    break None;
                }
                match object.read(verifier.length(), BLOCK as usize) {
                    Ok(bytes) => verifier.update(&bytes),
                    Err(damaged) => break Some(crate::causes::chain(&damaged)),
                }
            };
            let other = || {
                let seen = verifier.finish()?.digest;
                digest.filter(|published| *published != seen).map(|_| format!("its bytes give {seen}"))
            };
            match damage.or_else(other) {
                None => return Checked::Intact(object.length()),
                Some(what) => what,
            }
        }
    };
    match inventory.remove_damaged(key, object.as_ref()) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Checked::Failed(format!("{what}; {cause}")),
        Ok(put @ PutAway::Aside(_)) => Checked::Damaged(format!("{what}: {put}")),
        _ => Checked::Damaged(what),
    }
}
