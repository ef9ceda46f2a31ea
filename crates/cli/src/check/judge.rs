//! Judges the objects of a cluster. A judgement is a verdict with its reason. `None` stands for an object that does not exist.

use std::collections::{BTreeMap, BTreeSet};

use coscheduler_core::config;
use coscheduler_core::labels::HOSTNAME;
use coscheduler_core::pod_template::{EVACUATED_CLASS, PLACEHOLDER_CLASS};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;
use x509_parser::pem::Pem;

/// The five services.
const SERVICES: [&str; 5] = [
    "admission-webhook",
    "affinity-planner",
    "config-service",
    "placeholder-manager",
    "watcher",
];

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// tekton-coscheduler or this plugin works, but not in every case.
    Warning,
    Failed,
    /// The user is not allowed to read the objects. Or, for check `priority-class`: ConfigMap `coscheduler-config` is not
    /// valid.
    Unknown,
}

impl Verdict {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// The result of a check, and its reason.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) message: String,
}

type Judged = (Verdict, String);

fn failed(message: impl Into<String>) -> Judged {
    (Verdict::Failed, message.into())
}

fn warning(message: impl Into<String>) -> Judged {
    (Verdict::Warning, message.into())
}

fn ok(message: impl Into<String>) -> Judged {
    (Verdict::Ok, message.into())
}

/// Tekton's own affinity assistant must be off (M9).
pub(super) fn tekton_flag(feature_flags: Option<&BTreeMap<String, String>>) -> Judged {
    let Some(flags) = feature_flags else {
        return failed(
            "Tekton's ConfigMap feature-flags does not exist. Name Tekton's namespace with --tekton-namespace.",
        );
    };
    match config::tekton_coschedule(flags) {
        None => ok("Tekton's flag coschedule is disabled."),
        Some(value) => failed(format!(
            "Tekton's flag coschedule is {value}, so Tekton coschedules the runs itself. When the runs in progress are adopted \
             (docs/migration.md), set it to disabled in ConfigMap feature-flags."
        )),
    }
}

/// Our ConfigMap must be valid.
pub(super) fn configuration(data: Option<&BTreeMap<String, String>>) -> Judged {
    let Some(data) = data else {
        return warning(
            "ConfigMap coscheduler-config does not exist. Before the installation, this is normal. After it, new runs are not \
             coscheduled, unless the services read a valid ConfigMap earlier. Create the ConfigMap. If it is empty, every key has \
             its default.",
        );
    };
    match config::check(data) {
        Ok(checked) if checked.warnings.is_empty() => ok(format!(
            "The mode of the cluster is {}.",
            checked.configuration.mode
        )),
        Ok(checked) => warning(checked.warnings.join(" ")),
        Err(violations) => {
            let faults: Vec<_> = violations.iter().map(ToString::to_string).collect();
            failed(format!(
                "ConfigMap coscheduler-config is not valid: {}",
                faults.join("; ")
            ))
        }
    }
}

/// The PriorityClass that our ConfigMap names for placeholders. `None` if it names no class.
///
/// # Errors
/// The ConfigMap is not valid.
pub(super) fn named_class(
    data: Option<&BTreeMap<String, String>>,
) -> Result<Option<String>, String> {
    let Some(data) = data else { return Ok(None) };
    let checked = config::check(data);
    let checked = checked.map_err(|_| "ConfigMap coscheduler-config is not valid.".to_owned())?;
    let template = checked.configuration.placeholder.pod_template;
    let class = template.get("priorityClassName");
    let class = class.and_then(Value::as_str).filter(|it| !it.is_empty());
    Ok(class.map(str::to_owned))
}

/// The PriorityClasses that placeholders need if their default class is `named`.
pub(super) fn needed_classes(named: &str) -> Vec<&str> {
    match named {
        PLACEHOLDER_CLASS => vec![named, EVACUATED_CLASS],
        _ => vec![named],
    }
}

/// The PriorityClasses of placeholders must exist. `found` has an element for each element of `needed`.
pub(super) fn priority_classes(needed: &[&str], found: &[Option<PriorityClass>]) -> Judged {
    let mut all = needed.iter().zip(found);
    match all.find(|(_, class)| class.is_none()) {
        None => ok(format!(
            "PriorityClass {} of placeholders exists.",
            needed.join(" and PriorityClass ")
        )),
        Some((&EVACUATED_CLASS, _)) => warning(format!(
            "PriorityClass {EVACUATED_CLASS} does not exist, so an evacuated placeholder waits behind other placeholders. Apply \
             component placeholder-priority again."
        )),
        Some((missing, _)) => failed(format!(
            "PriorityClass {missing} does not exist, so the API server refuses placeholders whose run names no class. Create the \
             class, or remove priorityClassName from key {} of ConfigMap coscheduler-config.",
            config::POD_TEMPLATE
        )),
    }
}

