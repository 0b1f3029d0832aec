//! Extensions of names, and of media types.

/// The longest extension, in bytes without its dot, that is kept when a name is cut.
const LONGEST: usize = 16;

/// The extension of `name` with its dot, as a program would see it: ASCII letters and digits, one letter at least, after
/// the last dot. Empty where there is none: `v1.2` and `.profile` have none.
pub fn of_name(name: &str) -> &str {
    let Some(dot) = name.rfind('.').filter(|dot| *dot > 0) else {
        return "";
    };
    let extension = &name[dot + 1..];
    let is_one = extension.len() <= LONGEST
        && extension.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && extension.bytes().any(|byte| byte.is_ascii_alphabetic());
    if is_one { &name[dot..] } else { "" }
}

/// The extension, without dot, that files of this type (RFC 9110, 8.3.1; its parameters do not count) usually have.
pub fn of_media_type(media_type: &str) -> Option<&'static str> {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    EXTENSIONS.iter().find(|(known, _)| known.eq_ignore_ascii_case(essence)).map(|(_, extension)| *extension)
}

/// Media types that together give each extension, one for each. To reach the end of them takes long: each is compared with all before it.
pub fn media_types() -> impl Iterator<Item = &'static str> {
    EXTENSIONS
        .iter()
        .enumerate()
        .filter(|(index, (_, extension))| EXTENSIONS[..*index].iter().all(|(_, earlier)| earlier != extension))
        .map(|(_, (media_type, _))| *media_type)
}

/// Media types that say what a program can do with the file; `application/octet-stream` says nothing. The order is part of the format of
/// the store, whose records name a type by its index here (`store/words.rs`): the list grows at its end only.
pub const EXTENSIONS: &[(&str, &str)] = &[
    ("application/pdf", "pdf"),
    ("text/html", "html"),
    ("application/xml", "xml"),
    ("text/xml", "xml"),
    ("application/json", "json"),
    ("text/plain", "txt"),
    ("text/csv", "csv"),
    ("image/jpeg", "jpg"),
    ("image/png", "png"),
    ("image/tiff", "tif"),
    ("application/zip", "zip"),
    ("application/epub+zip", "epub"),
    ("audio/mpeg", "mp3"),
    ("video/mp4", "mp4"),
    ("application/atom+xml", "atom"),
    ("application/rss+xml", "rss"),
    ("application/rdf+xml", "rdf"),
    ("application/xhtml+xml", "xhtml"),
    ("application/mets+xml", "xml"),
    ("application/mods+xml", "xml"),
    ("application/marcxml+xml", "xml"),
    ("application/marc", "mrc"),
    ("application/ld+json", "jsonld"),
    ("application/geo+json", "geojson"),
    ("application/x-ndjson", "ndjson"),
    ("application/n-triples", "nt"),
    ("application/n-quads", "nq"),
    ("application/trig", "trig"),
    ("text/turtle", "ttl"),
    ("text/tab-separated-values", "tsv"),
    ("text/markdown", "md"),
    ("text/css", "css"),
    ("text/javascript", "js"),
    ("application/javascript", "js"),
    ("application/yaml", "yaml"),
    ("application/rtf", "rtf"),
    ("text/rtf", "rtf"),
    ("application/postscript", "ps"),
    ("application/x-tex", "tex"),
    ("text/x-bibtex", "bib"),
    ("application/msword", "doc"),
    ("application/vnd.ms-excel", "xls"),
    ("application/vnd.ms-powerpoint", "ppt"),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", "docx"),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xlsx"),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation", "pptx"),
    ("application/vnd.oasis.opendocument.text", "odt"),
    ("application/vnd.oasis.opendocument.spreadsheet", "ods"),
    ("application/vnd.oasis.opendocument.presentation", "odp"),
    ("application/x-mobipocket-ebook", "mobi"),
    ("application/gzip", "gz"),
    ("application/x-gzip", "gz"),
    ("application/x-tar", "tar"),
    ("application/x-bzip2", "bz2"),
    ("application/x-xz", "xz"),
    ("application/zstd", "zst"),
    ("application/x-7z-compressed", "7z"),
    ("application/x-hdf5", "h5"),
    ("application/x-netcdf", "nc"),
    ("application/fits", "fits"),
    ("application/vnd.sqlite3", "sqlite"),
    ("application/warc", "warc"),
    ("image/gif", "gif"),
    ("image/webp", "webp"),
    ("image/bmp", "bmp"),
    ("image/jp2", "jp2"),
    ("image/svg+xml", "svg"),
    ("image/vnd.djvu", "djvu"),
    ("audio/wav", "wav"),
    ("audio/x-wav", "wav"),
    ("audio/flac", "flac"),
    ("audio/ogg", "ogg"),
    ("audio/mp4", "m4a"),
    ("video/mpeg", "mpg"),
    ("video/quicktime", "mov"),
    ("video/webm", "webm"),
    ("video/x-matroska", "mkv"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_is_what_programs_see() {
        for (name, extension) in [
            ("a.pdf", ".pdf"),
            ("a.tar.gz", ".gz"),
            ("a.7z", ".7z"),
            ("view.php?id=5", ""),
            ("download?file=a.pdf", ".pdf"),
            ("v1.2", ""),
            ("10.1000", ""),
            (".profile", ""),
            ("a.", ""),
            ("a", ""),
            ("a.änderung", ""),
            ("a.abcdefghijklmnop", ".abcdefghijklmnop"),
            ("a.abcdefghijklmnopq", ""),
        ] {
            assert_eq!(of_name(name), extension, "{name}");
        }
    }

    #[test]
    fn parameters_and_case_of_a_media_type_do_not_count() {
        assert_eq!(of_media_type("Text/HTML ; charset=utf-8"), Some("html"));
        assert_eq!(of_media_type("application/octet-stream"), None);
        assert_eq!(of_media_type(""), None);
    }

    #[test]
    fn every_extension_of_the_table_is_one() {
        for (media_type, extension) in EXTENSIONS {
            assert_eq!(of_name(&format!("a.{extension}")), format!(".{extension}"), "{media_type}");
            assert_eq!(EXTENSIONS.iter().filter(|(other, _)| other == media_type).count(), 1, "{media_type}");
        }
    }
}
