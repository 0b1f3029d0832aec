//! Descriptions of data sets that name their files: Croissant, RO-Crate and Frictionless, as plain JSON shapes. Nothing of JSON-LD is
//! processed.

use super::hash::PublishedHashes;
use super::json::{self, Json, JsonError};
use super::web_link::MOST_BYTES;
use super::{Digest, Uri, UriError, believed_length};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// Files of one description.
const MOST_FILES: usize = 100_000;

/// Members with a digest in them, by the name of its algorithm.
const DIGESTS: [&str; 6] = ["sha512", "sha384", "sha256", "sha224", "sha1", "md5"];

/// Characters that have a meaning in a reference and none in a path.
const IN_A_PATH: AsciiSet = CONTROLS.add(b'%').add(b'?').add(b'#');

/// A file of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedFile {
    /// Path below the data set's folder, as published: segments by `/`, not yet checked.
    pub path: Box<str>,
    /// The address of its bytes.
    pub address: Option<Uri>,
    /// Length in bytes, where it is published exactly.
    pub length: Option<u64>,
    /// Media type.
    pub media_type: Option<Box<str>>,
    /// Every digest that could be understood, strongest first.
    pub hashes: Vec<Digest>,
}

/// Bytes that describe no data set.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// No JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// More files than are read.
    #[error("a description of more than {MOST_FILES} files, or of too many bytes")]
    TooMany,
}

/// The files that a description names; `None` for JSON that describes no data set in a known form. `base` is its address. A file
/// within an archive has no address and is left out.
///
/// # Errors
/// Bytes that are not JSON, and too many files.
pub fn described_files(bytes: &[u8], base: &Uri) -> Result<Option<Vec<DescribedFile>>, DescriptionError> {
    let text = json::text(bytes);
    let root = Json::parse(&text)?;
    let list = |name| root.get(name).map_or(&[][..], Json::values).iter();
    let is_file_object = |object: &Json| is_of_type(object, &["FileObject"]);
    let files: Box<dyn Iterator<Item = DescribedFile>> = if list("@graph").any(is_crate) {
        Box::new(list("@graph").filter_map(|entity| of_crate(entity, base)))
    } else if mentions(&root, "conformsTo", "mlcommons.org/croissant") || list("distribution").any(is_file_object) {
        Box::new(
            list("distribution").filter(|object| is_file_object(object)).filter_map(|file| of_croissant(file, base)),
        )
    } else if list("resources").any(|resource| resource.get("path").is_some()) {
        Box::new(list("resources").flat_map(|resource| of_package(resource, base)))
    } else {
        return Ok(None);
    };
    let (mut kept, mut size) = (Vec::new(), 0);
    for file in files {
        let copied = [Some(&*file.path), file.address.as_ref().map(Uri::as_str), file.media_type.as_deref()];
        size += copied.into_iter().flatten().map(str::len).sum::<usize>();
        if kept.len() >= MOST_FILES || size > MOST_BYTES {
            return Err(DescriptionError::TooMany);
        }
        kept.push(file);
    }
    Ok(Some(kept))
}

/// The entity that makes a graph an RO-Crate.
fn is_crate(entity: &Json) -> bool {
    let id = texts(entity, "@id").next().unwrap_or_default();
    id.contains("ro-crate-metadata.json") || mentions(entity, "conformsTo", "w3id.org/ro/crate")
}

/// A `File` of an RO-Crate. Its `@id` is an address, or a path as a reference writes it.
fn of_crate(entity: &Json, base: &Uri) -> Option<DescribedFile> {
    if !is_of_type(entity, &["File", "MediaObject"]) || is_crate(entity) {
        return None;
    }
    let id = texts(entity, "@id").next()?;
    let is_path = is_path(id);
    let content_url = texts(entity, "contentUrl").find_map(|url| Uri::resolve(Some(base), url).ok());
    let own_address = Uri::resolve(is_path.then_some(base), id).ok();
    let path = match texts(entity, "localPath").next() {
        Some(path) => path.into(),
        None if is_path => decoded(id.trim_start_matches("./")),
        None => {
            let of_address = |address: &Option<Uri>| address.as_ref().and_then(last_segment);
            of_address(&own_address).or_else(|| name(entity)).or_else(|| of_address(&content_url))?
        }
    };
    Some(file(path, content_url.or(own_address), entity))
}

