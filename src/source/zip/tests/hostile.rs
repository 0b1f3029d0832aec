//! What publishers get wrong, and what someone might get wrong on purpose.

use super::crafted::{Raw, craft, crc, deflated, stored, with_zip64_end};
use super::*;
use std::process::Command;

async fn stage(members: &[Raw]) -> Stage {
    Stage::with(craft(members).bytes, Ranges::Right).await
}

/// A package that is larger than what is asked for first, so that members are asked for by themselves.
async fn large_stage(mut members: Vec<Raw>) -> Stage {
    members.push(stored("padding", &noise(9, 2 << 20)));
    stage(&members).await
}

fn what(error: &PackageError) -> String {
    crate::platform::error_chain::chain(error)
}

#[tokio::test]
async fn a_path_is_found_with_any_slashes_and_escapes() {
    let names = ["resources/a b.txt", "/absolute", "dir\\file", "literal%20name", "é", "./dot"];
    let members: Vec<Raw> = names.iter().map(|name| stored(name, name.as_bytes())).collect();
    let stage = stage(&members).await;
    let table = [
        ("/resources/a b.txt", "resources/a b.txt"),
        ("resources/a b.txt", "resources/a b.txt"),
        ("/resources/a%20b.txt", "resources/a b.txt"),
        ("absolute", "/absolute"),
        ("/absolute", "/absolute"),
        ("/dir/file", "dir\\file"),
        ("/literal%20name", "literal%20name"),
        ("/literal name", "literal%20name"),
        ("/%C3%A9", "é"),
        ("dot", "./dot"),
    ];
    for (path, name) in table {
        assert_eq!(stage.member(path).await.unwrap(), name.as_bytes(), "{path}");
    }
}

#[tokio::test]
async fn a_name_in_an_old_code_page_is_found_by_its_text() {
    let mut member = stored("x", b"bytes");
    (member.name, member.local_name) = (b"caf\x82".to_vec(), b"caf\x82".to_vec());
    let stage = stage(&[member]).await;
    assert_eq!(stage.member("/caf%C3%A9").await.unwrap(), b"bytes");
}

#[tokio::test]
async fn paths_of_the_publishers_own_disk_lose_their_folder() {
    let listed = manifest(&[entry("a", "/home/pub/data/x/one"), entry("b", "/home/pub/data/two")]);
    let stage = stage(&[stored("x/one", b"1"), stored("two", b"2"), stored("manifest.xml", &listed)]).await;
    assert_eq!(stage.member("/home/pub/data/x/one").await.unwrap(), b"1");
    assert_eq!(stage.member("/home/pub/data/two").await.unwrap(), b"2");
    let error = stage.member("/home/pub/data/three").await.unwrap_err();
    assert!(matches!(error, PackageError::NoMember { .. }), "{error:?}");
}

#[tokio::test]
async fn a_missing_member_is_never_another_one_of_the_same_last_name() {
    let listed = manifest(&[entry("a", "/one/readme"), entry("b", "/readme"), entry("c", "/other/readme")]);
    let stage = stage(&[stored("one/readme", b"1"), stored("readme", b"2"), stored("manifest.xml", &listed)]).await;
    let error = stage.member("/other/readme").await.unwrap_err();
    assert!(matches!(error, PackageError::NoMember { .. }) && error.is_of_one_member(), "{error:?}");
}

#[tokio::test]
async fn members_that_no_manifest_names_and_folders_are_left_alone() {
    let listed = manifest(&[entry("a", "/a")]);
    let members = [stored("manifest.xml", &listed), stored("a", b"1"), stored("extra", b"2"), stored("folder/", b"")];
    let stage = stage(&members).await;
    let manifest = stage.packages.manifest(&stage.uri()).await.unwrap();
    let mut reader = manifest.reader().unwrap();
    assert!(reader.next_entry().unwrap().is_some() && reader.next_entry().unwrap().is_none());
}

