//! Tests of `deploy/base`, applied as an operator does. It can be applied twice. Its accounts have exactly the rights that they
//! use. Its network policies allow exactly the connections of the design. The webhook's certificates rotate without a refused
//! run. If the installation is deleted in the middle of a run, this does not harm the run.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_core::config::Reserves;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::audit::{self, Mark};
use integration_tests::installation::{BASE, define, kubectl, lead_here, serve};
use integration_tests::look::{self, is_placeholder};
use integration_tests::metrics::get;
use integration_tests::rights::{self, Right};
use integration_tests::runs::run;
use integration_tests::sets::without_sets;
use integration_tests::stack::Stack;
use integration_tests::{Scene, on_bed};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::authorization::v1::{SelfSubjectRulesReview, SubjectRulesReviewStatus};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::KubeConfigOptions;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use testbed::services::{
    CONFIG_MAP, CONFIGURATION_NAME, NAMESPACE, Service, Services, ServicesConfig,
};
use testbed::{Authority, Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS, TestBed};

type Outcome = anyhow::Result<()>;

const LIMIT: Duration = Duration::from_secs(120);

/// Waits until `condition` holds for the object with this name, and returns the object.
async fn until<K>(api: Api<K>, name: &str, condition: impl Fn(Option<&K>) -> bool) -> Option<K>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    tokio::time::timeout(LIMIT, await_condition(api, name, condition))
        .await
        .unwrap_or_else(|_| panic!("{name} does not get there"))
        .unwrap()
}

fn bundles(configuration: &MutatingWebhookConfiguration) -> Vec<Option<&[u8]>> {
    let webhooks = configuration.webhooks.iter().flatten();
    webhooks
        .map(|webhook| Some(webhook.client_config.ca_bundle.as_ref()?.0.as_slice()))
        .collect()
}

fn is_complete(configuration: Option<&MutatingWebhookConfiguration>) -> bool {
    configuration.is_some_and(|configuration| {
        let bundles = bundles(configuration);
        let mut webhooks = configuration.webhooks.iter().flatten();
        !bundles.is_empty()
            && bundles.iter().all(Option::is_some)
            && webhooks.all(|webhook| webhook.rules.is_some())
    })
}

#[test]
fn an_installation_works_with_exactly_its_rights_and_stands_in_nobodys_way_when_deleted() -> Outcome
{
    // `deploy/base` does not grant the right to create pods.
    if without_sets() {
        return Ok(());
    }
    // With streaming lists, which not every API server supports, the services would not need the rights to list.
    let config = Config {
        audit_log: true,
        streaming_lists: false,
        ..Config::default()
    };
    on_bed(config, async |bed| {
        let client = bed.client();
        let applied = kubectl(&bed, &["apply", "-k", BASE]).await?;
        assert!(
            applied.lines().all(|line| line.ends_with(" created")),
            "{applied}"
        );
        let services = serve(&bed, 1).await?;
        applying_again_changes_nothing(&bed, &client).await?;
        pods_run_under_pod_security_restricted(&client).await?;
        policies_allow_the_arrows_of_the_design_and_no_others(&client).await?;
        the_planner_may_nothing(&bed, &client).await?;

        lead_here(&client, &services).await?;
        probes_are_answered(&client, &services).await?;
        let stack = Stack::new(bed, services);
        Box::pin(use_every_right(&stack.scene().await?)).await?;
        let Stack { bed, services, .. } = stack;
        services.stop().await?;
        every_right_is_used_and_none_is_missing(&bed, &client).await?;

        let services = serve(&bed, 1).await?;
        lead_here(&client, &services).await?;
        let stack = Stack::new(bed, services);
        Box::pin(deletion_leaves_runs_alone(stack)).await
    })
}

async fn applying_again_changes_nothing(bed: &TestBed, client: &Client) -> Outcome {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    // Wait until the webhook has issued its certificate, and written the CA bundle and the rules.
    until(configurations.clone(), CONFIGURATION_NAME, is_complete).await;
    let checks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    until(
        checks.clone(),
        CONFIGURATION_NAME,
        |checks: Option<&ValidatingWebhookConfiguration>| {
            checks.is_some_and(|checks| {
                let mut webhooks = checks.webhooks.iter().flatten();
                webhooks.all(|webhook| {
                    webhook.client_config.ca_bundle.is_some() && webhook.rules.is_some()
                })
            })
        },
    )
    .await;
    let look = async || {
        let secret = secrets.get("admission-webhook-certs").await?;
        let configuration = configurations.get(CONFIGURATION_NAME).await?;
        let checks = checks.get(CONFIGURATION_NAME).await?;
        anyhow::Ok((secret, configuration, checks))
    };
    let before = look().await?;
    assert!(before.0.data.as_ref().unwrap().contains_key("tls.key"));
    let applied = kubectl(bed, &["apply", "-k", BASE]).await?;
    // kubectl sends the selector of a PodDisruptionBudget each time, but this changes nothing.
    let changed: Vec<_> = applied
        .lines()
        .filter(|line| !line.ends_with(" unchanged") && !line.starts_with("poddisruptionbudget"))
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), NAMESPACE);
    for budget in budgets.list(&ListParams::default()).await? {
        assert_eq!(budget.metadata.generation, Some(1), "{}", budget.name_any());
    }
    assert_eq!(look().await?, before);
    Ok(())
}