/// A `FileObject` of a Croissant description.
fn of_croissant(object: &Json, base: &Uri) -> Option<DescribedFile> {
    let mut within = texts(object, "containedIn");
    // A repository is not a file.
    if within.next().is_some() || mentions(object, "encodingFormat", "git+") {
        return None;
    }
    let url = texts(object, "contentUrl").next();
    let address = url.and_then(|url| if is_path(url) { resolved(url, base) } else { Uri::parse(url).ok() });
    let path = match url.filter(|url| is_path(url)).or(texts(object, "@id").find(|id| is_path(id))) {
        Some(path) => path.trim_start_matches("./").into(),
        None => name(object).or_else(|| address.as_ref().and_then(last_segment))?,
    };
    Some(file(path, address, object))
}

/// The files of a resource of a Frictionless package. Length and digest of several are those of all together.
fn of_package<'a>(resource: &'a Json, base: &'a Uri) -> impl Iterator<Item = DescribedFile> + 'a {
    let paths = || texts(resource, "path").chain(texts(resource, "extrapaths"));
    let is_one = paths().nth(1).is_none();
    paths().filter_map(move |published| {
        let remote = Uri::parse(published).ok();
        let path = match &remote {
            Some(remote) => last_segment(remote)?,
            None => published.trim_start_matches("./").into(),
        };
        let mut file = file(path, remote.or_else(|| resolved(published, base)), resource);
        if !is_one {
            (file.length, file.hashes) = (None, Vec::new());
        }
        Some(file)
    })
}

/// A file with what `object` says of it, in any form.
fn file(path: Box<str>, address: Option<Uri>, object: &Json) -> DescribedFile {
    let named = DIGESTS.iter().flat_map(|name| texts(object, name).map(move |value| format!("{name}:{value} ")));
    let hashes =
        PublishedHashes::parse(&named.chain(texts(object, "hash").map(str::to_owned)).collect::<String>()).digests;
    let length = ["contentSize", "bytes"].iter().find_map(|name| exact_size(object.get(name)?));
    let types = ["encodingFormat", "mediatype"].iter().flat_map(|name| texts(object, name));
    // Formats may be named by addresses, too.
    let media_type = types.map(str::trim).find(|text| text.contains('/') && !text.contains(':')).map(Box::from);
    DescribedFile { path, address, length: believed_length(length, &hashes), media_type, hashes }
}

/// A number of bytes: `1234`, `"1234"` or `"1234 B"`. A rounded one, as `1.2 KB`, does not count.
fn exact_size(size: &Json) -> Option<u64> {
    if let Json::Number(bytes) = size {
        return Some(*bytes);
    }
    let text = size.text()?.trim();
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    digits.parse().ok().filter(|_| ["", "B", "byte", "bytes", "Bytes"].contains(&unit.trim()))
}

/// The texts of a member: one or a list, each a text or an object with an `@id`.
fn texts<'a>(object: &'a Json, name: &str) -> impl Iterator<Item = &'a str> {
    let values = object.get(name).map_or(&[][..], Json::values);
    values.iter().filter_map(|value| value.text().or_else(|| value.get("@id")?.text()))
}

/// Answers whether a reference is relative and names more than a part of its document.
fn is_path(reference: &str) -> bool {
    let is_part = reference.starts_with('#') || reference.starts_with("_:");
    !is_part && matches!(Uri::parse(reference), Err(UriError::Relative(_)))
}

fn mentions(object: &Json, name: &str, part: &str) -> bool {
    texts(object, name).any(|text| text.contains(part))
}

/// Answers whether `@type` has one of `names`, with any prefix.
fn is_of_type(object: &Json, names: &[&str]) -> bool {
    texts(object, "@type").any(|kind| kind.rsplit([':', '/', '#']).next().is_some_and(|name| names.contains(&name)))
}

fn name(object: &Json) -> Option<Box<str>> {
    texts(object, "name").map(str::trim).find(|name| !name.is_empty()).map(Box::from)
}

fn last_segment(address: &Uri) -> Option<Box<str>> {
    address.path().rsplit('/').next().filter(|segment| !segment.is_empty()).map(decoded)
}

/// The address of a path that is written as on a disk.
fn resolved(path: &str, base: &Uri) -> Option<Uri> {
    Uri::resolve(Some(base), &format!("./{}", utf8_percent_encode(path, &IN_A_PATH))).ok()
}

