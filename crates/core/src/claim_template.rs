//! Reads the parts of a `volumeClaimTemplate` that are needed to name and to create a claim. The module checks the access modes
//! and the storage request in `spec`. It does not change `spec`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::document::{Faults, Object};
use crate::quantity::Quantity;

/// The parts of a `volumeClaimTemplate` that this product reads.
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
    /// Reads `template`. `path` is its place in the object, for the messages in `faults`. The parts are valid only if `faults`
    /// is still empty afterwards.
    pub(crate) fn read(path: String, template: &Value, faults: &Faults) -> Self {
        let object = Object::at(path, template, faults);
        let metadata = object.object("metadata");
        let spec = object.get("spec");
        if spec.is_some() {
            check_spec(&object.object("spec"), faults);
        } else if template.is_object() {
            let fault = "is not set; allowed: an object, the spec of a PersistentVolumeClaim";
            faults.add(object.path("spec"), fault);
        }
        Self {
            name: metadata.text("name").map(str::to_owned),
            labels: metadata.texts("labels"),
            annotations: metadata.texts("annotations"),
            spec: spec.cloned().unwrap_or_default(),
        }
    }
}

fn check_spec(spec: &Object<'_>, faults: &Faults) {
    for (path, mode) in spec.items("accessModes") {
        if !mode.is_string() {
            faults.wrong_type(&path, mode, "a string such as ReadWriteOnce");
        }
    }
    let requests = spec.object("resources").object("requests");
    let path = requests.path("storage");
    match requests.get("storage") {
        // Kubernetes also accepts a plain number as a quantity.
        None | Some(Value::Number(_)) => {}
        Some(Value::String(text)) => {
            if let Err(error) = text.parse::<Quantity>() {
                faults.add(path, error.to_string());
            }
        }
        Some(other) => faults.wrong_type(&path, other, "a quantity such as 1Gi"),
    }
}
