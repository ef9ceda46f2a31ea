//! A `volumeClaimTemplate`: what of it goes into names and onto claims. Its `spec` is checked as
//! far as its types go and otherwise handed on as the author wrote it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::document::{Object, wrong_type};
use crate::quantity::Quantity;
use crate::violation::Violation;

/// The parts of a `volumeClaimTemplate` that have a meaning to us.
pub(crate) struct Parts {
    /// `metadata.name`.
    pub(crate) name: Option<String>,
    /// `metadata.labels`.
    pub(crate) labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub(crate) annotations: BTreeMap<String, String>,
    /// `spec`.
    pub(crate) spec: Value,
}

impl Parts {
    /// Reads the template that stands at `path`. What it returns is only of use when no fault was
    /// found.
    pub(crate) fn read(path: String, template: &Value, faults: &mut Vec<Violation>) -> Self {
        let object = Object::at(path, template, faults);
        let metadata = object.object("metadata", faults);
        let spec = object.get("spec");
        match spec {
            Some(_) => check_spec(&object.object("spec", faults), faults),
            None if template.is_object() => faults.push(Violation::new(
                object.path("spec"),
                "is not set; allowed: an object, the spec of a PersistentVolumeClaim",
            )),
            None => {}
        }
        Self {
            name: metadata.text("name", faults).map(str::to_owned),
            labels: metadata.texts("labels", faults),
            annotations: metadata.texts("annotations", faults),
            spec: spec.cloned().unwrap_or_default(),
        }
    }
}

fn check_spec(spec: &Object<'_>, faults: &mut Vec<Violation>) {
    for (path, mode) in spec.items("accessModes", faults) {
        if !mode.is_string() {
            faults.push(wrong_type(&path, mode, "a string such as ReadWriteOnce"));
        }
    }
    let requests = spec.object("resources", faults).object("requests", faults);
    let path = requests.path("storage");
    match requests.get("storage") {
        // Kubernetes reads a plain number as a quantity too.
        None | Some(Value::Number(_)) => {}
        Some(Value::String(text)) => {
            if let Err(error) = text.parse::<Quantity>() {
                faults.push(Violation::new(path, error.to_string()));
            }
        }
        Some(other) => faults.push(wrong_type(&path, other, "a quantity such as 1Gi")),
    }
}