/// A path without percent-encoding, where that gives UTF-8.
fn decoded(path: &str) -> Box<str> {
    percent_decode_str(path).decode_utf8().map_or_else(|_| path.into(), |decoded| (&*decoded).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "https://repo.example.org/d/1/description.json";
    const SHA_256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const MD5: &str = "631f26e82a960498ca4f9541820a1679";

    fn read(json: &str) -> Result<Option<Vec<DescribedFile>>, DescriptionError> {
        described_files(json.as_bytes(), &Uri::parse(BASE).unwrap())
    }

    /// `PATH ADDRESS LENGTH TYPE DIGESTS` of each file; addresses below the folder of [`BASE`] without it.
    fn files(json: &str) -> Vec<String> {
        let files = read(json).unwrap().expect("a description");
        let row = |file: &DescribedFile| {
            let address = file.address.as_ref().map_or("-", Uri::as_str);
            let length = file.length.map_or("-".to_owned(), |length| length.to_string());
            let digests: Vec<&str> = file.hashes.iter().map(|digest| digest.algorithm().name()).collect();
            let address = address.strip_prefix("https://repo.example.org/d/1/").unwrap_or(address);
            format!(
                "{} {address} {length} {} {}",
                file.path,
                file.media_type.as_deref().unwrap_or("-"),
                digests.join("+")
            )
        };
        files.iter().map(row).collect()
    }

    #[test]
    fn files_of_a_croissant() {
        let json = r#"{"conformsTo": "http://mlcommons.org/croissant/1.0", "distribution": [
            {"@type": "cr:FileObject", "@id": "data/survey 1.csv", "name": "survey 1.csv", "contentSize": "8 B",
             "contentUrl": "https://h/api/access/datafile/4", "encodingFormat": "text/csv", "md5": "MD5", "sha256": "SHA"},
            {"@type": "cr:FileObject", "@id": "local", "contentUrl": "data/100% é#1.csv", "contentSize": 8},
            {"@type": "sc:FileObject", "name": "old.zip", "contentUrl": "https://h/old.zip", "contentSize": "1.2 KB",
             "sha256": "https://github.com/mlcommons/croissant/issues/80"},
            {"@type": ["cr:FileObject"], "@id": "https://h/x", "contentUrl": "https://h/files/b%20c"},
            {"@type": "cr:FileObject", "@id": "repo", "contentUrl": "https://h/tree", "encodingFormat": "git+https"},
            {"@type": "cr:FileObject", "@id": "in.csv", "contentUrl": "in.csv", "containedIn": {"@id": "old.zip"}},
            {"@type": "cr:FileSet", "@id": "set", "includes": "*.csv"}, 7, null, "x"]}"#;

        let expected = [
            "data/survey 1.csv https://h/api/access/datafile/4 8 text/csv sha-256+md5",
            "data/100% é#1.csv data/100%25%20%C3%A9%231.csv 8 - ",
            "old.zip https://h/old.zip - - ",
            "b c https://h/files/b%20c - - ",
        ];
        assert_eq!(files(&json.replace("SHA", SHA_256).replace("MD5", MD5)), expected);
        let bare = r#"{"distribution": {"@type": "http://mlcommons.org/croissant/FileObject", "@id": "./a", "contentUrl": "urn:x"}}"#;
        assert_eq!(files(bare), ["a - - - "]);
    }

    #[test]
    fn files_of_a_crate() {
        let json = r##"{"@context": "https://w3id.org/ro/crate/1.2/context", "@graph": [
            {"@id": "ro-crate-metadata.json", "@type": ["CreativeWork", "File"], "conformsTo": {"@id": "https://w3id.org/ro/crate/1.2"}},
            {"@id": "./", "@type": "Dataset", "hasPart": [{"@id": "data/a.csv"}]},
            {"@id": "./data/sub%20dir/100%25%20%C3%A9%231.py", "@type": "File", "contentSize": "9", "sha256": "SHA",
             "encodingFormat": [{"@id": "https://www.nationalarchives.gov.uk/PRONOM/x-fmt/18"}, "text/x-python"]},
            {"@id": "data/12:30.csv", "@type": ["File", "SoftwareSourceCode"], "contentSize": 0, "sha256": "SHA"},
            {"@id": "https://h/f/ro%20crate.pdf", "@type": "MediaObject", "contentSize": "310691"},
            {"@id": "https://h/f/7", "@type": "File", "localPath": "papers/seven.pdf", "contentUrl": "https://mirror.h/7"},
            {"@id": "data/far.csv", "@type": "File", "contentUrl": ["https://store.h/far"]},
            {"@id": "#4", "@type": "File", "name": "four.csv", "contentUrl": "/api/access/datafile/4"},
            {"@id": "_:b", "@type": "File"}, {"@type": "File"}, {"@id": 5, "@type": "File"}, [], 7,
            {"@id": "%ff/x", "@type": "File", "contentSize": "12 kB"}]}"##;

        let expected = [
            "data/sub dir/100% é#1.py data/sub%20dir/100%25%20%C3%A9%231.py 9 text/x-python sha-256",
            "data/12:30.csv data/12:30.csv 0 - sha-256",
            "ro crate.pdf https://h/f/ro%20crate.pdf 310691 - ",
            "papers/seven.pdf https://mirror.h/7 - - ",
            "data/far.csv https://store.h/far - - ",
            "four.csv https://repo.example.org/api/access/datafile/4 - - ",
            "%ff/x %FF/x - - ",
        ];
        assert_eq!(files(&json.replace("SHA", SHA_256)), expected);
    }

    #[test]
    fn files_of_a_package() {
        let json = r#"{"name": "x", "resources": [
            {"name": "survey", "path": "data/a b#1.csv", "mediatype": "text/csv", "bytes": 8, "hash": "sha256:SHA"},
            {"name": "bare", "path": "bare.csv", "bytes": 0, "hash": "MD5"},
            {"name": "empty", "path": "empty.csv", "bytes": 0, "hash": "sha256:SHA"},
            {"name": "parts", "path": ["1.csv", "2.csv", 3], "bytes": 16, "hash": "md5:MD5"},
            {"name": "more", "path": "3.csv", "extrapaths": ["4.csv"], "bytes": 16},
            {"name": "remote", "path": "https://h/files/remote%201.csv", "hash": "sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709"},
            {"name": "up", "path": "../../x.csv"}, {"name": "inline", "data": [{"a": 1}]}, {"name": "odd", "path": 5}, "x"]}"#;

        let expected = [
            "data/a b#1.csv data/a%20b%231.csv 8 text/csv sha-256",
            "bare.csv bare.csv - - md5",
            "empty.csv empty.csv 0 - sha-256",
            "1.csv 1.csv - - ",
            "2.csv 2.csv - - ",
            "3.csv 3.csv - - ",
            "4.csv 4.csv - - ",
            "remote 1.csv https://h/files/remote%201.csv - - sha-1",
            "../../x.csv https://repo.example.org/x.csv - - ",
        ];
        assert_eq!(files(&json.replace("SHA", SHA_256).replace("MD5", MD5)), expected);
    }

    #[test]
    fn only_exact_sizes_are_believed() {
        let size = |json: &str| exact_size(&Json::parse(json).unwrap());
        for exact in ["1234", "\"1234\"", "\" 1234 B \"", "\"1234B\"", "\"1234 bytes\""] {
            assert_eq!(size(exact), Some(1234), "{exact}");
        }
        let others = [
            "1.2",
            "-5",
            "null",
            "[7]",
            "\"\"",
            "\"B\"",
            "\"1.2 KB\"",
            "\"12 kB\"",
            "\"1,234 B\"",
            "\"8 b\"",
            "\"1 2\"",
        ];
        for other in others.iter().chain(&["\"99999999999999999999\""]) {
            assert_eq!(size(other), None, "{other}");
        }
    }

    #[test]
    fn other_json_describes_no_data_set() {
        for json in [
            "{}",
            "[]",
            "7",
            r#"{"resources": [{"url": "x"}]}"#,
            r#"{"resources": "x", "distribution": [{"@type": "DataDownload", "contentUrl": "https://h/x"}]}"#,
            r#"{"@graph": [{"@id": "x", "@type": "File"}]}"#,
        ] {
            assert_eq!(read(json).unwrap(), None, "{json}");
        }
        assert!(matches!(read("<html>"), Err(DescriptionError::Json(JsonError::Page(_)))));
        assert!(matches!(read("{\"@graph\":"), Err(DescriptionError::Json(JsonError::Syntax(_)))));
    }

    #[test]
    fn very_many_files_and_long_bases_are_bounded() {
        let package = |files: usize| format!(r#"{{"resources":[{}]}}"#, vec![r#"{"path":"a"}"#; files].join(","));
        assert_eq!(read(&package(MOST_FILES)).unwrap().unwrap().len(), MOST_FILES);
        assert!(matches!(read(&package(MOST_FILES + 1)), Err(DescriptionError::TooMany)));
        let parts = format!(
            r#"{{"resources":[{{"path":[{}],"mediatype":"text/{}"}}]}}"#,
            vec![r#""a""#; 100_000].join(","),
            "b".repeat(1 << 20)
        );
        assert!(matches!(read(&parts), Err(DescriptionError::TooMany)));
        let base = Uri::parse(&format!("https://h/{}/", "b".repeat(MOST_BYTES / 1000))).unwrap();
        assert!(matches!(described_files(package(1001).as_bytes(), &base), Err(DescriptionError::TooMany)));
    }

    #[test]
    fn every_cut_of_a_description_is_an_error() {
        let json =
            r#"{"@graph":[{"@id":"ro-crate-metadata.json"},{"@id":"é%20","@type":["File"],"contentSize":"5 B"}]}"#;
        assert_eq!(files(json).len(), 1);
        for end in 0..json.len() {
            let cut = described_files(&json.as_bytes()[..end], &Uri::parse(BASE).unwrap());
            assert!(matches!(cut, Err(DescriptionError::Json(_))), "{end}");
        }
    }
}
