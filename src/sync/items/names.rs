//! The names of a page's items. Pure.
//!
//! An item has the path that a description of the data set gives it; else the last segment of its address, where that is a name; else
//! the file name that its host gives it; else the last segment all the same.

use crate::catalog::naming::{extension_of_name, extension_of_type};
use crate::document::dataset::DescribedFile;
use crate::document::{Digest, Link, Uri};
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Words that end an address and name nothing.
const GENERIC: [&str; 9] = ["download", "content", "contents", "file", "files", "raw", "view", "data", "export"];

/// Bytes of the digest that distinguishes items of one name.
const MARK: usize = 16;

/// A link of a page to a file, and what is known of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageItem {
    /// Its own address.
    pub address: Uri,
    /// Published media type.
    pub media_type: Option<Box<str>>,
    /// True for a metadata record (`describedby`).
    pub is_record: bool,
    /// Its path in the page's folder, where a description or its host gives one.
    pub path: Option<Box<str>>,
    /// Published length.
    pub length: Option<u64>,
    /// Published digests.
    pub hashes: Vec<Digest>,
    /// Links of the file itself: `license`, `type`, `author`, `cite-as`.
    pub links: Vec<Link>,
}

impl PageItem {
    /// An item that is known by its link alone.
    pub fn new(address: Uri, media_type: Option<Box<str>>, is_record: bool) -> PageItem {
        PageItem { address, media_type, is_record, path: None, length: None, hashes: Vec::new(), links: Vec::new() }
    }

    /// True if only its host can give it a name.
    pub fn lacks_name(&self) -> bool {
        self.path.is_none() && !self.is_record && !is_name(&last_segment(&self.address))
    }
}

/// The last segment of an address, decoded.
fn last_segment(address: &Uri) -> String {
    let mut segments = address.path().split('/').filter(|segment| !segment.is_empty());
    let last = segments.next_back().unwrap_or(address.host());
    percent_decode_str(last).decode_utf8_lossy().replace('/', "_")
}

/// True if the last segment of an address names the file: it is not a number, an identifier or a generic word.
fn is_name(segment: &str) -> bool {
    let is_identifier = segment.len() >= 16 && segment.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_number = segment.bytes().all(|byte| byte.is_ascii_digit());
    !extension_of_name(segment).is_empty() || !is_number && !is_identifier && !GENERIC.contains(&segment)
}

/// Gives `items` what the description of their data set says of them. A described file belongs to the item of its address, the query not
/// counted where no other has it; else to the one item whose name is the last of its path; else it is an item too, if it has an address.
pub fn describe(items: &mut Vec<PageItem>, files: Vec<DescribedFile>) {
    let mut by_address: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, item) in items.iter().enumerate().filter(|(_, item)| !item.is_record) {
        let (whole, shorter) = (item.address.as_str(), without_query(&item.address));
        for key in HashSet::from([whole, shorter]).into_iter().map(str::to_owned).chain([last_segment(&item.address)]) {
            by_address.entry(key).or_default().push(index);
        }
    }
    let mut taken = HashSet::new();
    for file in files {
        // The one item that has it, and that no file before has taken.
        let of = |key: &str| match by_address.get(key).map(Vec::as_slice) {
            Some([index]) if !taken.contains(index) => Some(*index),
            _ => None,
        };
        let address = file.address.as_ref();
        let index = address.and_then(|address| of(address.as_str()).or_else(|| of(without_query(address))));
        let (index, address) = match index.or_else(|| of(file.path.rsplit('/').next().unwrap_or_default())) {
            // A link of the page is where its file is; but another query is another form of the file.
            Some(found) => (found, address.filter(|_| index.is_some()).unwrap_or(&items[found].address).clone()),
            None => {
                let Some(address) = address else { continue };
                items.push(PageItem::new(address.clone(), None, false));
                (items.len() - 1, address.clone())
            }
        };
        taken.insert(index);
        let item = &mut items[index];
        item.address = address;
        item.path = Some(file.path);
        item.length = file.length.or(item.length);
        item.hashes = file.hashes;
        item.media_type = item.media_type.take().or(file.media_type);
    }
}

fn without_query(uri: &Uri) -> &str {
    uri.as_str().split('?').next().unwrap_or_default()
}

/// The identity of each of `items` as an item of `page`, in the order of their addresses. One that is linked twice counts once.
pub fn identified(page: &Uri, items: Vec<PageItem>) -> Vec<(Uri, PageItem)> {
    let mut sorted = BTreeMap::new();
    for item in items {
        sorted.entry((item.address.clone(), item.media_type.clone())).or_insert(item);
    }
    let mut forms: HashMap<&Uri, usize> = HashMap::new();
    sorted.keys().for_each(|(address, _)| *forms.entry(address).or_default() += 1);
    let names: Vec<String> = sorted.values().map(|item| name(item, forms[&item.address] > 1)).collect();
    let (mut seen, mut all) = (HashSet::new(), Vec::with_capacity(sorted.len()));
    for (name, ((address, media_type), item)) in names.into_iter().zip(sorted) {
        let plain = page.item(&name);
        let uri = match seen.insert(plain.clone()) {
            true => plain,
            false => plain.namesake(&mark(&address, media_type.as_deref())),
        };
        all.push((uri, item));
    }
    all
}

