//! The digest of an entry of a change document.

use crate::document::{Digest, Entry, Link, PackageMember, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

/// XXH3 over everything that an entry says of its change; `scratch` is for reuse.
pub fn digest(entry: &Entry, member: Option<&PackageMember>, scratch: &mut Vec<u8>) -> u64 {
    scratch.clear();
    push_text(scratch, Some(entry.loc.as_str()));
    push_text(scratch, entry.change.map(|change| change.as_str()));
    push_time(scratch, entry.datetime);
    push_time(scratch, entry.lastmod);
    push_hashes(scratch, &entry.hashes);
    push_number(scratch, entry.length);
    push_text(scratch, entry.media_type.as_deref());
    push_text(scratch, entry.encoding.as_deref());
    push_text(scratch, entry.path.as_deref());
    push_text(scratch, member.map(|member| member.package.as_str()));
    push_text(scratch, member.map(|member| &*member.path));
    entry.links.iter().for_each(|link| push_link(scratch, link));
    xxh3_64(scratch)
}

fn push_link(bytes: &mut Vec<u8>, link: &Link) {
    push_text(bytes, Some(&link.rel));
    push_text(bytes, Some(&link.href.to_string()));
    push_number(bytes, Some(u64::from(link.pri)));
    push_text(bytes, link.media_type.as_deref());
    push_text(bytes, link.encoding.as_deref());
    push_number(bytes, link.length);
    push_hashes(bytes, &link.hashes);
    push_time(bytes, link.modified);
    push_text(bytes, link.path.as_deref());
}

/// The length goes first, so that neighbours cannot be mistaken for one another; absent is not the same as empty.
fn push_text(bytes: &mut Vec<u8>, text: Option<&str>) {
    push_number(bytes, text.map(|text| text.len() as u64));
    bytes.extend_from_slice(text.unwrap_or_default().as_bytes());
}

fn push_number(bytes: &mut Vec<u8>, number: Option<u64>) {
    bytes.push(u8::from(number.is_some()));
    bytes.extend_from_slice(&number.unwrap_or(0).to_le_bytes());
}

fn push_time(bytes: &mut Vec<u8>, time: Option<Timestamp>) {
    push_number(bytes, time.map(|time| time.seconds as u64));
    bytes.extend_from_slice(&time.map_or(0, |time| time.nanos).to_le_bytes());
}

fn push_hashes(bytes: &mut Vec<u8>, hashes: &[Digest]) {
    push_number(bytes, Some(hashes.len() as u64));
    for hash in hashes {
        push_text(bytes, Some(hash.algorithm().name()));
        bytes.extend_from_slice(hash.bytes());
    }
}