#[tokio::test]
async fn a_manifest_that_says_changedump_is_a_change_dump_manifest() {
    let listed = urlset("capability=\"changedump\"", &[], &[url("http://example.org/a", "change=\"deleted\"")]);
    let stage = stage(&[stored("manifest.xml", listed.as_bytes())]).await;
    let manifest = stage.packages.manifest(&stage.uri()).await.unwrap();
    assert_eq!(manifest.capability(), Some(Capability::ChangeDumpManifest));
    let deleted = manifest.reader().unwrap().next_entry().unwrap().unwrap();
    assert_eq!(manifest.member(&deleted), None, "a deletion has no path");
}

#[tokio::test]
async fn a_package_without_manifest_is_named() {
    let stage = stage(&[stored("a", b"1"), stored("sub/manifest.xml", b"<urlset/>")]).await;
    let error = stage.packages.manifest(&stage.uri()).await.unwrap_err();
    assert!(matches!(error, PackageError::NoManifest { .. }), "{error:?}");
}

#[tokio::test]
async fn a_manifest_that_is_no_document_is_named() {
    let stage = stage(&[stored("manifest.xml", b"not XML")]).await;
    let error = stage.packages.manifest(&stage.uri()).await.unwrap_err();
    assert!(what(&error).contains("not XML"), "{error:?}");
}

#[tokio::test]
async fn what_is_no_zip_is_named_and_asked_for_once() {
    let kinds: [(&[u8], &str); 4] = [
        (b"\xfd7zXZ\0", "without a ZIP's directory"),
        (b"<html>please log in</html>", "without a ZIP's directory"),
        (b"PK\x03\x04", "without a ZIP's directory"),
        (b"", "empty"),
    ];
    for (magic, message) in kinds {
        let bytes = [magic, &vec![0; if magic.is_empty() { 0 } else { 3 << 20 }]].concat();
        let stage = Stage::with(bytes, Ranges::Right).await;
        let error = stage.packages.directory(&stage.uri()).await.unwrap_err();
        assert!(matches!(error, PackageError::NotZip { .. }) && !error.is_retryable(), "{error:?}");
        assert!(what(&error).contains(message), "{error}");
        stage.asked();
        stage.packages.directory(&stage.uri()).await.unwrap_err();
        assert_eq!(stage.asked().len(), 0);
    }
}

#[tokio::test]
async fn a_truncated_package_is_refused_wherever_it_ends() {
    let whole = craft(&[stored("a", &noise(1, 500)), deflated("b", &[7; 500])]).bytes;
    for length in 0..whole.len() {
        let stage = Stage::with(whole[..length].to_vec(), Ranges::Right).await;
        stage.packages.directory(&stage.uri()).await.unwrap_err();
    }
}

#[tokio::test]
async fn bytes_before_and_a_comment_after_are_allowed() {
    let crafted = craft(&[stored("a", b"hello"), deflated("b", b"world")]);
    let prefixed = [&noise(3, 5000)[..], &crafted.bytes].concat();
    let mut commented = crafted.bytes.clone();
    let length = commented.len();
    commented[length - 2..].copy_from_slice(&30_000_u16.to_le_bytes());
    commented.extend(vec![b'c'; 30_000]);
    for bytes in [prefixed, commented] {
        let stage = Stage::with(bytes, Ranges::Right).await;
        assert_eq!(stage.member("a").await.unwrap(), b"hello");
        assert_eq!(stage.member("b").await.unwrap(), b"world");
    }
}

#[tokio::test]
async fn an_empty_zip_has_no_members_and_empty_members_have_no_bytes() {
    let empty = stage(&[]).await;
    assert!(empty.packages.directory(&empty.uri()).await.unwrap().is_empty());
    let stage = stage(&[stored("a", b""), deflated("b", b"")]).await;
    assert_eq!(stage.member("a").await.unwrap(), b"");
    assert_eq!(stage.member("b").await.unwrap(), b"");
}

#[tokio::test]
async fn sizes_behind_the_bytes_are_those_of_the_directory() {
    let descriptor = |raw: Raw| Raw { flags: 8, local: (0, 0, 0), after: vec![0; 16], ..raw };
    let stage = stage(&[descriptor(stored("a", b"hello")), descriptor(deflated("b", &[1; 9000]))]).await;
    assert_eq!(stage.member("a").await.unwrap(), b"hello");
    assert_eq!(stage.member("b").await.unwrap(), [1; 9000]);
}

