//! Placeholders to be, and the runs they are for.

use serde_json::Value;

use coscheduler_core::mode::IsolationScope;
use coscheduler_core::plan::{ClaimTemplateSpec, PlaceholderSpec, Separation};
use coscheduler_core::violation::Violation;

use super::{checked, required};
use crate::json;
use crate::placeholder as wire;

/// One version of one PipelineRun, every field set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
}

/// A run's identity from the wire.
///
/// # Errors
///
/// Every field that is empty, and a version that is no number (Kubernetes 1.35, "Resource versions").
pub fn identity(message: Option<wire::PipelineRunRef>) -> Result<Identity, Vec<Violation>> {
    let message = message.unwrap_or_default();
    let mut violations = Vec::new();
    required(
        "pipeline_run.namespace",
        &message.namespace,
        &mut violations,
    );
    required("pipeline_run.name", &message.name, &mut violations);
    required("pipeline_run.uid", &message.uid, &mut violations);
    required(
        "pipeline_run.resource_version",
        &message.resource_version,
        &mut violations,
    );
    let version = &message.resource_version;
    let is_number =
        version.bytes().all(|byte| byte.is_ascii_digit()) && version.parse::<u128>().is_ok();
    if !version.is_empty() && !is_number {
        let description =
            format!("is {version:?}; allowed: the digits of `metadata.resourceVersion`");
        violations.push(Violation::new("pipeline_run.resource_version", description));
    }
    let identity = Identity {
        namespace: message.namespace,
        name: message.name,
        uid: message.uid,
        resource_version: message.resource_version,
    };
    checked(Some(identity), violations)
}

/// A run's identity for the wire.
pub fn identity_to_wire(identity: Identity) -> wire::PipelineRunRef {
    wire::PipelineRunRef {
        namespace: identity.namespace,
        name: identity.name,
        uid: identity.uid,
        resource_version: identity.resource_version,
    }
}

/// A placeholder for the wire.
pub fn placeholder_spec_to_wire(spec: &PlaceholderSpec) -> wire::PlaceholderSpec {
    wire::PlaceholderSpec {
        name: spec.name.to_string(),
        labels: spec.labels.clone(),
        claim_templates: spec.claim_templates.iter().map(template_to_wire).collect(),
        claim_names: spec.claim_names.clone(),
        cpu: spec.cpu.clone(),
        memory: spec.memory.clone(),
        image: spec.image.clone(),
        pod_template: (!spec.pod_template.is_empty()).then(|| json::to_struct(&spec.pod_template)),
        service_account_name: spec.service_account_name.clone(),
        single_pod_claims: spec
            .single_pod_claims
            .iter()
            .map(template_to_wire)
            .collect(),
        unmounted_claim_names: spec.unmounted_claim_names.clone(),
        separation: separation_to_wire(spec.separation).into(),
    }
}

fn separation_to_wire(separation: Separation) -> wire::Separation {
    match separation {
        Separation::Spread => wire::Separation::Spread,
        Separation::Isolate(IsolationScope::Cluster) => wire::Separation::IsolateCluster,
        Separation::Isolate(IsolationScope::Namespace) => wire::Separation::IsolateNamespace,
    }
}

fn separation(field: String, value: i32, violations: &mut Vec<Violation>) -> Option<Separation> {
    match wire::Separation::try_from(value) {
        Ok(wire::Separation::Spread) => Some(Separation::Spread),
        Ok(wire::Separation::IsolateCluster) => Some(Separation::Isolate(IsolationScope::Cluster)),
        Ok(wire::Separation::IsolateNamespace) => {
            Some(Separation::Isolate(IsolationScope::Namespace))
        }
        Ok(wire::Separation::Unspecified) | Err(_) => {
            let description = format!(
                "is {value}; allowed: SEPARATION_SPREAD (1), SEPARATION_ISOLATE_CLUSTER (2), \
                 SEPARATION_ISOLATE_NAMESPACE (3)"
            );
            violations.push(Violation::new(field, description));
            None
        }
    }
}

/// Placeholders from the wire.
///
/// # Errors
///
/// Every field that is missing or malformed, by its path, and an empty list.
pub fn placeholder_specs(
    messages: Vec<wire::PlaceholderSpec>,
) -> Result<Vec<PlaceholderSpec>, Vec<Violation>> {
    let mut violations = Vec::new();
    if messages.is_empty() {
        violations.push(Violation::new(
            "placeholders",
            "is empty; at least one is required",
        ));
    }
    let specs: Vec<_> = messages
        .into_iter()
        .enumerate()
        .filter_map(|(index, message)| {
            placeholder_spec(&format!("placeholders[{index}]"), message, &mut violations)
        })
        .collect();
    checked(Some(specs), violations)
}

fn placeholder_spec(
    path: &str,
    message: wire::PlaceholderSpec,
    violations: &mut Vec<Violation>,
) -> Option<PlaceholderSpec> {
    required(&format!("{path}.cpu"), &message.cpu, violations);
    required(&format!("{path}.memory"), &message.memory, violations);
    required(&format!("{path}.image"), &message.image, violations);
    for (field, claims) in [
        ("claim_names", &message.claim_names),
        ("unmounted_claim_names", &message.unmounted_claim_names),
    ] {
        for (index, claim) in claims.iter().enumerate() {
            required(&format!("{path}.{field}[{index}]"), claim, violations);
        }
    }
    let mut templates = |field: &str, messages: Vec<wire::ClaimTemplate>| {
        messages
            .into_iter()
            .enumerate()
            .filter_map(|(index, template)| {
                claim_template(&format!("{path}.{field}[{index}]"), template, violations)
            })
            .collect()
    };
    let claim_templates = templates("claim_templates", message.claim_templates);
    let single_pod_claims = templates("single_pod_claims", message.single_pod_claims);
    let separation = separation(format!("{path}.separation"), message.separation, violations);
    let name = message
        .name
        .parse()
        .map_err(|error| violations.push(violation(&format!("{path}.name"), &error)))
        .ok()?;
    Some(PlaceholderSpec {
        name,
        labels: message.labels,
        claim_templates,
        claim_names: message.claim_names,
        cpu: message.cpu,
        memory: message.memory,
        image: message.image,
        pod_template: message
            .pod_template
            .map(json::from_struct)
            .unwrap_or_default(),
        service_account_name: message.service_account_name,
        single_pod_claims,
        unmounted_claim_names: message.unmounted_claim_names,
        separation: separation?,
    })
}

