//! The files of a tree, and those that are listed, each compared with the other at its path.
//!
//! A walk reads batches of children, folder by folder, and looks each name up in the other catalog. It keeps the folders
//! that it has not read, and no snapshot between two batches. The tree may be committed to meanwhile: what has changed
//! since the walk began counts as the same.

use super::event::{AuditFinding, Difference};
use crate::catalog::{Catalog, CatalogError, EntryId, ITEMS, Kind, Node, Resource, Snapshot};
use crate::content::FetchSpec;
use crate::document::{Digest, Timestamp};
use crate::platform::ino::Ino;
use std::sync::Arc;

/// Children that are read in one snapshot.
const BATCH: usize = 256;

/// Finds the version that the tree shows at an inode; `None` where the tree has no such file.
pub type Versions = Arc<dyn Fn(&Snapshot<'_>, Ino) -> Result<Option<FetchSpec>, CatalogError> + Send + Sync>;

/// One file of the tree, or of the lists.
pub(super) struct Compared {
    pub path: String,
    /// The version that the tree shows of a file without a difference, if the walk looks versions up.
    pub version: Option<FetchSpec>,
    /// The difference, if there is one.
    pub finding: Option<AuditFinding>,
}

/// A walk through the lists, where the tree is compared with these, and then through the tree.
pub(super) struct AuditWalk {
    shown: Arc<Catalog>,
    /// Never changed.
    listed: Option<Arc<Catalog>>,
    versions: Option<Versions>,
    /// The commit of the tree at the beginning: every later change has a later time.
    began: Option<Timestamp>,
    /// Folders that are not read to their end, the next one last.
    open: Vec<ComparedFolder>,
}

/// A folder of the tree or of the lists.
struct ComparedFolder {
    is_shown: bool,
    ino: Ino,
    /// The folder of the other catalog at the same path, or the nearest above it.
    other: Ino,
    is_in_both: bool,
    path: String,
    /// The last child that was read.
    after: EntryId,
}

impl AuditWalk {
    /// Begins at the roots.
    pub fn new(
        shown: Arc<Catalog>,
        listed: Option<Arc<Catalog>>,
        versions: Option<Versions>,
    ) -> Result<AuditWalk, CatalogError> {
        let began = shown.snapshot()?.revision()?.map(|revision| revision.committed);
        let (ino, path, after) = (Ino::ROOT, String::new(), EntryId(0));
        let root = |is_shown| ComparedFolder { is_shown, ino, other: ino, is_in_both: true, path: path.clone(), after };
        let open = [true, false].into_iter().filter(|is_shown| *is_shown || listed.is_some()).map(root).collect();
        Ok(AuditWalk { shown, listed, versions, began, open })
    }

    /// The next files, which may be none; `None` at the end. Blocks on the disk.
    ///
    /// # Errors
    /// A catalog that cannot be read. Earlier batches stand.
    pub fn next(&mut self) -> Result<Option<Vec<Compared>>, CatalogError> {
        if self.open.is_empty() {
            return Ok(None);
        }
        let (shown, listed, versions) = (self.shown.clone(), self.listed.clone(), self.versions.clone());
        let listed = listed.as_ref().map(|listed| listed.snapshot()).transpose()?;
        let trees = Trees { shown: shown.snapshot()?, listed, versions, began: self.began };
        let (mut batch, mut read) = (Vec::new(), 0);
        while read < BATCH {
            let Some(folder) = self.open.pop() else { break };
            read += 1 + self.read(&trees, folder, &mut batch)?;
        }
        Ok(Some(batch))
    }

    /// Reads on in a folder; the number of its children that were read. Its folders are read before the rest of it.
    fn read(
        &mut self,
        trees: &Trees<'_>,
        folder: ComparedFolder,
        batch: &mut Vec<Compared>,
    ) -> Result<usize, CatalogError> {
        let (own, other) = match (&trees.listed, folder.is_shown) {
            (listed, true) => (&trees.shown, listed.as_ref()),
            // A file of the lists is missing only where the tree's folder is as it was.
            (Some(listed), false) if !trees.has_changed(folder.other)? => (listed, Some(&trees.shown)),
            (_, false) => return Ok(0),
        };
        let (mut after, mut children) = (folder.after, Vec::new());
        own.children(folder.ino, folder.after, &mut |id, name, node| {
            after = id;
            children.push((name.to_vec(), node));
            children.len() < BATCH
        })?;
        let read = children.len();
        if read == BATCH {
            self.open.push(ComparedFolder { path: folder.path.clone(), after, ..folder });
        }
        for (name, node) in children {
            let same = match other.filter(|_| folder.is_in_both) {
                Some(other) => other.lookup(folder.other, &name)?.filter(|same| same.kind == node.kind),
                None => None,
            };
            let same = same.map(|same| same.ino);
            let path = joined(&folder.path, &name);
            match node.kind {
                Kind::Folder => self.open.push(ComparedFolder {
                    is_shown: folder.is_shown,
                    ino: node.ino,
                    other: same.unwrap_or(folder.other),
                    is_in_both: same.is_some(),
                    path,
                    after: EntryId(0),
                }),
                Kind::File if folder.is_shown => batch.extend(trees.compare_shown(&node, same, path)?),
                Kind::File if same.is_none() => batch.extend(trees.missing(&node, path)?),
                Kind::File => {}
            }
        }
        Ok(read)
    }
}

/// Both catalogs during one batch.
struct Trees<'c> {
    shown: Snapshot<'c>,
    listed: Option<Snapshot<'c>>,
    versions: Option<Versions>,
    began: Option<Timestamp>,
}

