//! JSON Patch (RFC 6902) applied to a whole document, bytes in, bytes out. Pure.
//!
//! A patch describes values and a digest is of bytes, so the result must be written as its Source writes it: as the
//! document of before was written, where that way is known ([`style`]). Whether it is right, its digest alone tells.
//!
//! A patch is what a stranger sent: small ones can ask for endless work (`copy` doubles a document with each step). Every
//! step is counted before it is taken.

mod style;

use jsonptr::Pointer;
use serde_json::Value;
use style::Style;

use ::json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, jsonptr, patch_unsafe};

/// Longer documents and patches are left alone.
pub const LIMIT: u64 = 16 << 20;

/// So many values and names at most lie in a document or a patch: each takes some hundred bytes of memory.
const VALUES: usize = 500_000;

/// Values and bytes that all steps of one patch together may add to a document.
const GROWTH: usize = 2 * VALUES * VALUE;

/// What a value counts for beside its own bytes.
const VALUE: usize = 64;

/// Values and bytes that they may pass by or move: a second's work.
const WORK: usize = 16 << 20;

/// No value lies deeper: values are compared, written and dropped recursively.
const DEPTH: usize = 256;

/// Why a patch does not lead to the version that is wanted.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// Too long, too many values, too deep, or too much work.
    #[error("it goes beyond what is done for a patch")]
    Limit,
    /// It is no JSON Patch.
    #[error("it cannot be read")]
    Malformed(#[from] serde_json::Error),
    /// A step is not possible with this document, or a test failed.
    #[error("it is not for this document")]
    Step(#[from] ::json_patch::PatchError),
    /// A value that is to be taken is not there.
    #[error("{0:?} is not there")]
    Absent(String),
}

/// A document that can be changed and written again as it was.
pub struct Document {
    value: Value,
    style: Style,
}

impl Document {
    /// Reads a document; `None` where it is no JSON, too large, or not written in a way that can be repeated.
    pub fn read(bytes: &[u8]) -> Option<Document> {
        if is_large(bytes) {
            return None;
        }
        let value = serde_json::from_slice(bytes).ok()?;
        let style = Style::of(bytes, &value)?;
        Some(Document { value, style })
    }

    /// Takes the steps of `patch`, all of them or, with an error, some.
    pub fn apply(&mut self, patch: &[u8]) -> Result<(), PatchError> {
        if is_large(patch) {
            return Err(PatchError::Limit);
        }
        let Patch(steps) = serde_json::from_slice(patch)?;
        let mut work = Work { left: WORK, growth: GROWTH };
        steps.into_iter().try_for_each(|step| take(&mut self.value, step, &mut work))
    }

    /// The document as its Source would write it; `None` where it has grown too long.
    pub fn write(&self) -> Option<Vec<u8>> {
        self.style.write(&self.value, LIMIT as usize)
    }
}

fn is_large(bytes: &[u8]) -> bool {
    // Each value but the first follows one of these.
    let values = || bytes.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
    bytes.len() as u64 > LIMIT || values() > VALUES
}

/// What may still be done.
struct Work {
    left: usize,
    growth: usize,
}

impl Work {
    fn charge(&mut self, work: usize) -> Result<(), PatchError> {
        self.left = self.left.checked_sub(work).ok_or(PatchError::Limit)?;
        Ok(())
    }

    /// Charges for a value like this one that comes to `path`, where it may lie.
    fn charge_growth(&mut self, value: &Value, path: &Pointer) -> Result<(), PatchError> {
        weigh(value, room(path)?, &mut self.growth)
    }

    /// Charges for the look at a value that goes to `path`, where it may lie.
    fn charge_move(&mut self, value: &Value, path: &Pointer) -> Result<(), PatchError> {
        weigh(value, room(path)?, &mut self.left)
    }

    /// Charges for what moves when something comes into, or leaves, the place at `path`.
    fn charge_place(&mut self, document: &Value, path: &Pointer) -> Result<(), PatchError> {
        let parent = path.parent().and_then(|parent| document.pointer(parent.as_str()));
        let beside = match parent {
            Some(Value::Array(values)) => values.len(),
            Some(Value::Object(members)) => members.len(),
            _ => 0,
        };
        self.charge(beside + path.as_str().len() + 1)
    }
}

/// How deep a value at `path` may be.
fn room(path: &Pointer) -> Result<usize, PatchError> {
    DEPTH.checked_sub(path.tokens().count()).ok_or(PatchError::Limit)
}

/// Takes from `budget` what `value` counts for; an error where that is too much, or the value deeper than `room`.
fn weigh(value: &Value, room: usize, budget: &mut usize) -> Result<(), PatchError> {
    let below = || room.checked_sub(1).ok_or(PatchError::Limit);
    let bytes = if let Value::String(text) = value { text.len() } else { 0 };
    *budget = budget.checked_sub(VALUE + bytes).ok_or(PatchError::Limit)?;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        Value::Array(values) => {
            let room = below()?;
            values.iter().try_for_each(|value| weigh(value, room, budget))
        }
        Value::Object(members) => {
            let room = below()?;
            members.iter().try_for_each(|(name, value)| {
                *budget = budget.checked_sub(name.len()).ok_or(PatchError::Limit)?;
                weigh(value, room, budget)
            })
        }
    }
}