#[tokio::test]
async fn zip64_sizes_in_a_local_header_are_read() {
    let sizes = [&[1, 0, 16, 0][..], &5_u64.to_le_bytes(), &5_u64.to_le_bytes()].concat();
    let wide = Raw { local: (crc(b"hello"), u32::MAX, u32::MAX), local_extra: sizes, ..stored("a", b"hello") };
    let lying = Raw { local_extra: [&[1, 0, 16, 0][..], &[9; 16]].concat(), ..wide.clone() };
    let stage = stage(&[wide, Raw { name: b"b".into(), local_name: b"b".into(), ..lying }]).await;
    assert_eq!(stage.member("a").await.unwrap(), b"hello");
    assert!(what(&stage.member("b").await.unwrap_err()).contains("contradicts the directory"));
}

#[tokio::test]
async fn a_directory_of_more_than_65535_members_is_read() {
    let members: Vec<Raw> = (0..70_000_u32).map(|number| stored(&number.to_string(), &number.to_le_bytes())).collect();
    let crafted = craft(&members);
    let bytes = with_zip64_end(&crafted, 70_000, (crafted.end - crafted.directory) as u64);
    let stage = Stage::with(bytes, Ranges::Right).await;
    assert_eq!(stage.packages.directory(&stage.uri()).await.unwrap().len(), 70_000);
    assert_eq!(stage.asked().len(), 2);
    assert_eq!(stage.member("69999").await.unwrap(), 69_999_u32.to_le_bytes());
}

#[tokio::test]
async fn a_directory_that_claims_what_cannot_be_there_costs_nothing() {
    let crafted = craft(&[stored("a", b"hello")]);
    let size = (crafted.end - crafted.directory) as u64;
    let claims = [(1_u64 << 32, size), (1 << 32, 4 << 30), (u64::MAX, u64::MAX), (2, 4 << 30), (1 << 32, 1 << 63)];
    for (entries, size) in claims {
        let bytes = with_zip64_end(&crafted, entries, size);
        let length = bytes.len() as u64;
        let stage = Stage::with(bytes, Ranges::Right).await;
        let error = stage.packages.directory(&stage.uri()).await.unwrap_err();
        assert!(matches!(error, PackageError::Damaged { .. }), "{entries} in {size}: {error:?}");
        let asked: usize = stage.server.asked().iter().map(|asked| asked.sent).sum();
        assert!(asked as u64 <= length, "nothing is asked for again");
    }
}

#[tokio::test]
async fn a_directory_above_the_limit_is_refused_before_it_is_fetched() {
    let members: Vec<Raw> = (0..4000).map(|number| stored(&format!("{number:0100}"), b"")).collect();
    let stage = stage(&members).await;
    let folder = tempfile::tempdir().unwrap();
    let config = PackageConfig { directory: 200 << 10, ..PackageConfig::new(folder.path().to_owned()) };
    let packages = Packages::open(stage.server.client(), config).unwrap();
    let error = packages.directory(&stage.uri()).await.unwrap_err();
    assert!(matches!(error, PackageError::TooLarge { .. }), "{error:?}");
    assert_eq!(stage.asked().len(), 1);
}

#[tokio::test]
async fn a_bomb_ends_at_the_length_it_admits() {
    let bomb = deflated("bomb", &vec![0; 50 << 20]);
    let modest = Raw { length: 1000, local: (bomb.crc, bomb.packed.len() as u32, 1000), ..bomb.clone() };
    let impossible = Raw { length: u32::MAX, local: (0, 1000, u32::MAX), packed: noise(1, 1000), ..bomb.clone() };
    let stage =
        large_stage(vec![modest, Raw { name: b"impossible".into(), local_name: b"impossible".into(), ..impossible }])
            .await;

    let mut member = stage.packages.member(&stage.uri(), "bomb").await.unwrap();
    let mut came = 0;
    let error = loop {
        match member.chunk().await {
            Ok(chunk) => came += chunk.unwrap().len(),
            Err(error) => break error,
        }
    };
    assert!(came <= 1000, "{came}");
    assert!(what(&error).contains("longer than the 1000 bytes"), "{error}");
    let error = stage.member("impossible").await.unwrap_err();
    assert!(what(&error).contains("cannot be 4294967295 bytes unpacked from 1000"), "{error}");
}