impl Trees<'_> {
    /// Compares a file of the tree with the one that is `listed` at its path; `None` where it has no version.
    fn compare_shown(&self, node: &Node, listed: Option<Ino>, path: String) -> Result<Option<Compared>, CatalogError> {
        let finding = self.find_difference(node, listed, &path)?;
        let Some(versions) = self.versions.as_ref().filter(|_| finding.is_none()) else {
            return Ok(Some(Compared { path, version: None, finding }));
        };
        let version = versions(&self.shown, node.ino)?;
        Ok(version.map(|version| Compared { path, version: Some(version), finding: None }))
    }

    fn find_difference(&self, node: &Node, ino: Option<Ino>, path: &str) -> Result<Option<AuditFinding>, CatalogError> {
        let Some(listed) = self.listed.as_ref().filter(|_| !self.is_later(node)) else { return Ok(None) };
        if let Some(ino) = ino {
            if self.shown.says_the_same(node.ino, listed, ino)? {
                return Ok(None);
            }
        }
        let Some(shown) = self.shown.resource_at(node.ino, path)? else { return Ok(None) };
        let listed = ino.map(|ino| listed.resource_at(ino, path)).transpose()?.flatten();
        let (difference, what) = match listed {
            Some(listed) => (Difference::Changed, difference(&shown, &listed)),
            // Its page names it, and no list.
            None if shown.sets.contains(&ITEMS) => return Ok(None),
            None => (Difference::Extra, Some("is not listed".to_owned())),
        };
        Ok(what.map(|what| AuditFinding::new(difference, path, shown.address(), what)))
    }

    /// The finding for a file that is listed and not in the tree.
    fn missing(&self, node: &Node, path: String) -> Result<Option<Compared>, CatalogError> {
        let resource = self.listed.as_ref().map(|listed| listed.resource_at(node.ino, &path)).transpose()?.flatten();
        let Some(resource) = resource else { return Ok(None) };
        let finding =
            AuditFinding::new(Difference::Missing, &path, resource.address(), "is not in the tree".to_owned());
        Ok(Some(Compared { path, version: None, finding: Some(finding) }))
    }

    /// True if a folder of the tree has gone, or has other children, since the beginning.
    fn has_changed(&self, folder: Ino) -> Result<bool, CatalogError> {
        let inode = self.shown.inode(folder)?;
        Ok(inode.is_none_or(|inode| inode.former.is_some() || self.is_later(&inode.node)))
    }

    fn is_later(&self, node: &Node) -> bool {
        self.began.is_some_and(|began| node.ctime > began)
    }
}