fn template_to_wire(template: &ClaimTemplateSpec) -> wire::ClaimTemplate {
    wire::ClaimTemplate {
        name: template.name.to_string(),
        workspace: template.workspace.clone(),
        spec: Some(json::object_to_struct(&template.spec)),
        labels: template.labels.clone(),
        annotations: template.annotations.clone(),
    }
}

fn claim_template(
    path: &str,
    message: wire::ClaimTemplate,
    violations: &mut Vec<Violation>,
) -> Option<ClaimTemplateSpec> {
    required(&format!("{path}.workspace"), &message.workspace, violations);
    if message.spec.is_none() {
        violations.push(Violation::new(
            format!("{path}.spec"),
            "is unset; it is required",
        ));
    }
    let name = message
        .name
        .parse()
        .map_err(|error| violations.push(violation(&format!("{path}.name"), &error)))
        .ok()?;
    Some(ClaimTemplateSpec {
        name,
        workspace: message.workspace,
        spec: Value::Object(json::from_struct(message.spec?)),
        labels: message.labels,
        annotations: message.annotations,
    })
}

fn violation(field: &str, error: &dyn std::error::Error) -> Violation {
    Violation::new(field, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(name: &str) -> ClaimTemplateSpec {
        ClaimTemplateSpec {
            name: name.parse().unwrap(),
            workspace: "source".to_owned(),
            spec: json!({"accessModes": ["ReadWriteOnce"]}),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            annotations: [("c".to_owned(), "d".to_owned())].into(),
        }
    }

    fn spec() -> PlaceholderSpec {
        PlaceholderSpec {
            name: "affinity-assistant-0123456789".parse().unwrap(),
            labels: [("team".to_owned(), "ci".to_owned())].into(),
            claim_templates: vec![template("pvc-0123456789")],
            single_pod_claims: vec![template("single-0123456789")],
            unmounted_claim_names: vec!["made-by-tekton".to_owned()],
            separation: Separation::Isolate(IsolationScope::Namespace),
            claim_names: vec!["brought".to_owned()],
            cpu: "50m".to_owned(),
            memory: "100Mi".to_owned(),
            image: "pause".to_owned(),
            pod_template: json!({"nodeSelector": {"disk": "ssd"}})
                .as_object()
                .cloned()
                .unwrap(),
            service_account_name: "builder".to_owned(),
        }
    }

    #[test]
    fn a_placeholder_survives_the_wire() {
        for separation in [
            Separation::Spread,
            Separation::Isolate(IsolationScope::Cluster),
            Separation::Isolate(IsolationScope::Namespace),
        ] {
            let spec = PlaceholderSpec {
                separation,
                ..spec()
            };
            assert_eq!(
                placeholder_specs(vec![placeholder_spec_to_wire(&spec)]),
                Ok(vec![spec])
            );
        }
    }

    #[test]
    fn every_violation_is_named_at_once() {
        let mut message = placeholder_spec_to_wire(&spec());
        message.name = "somebody-else".to_owned();
        message.cpu.clear();
        message.claim_templates[0].spec = None;
        message.claim_names.push(String::new());
        message.unmounted_claim_names.push(String::new());
        message.single_pod_claims[0].name = "x".to_owned();
        message.separation = 0;
        let mut fields: Vec<_> = placeholder_specs(vec![message])
            .unwrap_err()
            .into_iter()
            .map(|violation| violation.field)
            .collect();
        fields.sort();
        assert_eq!(
            fields,
            [
                "placeholders[0].claim_names[1]",
                "placeholders[0].claim_templates[0].spec",
                "placeholders[0].cpu",
                "placeholders[0].name",
                "placeholders[0].separation",
                "placeholders[0].single_pod_claims[0].name",
                "placeholders[0].unmounted_claim_names[1]",
            ]
        );
        assert_eq!(
            placeholder_specs(vec![]).unwrap_err()[0].field,
            "placeholders"
        );
        assert_eq!(identity(None).unwrap_err().len(), 4);
    }

    #[test]
    fn a_version_that_is_no_number_is_refused() {
        let of_version = |version: &str| {
            identity(Some(wire::PipelineRunRef {
                namespace: "ci".to_owned(),
                name: "mine".to_owned(),
                uid: "u-mine".to_owned(),
                resource_version: version.to_owned(),
            }))
        };
        assert_eq!(of_version("4711").unwrap().resource_version, "4711");
        for version in ["newest", "-1", "+4711", "4711 ", "0x1f"] {
            let violations = of_version(version).unwrap_err();
            assert_eq!(violations.len(), 1);
            assert_eq!(violations[0].field, "pipeline_run.resource_version");
            assert!(
                violations[0].description.contains(version),
                "{violations:?}"
            );
        }
    }
}