/// Checks that the namespace enforces `restricted`, and that every Deployment gets its two pods there.
async fn pods_run_under_pod_security_restricted(client: &Client) -> Outcome {
    let namespace = Api::<Namespace>::all(client.clone()).get(NAMESPACE).await?;
    assert_eq!(
        namespace.labels()["pod-security.kubernetes.io/enforce"],
        "restricted"
    );
    for service in Service::ALL {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        until(
            deployments,
            service.name(),
            |deployment: Option<&Deployment>| {
                deployment.and_then(|deployment| deployment.status.as_ref()?.available_replicas)
                    == Some(2)
            },
        )
        .await;
    }
    Ok(())
}

/// Checks that the services answer the probes of their Deployments.
async fn probes_are_answered(client: &Client, services: &Services) -> Outcome {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    for service in Service::ALL {
        let deployment = deployments.get(service.name()).await?;
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        let container = &pod.containers[0];
        let mut ports = container.ports.iter().flatten();
        let metrics = ports.find(|port| port.name.as_deref() == Some("metrics"));
        assert!(metrics.is_some(), "{service}");
        let probes = [
            (&container.startup_probe, "/livez"),
            (&container.liveness_probe, "/livez"),
            (&container.readiness_probe, "/readyz"),
        ];
        for (probe, path) in probes {
            let asked = probe.as_ref().unwrap().http_get.as_ref().unwrap();
            assert_eq!(asked.path.as_deref(), Some(path), "{service}");
            assert_eq!(asked.port, IntOrString::String("metrics".to_owned()));
            get(&format!("{}{path}", services.http_address(service))).await?;
        }
    }
    Ok(())
}

/// Checks that no role binding names the planner's account, that the planner's pods have no token, and that the account has only
/// the rights that every account has.
async fn the_planner_may_nothing(bed: &TestBed, client: &Client) -> Outcome {
    let granted = rights::granted(client).await?;
    let planner = Service::AffinityPlanner.name();
    assert!(
        granted.iter().all(|right| right.account != planner),
        "{granted:?}"
    );
    let rules = async |account: &str| -> anyhow::Result<BTreeSet<String>> {
        let kubeconfig = bed.kubeconfig_for(NAMESPACE, account).await?;
        let client = testbed::services::kube_client(&kubeconfig).await?;
        let review: SelfSubjectRulesReview =
            serde_json::from_value(json!({"spec": {"namespace": NAMESPACE}}))?;
        let review = Api::<SelfSubjectRulesReview>::all(client)
            .create(&PostParams::default(), &review)
            .await?;
        let SubjectRulesReviewStatus {
            resource_rules,
            non_resource_rules,
            ..
        } = review.status.unwrap_or_default();
        // The order of the rules is random.
        let resources = resource_rules.iter().map(|rule| format!("{rule:?}"));
        let others = non_resource_rules.iter().map(|rule| format!("{rule:?}"));
        Ok(resources.chain(others).collect())
    };
    assert_eq!(rules(planner).await?, rules("default").await?);

    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    for pod in pods.list(&ListParams::default()).await? {
        let spec = pod.spec.as_ref().unwrap();
        let with_token = spec
            .volumes
            .iter()
            .flatten()
            .any(|volume| volume.name.starts_with("kube-api-access"));
        let account = spec.service_account_name.as_deref().unwrap();
        assert_eq!(with_token, account != planner, "{}", pod.name_any());
    }
    Ok(())
}

/// The peers of a connection: services, any pod, or anywhere.
fn peers(peers: Option<&Vec<NetworkPolicyPeer>>) -> Vec<String> {
    let Some(peers) = peers else {
        return vec!["anywhere".to_owned()];
    };
    let name = |peer: &NetworkPolicyPeer| {
        if let Some(namespaces) = &peer.namespace_selector {
            assert_eq!(*namespaces, Default::default(), "{peer:?}");
            return "any pod".to_owned();
        }
        let labels = peer.pod_selector.as_ref().unwrap().match_labels.as_ref();
        labels.unwrap()["app.kubernetes.io/name"].clone()
    };
    peers.iter().map(name).collect()
}

