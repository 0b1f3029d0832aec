//! Bytes that nobody meant to publish: an answer or an error, never a panic.

use super::*;
use proptest::prelude::*;

/// Reads bytes that may be anything under tight limits, in one piece and in small ones: the answer is the same.
fn survive(bytes: &[u8]) {
    let in_pieces = std::io::BufReader::with_capacity(7, bytes);
    assert_eq!(outcome(bytes), outcome(in_pieces));
}

/// The entries read, and the error if one ended it.
fn outcome(bytes: impl std::io::BufRead) -> (Vec<Entry>, Option<String>) {
    let limits = Limits { document: 1 << 16, text: 256, depth: 8, links: 4 };
    let base = Uri::parse("http://example.com/").unwrap();
    let mut entries = Vec::new();
    let read = || {
        let mut reader = Reader::new(bytes, Some(base), limits)?;
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
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        survive(&bytes);
        survive(&gzip(&bytes));
        survive(&[b"<urlset><url><loc>", &bytes[..]].concat());
    }

    #[test]
    fn mutated_documents(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        copied in any::<prop::sample::Index>(),
    ) {
        let mut bytes = rich();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        survive(&bytes);
        let (cut, copied) = (cut.index(bytes.len()), copied.index(bytes.len()));
        let mut spliced = bytes[..cut].to_vec();
        spliced.extend_from_slice(&bytes[copied..]);
        survive(&spliced);
        survive(&gzip(&bytes)[..cut.min(60)]);
    }
}

#[test]
fn the_rich_document_is_well_formed() {
    assert_eq!(read(rich()).entries.len(), 2);
}

/// Entries, most of them plain, and what may stand between them.
fn entries() -> impl Strategy<Value = String> {
    let loc = prop::sample::select(vec![
        "<loc>http://example.com/a</loc>",
        "<loc> /b?c=%c3%A9\n</loc>",
        "<loc>http://example.com/\u{e9} </loc>",
        "<loc>http://example.com/?a&amp;b</loc>",
        "<loc>ftp://x/</loc>",
        "<loc></loc>",
        "<loc/>",
        "<loc >x</loc>",
        "",
    ]);
    let rest = prop::sample::select(vec![
        "",
        " \n",
        "text",
        "<!-- c -->",
        "<lastmod>2013-01-02T12:00:00Z</lastmod>",
        "<lastmod>2013-01-02 12:00</lastmod>",
        "<lastmod>yesterday</lastmod>",
        "<changefreq>daily</changefreq>",
        "<changefreq>now</changefreq>",
        "<priority>0.5</priority>",
        "<priority>&half;</priority>",
        "<rs:md hash=\"md5:1584abdf8ebdc9802ac0c6a7402c03b6\" length=\"5\" type=\"a/b\"/>",
        "<rs:md length=\"5\" length=\"6\" other=\"7\"\n/>",
        "<rs:md length='5'/>",
        "<rs:md change=\"created\" datetime=\"2013-01-02T12:00:00Z\"/>",
        "<rs:md length=\"&amp;\"/>",
        "<rs:md hash=\"what\"></rs:md>",
        "<md length=\"5\"/>",
        "<rs:ln rel=\"Duplicate\" pri=\"1\" href=\"c>\"/>",
        "<rs:ln rel=\"x\"/>",
        "<rs:ln xmlns:x=\"y\" rel=\"x\" href=\"d\"/>",
        "<rs:ln rel=\"x\" href=\"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\"/>",
        "<x:y><url><loc>/no</loc></url></x:y>",
        "<lastmod>2013-01-02<!-- c --></lastmod>",
        "<lastmod>2013-01-02</loc>",
    ]);
    let url = (loc, prop::collection::vec(rest.clone(), 0..5), any::<bool>()).prop_map(|(loc, rest, last)| {
        let rest = rest.concat();
        if last { format!("<url>{rest}{loc}</url>") } else { format!("<url>{loc}{rest}</url>") }
    });
    let item = prop_oneof![8 => url, 1 => rest.prop_map(str::to_owned), 1 => Just("<sitemap></sitemap>".to_owned())];
    prop::collection::vec(item, 0..12).prop_map(|items| items.concat())
}

proptest! {
    #![proptest_config(crate::document::fixed_cases(2000))]

    #[test]
    fn plain_entries_are_read_as_by_the_xml_reader(entries in entries(), change in any::<bool>()) {
        let header = if change { r#"<rs:md capability="changelist" from="2013-01-02T00:00:00Z"/>"# } else { "" };
        // What is sniffed at comes in one piece: everything of interest stands behind it.
        let bytes = urlset(&format!("<!--{}-->{header}{entries}", " ".repeat(600)));
        let limits = Limits { text: 60, ..Limits::default() };
        let all = |bytes: &mut dyn std::io::BufRead| {
            let base = Uri::parse("http://example.com/").unwrap();
            let mut entries = Vec::new();
            let mut reader = Reader::new(bytes, Some(base), limits).map_err(|error| format!("{error:?}"))?;
            let error = loop {
                match reader.next_entry() {
                    Ok(Some(entry)) => entries.push(entry),
                    Ok(None) => break None,
                    Err(error) => break Some(format!("{error:?}")),
                }
            };
            let Reader { entries: begun, skipped, .. } = reader;
            Ok::<_, String>((entries, error, begun, skipped, format!("{:?}", reader.deviations()), reader.events.position()))
        };
        // No entry is whole in memory: nothing is plain.
        let slowly = all(&mut std::io::BufReader::with_capacity(3, bytes.as_bytes()));
        prop_assert_eq!(all(&mut bytes.as_bytes()), slowly);
    }
}
