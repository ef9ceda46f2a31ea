//! Tests of the launcher of the five services, with a real API server: which objects it creates, which objects it does not
//! touch, and that it deletes its webhook configurations before its webhook ends. If a launcher was killed, the next launcher
//! takes over its webhook configurations.
//!
//! The tests need the binaries of the services. `cargo xtask test` builds them, and so does `cargo build --bins`.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::{Api, Client, ResourceExt as _};
use testbed::services::{
    CONFIG_MAP, CONFIGURATION_NAME, MANAGED_BY, NAMESPACE, Service, Services, ServicesConfig,
    bin_dir,
};
use testbed::{Config, TestBed};

/// The name of the launcher in the webhook configuration; `None` if there is no webhook configuration, or if it names no
/// launcher.
async fn registered(client: &Client) -> Option<String> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = api.get_opt(CONFIGURATION_NAME).await.unwrap()?;
    configuration
        .annotations()
        .get("coscheduler.dev/launcher")
        .cloned()
}

/// True if the service accounts exist.
async fn has_accounts(client: &Client) -> bool {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    api.get_opt("watcher").await.unwrap().is_some()
}

async fn mode(client: &Client) -> String {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let config_map = api.get(CONFIG_MAP).await.unwrap();
    config_map.data.unwrap().remove("coschedule").unwrap()
}

fn config(bed: &TestBed) -> ServicesConfig {
    ServicesConfig::new(bed.kubeconfig()).unwrap()
}

/// Fills a folder with binaries of the services. The binary of `broken` prints a sentence and ends with exit code 3.
fn with_broken(folder: &Path, broken: Service) {
    for service in Service::ALL {
        let path = folder.join(service.name());
        if service == broken {
            std::fs::write(&path, "#!/bin/sh\necho the disk is full\nexit 3\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        } else {
            symlink(bin_dir().unwrap().join(service.name()), &path).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_launcher_never_blocks_the_cluster() {
    let bed = TestBed::start(Config {
        nodes: 1,
        ..Config::default()
    })
    .await
    .unwrap();
    let client = bed.client();

    // If a service ends early, the start fails at once. The error contains the end of the service's log, and no webhook
    // configuration is created.
    let folder = tempfile::tempdir().unwrap();
    with_broken(folder.path(), Service::PlaceholderManager);
    let broken = ServicesConfig {
        bin_dir: folder.path().to_owned(),
        ready_timeout: Duration::from_secs(3600),
        ..config(&bed)
    };
    let error = format!("{:#}", Services::start(broken).await.unwrap_err());
    assert!(
        error.contains("placeholder-manager") && error.contains("the disk is full"),
        "{error}"
    );
    assert_eq!(registered(&client).await, None);
    // The ConfigMap was absent, and the launcher has created it.
    assert_eq!(mode(&client).await, "pipelineruns");

    // After the start, the webhook configurations exist. After the stop, they and the logs are gone.
    let services = Services::start(config(&bed)).await.unwrap();
    assert!(registered(&client).await.is_some());
    assert!(has_accounts(&client).await);
    services.check().unwrap();
    services.restart(Service::Watcher).await.unwrap();
    services.kill(Service::AffinityPlanner).unwrap();
    services.check().unwrap();
    services.start_service(Service::AffinityPlanner).unwrap();
    services.wait_ready().await.unwrap();
    let logs = services.logs_dir();
    assert!(logs.join("watcher.log").is_file());
    services.stop().await.unwrap();
    assert_eq!(registered(&client).await, None);
    assert!(!has_accounts(&client).await);
    assert!(!logs.exists());

    // A launcher that was killed (here: dropped) leaves its webhook configurations behind. The next launcher takes them over.
    let killed = Services::start(config(&bed)).await.unwrap();
    drop(killed);
    let stale = registered(&client).await.unwrap();
    let successor = Services::start(config(&bed)).await.unwrap();
    let taken_over = registered(&client).await.unwrap();
    assert_ne!(taken_over, stale);

    // A second launcher runs on other ports and takes over the objects. The first launcher then does not delete them.
    let other = Services::start(config(&bed)).await.unwrap();
    assert_ne!(other.ports(), successor.ports());
    let noticed = tokio::time::timeout(Duration::from_secs(30), successor.failed())
        .await
        .unwrap();
    assert!(noticed.to_string().contains("taken over"), "{noticed:#}");
    successor.stop().await.unwrap();
    let others = registered(&client).await.unwrap();
    assert_ne!(others, taken_over);
    assert!(has_accounts(&client).await);
    drop(other);

    // `remove` deletes the objects of a killed launcher, and reports them.
    let removed = Services::remove(bed.kubeconfig()).await.unwrap();
    assert_eq!(
        removed[0],
        "removed MutatingWebhookConfiguration coscheduler.dev"
    );
    for what in [
        "Secret coscheduler-system/admission-webhook-certs",
        "ServiceAccount coscheduler-system/affinity-planner",
        "ClusterRole coscheduler-watcher",
    ] {
        assert!(removed.contains(&format!("removed {what}")), "{removed:?}");
    }
    assert_eq!(registered(&client).await, None);
    assert_eq!(
        Services::remove(bed.kubeconfig()).await.unwrap(),
        ["nothing of local services was there"]
    );

    // The first launcher stops while the next has started its services but has no webhook configurations yet. The first deletes
    // its webhook configurations, but not the accounts that the next needs.
    let first = Services::start(config(&bed)).await.unwrap();
    let next = Services::launch(config(&bed)).await.unwrap();
    first.stop().await.unwrap();
    assert_eq!(registered(&client).await, None);
    assert!(has_accounts(&client).await);
    next.register().await.unwrap();
    next.stop().await.unwrap();
    assert!(!has_accounts(&client).await);

    // The launcher does not touch an operator's ConfigMap or an installation in the cluster.
    bed.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {CONFIG_MAP}, namespace: {NAMESPACE}}}\ndata: {{coschedule: disabled}}\n---\n\
         apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\nmetadata: {{name: {CONFIGURATION_NAME}}}\n"
    ))
    .await
    .unwrap();
    let error = format!("{:#}", Services::start(config(&bed)).await.unwrap_err());
    assert!(error.contains(MANAGED_BY), "{error}");
    let untouched = Services::remove(bed.kubeconfig()).await.unwrap();
    assert_eq!(
        untouched,
        ["left MutatingWebhookConfiguration coscheduler.dev alone: local services did not make it"]
    );
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    api.delete(CONFIGURATION_NAME, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let services = Services::start(config(&bed)).await.unwrap();
    assert_eq!(mode(&client).await, "disabled");
    services.stop().await.unwrap();

    bed.stop().await.unwrap();
}
