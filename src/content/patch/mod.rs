//! JSON Patch (RFC 6902) applied to a whole document, bytes in, bytes out. Pure.
//!
//! A patch describes values and a digest is of bytes. So the result is written as the document before it was ([`style`]). Only its
//! digest proves it right.
//!
//! A patch comes from a stranger, and small ones can cost endless work: `copy` doubles a document with each step. So the document is
//! measured before every step, and no step costs more than a multiple of its size.

mod style;

use jsonptr::Pointer;
use serde_json::Value;
use style::Style;

use ::json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, jsonptr, patch_unsafe};

/// The most bytes of a document, and of a patch.
pub const LIMIT: u64 = 16 << 20;

/// The most values and names in a document or a patch: each takes some hundred bytes of memory.
const VALUES: usize = 500_000;

/// The weight of a value without its own bytes.
const VALUE: usize = 64;

/// The largest weight of a document: more than any has that is read.
const LARGEST: usize = 64 << 20;

/// The weights of the document before each step, together: some seconds' work.
const WORK: usize = 64 * LARGEST;

/// The deepest value: values are compared, written and dropped recursively.
const DEPTH: usize = 256;

/// Why a patch does not lead to the wanted version.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// Too long, too many values, too deep, or too much work.
    #[error("it exceeds the limits of a patch")]
    Limit,
    /// Something else than a JSON Patch.
    #[error("it cannot be read")]
    Malformed(#[from] serde_json::Error),
    /// A step is not possible with this document, or a test failed.
    #[error("it is not for this document")]
    Step(#[from] ::json_patch::PatchError),
    /// A value that a step takes is missing.
    #[error("{0:?} is missing")]
    Absent(String),
}

/// A document that can be changed and written again as it was.
pub struct Document {
    value: Value,
    style: Style,
    /// The blanks behind the value.
    end: Box<[u8]>,
}

impl Document {
    /// Reads a document; `None` where it is not JSON, too large, or written in an unknown way.
    pub fn read(bytes: &[u8]) -> Option<Document> {
        if is_large(bytes) {
            return None;
        }
        let value = serde_json::from_slice(bytes).ok()?;
        let (bytes, end) = bytes.split_at(bytes.trim_ascii_end().len());
        let style = Style::of(bytes, &value)?;
        Some(Document { value, style, end: end.into() })
    }

    /// Takes all steps of `patch`. After an error the document is of no use.
    pub fn apply(&mut self, patch: &[u8]) -> Result<(), PatchError> {
        if is_large(patch) {
            return Err(PatchError::Limit);
        }
        let Patch(steps) = serde_json::from_slice(patch)?;
        let mut work = WORK;
        for step in steps {
            let weight = weight(&self.value, DEPTH)?;
            work = work.checked_sub(weight).filter(|_| weight <= LARGEST).ok_or(PatchError::Limit)?;
            take(&mut self.value, step)?;
        }
        weight(&self.value, DEPTH).map(drop)
    }

    /// The document as its Source would write it; `None` where it has grown too long.
    pub fn write(&self) -> Option<Vec<u8>> {
        let mut bytes = self.style.write(&self.value, LIMIT as usize)?;
        bytes.extend_from_slice(&self.end);
        Some(bytes)
    }
}

fn is_large(bytes: &[u8]) -> bool {
    // Each value but the first follows one of these.
    let values = || bytes.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
    bytes.len() as u64 > LIMIT || values() > VALUES
}

/// The weight of a value with all below it; an error where they are more than `levels` deep.
fn weight(value: &Value, levels: usize) -> Result<usize, PatchError> {
    let below = levels.checked_sub(1).ok_or(PatchError::Limit)?;
    match value {
        Value::Array(values) => values.iter().try_fold(VALUE, |sum, value| Ok(sum + weight(value, below)?)),
        Value::Object(members) => {
            members.iter().try_fold(VALUE, |sum, (name, value)| Ok(sum + name.len() + weight(value, below)?))
        }
        Value::String(text) => Ok(VALUE + text.len()),
        _ => Ok(VALUE),
    }
}

fn take(document: &mut Value, step: PatchOperation) -> Result<(), PatchError> {
    match step {
        PatchOperation::Remove(step) => remove(document, &step.path).map(drop),
        PatchOperation::Move(step) => {
            if step.path.starts_with(&step.from) && step.path != step.from {
                return Err(PatchError::Absent(step.path.to_string()));
            }
            let value = remove(document, &step.from)?;
            Ok(patch_unsafe(document, &[PatchOperation::Add(AddOperation { path: step.path, value })])?)
        }
        step => Ok(patch_unsafe(document, &[step])?),
    }
}

fn at<'v>(document: &'v Value, path: &Pointer) -> Result<&'v Value, PatchError> {
    document.pointer(path.as_str()).ok_or_else(|| PatchError::Absent(path.to_string()))
}

