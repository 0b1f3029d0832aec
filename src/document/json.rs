//! JSON of any shape, in bounded memory. A member of a wrong type is not an error: a search does not find it.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;

/// Values and names of members of one document.
const MOST_NODES: usize = 4_000_000;

/// Characters of a web page that are quoted.
const QUOTED: usize = 60;

/// A JSON value. Numbers that are not whole, `true`, `false` and `null` say nothing here.
pub(super) enum Json<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    List(Box<[Json<'a>]>),
    Object(Box<[(Cow<'a, str>, Json<'a>)]>),
    Other,
}

/// Bytes that are not JSON.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// A web page, as of an error or a login; its beginning.
    #[error("a web page instead of JSON: {0:?}")]
    Page(String),
    /// Broken, cut off, nested too deeply, or of too many values.
    #[error("not JSON that can be read")]
    Syntax(#[from] serde_json::Error),
}

/// The text of a document, without byte order mark.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes))
}

impl<'a> Json<'a> {
    pub fn parse(text: &'a str) -> Result<Json<'a>, JsonError> {
        if text.trim_start().starts_with('<') {
            return Err(JsonError::Page(beginning(text)));
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let value = Nodes { left: MOST_NODES }.deserialize(&mut json)?;
        json.end()?;
        Ok(value)
    }

    /// The first member of this name.
    pub fn get(&self, name: &str) -> Option<&Json<'a>> {
        self.members().iter().find(|(member, _)| member == name).map(|(_, value)| value)
    }

    pub fn members(&self) -> &[(Cow<'a, str>, Json<'a>)] {
        if let Json::Object(members) = self { members } else { &[] }
    }

    /// The values of a list; anything else stands for a list of one.
    pub fn values(&self) -> &[Json<'a>] {
        if let Json::List(values) = self { values } else { std::slice::from_ref(self) }
    }

    pub fn text(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }
}

/// The first characters of a text, for a person.
pub(super) fn beginning(text: &str) -> String {
    text.trim_start().chars().take(QUOTED).collect()
}

/// Makes values, as many as are left.
struct Nodes {
    left: usize,
}

impl<'de> DeserializeSeed<'de> for &mut Nodes {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Json<'de>, D::Error> {
        self.left = self.left.checked_sub(1).ok_or_else(|| Error::custom(format!("more than {MOST_NODES} values")))?;
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Nodes {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json<'de>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(&mut *self)? {
            values.push(value);
        }
        Ok(Json::List(values.into()))
    }

    /// An object, or a number that is not whole: with `arbitrary_precision` that comes as an object too.
    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(name) = object.next_key_seed(&mut *self)? {
            let value = object.next_value_seed(&mut *self)?;
            if let Json::Text(name) = name {
                members.push((name, value));
            }
        }
        Ok(Json::Object(members.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_json_and_very_many_values_are_errors() {
        let deep = ["[", "{\"a\":", "{\"linkset\":["].map(|opening| opening.repeat(1_000_000));
        let many = format!("[{}0]", "0,".repeat(MOST_NODES));
        for text in deep.iter().chain([&many]) {
            let Err(JsonError::Syntax(cause)) = Json::parse(text) else { panic!("{}", beginning(text)) };
            let cause = cause.to_string();
            assert!(cause.starts_with("recursion limit") || cause.starts_with("more than 4000000 values"), "{cause}");
        }
    }

    #[test]
    fn values_that_say_nothing_are_passed_over() {
        let json =
            Json::parse("{\"a\": [null, true, -1, 1.5, 1e99, 7, \"x\\u0041\"], \"b\": {}}").unwrap_or(Json::Other);

        let values = json.get("a").map(Json::values).unwrap_or_default();
        assert_eq!(values.iter().filter(|value| matches!(value, Json::Number(7))).count(), 1);
        assert_eq!(values.iter().filter_map(Json::text).collect::<Vec<_>>(), ["xA"]);
        assert_eq!(json.get("b").map(|b| b.members().len()), Some(0));
    }
}
