//! Reads Kubernetes JSON as Kubernetes does: unknown fields are ignored, `null` is the same as
//! absent, and a wrong type is a violation that names its path, the value and what is allowed. It
//! knows no schema; its callers do.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::violation::Violation;

/// An object somewhere in a document. One that is absent reads like one without fields.
pub(crate) struct Object<'a> {
    path: String,
    fields: Option<&'a Map<String, Value>>,
}

impl<'a> Object<'a> {
    /// The object `value`, which stands at `path`; the paths of its fields start with `path`.
    pub(crate) fn at(
        path: impl Into<String>,
        value: &'a Value,
        faults: &mut Vec<Violation>,
    ) -> Self {
        let path = path.into();
        let fields = value.as_object();
        if fields.is_none() {
            faults.push(wrong_type(
                if path.is_empty() { "(document)" } else { &path },
                value,
                "an object",
            ));
        }
        Self { path, fields }
    }

    /// The path of field `key`.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Where the object stands.
    pub(crate) fn own_path(&self) -> &str {
        &self.path
    }

    /// Reports every field that is not one of `known`.
    pub(crate) fn only(&self, known: &[&str], faults: &mut Vec<Violation>) {
        let fields = self.fields.into_iter().flatten();
        let unknown =
            fields.filter(|(key, value)| !value.is_null() && !known.contains(&key.as_str()));
        faults.extend(unknown.map(|(key, _)| {
            let fault = format!("is not known; allowed: {}", known.join(", "));
            Violation::new(self.path(key), fault)
        }));
    }

    /// Field `key`, whatever its type.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.fields?.get(key).filter(|value| !value.is_null())
    }

    /// Field `key` as an object.
    pub(crate) fn object(&self, key: &str, faults: &mut Vec<Violation>) -> Self {
        match self.get(key) {
            Some(value) => Self::at(self.path(key), value, faults),
            None => Self {
                path: self.path(key),
                fields: None,
            },
        }
    }

    /// Field `key` as a text.
    pub(crate) fn text(&self, key: &str, faults: &mut Vec<Violation>) -> Option<&'a str> {
        let value = self.get(key)?;
        if !value.is_string() {
            faults.push(wrong_type(&self.path(key), value, "a string"));
        }
        value.as_str()
    }

    /// Field `key` as a truth value.
    pub(crate) fn flag(&self, key: &str, faults: &mut Vec<Violation>) -> bool {
        let Some(value) = self.get(key) else {
            return false;
        };
        if !value.is_boolean() {
            faults.push(wrong_type(&self.path(key), value, "true or false"));
        }
        value.as_bool().unwrap_or(false)
    }

    /// Field `key` as a map of texts, such as labels.
    pub(crate) fn texts(&self, key: &str, faults: &mut Vec<Violation>) -> BTreeMap<String, String> {
        let object = self.object(key, faults);
        let mut texts = BTreeMap::new();
        for (key, value) in object.fields.into_iter().flatten() {
            match value {
                Value::String(text) => drop(texts.insert(key.clone(), text.clone())),
                Value::Null => drop(texts.insert(key.clone(), String::new())),
                Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                    faults.push(wrong_type(
                        &format!("{}[{key}]", object.path),
                        value,
                        "a string",
                    ));
                }
            }
        }
        texts
    }

    /// Field `key` as a list, each item with its path.
    pub(crate) fn items(&self, key: &str, faults: &mut Vec<Violation>) -> Vec<(String, &'a Value)> {
        let Some(value) = self.get(key) else {
            return Vec::new();
        };
        let Some(items) = value.as_array() else {
            faults.push(wrong_type(&self.path(key), value, "a list"));
            return Vec::new();
        };
        let path = self.path(key);
        items
            .iter()
            .enumerate()
            .map(|(index, item)| (format!("{path}[{index}]"), item))
            .collect()
    }

    /// Field `key` as a list of objects; items that are none are reported and left out.
    pub(crate) fn objects(&self, key: &str, faults: &mut Vec<Violation>) -> Vec<Self> {
        self.items(key, faults)
            .into_iter()
            .map(|(path, item)| Self::at(path, item, faults))
            .filter(|object| object.fields.is_some())
            .collect()
    }
}

/// A value of the wrong type.
pub(crate) fn wrong_type(path: &str, value: &Value, allowed: &str) -> Violation {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    Violation::new(
        path,
        format!("is {kind}, {}; allowed: {allowed}", excerpt(value)),
    )
}

/// The beginning of a value as JSON, short enough for a message.
fn excerpt(value: &Value) -> String {
    const LENGTH: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
