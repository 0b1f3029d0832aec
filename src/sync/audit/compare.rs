//! Two trees against each other, folder by folder: what is in one, in the other, in both.
//!
//! Every name is looked up in the other tree, so the memory is that of the deepest path. The tree that is shown may
//! be committed to meanwhile, and no snapshot of it is held for long: what has changed since the beginning is passed over where it differs.

use crate::catalog::{Catalog, CatalogError, EntryId, Kind, Node, Resource, Snapshot};
use crate::document::Timestamp;
use fuser::INodeNo;
use std::ops::ControlFlow;

/// Children that are read in one snapshot of the tree that is shown.
const BATCH: usize = 256;

/// A file that one of the trees holds, or both.
#[derive(Debug)]
pub struct Compared<'a> {
    /// Its path.
    pub path: &'a str,
    /// What the tree has there.
    pub shown: Option<INodeNo>,
    /// What the trees say of it.
    pub said: Said,
}

/// What two trees say of one path.
#[derive(Debug)]
pub enum Said {
    /// The same of URI and content; so it is where there is but one tree.
    Same,
    /// It is not listed.
    Shown(Resource),
    /// It is not in the tree.
    Listed(Resource),
    /// It is in both, and they may differ: what is shown and what is listed.
    Both(Resource, Resource),
}