/// The judgement if our ConfigMap names no PriorityClass. Then placeholders do not get class [`PLACEHOLDER_CLASS`] by default.
pub(super) fn no_priority_class(ours: Option<&PriorityClass>) -> Judged {
    match ours {
        None => ok("Placeholders have no PriorityClass by default."),
        Some(_) => warning(format!(
            "PriorityClass {PLACEHOLDER_CLASS} exists, but key {} of ConfigMap coscheduler-config does not name it. If you use \
             component placeholder-priority, add \"priorityClassName: {PLACEHOLDER_CLASS}\" to this key.",
            config::POD_TEMPLATE
        )),
    }
}

/// The API server must call our webhooks.
pub(super) fn webhooks(found: Option<&MutatingWebhookConfiguration>) -> Judged {
    let Some(found) = found else {
        return failed(
            "MutatingWebhookConfiguration coscheduler.dev does not exist. Install tekton-coscheduler.",
        );
    };
    let all = || found.webhooks.iter().flatten();
    let names = |all: Vec<&str>| all.join(", ");
    let unused: Vec<_> = all()
        .filter(|it| {
            it.rules.as_ref().is_none_or(Vec::is_empty) || it.client_config.ca_bundle.is_none()
        })
        .map(|it| it.name.as_str())
        .collect();
    if all().next().is_none() {
        return failed(
            "MutatingWebhookConfiguration coscheduler.dev has no webhooks. Install tekton-coscheduler again.",
        );
    }
    if !unused.is_empty() {
        return failed(format!(
            "The API server does not call these webhooks yet: {}. The admission-webhook writes their rules when it and the \
             affinity-planner are ready; read its log.",
            names(unused)
        ));
    }
    let ignored: Vec<_> = all()
        .filter(|it| it.failure_policy.as_deref() == Some("Ignore"))
        .map(|it| it.name.as_str())
        .collect();
    if ignored.is_empty() {
        return ok("The API server calls all webhooks.");
    }
    warning(format!(
        "failurePolicy is Ignore, so runs that are created while the admission-webhook does not answer are not coscheduled: {}.",
        names(ignored)
    ))
}

/// In each caBundle, at least one certificate must not have expired. The admission-webhook renews its certificate long before
/// the certificate expires.
pub(super) fn certificates(found: Option<&MutatingWebhookConfiguration>, now: Timestamp) -> Judged {
    let webhooks = found.iter().flat_map(|it| it.webhooks.iter().flatten());
    let bundles = webhooks.filter_map(|it| it.client_config.ca_bundle.as_ref());
    let mut ends = Vec::new();
    for bundle in bundles {
        // A bundle may also have certificates that are no longer, or not yet, in use.
        let Some(end) = last_end(&bundle.0) else {
            return failed("A caBundle of the webhooks has no certificate.");
        };
        ends.push(end);
    }
    match ends.into_iter().min() {
        None => failed("The webhooks have no caBundle."),
        Some(end) if end < now => failed(format!(
            "The last certificate of the admission-webhook ended at {end}; read its log."
        )),
        Some(end) => ok(format!(
            "The newest certificate of the admission-webhook is valid until {end}."
        )),
    }
}

/// The end of the certificate that ends last.
fn last_end(bundle: &[u8]) -> Option<Timestamp> {
    let certificates = Pem::iter_from_buffer(bundle).filter_map(Result::ok);
    let ends = certificates.filter_map(|pem| {
        let end = pem.parse_x509().ok()?.validity().not_after.timestamp();
        Timestamp::from_second(end).ok()
    });
    ends.max()
}

/// Rights that the other subcommands need to show all namespaces.
pub(super) const RIGHTS: [(&str, &str, &str); 11] = [
    ("get", "tekton.dev", "pipelineruns"),
    ("list", "tekton.dev", "pipelineruns"),
    ("watch", "tekton.dev", "pipelineruns"),
    ("list", "tekton.dev", "taskruns"),
    ("get", "", "pods"),
    ("list", "", "pods"),
    ("watch", "", "pods"),
    ("get", "", "persistentvolumeclaims"),
    ("list", "", "events"),
    ("list", "", "nodes"),
    ("watch", "", "nodes"),
];

/// If the user lacks one of [`RIGHTS`], other subcommands may show less, or fail. `lacking` has pairs of a verb and a resource.
pub(super) fn rights(lacking: &[(&str, &str)]) -> Judged {
    if lacking.is_empty() {
        return ok("You may read, in all namespaces, what the other subcommands show.");
    }
    let lacking: Vec<_> = lacking
        .iter()
        .map(|(verb, resource)| format!("{verb} {resource}"))
        .collect();
    warning(format!(
        "You are not allowed to do this in all namespaces: {}. So other subcommands may show less.",
        lacking.join(", ")
    ))
}