#[tokio::test]
async fn encrypted_members_and_other_compressions_are_named() {
    let encrypted = Raw { flags: 1, ..stored("secret", b"hello") };
    let bzip2 = Raw { method: 12, ..stored("bzip2", b"hello") };
    let stage = stage(&[encrypted, bzip2, stored("a", b"hello")]).await;
    assert!(what(&stage.member("secret").await.unwrap_err()).contains("is encrypted"));
    assert!(what(&stage.member("bzip2").await.unwrap_err()).contains("method 12"));
    assert_eq!(stage.member("a").await.unwrap(), b"hello");
}

#[tokio::test]
async fn names_that_lead_out_are_names_like_any_other() {
    let listed = manifest(&[]);
    let stage = stage(&[
        stored("../../../../tmp/resyncfs-escaped", b"1"),
        stored("/etc/passwd", b"2"),
        stored("manifest.xml", &listed),
    ])
    .await;
    stage.packages.manifest(&stage.uri()).await.unwrap();
    assert_eq!(stage.member("../../../../tmp/resyncfs-escaped").await.unwrap(), b"1");
    assert_eq!(stage.member("/etc/passwd").await.unwrap(), b"2");
    assert!(!std::path::Path::new("/tmp/resyncfs-escaped").exists());
}

#[tokio::test]
async fn two_members_of_one_name_count_only_if_equal() {
    let members = [stored("a", b"one"), stored("a", b"two"), stored("b", b"same"), deflated("b", b"same")];
    let stage = stage(&members).await;
    let error = stage.member("a").await.unwrap_err();
    assert!(matches!(error, PackageError::Ambiguous { .. }), "{error:?}");
    assert_eq!(stage.member("b").await.unwrap(), b"same");
}