/// What is done about each file; it may end the comparison.
pub type Visit<'v> = &'v mut dyn FnMut(Compared<'_>) -> ControlFlow<()>;

/// Calls `visit` for every file of `shown` and of `listed`, once each.
///
/// # Errors
/// A catalog that cannot answer. What was visited before stands.
pub fn compare(shown: &Catalog, listed: &Snapshot<'_>, visit: Visit<'_>) -> Result<(), CatalogError> {
    Comparison::new(shown, Some(listed), visit)?.begin(Some(INodeNo::ROOT))
}

/// Calls `visit` for every file of `shown`.
///
/// # Errors
/// A catalog that cannot answer. What was visited before stands.
pub fn each(shown: &Catalog, visit: Visit<'_>) -> Result<(), CatalogError> {
    Comparison::new(shown, None, visit)?.begin(None)
}

struct Comparison<'c, 's> {
    catalog: &'c Catalog,
    /// Of the tree that is shown; another one for each batch of children.
    shown: Snapshot<'c>,
    /// When the first one was committed: what changed since has a later time.
    began: Option<Timestamp>,
    listed: Option<&'c Snapshot<'s>>,
    visit: Visit<'c>,
}

/// A child of a folder: its name and its node.
type Child = (Vec<u8>, Node);

impl<'c, 's> Comparison<'c, 's> {
    fn new(
        catalog: &'c Catalog,
        listed: Option<&'c Snapshot<'s>>,
        visit: Visit<'c>,
    ) -> Result<Comparison<'c, 's>, CatalogError> {
        let shown = catalog.snapshot()?;
        let began = shown.revision()?.map(|revision| revision.committed);
        Ok(Comparison { catalog, shown, began, listed, visit })
    }

    fn begin(mut self, listed: Option<INodeNo>) -> Result<(), CatalogError> {
        self.folder(Some(INodeNo::ROOT), listed, &mut String::new()).map(|_| ())
    }

    /// Compares a folder that is in one of the trees or both; `path` is its path, and is so again at the end.
    fn folder(
        &mut self,
        in_shown: Option<INodeNo>,
        in_listed: Option<INodeNo>,
        path: &mut String,
    ) -> Result<ControlFlow<()>, CatalogError> {
        let (listed, mut after) = (self.listed, EntryId(0));
        while let Some(folder) = in_shown {
            self.shown = self.catalog.snapshot()?;
            let Some((last, children)) = batch(&self.shown, folder, after)? else { break };
            after = last;
            for (name, node) in children {
                let other = match (listed, in_listed) {
                    (Some(listed), Some(folder)) => listed.lookup(folder, &name)?.filter(|it| it.kind == node.kind),
                    _ => None,
                };
                let other = other.map(|other| other.ino);
                let below = push_name(path, &name);
                let visited = match node.kind {
                    Kind::Folder => self.folder(Some(node.ino), other, path)?,
                    Kind::File => match self.said(path, &node, other)? {
                        Some(said) => (self.visit)(Compared { path, shown: Some(node.ino), said }),
                        None => ControlFlow::Continue(()),
                    },
                };
                path.truncate(below);
                if visited.is_break() {
                    return Ok(visited);
                }
            }
        }
        let (Some(listed), Some(folder)) = (listed, in_listed) else { return Ok(ControlFlow::Continue(())) };
        let mut after = EntryId(0);
        while let Some((last, children)) = batch(listed, folder, after)? {
            after = last;
            self.shown = self.catalog.snapshot()?;
            for (name, node) in children {
                let other = match in_shown {
                    // What was in it may have gone meanwhile.
                    Some(folder) if self.has_changed(folder)? => continue,
                    Some(folder) => self.shown.lookup(folder, &name)?.filter(|it| it.kind == node.kind),
                    None => None,
                };
                if other.is_some() {
                    continue;
                }
                let below = push_name(path, &name);
                let visited = match node.kind {
                    Kind::Folder => self.folder(None, Some(node.ino), path)?,
                    Kind::File => match listed.resource_at(node.ino, path)? {
                        Some(resource) => (self.visit)(Compared { path, shown: None, said: Said::Listed(resource) }),
                        None => ControlFlow::Continue(()),
                    },
                };
                path.truncate(below);
                if visited.is_break() {
                    return Ok(visited);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// What the trees say of a file that is shown; `None` where it is none any more.
    fn said(&self, path: &str, node: &Node, other: Option<INodeNo>) -> Result<Option<Said>, CatalogError> {
        let Some(listed) = self.listed else { return Ok(Some(Said::Same)) };
        if let Some(other) = other
            && self.shown.says_the_same(node.ino, listed, other)?
        {
            return Ok(Some(Said::Same));
        }
        if self.is_later(node) {
            return Ok(Some(Said::Same));
        }
        let Some(ours) = self.shown.resource_at(node.ino, path)? else { return Ok(None) };
        let theirs = other.map(|other| listed.resource_at(other, path)).transpose()?.flatten();
        Ok(Some(match theirs {
            Some(theirs) => Said::Both(ours, theirs),
            None => Said::Shown(ours),
        }))
    }

    /// Whether a folder, or what is in it, is not as it was at the beginning.
    fn has_changed(&self, folder: INodeNo) -> Result<bool, CatalogError> {
        Ok(self.shown.attributes(folder)?.is_none_or(|node| self.is_later(&node)))
    }

    fn is_later(&self, node: &Node) -> bool {
        self.began.is_some_and(|began| node.ctime > began)
    }
}

/// The next children of a folder behind `after`, and the entry id of the last of them; `None`: there are no more.
fn batch(
    snapshot: &Snapshot<'_>,
    folder: INodeNo,
    after: EntryId,
) -> Result<Option<(EntryId, Vec<Child>)>, CatalogError> {
    let (mut last, mut children) = (after, Vec::<Child>::new());
    snapshot.children(folder, after, &mut |id, name, node| {
        last = id;
        children.push((name.to_vec(), node));
        children.len() < BATCH
    })?;
    // Files first, while the snapshot is the one that their nodes are of.
    children.sort_by_key(|(_, node)| node.kind == Kind::Folder);
    Ok((!children.is_empty()).then_some((last, children)))
}

/// Appends a name to the path of its folder, whose length is answered.
fn push_name(path: &mut String, name: &[u8]) -> usize {
    let above = path.len();
    if above > 0 {
        path.push('/');
    }
    // Names are made of URIs: they are UTF-8.
    path.push_str(&String::from_utf8_lossy(name));
    above
}

/// What the Source says now that the tree does not say, in words; `None` where they agree on the content.
pub fn difference(shown: &Resource, listed: &Resource) -> Option<String> {
    if shown.uri != listed.uri {
        return Some(format!("stands for {} where {} is listed", shown.uri, listed.uri));
    }
    for ours in &shown.hashes {
        let theirs = listed.hashes.iter().find(|theirs| theirs.algorithm() == ours.algorithm());
        if let Some(theirs) = theirs.filter(|theirs| *theirs != ours) {
            return Some(format!("{ours} where {theirs} is listed"));
        }
    }
    if shown.hashes.is_empty() != listed.hashes.is_empty() {
        return Some(format!(
            "{} where {} listed",
            digests(shown),
            match listed.hashes.is_empty() {
                true => "none is".to_owned(),
                false => format!("{} is", digests(listed)),
            }
        ));
    }
    let pairs = [
        ("length", shown.length.map(|it| it.to_string()), listed.length.map(|it| it.to_string())),
        ("lastmod", shown.lastmod.map(|it| it.to_string()), listed.lastmod.map(|it| it.to_string())),
        ("encoding", shown.encoding.as_deref().map(str::to_owned), listed.encoding.as_deref().map(str::to_owned)),
    ];
    let (what, ours, theirs) = pairs.into_iter().find(|(_, ours, theirs)| ours != theirs)?;
    let told = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    Some(format!("{what} {} where {} is listed", told(ours), told(theirs)))
}

fn digests(resource: &Resource) -> String {
    match resource.hashes.first() {
        Some(strongest) => strongest.to_string(),
        None => "no digest".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Naming;
    use crate::document::{Entry, Uri};

    fn catalog(uris: &[(&str, u64)]) -> (tempfile::TempDir, Catalog) {
        let folder = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(folder.path(), "a test").unwrap();
        list(&catalog, uris);
        (folder, catalog)
    }

    fn list(catalog: &Catalog, uris: &[(&str, u64)]) {
        let mut baseline = catalog.baseline(Naming::new("h", [], false).unwrap()).unwrap();
        for (name, length) in uris {
            let uri = Uri::parse(&format!("http://h/{name}")).unwrap();
            baseline.add(&Entry { length: Some(*length), ..Entry::new(uri) }).unwrap();
        }
        baseline.commit(None, b"").unwrap();
    }

    /// Path, length shown, length listed; sorted.
    fn compared(shown: &[(&str, u64)], listed: &[(&str, u64)]) -> Vec<(String, Option<u64>, Option<u64>)> {
        let ((_one, shown), (_other, listed)) = (catalog(shown), catalog(listed));
        let mut all = Vec::new();
        let tree = shown.snapshot().unwrap();
        compare(&shown, &listed.snapshot().unwrap(), &mut |it| {
            let (shown, listed) = match it.said {
                Said::Same => {
                    let length = tree.resource(it.shown.unwrap()).unwrap().unwrap().length;
                    (length, length)
                }
                Said::Shown(shown) => (shown.length, None),
                Said::Listed(listed) => (None, listed.length),
                Said::Both(shown, listed) => (shown.length, listed.length),
            };
            all.push((it.path.to_owned(), shown, listed));
            ControlFlow::Continue(())
        })
        .unwrap();
        all.sort();
        all
    }

    #[test]
    fn every_file_of_both_trees_is_visited_once() {
        let all = compared(
            &[("a", 1), ("f/x", 2), ("f/y", 3), ("old/deep/z", 4), ("swap", 5), ("swop/below", 6)],
            &[("a", 1), ("f/x", 20), ("f/new", 7), ("fresh/deep/z", 8), ("swap/below", 9), ("swop", 10)],
        );

        let expected = [
            ("a", Some(1), Some(1)),
            ("f/new", None, Some(7)),
            ("f/x", Some(2), Some(20)),
            ("f/y", Some(3), None),
            ("fresh/deep/z", None, Some(8)),
            ("old/deep/z", Some(4), None),
            ("swap", Some(5), None),
            ("swap/below", None, Some(9)),
            ("swop", None, Some(10)),
            ("swop/below", Some(6), None),
        ];
        assert_eq!(all, expected.map(|(path, shown, listed)| (path.to_owned(), shown, listed)));
    }

    /// A snapshot of the tree that is shown is never held for long, and what changes meanwhile is no finding.
    #[test]
    fn what_is_committed_during_a_comparison_is_no_difference() {
        let before: Vec<_> = (0..2 * BATCH).map(|number| format!("f/{number}")).collect();
        let before: Vec<_> = before.iter().map(|name| (&**name, 1)).collect();
        let ((_one, shown), (_other, listed)) = (catalog(&before), catalog(&before));
        let (mut visited, mut different) = (0, Vec::new());

        compare(&shown, &listed.snapshot().unwrap(), &mut |it| {
            if visited == 0 {
                let name = |number| format!("f/{number}");
                let after: Vec<_> =
                    (0..2 * BATCH - 1).map(|number| (name(number), 2)).chain([(name(9999), 1)]).collect();
                list(&shown, &after.iter().map(|(name, length)| (&**name, *length)).collect::<Vec<_>>());
            }
            visited += 1;
            if !matches!(it.said, Said::Same) {
                different.push(it.path.to_owned());
            }
            ControlFlow::Continue(())
        })
        .unwrap();

        assert!(visited >= 2 * BATCH, "{visited}");
        assert_eq!(different, [""; 0]);
    }

    #[test]
    fn one_tree_alone_is_walked_and_a_visitor_may_end_it() {
        let (_folder, catalog) = catalog(&[("a/1", 1), ("a/2", 1), ("b/3", 1)]);
        let mut left = 2;

        each(&catalog, &mut |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();

        assert_eq!(left, 0);
    }

    #[test]
    fn what_differs_is_said_with_both_values() {
        use crate::document::{Algorithm, Digest};
        let digest =
            |algorithm: Algorithm, octet| Digest::new(algorithm, &vec![octet; algorithm.digest_length()]).unwrap();
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
        assert_eq!(other(|it| it.length = None).unwrap(), "length 5 where none is listed");
        assert!(other(|it| it.hashes.clear()).unwrap().ends_with("where none is listed"));
        let rehashed = Resource { hashes: vec![digest(Algorithm::Sha256, 2)], ..resource.clone() };
        assert!(difference(&resource, &rehashed).unwrap().contains("0202"));
        let both =
            Resource { hashes: vec![digest(Algorithm::Sha512, 3), digest(Algorithm::Sha256, 1)], ..resource.clone() };
        assert_eq!(difference(&resource, &both), None, "a digest more is no other content");
    }
}