fn ports(ports: Option<&Vec<NetworkPolicyPort>>) -> Vec<String> {
    let name = |port: &NetworkPolicyPort| match port.port.as_ref().unwrap() {
        IntOrString::Int(number) => format!("{}/{number}", port.protocol.as_deref().unwrap()),
        IntOrString::String(name) => name.clone(),
    };
    ports.unwrap().iter().map(name).collect()
}

/// The rules of a policy as sentences, such as `watcher calls grpc of affinity-planner`: one for each peer and port.
fn sentences(policy: &NetworkPolicy) -> Vec<String> {
    let spec = policy.spec.as_ref().unwrap();
    let selector = spec.pod_selector.clone().unwrap_or_default();
    let me = selector.match_labels.map_or_else(
        || "everybody".to_owned(),
        |labels| labels["app.kubernetes.io/name"].clone(),
    );
    let mut sentences = Vec::new();
    for rule in spec.ingress.iter().flatten() {
        for peer in peers(rule.from.as_ref()) {
            for port in ports(rule.ports.as_ref()) {
                sentences.push(format!("{me} takes {port} from {peer}"));
            }
        }
    }
    for rule in spec.egress.iter().flatten() {
        for peer in peers(rule.to.as_ref()) {
            for port in ports(rule.ports.as_ref()) {
                sentences.push(format!("{me} calls {port} of {peer}"));
            }
        }
    }
    sentences
}

async fn policies_allow_the_arrows_of_the_design_and_no_others(client: &Client) -> Outcome {
    let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), NAMESPACE);
    let policies = policies.list(&ListParams::default()).await?.items;
    // Every other connection is denied, in both directions, for every pod.
    let denies = policies.iter().any(|policy| {
        let spec = policy.spec.as_ref().unwrap();
        sentences(policy).is_empty()
            && spec.pod_selector.clone().unwrap_or_default() == Default::default()
            && spec.policy_types.as_deref().unwrap_or_default() == ["Ingress", "Egress"]
    });
    assert!(denies);
    let said: BTreeSet<String> = policies.iter().flat_map(sentences).collect();
    let mut expected = BTreeSet::from(
        [
            "everybody calls UDP/53 of anywhere",
            "everybody calls TCP/53 of anywhere",
            "everybody takes metrics from any pod",
            // This is the API server, which no selector can name.
            "admission-webhook takes webhook from anywhere",
        ]
        .map(str::to_owned),
    );
    for (from, to) in [
        ("admission-webhook", "affinity-planner"),
        ("watcher", "affinity-planner"),
        ("affinity-planner", "config-service"),
        ("affinity-planner", "placeholder-manager"),
    ] {
        expected.insert(format!("{from} calls grpc of {to}"));
        expected.insert(format!("{to} takes grpc from {from}"));
    }
    for service in Service::ALL {
        if service != Service::AffinityPlanner {
            expected.insert(format!("{service} calls TCP/443 of anywhere"));
            expected.insert(format!("{service} calls TCP/6443 of anywhere"));
        }
    }
    assert_eq!(said, expected);

    // A policy with a named port that no pod has would allow nothing.
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    for service in Service::ALL {
        let deployment = deployments.get(service.name()).await?;
        let pod = deployment.spec.unwrap().template;
        assert_eq!(
            pod.metadata.unwrap().labels.unwrap()["app.kubernetes.io/name"],
            service.name()
        );
        let container = pod.spec.unwrap().containers.remove(0);
        let mut named: Vec<_> = container
            .ports
            .unwrap()
            .into_iter()
            .map(|port| port.name.unwrap())
            .collect();
        named.sort();
        let expected: &[&str] = match service {
            Service::AdmissionWebhook => &["grpc", "metrics", "webhook"],
            _ => &["grpc", "metrics"],
        };
        assert_eq!(named, expected, "{service}");
    }
    Ok(())
}