/// The path of an item in its page's folder. An address with several forms (content negotiation) has a name for each.
fn name(item: &PageItem, has_forms: bool) -> String {
    let last = last_segment(&item.address);
    let name = item.path.as_deref().unwrap_or(&last);
    // A path of dots alone does not count.
    let name = if name.split('/').all(|segment| matches!(segment, "" | "." | "..")) { last.as_str() } else { name };
    match item.media_type.as_deref().filter(|_| item.path.is_none() && (has_forms || item.is_record && !is_name(&last)))
    {
        Some(media_type) => format!("{name}.{}", extension(media_type)),
        None => name.to_owned(),
    }
}

/// The extension of a form: that of its type, else the subtype with its dots.
fn extension(media_type: &str) -> String {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let subtype = essence.split('/').next_back().unwrap_or_default();
    let subtype = subtype.strip_prefix("vnd.").or(subtype.strip_prefix("x-")).unwrap_or(subtype);
    extension_of_type(&essence).map_or_else(|| subtype.replace('+', "."), str::to_owned)
}

fn mark(address: &Uri, media_type: Option<&str>) -> String {
    let digest = Sha256::digest(format!("{address} {}", media_type.unwrap_or_default()));
    digest[..MARK].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(raw: &str) -> Uri {
        Uri::parse(raw).unwrap()
    }

    fn item(address: &str) -> PageItem {
        PageItem::new(uri(address), None, false)
    }

    fn record(address: &str, media_type: &str) -> PageItem {
        PageItem::new(uri(address), Some(media_type.into()), true)
    }

    fn file(path: &str, address: Option<&str>) -> DescribedFile {
        DescribedFile {
            path: path.into(),
            address: address.map(uri),
            length: Some(5),
            media_type: None,
            hashes: Vec::new(),
        }
    }

    /// The part behind the `#` of each identity.
    fn paths(items: Vec<PageItem>) -> Vec<String> {
        let page = uri("https://h/records/1");
        identified(&page, items).iter().map(|(uri, _)| uri.page().unwrap().1.to_owned()).collect()
    }

    #[test]
    fn numbers_identifiers_and_generic_words_are_no_names() {
        for (address, lacks_name) in [
            ("https://h/files/survey.csv", false),
            ("https://h/files/README", false),
            ("https://h/bitstreams/0b9c/download", true),
            ("https://h/api/files/a.csv/content", true),
            ("https://h/datafile/4", true),
            ("https://h/f/123e4567-e89b-12d3-a456-426614174000", true),
            ("https://h/", false),
        ] {
            assert_eq!(item(address).lacks_name(), lacks_name, "{address}");
        }
        assert!(!record("https://h/records/4", "text/turtle").lacks_name(), "its type names it");
    }

    #[test]
    fn each_form_of_one_address_has_its_own_name() {
        let types = ["application/ld+json", "application/vnd.datacite.datacite+json", "application/x-bibtex"];
        let records = types.map(|media_type| record("https://h/records/1234", media_type));

        assert_eq!(paths(records.into()), ["1234.jsonld", "1234.datacite.datacite.json", "1234.bibtex"]);
        assert_eq!(paths(vec![record("https://h/4", "text/turtle")]), ["4.ttl"]);
        assert_eq!(paths(vec![record("https://h/meta.xml", "application/xml")]), ["meta.xml"]);
    }

    #[test]
    fn of_one_name_the_smaller_address_keeps_it() {
        let found = paths(vec![item("https://b/a.csv"), item("https://a/a.csv"), item("https://a/a.csv")]);

        assert_eq!((found.len(), &*found[0]), (2, "a.csv"), "one that is linked twice counts once");
        assert_eq!((found[1].len(), &found[1][..6]), ("a.csv#".len() + 32, "a.csv#"));
    }

    #[test]
    fn no_path_leads_out_of_the_folder_of_its_page() {
        let hostile = |path: &str| PageItem { path: Some(path.into()), ..item("https://h/x.bin") };

        assert_eq!(paths(vec![hostile("../../etc/passwd")]), ["etc/passwd"]);
        assert_eq!(paths(vec![hostile("..")]), ["x.bin"]);
        assert_eq!(paths(vec![hostile("/a//b\0c")]), ["a/b%00c"]);
        assert_eq!(paths(vec![item("https://h/%2e%2e%2f")]), [".._"]);
    }

    #[test]
    fn described_files_match_by_address_then_query_then_name() {
        let mut items =
            vec![item("https://h/datafile/4"), item("https://h/api/run.py"), item("https://h/7"), item("https://h/8")];
        let described = vec![
            file("seven", Some("https://h/7")),
            file("data/survey.csv", Some("https://h/datafile/4?format=original")),
            file("code/run.py", Some("https://h/elsewhere/run.py")),
            file("more.txt", Some("https://h/more")),
            file("no/address.txt", None),
        ];

        describe(&mut items, described);

        let found: Vec<_> = items.iter().map(|item| (item.address.as_str(), item.path.as_deref())).collect();
        let expected = [
            ("https://h/datafile/4?format=original", Some("data/survey.csv")),
            ("https://h/api/run.py", Some("code/run.py")),
            ("https://h/7", Some("seven")),
            ("https://h/8", None),
            ("https://h/more", Some("more.txt")),
        ];
        assert_eq!(found, expected);
        assert_eq!(items[0].length, Some(5));
    }
}
