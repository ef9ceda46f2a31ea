//! The objects of folder `deploy` that the launcher (module `services`) applies: namespace, accounts, rights, Leases, Secret and
//! webhook configurations. All of them except the namespace have the launcher's label and annotation. The webhooks have a
//! loopback address.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::CONFIGURATION_NAME;
use crate::manifests;

/// The value of `app.kubernetes.io/managed-by` on all objects that a launcher made, and the launcher's field manager.
pub const MANAGED_BY: &str = "coscheduler-local-services";
pub(super) const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// The annotation with the name of the launcher that applied the object last.
pub(super) const LAUNCHER: &str = "coscheduler.dev/launcher";

macro_rules! deploy {
    ($($file:literal),* $(,)?) => {
        [$(($file, include_str!(concat!("../../../../deploy/", $file)))),*]
    };
}

const NAMESPACE: [(&str, &str); 1] = deploy!["base/namespace.yaml"];
const RIGHTS: [(&str, &str); 13] = deploy![
    "base/config-service/service-account.yaml",
    "base/config-service/rbac.yaml",
    "base/affinity-planner/service-account.yaml",
    "base/placeholder-manager/service-account.yaml",
    "base/placeholder-manager/rbac.yaml",
    "base/placeholder-manager/lease.yaml",
    "components/placeholder-pods/rbac.yaml",
    "base/watcher/service-account.yaml",
    "base/watcher/rbac.yaml",
    "base/watcher/lease.yaml",
    "base/admission-webhook/service-account.yaml",
    "base/admission-webhook/rbac.yaml",
    "base/admission-webhook/certificates.yaml",
];
const WEBHOOKS: [(&str, &str); 1] = deploy!["base/admission-webhook/webhook-configuration.yaml"];

/// The namespace.
pub(super) fn namespace() -> anyhow::Result<Vec<Value>> {
    read(&NAMESPACE)
}

/// The services' accounts and rights, their Leases, and the Secret with the webhook's certificates, marked for `launcher`.
pub(super) fn rights(launcher: &str) -> anyhow::Result<Vec<Value>> {
    let mut objects = read(&RIGHTS)?;
    for object in &mut objects {
        mark(object, launcher);
    }
    Ok(objects)
}

/// The mutating and the validating webhook configuration, marked for `launcher`, with the admission-webhook at loopback port
/// `port`.
pub(super) fn webhook_configurations(port: u16, launcher: &str) -> anyhow::Result<Vec<Value>> {
    let mut configurations = read(&WEBHOOKS)?;
    for configuration in &mut configurations {
        mark(configuration, launcher);
        let webhooks = configuration["webhooks"]
            .as_array_mut()
            .with_context(|| format!("{CONFIGURATION_NAME} has no webhooks"))?;
        for webhook in webhooks {
            let path = webhook["clientConfig"]["service"]["path"]
                .as_str()
                .with_context(|| format!("a webhook of {CONFIGURATION_NAME} has no path"))?;
            let url = format!("https://127.0.0.1:{port}{path}");
            webhook["clientConfig"] = json!({ "url": url });
        }
    }
    Ok(configurations)
}

fn read(files: &[(&str, &str)]) -> anyhow::Result<Vec<Value>> {
    let mut objects = Vec::new();
    for (file, yaml) in files {
        let found = manifests::parse(yaml).with_context(|| format!("in deploy/{file}"))?;
        objects.extend(found);
    }
    Ok(objects)
}

fn mark(object: &mut Value, launcher: &str) {
    let metadata = &mut object["metadata"];
    metadata["labels"][MANAGED_BY_LABEL] = json!(MANAGED_BY);
    metadata["annotations"][LAUNCHER] = json!(launcher);
}

#[cfg(test)]
mod tests {
    use super::super::Service;
    use super::*;

    #[test]
    fn every_object_is_marked_and_every_service_has_an_account() {
        let objects = rights("me").unwrap();
        for object in &objects {
            let metadata = &object["metadata"];
            assert_eq!(metadata["labels"][MANAGED_BY_LABEL], MANAGED_BY);
            assert_eq!(metadata["annotations"][LAUNCHER], "me");
        }
        for service in Service::ALL {
            assert!(
                objects
                    .iter()
                    .any(|object| object["kind"] == "ServiceAccount"
                        && object["metadata"]["name"] == service.name()),
                "{service}"
            );
        }
    }

    #[test]
    fn webhooks_are_those_of_the_installation_at_a_loopback_address() {
        let installed = read(&WEBHOOKS).unwrap();
        let local = webhook_configurations(9443, "me").unwrap();
        assert_eq!(installed.len(), 2);
        let mut paths = Vec::new();
        for (installed, local) in installed.iter().zip(&local) {
            assert_eq!(local["kind"], installed["kind"]);
            assert_eq!(local["metadata"]["annotations"], json!({LAUNCHER: "me"}));
            let installed = installed["webhooks"].as_array().unwrap();
            let local = local["webhooks"].as_array().unwrap();
            assert_eq!(installed.len(), local.len());
            for (installed, local) in installed.iter().zip(local) {
                let path = &installed["clientConfig"]["service"]["path"];
                let path = path.as_str().unwrap();
                let mut expected = installed.clone();
                expected["clientConfig"] = json!({"url": format!("https://127.0.0.1:9443{path}")});
                assert_eq!(*local, expected);
                paths.push(path);
            }
        }
        let expected = [
            "/admit/pipelinerun",
            "/admit/pipelinerun",
            "/admit/pipelinerun",
            "/admit/run",
            "/check/config",
        ];
        assert_eq!(paths, expected);
    }
}