/// Makes the services use every right, from an ordinary run to repairs after an accident.
async fn use_every_right(scene: &Scene<'_>) -> Outcome {
    // A placeholder, claims, and a clean-up that removes `pvc-protection` from the claims.
    let ordinary = run("ordinary")
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"]);
    scene.submit(ordinary).await?;
    scene.succeeds("ordinary").await?;
    scene.nothing_left_but(&[]).await?;

    // A claim that only one pod may use, so the placeholder does not mount it.
    let alone = run("alone")
        .template_with_access("source", "ReadWriteOncePod")
        .task("one", &["source"], &[]);
    scene.submit(alone).await?;
    scene.succeeds("alone").await?;
    scene.nothing_left_but(&[]).await?;

    // A refused TaskRun: the webhook writes an Event about it, and then an annotation. With `coschedule-claims: node-bound`, the
    // webhook also looks for the claim of workspace `absent`.
    let flags: Api<ConfigMap> = Api::namespaced(scene.client.clone(), NAMESPACE);
    let allow = Patch::Merge(json!({"data": {
        "allowed-overrides": "workspaces", "coschedule-claims": "node-bound",
    }}));
    flags
        .patch(CONFIG_MAP, &PatchParams::default(), &allow)
        .await?;
    let mark = scene.mark()?;
    let refused = run("refused")
        .metadata(
            "annotations",
            json!({"coscheduler.dev/coschedule": "workspaces"}),
        )
        .template("source")
        .template("cache")
        .workspace(
            "absent",
            json!({"persistentVolumeClaim": {"claimName": "absent"}}),
        )
        .task("both", &["source", "cache"], &[]);
    let taken = async {
        // Wait until the planner allows the override.
        while scene.submit(refused.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LIMIT, taken).await?;
    seen(scene, mark, |right| {
        right.verb == "patch"
            && right.resource == "pipelineruns"
            && right.account == "admission-webhook"
    })
    .await?;
    scene.done("refused").await?;
    let tektons: Vec<String> = scene
        .objects()
        .await?
        .claims
        .iter()
        .map(kube::ResourceExt::name_any)
        .collect();
    scene
        .nothing_left_but(&tektons.iter().map(String::as_str).collect::<Vec<_>>())
        .await?;
    let claims = scene.api::<PersistentVolumeClaim>();
    for claim in &tektons {
        claims.delete(claim, &DeleteParams::background()).await?;
    }
    scene
        .api::<PipelineRun>()
        .delete("refused", &DeleteParams::background())
        .await?;
    scene.nothing_left_but(&[]).await?;

    // Another object has the placeholder's name.
    let clash = run("clash")
        .task("one", &[], &[])
        .spec("status", json!("PipelineRunPending"));
    let created = scene.submit(clash).await?;
    let name = &created.annotations()["pipeline.tekton.dev/affinity-assistant"];
    let stranger: StatefulSet = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "serviceName": "",
            "selector": {"matchLabels": {"app": "stranger"}},
            "template": {
                "metadata": {"labels": {"app": "stranger"}},
                "spec": {"containers": [{"name": "c", "image": "example/image"}]},
            },
        },
    }))?;
    let sets = scene.api::<StatefulSet>();
    sets.create(&PostParams::default(), &stranger).await?;
    let mark = scene.mark()?;
    let start = Patch::Merge(json!({"spec": {"status": null}}));
    scene
        .api::<PipelineRun>()
        .patch("clash", &PatchParams::default(), &start)
        .await?;
    seen(scene, mark, |right| {
        right.verb == "get" && right.resource == "statefulsets"
    })
    .await?;
    sets.delete(name, &DeleteParams::background()).await?;
    scene.succeeds("clash").await?;
    scene.nothing_left_but(&[]).await?;

    // A placeholder whose pod exceeds a quota.
    scene.quota(json!({"pods": "0"})).await?;
    let mark = scene.mark()?;
    // If a task's pod exceeds a quota, Tekton waits a minute. This task has no pod.
    let poor = run("poor").task("gate", &[], &[]).with(
        "taskSpec",
        json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": {}}),
    );
    scene.submit(poor).await?;
    seen(scene, mark, |right| {
        right.verb == "patch" && right.resource == "statefulsets"
    })
    .await?;
    scene.without_quota().await?;
    scene.placeholder().await?;
    scene
        .api::<PipelineRun>()
        .delete("poor", &DeleteParams::background())
        .await?;
    scene.nothing_left_but(&[]).await?;

    // A run with a stale `blocked` annotation.
    let unblocked = run("unblocked").task("one", &[], &[]).held("one");
    scene.submit(unblocked).await?;
    let mark = scene.mark()?;
    let blocked =
        Patch::Merge(json!({"metadata": {"annotations": {"coscheduler.dev/blocked": "{}"}}}));
    scene
        .api::<PipelineRun>()
        .patch("unblocked", &PatchParams::default(), &blocked)
        .await?;
    seen(scene, mark, |right| {
        right.verb == "patch" && right.resource == "pipelineruns"
    })
    .await?;
    scene.end("unblocked", "one").await?;
    scene.succeeds("unblocked").await?;
    scene.nothing_left_but(&[]).await?;

    // Two runs with a pod that finds no room on its placeholder's node. In the first run, the placeholder moves. In the second
    // run, the pod runs on another node.
    no_room(scene).await?;
    room_reserved(scene).await?;

    // A run that is deleted while its task runs. The manager asks the API server for the run before it deletes what is left. The
    // default of a parameter names the run's claim, so the webhook reads the run when Tekton creates the TaskRun.
    let cache: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "cache"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": MOVABLE_STORAGE_CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))?;
    claims.create(&PostParams::default(), &cache).await?;
    let by_default = json!({"persistentVolumeClaim": {"claimName": "$(params.cache)"}});
    let deleted = run("deleted")
        .param("cache", "cache")
        .workspace("cache", by_default)
        .task("one", &["cache"], &[])
        .lasting("one", 600);
    scene.submit(deleted).await?;
    scene.placeholder().await?;
    let mark = scene.mark()?;
    scene
        .api::<PipelineRun>()
        .delete("deleted", &DeleteParams::background())
        .await?;
    seen(scene, mark, |right| {
        right.verb == "get"
            && right.resource == "pipelineruns"
            && right.account == Service::PlaceholderManager.name()
    })
    .await?;
    scene.nothing_left_but(&["cache"]).await?;
    claims.delete("cache", &DeleteParams::background()).await?;
    scene.nothing_left_but(&[]).await?;

    // A placeholder that loses its StatefulSet while the manager is down.
    let services = &scene.stack.services;
    scene
        .submit(run("orphan").task("one", &[], &[]).held("one"))
        .await?;
    let (set, pod) = scene.placeholder().await?;
    services.kill(Service::PlaceholderManager)?;
    scene.end("orphan", "one").await?;
    scene.succeeds("orphan").await?;
    sets.delete(&set.name_any(), &DeleteParams::orphan())
        .await?;
    scene
        .until::<Pod>(&pod.name_any(), "has lost its owner", |pod| {
            pod.is_none_or(|pod| pod.owner_references().is_empty())
        })
        .await?;
    services.start_service(Service::PlaceholderManager)?;
    services.wait_ready().await?;
    scene.nothing_left_but(&[]).await?;

    // An invalid ConfigMap, written while the webhook is down.
    services.kill(Service::AdmissionWebhook)?;
    let flags: Api<ConfigMap> = Api::namespaced(scene.client.clone(), NAMESPACE);
    let mark = scene.mark()?;
    for value in ["sideways", "pipelineruns"] {
        let patch = Patch::Merge(json!({"data": {"coschedule": value}}));
        flags
            .patch(CONFIG_MAP, &PatchParams::default(), &patch)
            .await?;
        seen(scene, mark, |right| {
            right.verb == "create" && right.resource == "events"
        })
        .await?;
    }
    services.start_service(Service::AdmissionWebhook)?;
    services.wait_ready().await?;

    // Deleted Leases.
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), NAMESPACE);
    for leader in [Service::Watcher, Service::PlaceholderManager] {
        services.kill(leader)?;
        leases
            .delete(leader.name(), &DeleteParams::default())
            .await?;
        services.start_service(leader)?;
    }
    for leader in [Service::Watcher, Service::PlaceholderManager] {
        until(leases.clone(), leader.name(), |lease: Option<&Lease>| {
            lease.is_some()
        })
        .await;
    }
    Ok(())
}

