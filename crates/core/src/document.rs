//! Reads Kubernetes JSON as Kubernetes does: unknown fields are ignored and `null` is the same as absent. A wrong type is a
//! violation that names its path, the value and the type allowed. The callers know the schema.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::violation::Violation;

/// The violations found so far. Whoever reads a document goes on after a fault, so that all are reported at once.
#[derive(Default)]
pub(crate) struct Faults(RefCell<Vec<Violation>>);

impl Faults {
    /// Notes a violation of the field at `path`.
    pub(crate) fn add(&self, path: impl Into<String>, description: impl Into<String>) {
        self.0.borrow_mut().push(Violation::new(path, description));
    }

    /// Notes that the value at `path` has the wrong type.
    pub(crate) fn wrong_type(&self, path: &str, value: &Value, allowed: &str) {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "a truth value",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        self.add(
            path,
            format!("is {kind}, {}; allowed: {allowed}", excerpt(value)),
        );
    }

    /// What was read, or every violation.
    pub(crate) fn unless_any<T>(self, read: T) -> Result<T, Vec<Violation>> {
        let faults = self.0.into_inner();
        if faults.is_empty() {
            Ok(read)
        } else {
            Err(faults)
        }
    }
}

/// An object somewhere in a document. An absent one reads like one without fields.
pub(crate) struct Object<'a> {
    path: String,
    fields: Option<&'a Map<String, Value>>,
    faults: &'a Faults,
}

impl<'a> Object<'a> {
    /// The object `value`, which stands at `path`; the paths of its fields start with `path`.
    pub(crate) fn at(path: impl Into<String>, value: &'a Value, faults: &'a Faults) -> Self {
        let path = path.into();
        let fields = value.as_object();
        if fields.is_none() {
            let shown = if path.is_empty() { "(document)" } else { &path };
            faults.wrong_type(shown, value, "an object");
        }
        Self {
            path,
            fields,
            faults,
        }
    }

    /// The path of field `key`.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The path of the object.
    pub(crate) fn own_path(&self) -> &str {
        &self.path
    }

    /// Reports every field that is not one of `known`.
    pub(crate) fn only(&self, known: &[&str]) {
        for (key, value) in self.fields.into_iter().flatten() {
            if !value.is_null() && !known.contains(&key.as_str()) {
                let fault = format!("is not known; allowed: {}", known.join(", "));
                self.faults.add(self.path(key), fault);
            }
        }
    }

    /// Field `key`, whatever its type.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.fields?.get(key).filter(|value| !value.is_null())
    }

    /// Field `key` as an object.
    pub(crate) fn object(&self, key: &str) -> Self {
        match self.get(key) {
            Some(value) => Self::at(self.path(key), value, self.faults),
            None => Self {
                path: self.path(key),
                fields: None,
                faults: self.faults,
            },
        }
    }

    /// Field `key` as a text.
    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        let value = self.get(key)?;
        if !value.is_string() {
            self.faults.wrong_type(&self.path(key), value, "a string");
        }
        value.as_str()
    }

    /// Field `key` as a text, empty where it is not set.
    pub(crate) fn string(&self, key: &str) -> String {
        self.text(key).unwrap_or_default().to_owned()
    }

    /// Field `key` as a truth value, `false` where it is not set.
    pub(crate) fn flag(&self, key: &str) -> bool {
        let value = self.get(key);
        if let Some(value) = value.filter(|value| !value.is_boolean()) {
            self.faults
                .wrong_type(&self.path(key), value, "true or false");
        }
        value.and_then(Value::as_bool).unwrap_or(false)
    }

    /// Field `key` as a map of texts, such as labels.
    pub(crate) fn texts(&self, key: &str) -> BTreeMap<String, String> {
        let object = self.object(key);
        let mut texts = BTreeMap::new();
        for (key, value) in object.fields.into_iter().flatten() {
            match value {
                Value::String(text) => drop(texts.insert(key.clone(), text.clone())),
                Value::Null => drop(texts.insert(key.clone(), String::new())),
                Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                    let path = format!("{}[{key}]", object.path);
                    self.faults.wrong_type(&path, value, "a string");
                }
            }
        }
        texts
    }

    /// Field `key` as a list, each item with its path.
    pub(crate) fn items(&self, key: &str) -> Vec<(String, &'a Value)> {
        let path = self.path(key);
        let value = self.get(key);
        if let Some(value) = value.filter(|value| !value.is_array()) {
            self.faults.wrong_type(&path, value, "a list");
        }
        let items = value.and_then(Value::as_array).into_iter().flatten();
        items
            .enumerate()
            .map(|(index, item)| (format!("{path}[{index}]"), item))
            .collect()
    }

    /// Field `key` as a list of objects. Other items are reported and left out.
    pub(crate) fn objects(&self, key: &str) -> Vec<Self> {
        let items = self.items(key).into_iter();
        items
            .map(|(path, item)| Self::at(path, item, self.faults))
            .filter(|object| object.fields.is_some())
            .collect()
    }
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