/// The path of a child.
fn joined(folder: &str, name: &[u8]) -> String {
    // Names are made of URIs: they are UTF-8.
    let name = String::from_utf8_lossy(name);
    if folder.is_empty() { name.into_owned() } else { format!("{folder}/{name}") }
}

/// The difference between lists and tree, in words; `None` where both say the same of the content.
fn difference(shown: &Resource, listed: &Resource) -> Option<String> {
    let (our_digest, their_digest) = digests(shown, listed);
    let text = |digest: Option<&Digest>| digest.map(Digest::to_string);
    let pairs = [
        ("URI", Some(shown.uri.to_string()), Some(listed.uri.to_string())),
        ("digest", text(our_digest), text(their_digest)),
        ("length", shown.length.map(|it| it.to_string()), listed.length.map(|it| it.to_string())),
        ("lastmod", shown.lastmod.map(|it| it.to_string()), listed.lastmod.map(|it| it.to_string())),
        ("encoding", shown.encoding.as_deref().map(str::to_owned), listed.encoding.as_deref().map(str::to_owned)),
    ];
    let (what, ours, theirs) = pairs.into_iter().find(|(_, ours, theirs)| ours != theirs)?;
    let value = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    Some(format!("{what} is {}, but the Source lists {}", value(ours), value(theirs)))
}