const MODE: (&str, &str) = ("coschedule", "pipelineruns");

/// Creates a run whose placeholder reserves room.
async fn room_reserved(scene: &Scene<'_>) -> Outcome {
    scene.set_reserves(Reserves::Placement).await?;
    let run = run("reserves")
        .template("source")
        .task("one", &["source"], &[])
        .asking("1");
    scene.submit(run).await?;
    scene.succeeds("reserves").await?;
    scene.nothing_left_but(&[]).await?;
    scene.set_flags(&[MODE]).await
}

/// Creates runs whose second task has no room on the small node. The placeholders start there, because the large node is cordoned
/// until then.
async fn no_room(scene: &Scene<'_>) -> Outcome {
    scene.set_reserves(Reserves::Nothing).await?;
    scene.pool_of(&[("2", 110), ("8", 110)]).await?;
    for (name, class, workspaces) in [
        ("moved", MOVABLE_STORAGE_CLASS, &["source"][..]),
        ("let-go", LOCAL_STORAGE_CLASS, &[]),
    ] {
        let claim = json!({"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}},
        }}});
        let run = run(name)
            .in_pool_of(scene)
            .workspace("source", claim)
            .task("one", &["source"], &[])
            .lasting("one", 5)
            .task("two", workspaces, &["one"])
            .asking("4");
        scene.cordon(&scene.pool_node(2), true).await?;
        scene.submit(run).await?;
        scene.placeholder().await?;
        scene.cordon(&scene.pool_node(2), false).await?;
        scene.succeeds(name).await?;
        scene.nothing_left_but(&[]).await?;
    }
    Ok(())
}