/// Each service must be available. All services should have the same version. If there are no Deployments, but the webhooks
/// have URLs, the services run with `cargo xtask services`, as local processes.
pub(super) fn services(
    namespace: &str,
    deployments: &[Deployment],
    webhooks: Option<&MutatingWebhookConfiguration>,
) -> Judged {
    if deployments.is_empty() {
        let none = format!("Found no Deployments of the services in namespace {namespace}.");
        let mut webhooks = webhooks
            .into_iter()
            .flat_map(|it| it.webhooks.iter().flatten());
        return match webhooks.any(|it| it.client_config.url.is_some()) {
            true => warning(format!(
                "{none} This is expected with `cargo xtask services`, which runs the services as local processes."
            )),
            false => failed(format!(
                "{none} Install tekton-coscheduler, or name its namespace with --namespace."
            )),
        };
    }
    let named = |name: &str| deployments.iter().find(|it| it.name_any() == name);
    let available = |name: &&str| {
        let status = named(name).and_then(|it| it.status.as_ref());
        status.is_some_and(|status| status.available_replicas.unwrap_or_default() > 0)
    };
    let missing: Vec<_> = SERVICES.into_iter().filter(|it| !available(it)).collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return failed(format!(
            "These Deployments have no available replica: {missing}."
        ));
    }
    let versions: BTreeSet<_> = SERVICES
        .into_iter()
        .filter_map(|name| named(name)?.labels().get("app.kubernetes.io/version"))
        .map(String::as_str)
        .collect();
    let versions: Vec<_> = versions.into_iter().collect();
    match versions.as_slice() {
        [] => ok(
            "All services are available. Their Deployments have no label app.kubernetes.io/version.",
        ),
        [version] => ok(format!("All services are available in version {version}.")),
        _ => warning(format!(
            "The services have different versions: {}. Finish the upgrade.",
            versions.join(", ")
        )),
    }
}

/// Each node needs a hostname label, and no two nodes may have the same value.
pub(super) fn nodes(nodes: &[Node]) -> Judged {
    let mut named: BTreeMap<&str, &str> = BTreeMap::new();
    let names: Vec<_> = nodes.iter().map(ResourceExt::name_any).collect();
    for (node, name) in nodes.iter().zip(&names) {
        let Some(hostname) = node.labels().get(HOSTNAME) else {
            return failed(format!(
                "Node {name} lacks label {HOSTNAME}, so no pod can follow a placeholder there."
            ));
        };
        if let Some(other) = named.insert(hostname, name) {
            return failed(format!(
                "Nodes {other} and {name} have the same label {HOSTNAME}, so pods of one run may run on both."
            ));
        }
    }
    ok(format!(
        "Each of {} nodes has a label {HOSTNAME} of its own.",
        nodes.len()
    ))
}

/// A volume that is created before its pod is scheduled may be in a zone without a suitable node for the pod.
pub(super) fn storage_classes(classes: &[StorageClass]) -> Judged {
    let immediate: Vec<_> = classes
        .iter()
        .filter(|it| it.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer"))
        .map(ResourceExt::name_any)
        .collect();
    if immediate.is_empty() {
        return ok("Every StorageClass has volumeBindingMode WaitForFirstConsumer.");
    }
    warning(format!(
        "These StorageClasses create volumes before a node is chosen: {}. If not every node reaches such a volume, the run's \
         placeholder has fewer nodes to choose from, and two claims may need different nodes.",
        immediate.join(", ")
    ))
}

/// A placeholder reserves CPU and memory for later pods only if Kubernetes can resize pods (B3).
pub(super) fn pods_resize(core: &APIResourceList) -> Judged {
    let resize = core.resources.iter().any(|it| it.name == "pods/resize");
    match resize {
        true => ok("Kubernetes can resize pods, so placeholders can ask for room."),
        false => warning(
            "Kubernetes cannot resize pods (subresource pods/resize), so placeholders reserve no room, and no autoscaler adds a \
             node for them.",
        ),
    }
}

/// This check never warns or fails, because it cannot find every autoscaler: Cluster Autoscaler needs no API group of its own.
pub(super) fn autoscaler(groups: &APIGroupList) -> Judged {
    let karpenter = groups.groups.iter().any(|it| it.name == "karpenter.sh");
    ok(match karpenter {
        true => "Karpenter is installed.",
        false => "Karpenter is not installed. Other autoscalers are not looked for.",
    })
}

#[cfg(test)]
mod tests;
