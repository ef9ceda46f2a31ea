//! Reads Kubernetes JSON as Kubernetes does: `null` means absent, and unknown fields are ignored. To report unknown fields, a
//! caller calls [`Object::only`]. A value of a wrong type is a violation that names the path, the value and the allowed type. The
//! callers of this module name the fields to read.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::violation::Violation;

/// The violations found so far. A reader continues after a violation, so that all violations are reported at once.
#[derive(Default)]
pub(crate) struct Faults(RefCell<Vec<Violation>>);

impl Faults {
    /// Adds a violation of the field at `path`.
    pub(crate) fn add(&self, path: impl Into<String>, description: impl Into<String>) {
        self.0.borrow_mut().push(Violation::new(path, description));
    }

    /// Adds a violation: the value at `path` has the wrong type.
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

    /// Returns `read` if there is no violation. Otherwise returns all violations.
    pub(crate) fn unless_any<T>(self, read: T) -> Result<T, Vec<Violation>> {
        let faults = self.0.into_inner();
        if faults.is_empty() {
            Ok(read)
        } else {
            Err(faults)
        }
    }
}

/// An object in a document. An absent object, and a value of another type, look like an object without fields.
pub(crate) struct Object<'a> {
    path: String,
    fields: Option<&'a Map<String, Value>>,
    faults: &'a Faults,
}

impl<'a> Object<'a> {
    /// The object `value` at `path`. The paths of its fields start with `path`.
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

    /// The path of the object's field `key`.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The path of the object itself.
    pub(crate) fn own_path(&self) -> &str {
        &self.path
    }

    /// Adds a violation for each field that is not in `known`.
    pub(crate) fn only(&self, known: &[&str]) {
        for (key, value) in self.fields.into_iter().flatten() {
            if !value.is_null() && !known.contains(&key.as_str()) {
                let fault = format!("is not known; allowed: {}", known.join(", "));
                self.faults.add(self.path(key), fault);
            }
        }
    }

    /// The value of field `key`, of any type. `None` if the field is absent or `null`.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.fields?.get(key).filter(|value| !value.is_null())
    }

    /// The value of field `key`, which must be an object.
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

    /// The value of field `key`, which must be a string. `None` if the field is not set or has another type.
    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        let value = self.get(key)?;
        if !value.is_string() {
            self.faults.wrong_type(&self.path(key), value, "a string");
        }
        value.as_str()
    }

    /// The value of field `key`, which must be a string. Empty if the field is not set, or if it has another type, which is a
    /// fault.
    pub(crate) fn string(&self, key: &str) -> String {
        self.text(key).unwrap_or_default().to_owned()
    }

    /// The value of field `key`, which must be a boolean. `false` if the field is not set, or if it has another type, which is
    /// a fault.
    pub(crate) fn flag(&self, key: &str) -> bool {
        let value = self.get(key);
        if let Some(value) = value.filter(|value| !value.is_boolean()) {
            self.faults
                .wrong_type(&self.path(key), value, "true or false");
        }
        value.and_then(Value::as_bool).unwrap_or(false)
    }

    /// The value of field `key`, which must be an object with only string values, such as labels. Empty if the field is not set.
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

    /// The items of field `key`, each with its path. The field must be a list. Empty if the field is not set.
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

    /// The items of field `key`, which must be a list of objects. An item of another type is a violation, and the result leaves
    /// it out.
    pub(crate) fn objects(&self, key: &str) -> Vec<Self> {
        let items = self.items(key).into_iter();
        items
            .map(|(path, item)| Self::at(path, item, self.faults))
            .filter(|object| object.fields.is_some())
            .collect()
    }
}

/// The beginning of a value as JSON, short enough for an error message.
fn excerpt(value: &Value) -> String {
    const LENGTH: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