fn take(document: &mut Value, step: PatchOperation, work: &mut Work) -> Result<(), PatchError> {
    work.charge_place(document, step.path())?;
    match step {
        PatchOperation::Remove(step) => remove(document, &step.path).map(drop),
        PatchOperation::Move(step) => {
            work.charge_place(document, &step.from)?;
            if step.path.starts_with(&step.from) && step.path != step.from {
                return Err(PatchError::Absent(step.path.to_string()));
            }
            work.charge_move(at(document, &step.from)?, &step.path)?;
            let value = remove(document, &step.from)?;
            Ok(patch_unsafe(document, &[PatchOperation::Add(AddOperation { path: step.path, value })])?)
        }
        PatchOperation::Copy(step) => {
            work.charge_growth(at(document, &step.from)?, &step.path)?;
            Ok(patch_unsafe(document, &[PatchOperation::Copy(step)])?)
        }
        PatchOperation::Add(ref new) => {
            work.charge_growth(&new.value, &new.path)?;
            Ok(patch_unsafe(document, &[step])?)
        }
        PatchOperation::Replace(ref new) => {
            work.charge_growth(&new.value, &new.path)?;
            Ok(patch_unsafe(document, &[step])?)
        }
        PatchOperation::Test(_) => Ok(patch_unsafe(document, &[step])?),
    }
}

fn at<'v>(document: &'v Value, path: &Pointer) -> Result<&'v Value, PatchError> {
    document.pointer(path.as_str()).ok_or_else(|| PatchError::Absent(path.to_string()))
}

/// Takes a value out of the document. The members of an object that stay keep their order, in which they are written.
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
    fn every_operation_is_taken_and_the_order_of_names_stays() {
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
    fn what_is_no_patch_or_not_for_this_document_is_an_error() {
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
    fn a_patch_that_doubles_the_document_again_and_again_is_left() {
        let copies: Vec<_> = (0..60).map(|n| format!(r#"{{"op":"copy","from":"","path":"/{n}"}}"#)).collect();
        assert!(matches!(patched("{}", &format!("[{}]", copies.join(","))), Err(PatchError::Limit)));
    }

    #[test]
    fn a_patch_that_digs_deep_is_left() {
        let digs: Vec<_> =
            (1..400).map(|depth| format!(r#"{{"op":"add","path":"{}","value":{{}}}}"#, "/a".repeat(depth))).collect();
        assert!(matches!(patched("{}", &format!("[{}]", digs.join(","))), Err(PatchError::Limit)));
    }

    #[test]
    fn a_patch_that_shifts_a_long_array_endlessly_is_left() {
        let array = format!("[{}0]", "0,".repeat(100_000));
        let shifts = vec![r#"{"op":"remove","path":"/0"}"#; 2_000].join(",");
        assert!(matches!(patched(&array, &format!("[{shifts}]")), Err(PatchError::Limit)));
    }

    #[test]
    fn too_many_values_are_not_even_read() {
        assert!(Document::read(format!("[{}0]", "0,".repeat(VALUES)).as_bytes()).is_none());
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        assert!(Document::read(&deep).is_none());
    }
}