#[tokio::test]
async fn overlapping_members_make_the_whole_package_untrusted() {
    let over = Raw { header: Some(10), ..stored("b", b"world") };
    let twice = Raw { header: Some(0), ..stored("a", b"hello") };
    let past = Raw { header: Some(1 << 20), ..stored("c", b"world") };
    for second in [over, twice, past] {
        let stage = stage(&[stored("a", b"hello"), second]).await;
        let error = stage.packages.directory(&stage.uri()).await.unwrap_err();
        assert!(matches!(error, PackageError::Damaged { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_local_header_must_say_what_the_directory_says() {
    let good = stored("a", b"hello");
    let (crc, packed, length) = good.local;
    let liars = [
        Raw { local_name: b"b".into(), ..good.clone() },
        Raw { local: (crc ^ 1, packed, length), ..good.clone() },
        Raw { local: (crc, packed - 1, length), ..good.clone() },
        Raw { local: (crc, packed, length + 1), ..good.clone() },
        Raw { local: (0, 0, 0), ..good.clone() },
    ];
    for liar in liars {
        let stage = stage(&[liar]).await;
        let error = stage.member("a").await.unwrap_err();
        assert!(what(&error).contains("contradicts the directory"), "{error}");
    }
    let crafted = craft(&[good]);
    let mut bytes = crafted.bytes;
    bytes[0] = b'X';
    let stage = Stage::with(bytes, Ranges::Right).await;
    assert!(what(&stage.member("a").await.unwrap_err()).contains("no local header"));
}

#[tokio::test]
async fn the_last_bytes_are_held_back_until_the_crc_is_right() {
    let bytes = noise(5, 300_000);
    let wrong = crc(&bytes) ^ 1;
    for raw in [stored("a", &bytes), deflated("a", &bytes)] {
        let raw = Raw { crc: wrong, local: (wrong, raw.local.1, raw.local.2), ..raw };
        let stage = large_stage(vec![raw]).await;
        let mut member = stage.packages.member(&stage.uri(), "a").await.unwrap();
        let mut came = 0;
        let error = loop {
            match member.chunk().await {
                Ok(chunk) => came += chunk.unwrap().len(),
                Err(error) => break error,
            }
        };
        assert!(came < bytes.len() && what(&error).contains("CRC-32"), "{came}: {error}");
        member.chunk().await.unwrap_err();
    }
}

#[tokio::test]
async fn damage_anywhere_in_deflated_bytes_is_an_error() {
    let text: Vec<u8> = (0..2000_u32).flat_map(|number| format!("{} ", number * number).into_bytes()).collect();
    let good = deflated("a", &text);
    for at in (0..good.packed.len()).step_by(97) {
        let mut bad = good.clone();
        bad.packed[at] ^= 0x55;
        let stage = stage(&[bad]).await;
        stage.member("a").await.unwrap_err();
    }
    let mut short = good.clone();
    short.packed.truncate(good.packed.len() / 2);
    short.local.1 = short.packed.len() as u32;
    let mut long = good;
    long.packed.extend([0; 10]);
    long.local.1 = long.packed.len() as u32;
    for raw in [short, long] {
        stage(&[raw]).await.member("a").await.unwrap_err();
    }
}

#[tokio::test]
async fn what_python_writes_is_read() {
    let script = r"
import io, sys, zipfile
class Pipe(io.RawIOBase):
    def __init__(self, out): self.out = out
    def writable(self): return True
    def write(self, bytes): self.out.extend(bytes); return len(bytes)
out = bytearray(b'#!/usr/bin/env python3\n')
with zipfile.ZipFile(Pipe(out), 'w', zipfile.ZIP_DEFLATED) as z:
    z.comment = b'a comment'
    z.writestr('folder/é.txt', 'x' * 100000)
    z.writestr(zipfile.ZipInfo('stored'), b'hello')
    with z.open('wide', 'w', force_zip64=True) as member: member.write(b'wide')
sys.stdout.buffer.write(bytes(out))
";
    let written = Command::new("python3").args(["-c", script]).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let stage = Stage::with(written.stdout, Ranges::Right).await;
    assert_eq!(stage.member("/folder/é.txt").await.unwrap(), vec![b'x'; 100_000]);
    assert_eq!(stage.member("/stored").await.unwrap(), b"hello");
    assert_eq!(stage.member("/wide").await.unwrap(), b"wide");
}

#[test]
fn any_byte_of_a_package_may_be_any_other() {
    let whole = craft(&[stored("a", &noise(1, 60)), deflated("b", &[7; 300])]).bytes;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stage = Stage::with(Vec::new(), Ranges::Right).await;
        for at in 0..whole.len() {
            for flip in [0xff, 0x01] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                let path = format!("/{at}-{flip}.zip");
                stage.server.put(&path, Answer::new("application/zip", bytes).etag("v1").ranges(Ranges::Right));
                let package = stage.server.uri(&path);
                for (name, right) in [("a", noise(1, 60)), ("b", vec![7; 300])] {
                    let Ok(mut member) = stage.packages.member(&package, name).await else { continue };
                    let mut bytes = Vec::new();
                    let whole = loop {
                        match member.chunk().await {
                            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                            Ok(None) => break true,
                            Err(_) => break false,
                        }
                    };
                    assert!(!whole || bytes == right, "byte {at} ^ {flip} of {name}");
                }
            }
        }
    });
}

#[tokio::test]
async fn a_broken_manifest_is_read_once_for_all_wrong_paths() {
    let cut = manifest(&[entry("a", "/a")])[..250].to_vec();
    let bytes = zip(&[("manifest.xml", cut, true), ("a", b"a".to_vec(), false)]);
    let stage = Stage::with(bytes, Ranges::Right).await;
    stage.packages.member(&stage.uri(), "gone").await.unwrap_err();
    let directory = stage.packages.known(&stage.uri()).unwrap();
    assert_eq!(directory.folder.get(), Some(&None));
}

/// A manifest may name such a member as often as there are members.
#[tokio::test]
async fn of_very_many_members_of_one_name_few_are_looked_at() {
    const MEMBERS: u32 = 20_000;
    let members: Vec<Raw> = (0..MEMBERS).map(|number| stored("a", &number.to_be_bytes())).collect();
    let stage = Stage::with(craft(&members).bytes, Ranges::Right).await;
    let directory = stage.packages.directory(&stage.uri()).await.unwrap();
    let begun = Instant::now();
    assert!((0..MEMBERS).all(|_| directory.find("/a") == super::super::directory::FoundMember::Several));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