/// The digests that show a difference: of one algorithm and unequal, or the only ones.
fn digests<'r>(shown: &'r Resource, listed: &'r Resource) -> (Option<&'r Digest>, Option<&'r Digest>) {
    let unequal = shown.hashes.iter().find_map(|ours| {
        let theirs = listed.hashes.iter().find(|theirs| theirs.algorithm() == ours.algorithm())?;
        (theirs != ours).then_some((Some(ours), Some(theirs)))
    });
    match unequal {
        None if shown.hashes.is_empty() != listed.hashes.is_empty() => (shown.hashes.first(), listed.hashes.first()),
        unequal => unequal.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Naming;
    use crate::document::{Entry, Uri};
    use std::fmt::Display;

    fn catalog<N: Display>(uris: &[(N, u64)]) -> (tempfile::TempDir, Arc<Catalog>) {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Arc::new(Catalog::open(folder.path(), "a test").unwrap());
        list(&catalog, uris);
        (folder, catalog)
    }

    /// Makes `uris` the tree, each with its length.
    fn list<N: Display>(catalog: &Catalog, uris: &[(N, u64)]) {
        let mut baseline = catalog.commit_of_lists(Naming::new("h", [], false).unwrap()).unwrap();
        for (name, length) in uris {
            let uri = Uri::parse(&format!("http://h/{name}")).unwrap();
            baseline.add(&Entry { length: Some(*length), ..Entry::new(uri) }).unwrap();
        }
        baseline.commit(None, b"").unwrap();
    }

    fn versions() -> Versions {
        Arc::new(|snapshot, ino| Ok(snapshot.resource(ino)?.map(|it| FetchSpec::new(ino, it.uri))))
    }

    /// Every file as (path, difference), sorted.
    fn walked(shown: Arc<Catalog>, listed: Option<Arc<Catalog>>) -> Vec<(String, Option<Difference>)> {
        let mut walk = AuditWalk::new(shown, listed, Some(versions())).unwrap();
        let mut all = Vec::new();
        while let Some(batch) = walk.next().unwrap() {
            all.extend(batch.into_iter().map(|it| (it.path, it.finding.map(|finding| finding.difference))));
        }
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    #[test]
    fn every_file_of_both_trees_is_compared_once() {
        use Difference::{Changed, Extra, Missing};
        let (_one, shown) =
            catalog(&[("a", 1), ("f/x", 2), ("f/y", 3), ("old/deep/z", 4), ("swap", 5), ("swop/below", 6)]);
        let (_other, listed) =
            catalog(&[("a", 1), ("f/x", 20), ("f/new", 7), ("fresh/deep/z", 8), ("swap/below", 9), ("swop", 10)]);

        let all = walked(shown, Some(listed));

        let expected = [
            ("a", None),
            ("f/new", Some(Missing)),
            ("f/x", Some(Changed)),
            ("f/y", Some(Extra)),
            ("fresh/deep/z", Some(Missing)),
            ("old/deep/z", Some(Extra)),
            ("swap", Some(Extra)),
            ("swap/below", Some(Missing)),
            ("swop", Some(Missing)),
            ("swop/below", Some(Extra)),
        ];
        assert_eq!(all, expected.map(|(path, difference)| (path.to_owned(), difference)));
    }

    #[test]
    fn one_tree_alone_is_walked_through_all_its_batches() {
        let files: Vec<_> = (0..5 * BATCH).map(|number| (format!("f/{}/{number}", number % 3), 1)).collect();
        let (_folder, catalog) = catalog(&files);

        let all = walked(catalog, None);

        assert_eq!(all.len(), files.len());
        assert!(files.iter().all(|(name, _)| all.contains(&(name.clone(), None))));
    }

    /// The tree follows its Source during the walk; the lists stay those of the beginning.
    #[test]
    fn what_is_committed_during_a_walk_is_no_difference() {
        let folder =
            |name: &str, length| -> Vec<_> { (0..BATCH).map(|number| (format!("{name}/{number}"), length)).collect() };
        let before = [folder("a", 1), folder("b", 1), folder("gone", 1), folder("z", 1)].concat();
        let after =
            [folder("a", 2), folder("b", 1).split_off(1), folder("new", 1), folder("own", 1), folder("z", 1)].concat();
        let lists = [before.clone(), folder("new", 1)].concat();
        for commit_after in 0..10 {
            let ((_one, shown), (_other, listed)) = (catalog(&before), catalog(&lists));
            let mut walk = AuditWalk::new(shown.clone(), Some(listed), Some(versions())).unwrap();
            let mut batches = 0;
            while let Some(batch) = walk.next().unwrap() {
                for finding in batch.into_iter().filter_map(|it| it.finding) {
                    let is_true = batches <= commit_after && finding.path.starts_with("new/");
                    assert!(is_true, "in batch {batches}, committed after {commit_after}: {finding:?}");
                }
                if batches == commit_after {
                    list(&shown, &after);
                }
                batches += 1;
            }
            assert!(batches > 4, "{batches}");
        }
    }

    #[test]
    fn a_difference_names_both_values() {
        use crate::document::{Algorithm, Digest};
        let digest =
            |algorithm: Algorithm, byte| Digest::new(algorithm, &vec![byte; algorithm.digest_length()]).unwrap();
        let resource = Resource {
            uri: Uri::parse("http://h/a").unwrap(),
            lastmod: Timestamp::parse("2024-01-01T00:00:00Z"),
            changefreq: None,
            length: Some(5),
            hashes: vec![digest(Algorithm::Sha256, 1)],
            media_type: None,
            encoding: None,
            links: Vec::new(),
            sets: Vec::new(),
            member: None,
        };
        let other = |change: fn(&mut Resource)| {
            let mut other = resource.clone();
            change(&mut other);
            difference(&resource, &other)
        };

        assert_eq!(other(|_| ()), None);
        assert_eq!(other(|it| it.media_type = Some("a/b".into())), None, "the content is the same");
        assert_eq!(other(|it| it.length = None).unwrap(), "length is 5, but the Source lists none");
        assert!(other(|it| it.hashes.clear()).unwrap().ends_with("but the Source lists none"));
        let rehashed = Resource { hashes: vec![digest(Algorithm::Sha256, 2)], ..resource.clone() };
        assert!(difference(&resource, &rehashed).unwrap().contains("0202"));
        let both =
            Resource { hashes: vec![digest(Algorithm::Sha512, 3), digest(Algorithm::Sha256, 1)], ..resource.clone() };
        assert_eq!(difference(&resource, &both), None, "a digest more is no other content");
    }
}
