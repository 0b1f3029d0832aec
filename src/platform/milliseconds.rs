//! Durations in JSON, as whole milliseconds: for `#[serde(with = "milliseconds")]` on a duration, or on one that may be missing.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

/// Writes a duration, or `null`.
pub fn serialize<T: Copy + Into<Option<Duration>>, S: Serializer>(time: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    (*time).into().map(milliseconds).serialize(serializer)
}

/// Reads a duration; `null` is the default.
pub fn deserialize<'de, T: Default + From<Duration>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let milliseconds = Option::<u64>::deserialize(deserializer)?;
    Ok(milliseconds.map_or_else(T::default, |milliseconds| Duration::from_millis(milliseconds).into()))
}
