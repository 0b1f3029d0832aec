//! Octets that nobody meant to publish: an answer or an error, never a panic.

use super::*;
use proptest::prelude::*;

/// Reads octets that may be anything under tight limits, in one piece and in small ones: the answer is the same.
fn survive(octets: &[u8]) {
    let in_pieces = std::io::BufReader::with_capacity(7, octets);
    assert_eq!(outcome(octets), outcome(in_pieces));
}

/// The entries read, and the error if one ended it.
fn outcome(octets: impl std::io::BufRead) -> (Vec<Entry>, Option<String>) {
    let limits = Limits { document: 1 << 16, text: 256, depth: 8, links: 4 };
    let base = Uri::parse("http://example.com/").unwrap();
    let mut entries = Vec::new();
    let read = || {
        let mut reader = Reader::new(octets, Some(base), limits)?;
        while let Some(entry) = reader.next_entry()? {
            assert!(entry.links.len() <= limits.links);
            assert_eq!(Uri::parse(entry.loc.as_str()).as_ref(), Ok(&entry.loc));
            entries.push(entry);
        }
        Ok(())
    };
    let outcome: Result<(), DocumentError> = read();
    (entries, outcome.err().map(|error| format!("{error:?}")))
}

/// A document with something of everything, for mutation.
fn rich() -> Vec<u8> {
    let content = r#"<rs:ln rel="up" href="u"/><rs:md capability="changelist" from="2013-01-02T00:00:00Z"/>
        <url><loc>http://example.com/é?a=1&amp;b</loc><lastmod>2013-01-02T12:00:00.5+01:00</lastmod><!-- c -->
        <rs:md change="created" hash="md5:1584abdf8ebdc9802ac0c6a7402c03b6" length="5"/></url>
        <x:y xmlns:x="z"><x:loc/></x:y><url><loc><![CDATA[/b]]></loc><rs:ln rel="duplicate" pri="1" href="c"/></url>"#;
    (r"<!DOCTYPE urlset [<!ENTITY a 'b'>]>".to_owned()
        + &urlset(content).replacen("<?xml version=\"1.0\" encoding=\"UTF-8\"?>", "", 1))
        .into_bytes()
}

proptest! {
    #![proptest_config(crate::document::fixed_cases(500))]

    #[test]
    fn arbitrary_octets(octets in prop::collection::vec(any::<u8>(), 0..400)) {
        survive(&octets);
        survive(&gzip(&octets));
        survive(&[b"<urlset><url><loc>", &octets[..]].concat());
    }

    #[test]
    fn mutated_documents(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        copied in any::<prop::sample::Index>(),
    ) {
        let mut octets = rich();
        for (place, octet) in changes {
            let place = place.index(octets.len());
            octets[place] = octet;
        }
        survive(&octets);
        let (cut, copied) = (cut.index(octets.len()), copied.index(octets.len()));
        let mut spliced = octets[..cut].to_vec();
        spliced.extend_from_slice(&octets[copied..]);
        survive(&spliced);
        survive(&gzip(&octets)[..cut.min(60)]);
    }
}

#[test]
fn the_rich_document_is_well_formed() {
    assert_eq!(read(rich()).entries.len(), 2);
}