/// Takes a value out of the document. The members that stay keep their order, in which they are written.
fn remove(document: &mut Value, path: &Pointer) -> Result<Value, PatchError> {
    let absent = || PatchError::Absent(path.to_string());
    let (parent, last) = path.split_back().ok_or_else(absent)?;
    if let Some(Value::Object(members)) = document.pointer_mut(parent.as_str()) {
        return members.shift_remove(last.decoded().as_ref()).ok_or_else(absent);
    }
    let value = at(document, path)?.clone();
    patch_unsafe(document, &[PatchOperation::Remove(RemoveOperation { path: path.to_buf() })])?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(document: &str, patch: &str) -> Result<String, PatchError> {
        let mut document = Document::read(document.as_bytes()).expect("a document that can be written again");
        document.apply(patch.as_bytes())?;
        Ok(String::from_utf8(document.write().unwrap()).unwrap())
    }

    #[test]
    fn every_operation_is_taken_and_names_keep_their_order() {
        let document = r#"{"z":1,"a":[1,2,3],"m":{"x":1.50,"y":1e+3},"k":"v"}"#;
        for (patch, result) in [
            (r#"{"op":"add","path":"/a/1","value":9}"#, r#"{"z":1,"a":[1,9,2,3],"m":{"x":1.50,"y":1e+3},"k":"v"}"#),
            (r#"{"op":"remove","path":"/z"}"#, r#"{"a":[1,2,3],"m":{"x":1.50,"y":1e+3},"k":"v"}"#),
            (r#"{"op":"remove","path":"/a/0"}"#, r#"{"z":1,"a":[2,3],"m":{"x":1.50,"y":1e+3},"k":"v"}"#),
            (r#"{"op":"replace","path":"/z","value":{}}"#, r#"{"z":{},"a":[1,2,3],"m":{"x":1.50,"y":1e+3},"k":"v"}"#),
            (r#"{"op":"move","from":"/z","path":"/m/z"}"#, r#"{"a":[1,2,3],"m":{"x":1.50,"y":1e+3,"z":1},"k":"v"}"#),
            (
                r#"{"op":"copy","from":"/k","path":"/a/-"}"#,
                r#"{"z":1,"a":[1,2,3,"v"],"m":{"x":1.50,"y":1e+3},"k":"v"}"#,
            ),
            (r#"{"op":"test","path":"/k","value":"v"}"#, document),
        ] {
            assert_eq!(patched(document, &format!("[{patch}]")).unwrap(), result, "{patch}");
        }
    }

    #[test]
    fn no_patch_or_one_of_another_document_is_an_error() {
        for patch in [
            "",
            "{}",
            r#"[{"op":"add"}]"#,
            r#"[{"op":"jump","path":"/a"}]"#,
            r#"[{"op":"remove","path":"/b"}]"#,
            r#"[{"op":"remove","path":""}]"#,
            r#"[{"op":"test","path":"/a","value":2}]"#,
            r#"[{"op":"move","from":"/a","path":"/a/b"}]"#,
            r#"[{"op":"add","path":"/a/b/c","value":1}]"#,
            r#"[{"op":"remove","path":"/l/9"}]"#,
            r#"[{"op":"remove","path":"/l/-"}]"#,
        ] {
            assert!(patched(r#"{"a":1,"l":[1]}"#, patch).is_err(), "{patch}");
        }
    }

    #[test]
    fn endless_copies_are_refused() {
        let copies: Vec<_> = (0..60).map(|n| format!(r#"{{"op":"copy","from":"","path":"/{n}"}}"#)).collect();
        assert!(matches!(patched("{}", &format!("[{}]", copies.join(","))), Err(PatchError::Limit)));
    }

    #[test]
    fn endless_depth_is_refused() {
        let digs: Vec<_> =
            (1..400).map(|depth| format!(r#"{{"op":"add","path":"{}","value":{{}}}}"#, "/a".repeat(depth))).collect();
        assert!(matches!(patched("{}", &format!("[{}]", digs.join(","))), Err(PatchError::Limit)));
    }

    #[test]
    fn endless_shifts_of_an_array_are_refused() {
        let array = format!("[{}0]", "0,".repeat(100_000));
        let shifts = vec![r#"{"op":"remove","path":"/0"}"#; 2_000].join(",");
        assert!(matches!(patched(&array, &format!("[{shifts}]")), Err(PatchError::Limit)));
    }

    #[test]
    fn too_many_values_are_refused() {
        assert!(Document::read(format!("[{}0]", "0,".repeat(VALUES)).as_bytes()).is_none());
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        assert!(Document::read(&deep).is_none());
    }
}
