//! The parts of a resource's record that vary in number and length: digests, links, the member of a package.

use super::codec::{Decoder, push_string, push_time, push_varint, when};
use super::words::{push_word, word};
use crate::document::{Algorithm, Digest, Href, LOWEST_PRIORITY, Link, PackageMember, Uri};

pub fn push_digests(out: &mut Vec<u8>, digests: &[Digest]) {
    push_varint(out, digests.len() as u64);
    for digest in digests {
        out.push(digest.algorithm() as u8);
        out.extend_from_slice(digest.bytes());
    }
}

pub fn digests(bytes: &mut Decoder<'_>) -> Option<Vec<Digest>> {
    (0..bytes.value::<usize>()?)
        .map(|_| {
            let algorithm = Algorithm::numbered(bytes.value()?)?;
            Digest::new(algorithm, bytes.take(algorithm.digest_length())?)
        })
        .collect()
}

/// `uri` as what differs from the resource's own URI: the length of the front that both share, and the rest.
fn push_uri(out: &mut Vec<u8>, uri: &str, own: &str) {
    let mut shared = own.bytes().zip(uri.bytes()).take_while(|(a, b)| a == b).count();
    while !uri.is_char_boundary(shared) {
        shared -= 1;
    }
    push_varint(out, shared as u64);
    push_string(out, &uri[shared..]);
}

fn uri(bytes: &mut Decoder<'_>, own: &str) -> Option<String> {
    let (shared, rest) = bytes.value::<(usize, &str)>()?;
    Some([own.get(..shared)?, rest].concat())
}

/// Package, then the path: the length of the end that it shares with the resource's own URI, and what stands before.
pub fn push_member(out: &mut Vec<u8>, member: &PackageMember, own: &str) {
    push_uri(out, member.package.as_str(), own);
    let path = &*member.path;
    let mut shared = own.bytes().rev().zip(path.bytes().rev()).take_while(|(a, b)| a == b).count();
    while !path.is_char_boundary(path.len() - shared) {
        shared -= 1;
    }
    push_varint(out, shared as u64);
    push_string(out, &path[..path.len() - shared]);
}

pub fn member(bytes: &[u8], own: &str) -> Option<PackageMember> {
    let mut bytes = Decoder(bytes);
    let package = Uri::parse(&uri(&mut bytes, own)?).ok()?;
    let (shared, front) = bytes.value::<(usize, &str)>()?;
    let shared = own.get(own.len().checked_sub(shared)?..)?;
    Some(PackageMember { package, path: [front, shared].concat().into_boxed_str() })
}

mod link_flag {
    pub const TYPE: u8 = 2;
    pub const ENCODING: u8 = 4;
    pub const LENGTH: u8 = 8;
    pub const MODIFIED: u8 = 32;
    pub const PATH: u8 = 64;
}

pub fn push_link(out: &mut Vec<u8>, link: &Link, own: &str) {
    push_word(out, &link.rel);
    push_uri(out, link.href.as_str(), own);
    out.push(
        when(link.media_type.is_some(), link_flag::TYPE)
            | when(link.encoding.is_some(), link_flag::ENCODING)
            | when(link.length.is_some(), link_flag::LENGTH)
            | when(link.modified.is_some(), link_flag::MODIFIED)
            | when(link.path.is_some(), link_flag::PATH),
    );
    push_varint(out, u64::from(LOWEST_PRIORITY.wrapping_sub(link.pri)));
    link.media_type.iter().chain(&link.encoding).for_each(|text| push_word(out, text));
    link.length.iter().for_each(|length| push_varint(out, *length));
    push_digests(out, &link.hashes);
    link.modified.iter().for_each(|modified| push_time(out, *modified));
    link.path.iter().for_each(|path| push_string(out, path));
}

pub fn link(bytes: &mut Decoder<'_>, own: &str) -> Option<Link> {
    let (rel, href) = (word(bytes)?.into(), Href::parse(&uri(bytes, own)?).ok()?);
    let flags = bytes.value::<u8>()?;
    let has = |bit: u8| flags & bit != 0;
    Some(Link {
        rel,
        href,
        pri: LOWEST_PRIORITY.wrapping_sub(bytes.value()?),
        media_type: if has(link_flag::TYPE) { Some(word(bytes)?.into()) } else { None },
        encoding: if has(link_flag::ENCODING) { Some(word(bytes)?.into()) } else { None },
        length: if has(link_flag::LENGTH) { Some(bytes.value()?) } else { None },
        hashes: digests(bytes)?,
        modified: if has(link_flag::MODIFIED) { Some(bytes.time()?) } else { None },
        path: if has(link_flag::PATH) { Some(bytes.value()?) } else { None },
    })
}