/// Waits until one of our accounts has used a right for which `such` is true, since `mark`.
async fn seen(scene: &Scene<'_>, mark: Mark, such: impl Fn(&Right) -> bool) -> Outcome {
    let wait = async {
        loop {
            let requests = scene.requests_since(mark)?;
            if requests
                .iter()
                .filter_map(rights::used)
                .any(|used| such(&used))
            {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await?
}

/// Compares the rights with the audit log. The log contains a watch only when it has ended, so the services must have ended
/// before.
async fn every_right_is_used_and_none_is_missing(bed: &TestBed, client: &Client) -> Outcome {
    let granted = rights::granted(client).await?;
    let wildcards: Vec<_> = granted
        .iter()
        .filter(|right| [&right.verb, &right.group, &right.resource].contains(&&"*".to_owned()))
        .collect();
    assert!(wildcards.is_empty(), "{wildcards:?}");
    assert!(granted.len() > 20, "{granted:?}");
    let unused = || -> anyhow::Result<Vec<String>> {
        let requests = audit::requests(bed, Mark::default())?;
        let used: BTreeSet<Right> = requests.iter().filter_map(rights::used).collect();
        let unused = granted
            .iter()
            .filter(|right| !used.iter().any(|used| right.allows(used)));
        Ok(unused.map(ToString::to_string).collect())
    };
    let all_are_used = async {
        while !unused()?.is_empty() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::Ok(())
    };
    if tokio::time::timeout(LIMIT, all_are_used).await.is_err() {
        panic!("nobody uses these rights:\n{}", unused()?.join("\n"));
    }

    let requests = audit::requests(bed, Mark::default())?;
    let ours = requests
        .iter()
        .filter_map(|request| Some((request, rights::used(request)?)));
    let mut refused: Vec<String> = ours
        .clone()
        .filter(|(request, _)| request.answer.code == 403)
        .map(|(_, right)| right.to_string())
        .collect();
    refused.dedup();
    assert!(
        refused.is_empty(),
        "these rights are missing:\n{}",
        refused.join("\n")
    );
    let by_planner: Vec<_> = ours
        .filter(|(_, right)| right.account == Service::AffinityPlanner.name())
        .collect();
    // This test itself sent the only request.
    assert!(
        by_planner
            .iter()
            .all(|(_, right)| right.resource == "selfsubjectrulesreviews"),
        "{by_planner:?}"
    );
    Ok(())
}

async fn deletion_leaves_runs_alone(stack: Stack) -> Outcome {
    let scene = stack.scene().await?;
    let half_way = run("half-way")
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
        .held("one");
    scene.submit(half_way).await?;
    scene.placeholder().await?;
    let delete = ["delete", "-k", BASE, "--ignore-not-found", "--timeout=120s"];
    kubectl(&stack.bed, &delete).await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client.clone());
    assert!(configurations.get_opt(CONFIGURATION_NAME).await?.is_none());
    let checks: Api<ValidatingWebhookConfiguration> = Api::all(scene.client.clone());
    assert!(checks.get_opt(CONFIGURATION_NAME).await?.is_none());
    assert!(rights::granted(&scene.client).await?.is_empty());
    // The pods of an installation have ended by now too.
    for service in Service::ALL {
        stack.services.kill(service)?;
    }

    scene.end("half-way", "one").await?;
    scene.succeeds("half-way").await?;
    let pods = scene.objects().await?.task_pods;
    let nodes: BTreeSet<_> = pods
        .iter()
        .map(|pod| pod.spec.as_ref().unwrap().node_name.clone())
        .collect();
    assert_eq!((pods.len(), nodes.len()), (2, 1));
    // No service of ours works on a new run any more.
    let created = scene
        .submit(run("afterwards").task("one", &[], &[]))
        .await?;
    assert!(
        created.annotations().is_empty(),
        "{:?}",
        created.annotations()
    );
    scene.succeeds("afterwards").await?;
    // The other objects are deleted with the run.
    let pods = scene.api::<Pod>().list(&ListParams::default()).await?;
    assert_eq!(pods.iter().filter(|pod| is_placeholder(pod)).count(), 1);
    scene
        .api::<PipelineRun>()
        .delete("half-way", &DeleteParams::background())
        .await?;
    scene.nothing_left_but(&[]).await
}

#[test]
fn a_burst_of_runs_during_rotations_loses_none() -> Outcome {
    on_bed(Config::default(), async |bed| {
        let short = [
            ("CERTIFICATE_OVERLAP", "2s"),
            ("CERTIFICATE_LIFETIME", "24s"),
        ];
        let services = Services::start(ServicesConfig {
            environment: short
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..ServicesConfig::new(bed.kubeconfig())?
        })
        .await?;
        let stack = Stack::new(bed, services);
        let scene = stack.scene().await?;
        tokio::select! {
            burst = burst(&scene) => burst?,
            refused = a_run_is_refused(&scene) => return Err(refused),
            refused = the_webhook_is_refused(&scene) => return Err(refused),
        }
        for index in 0..50 {
            scene.succeeds(&format!("burst-{index}")).await?;
        }
        scene.nothing_left_but(&[]).await?;
        drop(scene);
        let Stack { bed, services, .. } = stack;
        services.stop().await?;
        bed.stop().await
    })
}

/// Creates a run every 1.5 seconds during several rotations, one of them forced.
async fn burst(scene: &Scene<'_>) -> Outcome {
    let secrets: Api<Secret> = Api::namespaced(scene.client.clone(), NAMESPACE);
    let mut certificates = BTreeSet::new();
    for index in 0..50 {
        let run = run(&format!("burst-{index}")).task("one", &[], &[]);
        scene.submit(run).await?;
        let secret = secrets.get("admission-webhook-certs").await?;
        let mut data = secret.data.unwrap_or_default();
        certificates.extend(data.remove("tls.crt").map(|pem| pem.0));
        if index == 25 {
            let empty = Patch::Merge(json!({"data": null}));
            secrets
                .patch("admission-webhook-certs", &PatchParams::default(), &empty)
                .await?;
        }
        // This pause is part of the scenario.
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    // There is a rotation every 16 seconds, and a forced one.
    assert!(certificates.len() >= 5, "{}", certificates.len());
    Ok(())
}

/// Creates runs as dry runs, so often that no moment of a rotation is missed, until one is refused.
async fn a_run_is_refused(scene: &Scene<'_>) -> anyhow::Error {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let probe = run("probe").task("one", &[], &[]).into_json();
    let probe: PipelineRun = match serde_json::from_value(probe) {
        Ok(probe) => probe,
        Err(error) => return error.into(),
    };
    loop {
        if let Err(error) = scene.api().create(&dry_run, &probe).await {
            return error.into();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Connects to the webhook again and again, as an API server without an open connection does. Trusts the CA bundle that the
/// webhook configuration had 200 ms earlier.
async fn the_webhook_is_refused(scene: &Scene<'_>) -> anyhow::Error {
    loop {
        if let Err(error) = connect(scene).await {
            return error;
        }
    }
}

async fn connect(scene: &Scene<'_>) -> Outcome {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client.clone());
    let configuration = configurations.get(CONFIGURATION_NAME).await?;
    let webhook = configuration.webhooks.unwrap_or_default().remove(0);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let bundle = webhook.client_config.ca_bundle.unwrap_or_default();
    let trusted = trusted(scene, "127.0.0.1", &bundle).await;
    trusted.context("the webhook is not trusted")
}

/// Connects to the webhook by this host name, as a client that trusts only `bundle`.
async fn trusted(scene: &Scene<'_>, host: &str, bundle: &ByteString) -> Outcome {
    let port = scene.stack.services.ports().admission();
    let kubeconfig = serde_json::from_value(json!({
        "clusters": [{"name": "webhook", "cluster": {
            "server": format!("https://{host}:{port}"),
            "certificate-authority-data": bundle,
        }}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "webhook", "context": {"cluster": "webhook", "user": "nobody"}}],
        "current-context": "webhook",
    }))?;
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let request = http::Request::get("/").body(Vec::new())?;
    match Client::try_from(config)?.request_text(request).await {
        // Nothing is served at this path, but the certificate is trusted.
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The Secret of the webhook's certificate in overlay `mtls`.
const ISSUED: &str = "admission-webhook-tls";
/// The names in that certificate. The second one is the name of a process on this machine.
const NAMES: [&str; 2] = ["admission-webhook.coscheduler-system.svc", "127.0.0.1"];

/// Fills the Secret as cert-manager does.
async fn issue(bed: &TestBed, authority: &Authority, names: &[&str]) -> Outcome {
    let folder = bed.dir().join("issued");
    authority.issue(&folder, names)?;
    let mut data = BTreeMap::new();
    for key in ["ca.crt", "tls.crt", "tls.key"] {
        data.insert(key, fs::read_to_string(folder.join(key))?);
    }
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": ISSUED}, "stringData": data,
    });
    let secrets: Api<Secret> = Api::namespaced(bed.client(), NAMESPACE);
    let params = PatchParams::apply("cert-manager").force();
    secrets
        .patch(ISSUED, &params, &Patch::Apply(secret))
        .await?;
    Ok(())
}

/// Waits until every webhook trusts exactly this CA.
async fn trust_is(client: &Client, authority: &Authority) -> Outcome {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let pem = authority.pem();
    look::until("the webhooks trust the CA", async || {
        let configuration = configurations.get(CONFIGURATION_NAME).await?;
        let bundles = bundles(&configuration);
        Ok(bundles.len() == 4 && bundles.iter().all(|it| *it == Some(pem.as_bytes())))
    })
    .await
}

#[test]
fn certificates_of_cert_manager_are_served_and_replaced_without_a_refused_run() -> Outcome {
    on_bed(Config::default(), async |bed| {
        for (kind, plural) in [("Issuer", "issuers"), ("Certificate", "certificates")] {
            define(&bed, "cert-manager.io", kind, plural).await?;
        }
        let client = bed.client();
        kubectl(&bed, &["apply", "-k", "deploy/overlays/mtls"]).await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        assert!(secrets.get_opt("admission-webhook-certs").await?.is_none());
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let deployment = deployments.get("admission-webhook").await?;
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        let variables = pod.containers[0].env.iter().flatten();
        let variables = variables.map(|it| (it.name.clone(), it.value.clone().unwrap_or_default()));
        let mut environment: Vec<_> = variables.filter(|(name, _)| name != "TLS_DIR").collect();
        assert_eq!(environment.len(), 2, "{environment:?}");
        environment.push(("CERTIFICATE_OVERLAP".to_owned(), "2s".to_owned()));
        let services = Services::launch(ServicesConfig {
            installed: true,
            environment,
            ..ServicesConfig::new(bed.kubeconfig())?
        })
        .await?;
        let first = Authority::new()?;
        issue(&bed, &first, &NAMES).await?;
        lead_here(&client, &services).await?;
        trust_is(&client, &first).await?;
        let stack = Stack::new(bed, services);
        let scene = stack.scene().await?;
        tokio::select! {
            replaced = certificates_are_replaced(&scene, &first) => replaced?,
            refused = a_run_is_refused(&scene) => return Err(refused),
            refused = the_webhook_is_refused(&scene) => return Err(refused),
        }
        drop(scene);
        let Stack { bed, services, .. } = stack;
        services.stop().await?;
        bed.stop().await
    })
}

async fn certificates_are_replaced(scene: &Scene<'_>, first: &Authority) -> Outcome {
    let (client, bed) = (&scene.client, &scene.stack.bed);
    let pem = |authority: &Authority| ByteString(authority.pem().into_bytes());
    // A new certificate of the same CA, with a further name.
    let more = [NAMES[0], NAMES[1], "localhost"];
    assert!(trusted(scene, "localhost", &pem(first)).await.is_err());
    issue(bed, first, &more).await?;
    look::until("the new certificate is served", async || {
        Ok(trusted(scene, "localhost", &pem(first)).await.is_ok())
    })
    .await?;

    // The webhook does not use a certificate that the API server would not accept.
    let second = Authority::new()?;
    issue(bed, &second, &NAMES[..1]).await?;
    let log = scene.stack.services.log(Service::AdmissionWebhook);
    look::until("the certificate is not used", async || {
        let log = fs::read_to_string(&log)?;
        Ok(log.contains("would not accept the certificate for 127.0.0.1"))
    })
    .await?;
    trust_is(client, first).await?;
    trusted(scene, "localhost", &pem(first)).await?;

    // Another CA.
    issue(bed, &second, &NAMES).await?;
    trust_is(client, &second).await?;
    trusted(scene, "127.0.0.1", &pem(&second)).await?;
    assert!(trusted(scene, "127.0.0.1", &pem(first)).await.is_err());
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let keys = secrets.get(ISSUED).await?.data.unwrap_or_default();
    assert_eq!(
        keys.into_keys().collect::<Vec<_>>(),
        ["ca.crt", "tls.crt", "tls.key"]
    );
    scene.submit(run("last").task("one", &[], &[])).await?;
    scene.succeeds("last").await?;
    scene.nothing_left_but(&[]).await
}
