//! Runs in modes `workspaces`, `isolate-pipelinerun` and `pipelineruns`. Each test has a control plane of its own.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use coscheduler_core::annotations::{GROUP, SCHEMA_VERSION, TEKTON_AFFINITY_ASSISTANT};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use coscheduler_proto::config::CoscheduledClaims;
use integration_tests::audit::Mark;
use integration_tests::look::{condition, node};
use integration_tests::runs::{Run, run};
use integration_tests::sets::only_pods;
use integration_tests::{Scene, alone_with};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::{CONFIGURATION_NAME, Service};
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

fn in_mode(mode: &str, test: impl AsyncFnOnce(&Scene<'_>) -> Outcome) -> Outcome {
    let change = |services: &mut testbed::services::ServicesConfig| {
        services.mode = Some(mode.to_owned());
    };
    alone_with(Config::default(), change, test)
}

/// The claims among a pod's volumes.
fn claims(pod: &Pod) -> BTreeSet<String> {
    integration_tests::look::claims(pod).into_iter().collect()
}

fn task<'a>(pods: &'a [Pod], name: &str) -> &'a Pod {
    let label = "tekton.dev/pipelineTask";
    let found = pods
        .iter()
        .find(|pod| pod.labels().get(label).is_some_and(|task| task == name));
    found.unwrap_or_else(|| panic!("no pod of task {name}"))
}

#[test]
fn m1_m2_v3_pods_that_use_a_claim_share_its_placeholders_node() -> Outcome {
    in_mode("workspaces", async |scene| {
        let two_claims = run("two-claims")
            .template("source")
            .template("cache")
            .task("clone", &["source"], &[])
            .task("warm", &["cache"], &[])
            .task("build", &["source"], &["clone", "warm"])
            .task("bare", &[], &[])
            .task("lint", &["source"], &[])
            .finally("report", &["cache"])
            .held("clone")
            .held("warm")
            .held("lint");
        scene.submit(two_claims).await?;
        let bound = scene
            .until_all::<Pod>("have two bound placeholders", |pods| {
                let placeholders = pods
                    .iter()
                    .filter(|pod| integration_tests::look::is_placeholder(pod));
                placeholders.filter(|pod| node(pod).is_some()).count() == 2
            })
            .await?;
        let placeholders: BTreeMap<String, String> = bound
            .iter()
            .filter(|pod| integration_tests::look::is_placeholder(pod))
            .map(|pod| {
                (
                    claims(pod).pop_first().unwrap(),
                    node(pod).unwrap().to_owned(),
                )
            })
            .collect();
        assert_eq!(placeholders.len(), 2, "{placeholders:?}");
        // Two tasks use one claim at the same time.
        scene
            .until_all::<Pod>("run side by side", |pods| {
                let runs = |pod: &&Arc<Pod>| {
                    let task = pod.labels().get("tekton.dev/pipelineTask");
                    let task = task.map(String::as_str);
                    matches!(task, Some("clone" | "lint")) && pods::has_started(pod)
                };
                pods.iter().filter(runs).count() == 2
            })
            .await?;
        for task in ["clone", "warm", "lint"] {
            scene.end("two-claims", task).await?;
        }
        scene.succeeds("two-claims").await?;
        let objects = scene.objects().await?;
        for (name, used) in [
            ("clone", 1),
            ("warm", 1),
            ("lint", 1),
            ("build", 1),
            ("report", 1),
            ("bare", 0),
        ] {
            let pod = task(&objects.task_pods, name);
            assert_eq!(claims(pod).len(), used, "{name}");
            for claim in claims(pod) {
                assert_eq!(node(pod), Some(placeholders[&claim].as_str()), "{name}");
            }
            let affine = pod.spec.as_ref().unwrap().affinity.is_some();
            assert_eq!(affine, used == 1, "{name}");
        }
        // The placeholders are deleted. The claims that Tekton made stay, as without our services.
        scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        let kept = scene.objects().await?.claims;
        assert_eq!(kept.len(), 2);
        for claim in &kept {
            let phase = claim.status.as_ref().and_then(|it| it.phase.as_deref());
            assert_eq!(phase, Some("Bound"), "{}", claim.name_any());
            assert_eq!(claim.metadata.deletion_timestamp, None);
        }

        // M2: the task that uses both claims does not run, and the run does not hang.
        let refused = run("refused")
            .template("source")
            .template("cache")
            .task("both", &["source", "cache"], &[])
            .task("other", &["source"], &[])
            .finally("report", &["source"]);
        scene.submit(refused).await?;
        let ended = scene.done("refused").await?;
        let end = condition(&ended).unwrap();
        assert_eq!(
            (&end["status"], &end["reason"]),
            (&"False".into(), &"Failed".into())
        );
        assert_eq!(
            end["message"],
            "Tasks Completed: 3 (Failed: 1, Cancelled 0), Skipped: 0"
        );
        let task_runs = scene.objects().await?.task_pods;
        let of_run: Vec<_> = task_runs
            .iter()
            .filter(|pod| {
                pod.labels()
                    .get("tekton.dev/pipelineRun")
                    .is_some_and(|run| run == "refused")
            })
            .filter_map(|pod| pod.labels().get("tekton.dev/pipelineTask").cloned())
            .collect();
        assert!(!of_run.contains(&"both".to_owned()), "{of_run:?}");
        assert!(of_run.contains(&"report".to_owned()), "{of_run:?}");
        scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        Ok(())
    })
}

#[test]
fn m4_no_other_placeholder_is_on_an_isolated_runs_node() -> Outcome {
    in_mode("isolate-pipelinerun", async |scene| {
        let elsewhere = scene.stack.scene().await?;
        for (scene, name) in [(scene, "one"), (scene, "two"), (&elsewhere, "three")] {
            let isolated = run(name)
                .template("source")
                .task("a", &["source"], &[])
                .task("b", &["source"], &["a"])
                .held("a");
            scene.submit(isolated).await?;
        }
        let mut nodes = BTreeMap::new();
        for (scene, count) in [(scene, 2), (&elsewhere, 1)] {
            let pods = scene
                .until_all::<Pod>("have bound placeholders", |pods| {
                    let placeholders = pods
                        .iter()
                        .filter(|pod| integration_tests::look::is_placeholder(pod));
                    placeholders.filter(|pod| node(pod).is_some()).count() == count
                })
                .await?;
            for pod in pods
                .iter()
                .filter(|pod| integration_tests::look::is_placeholder(pod))
            {
                let run = pod.labels()["tekton.dev/pipelineRun"].clone();
                nodes.insert(run, node(pod).unwrap().to_owned());
            }
        }
        assert_eq!(
            nodes.values().collect::<BTreeSet<_>>().len(),
            3,
            "{nodes:?}"
        );
        for (scene, name) in [(scene, "one"), (scene, "two"), (&elsewhere, "three")] {
            scene.end(name, "a").await?;
            scene.succeeds(name).await?;
            let pods = scene.objects().await?.task_pods;
            let of_run = pods.iter().filter(|pod| {
                pod.labels()
                    .get("tekton.dev/pipelineRun")
                    .is_some_and(|run| run == name)
            });
            assert!(
                of_run
                    .clone()
                    .all(|pod| node(pod) == Some(nodes[name].as_str())),
                "{name}"
            );
            assert_eq!(of_run.count(), 2);
        }
        scene.nothing_left_but(&[]).await?;
        elsewhere.nothing_left_but(&[]).await
    })
}

#[test]
fn v8_tasks_take_turns_with_a_claim_that_only_one_pod_may_use() -> Outcome {
    in_mode("pipelineruns", async |scene| {
        let turns = run("turns")
            .template_with_access("source", "ReadWriteOncePod")
            .template("cache")
            .task("one", &["source"], &[])
            .task("two", &["source"], &[])
            .task("three", &["cache"], &[]);
        scene.submit(turns).await?;
        let (set, placeholder) = scene.placeholder().await?;
        // The placeholder mounts only the other claim.
        let made = set.spec.unwrap().volume_claim_templates;
        assert!(only_pods() || made.is_some_and(|made| made.len() == 1));
        assert_eq!(claims(&placeholder).len(), 1, "{:?}", claims(&placeholder));
        scene.succeeds("turns").await?;
        let pods = scene.objects().await?.task_pods;
        assert_eq!(pods.len(), 3);
        for pod in &pods {
            assert_eq!(node(pod), node(&placeholder), "{}", pod.name_any());
        }
        let of = |name| claims(task(&pods, name));
        assert_eq!(of("one"), of("two"));
        assert!(of("one").is_disjoint(&claims(&placeholder)));
        scene.nothing_left_but(&[]).await
    })
}

/// A workspace source: a claim that several nodes can mount.
fn claim_of_many_nodes() -> Value {
    json!({"spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": MOVABLE_STORAGE_CLASS,
        "resources": {"requests": {"storage": "1Gi"}},
    }})
}

/// A run whose task `both` uses a claim that only one node can mount, and the claim of `datasets`. Each of the other tasks uses
/// one of these claims.
fn of_two_claims(name: &str, datasets: Value) -> Run {
    run(name)
        .template("source")
        .workspace("datasets", datasets)
        .task("both", &["source", "datasets"], &[])
        .task("reads", &["datasets"], &[])
        .finally("report", &["source"])
        .held("both")
        .held("reads")
}

/// The number of claims that the webhook has read since `mark`.
fn claims_read(scene: &Scene<'_>, mark: Mark) -> anyhow::Result<usize> {
    let requests = scene.requests_since(mark)?.into_iter();
    let reads = requests.filter(|request| {
        let resource = &request.object.resource;
        request.is_by(Service::AdmissionWebhook) && resource == "persistentvolumeclaims"
    });
    Ok(reads.count())
}

async fn create_datasets(scene: &Scene<'_>) -> anyhow::Result<Value> {
    let mut claim = claim_of_many_nodes();
    claim["metadata"] = json!({"name": "datasets"});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim)?;
    scene.api().create(&PostParams::default(), &claim).await?;
    Ok(json!({"persistentVolumeClaim": {"claimName": "datasets"}}))
}

/// Checks a run of [`of_two_claims`] from its start to its end: only the claim of `source` ties its tasks to a node.
async fn follows_source_only(scene: &Scene<'_>, name: &str) -> Outcome {
    let pods = scene
        .until_all::<Pod>("are bound", |pods| {
            pods.iter().filter(|pod| node(pod).is_some()).count() == 3
        })
        .await?;
    let (set, placeholder) = scene.placeholder().await?;
    assert_eq!(scene.objects().await?.stateful_sets.len(), 1, "{name}");
    let pods: Vec<Pod> = pods.iter().map(|pod| (**pod).clone()).collect();
    let (both, reads) = (task(&pods, "both"), task(&pods, "reads"));
    let shared = claims(reads);
    assert_eq!((claims(both).len(), shared.len()), (2, 1), "{name}");
    let expect: BTreeSet<_> = claims(both).difference(&shared).cloned().collect();
    assert_eq!(claims(&placeholder), expect, "{name}");
    let affine = |pod: &Pod| pod.spec.as_ref().unwrap().affinity.is_some();
    assert_eq!((affine(both), affine(reads)), (true, false), "{name}");
    assert_eq!(node(both), node(&placeholder), "{name}");
    let assistant = json!(both.annotations()[TEKTON_AFFINITY_ASSISTANT]);
    assert_eq!(assistant, json!(set.name_any()), "{name}");
    scene.end(name, "both").await?;
    scene.end(name, "reads").await?;
    scene.succeeds(name).await?;
    let pods = scene.objects().await?.task_pods;
    assert_eq!(node(task(&pods, "report")), node(&placeholder), "{name}");
    scene.until_sets("are gone", |sets| sets.is_empty()).await?;
    Ok(())
}

#[test]
fn v8_m2_m8_with_node_bound_a_claim_of_many_nodes_ties_nobody_to_a_node() -> Outcome {
    let change = |services: &mut testbed::services::ServicesConfig| {
        services.mode = Some("workspaces".to_owned());
        services
            .flags
            .extend([("coschedule-claims".to_owned(), "node-bound".to_owned())]);
    };
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    alone_with(config, change, async |scene| {
        let template = json!({"volumeClaimTemplate": claim_of_many_nodes()});
        let mark = scene.mark()?;
        let told = scene.submit_told(of_two_claims("made", template.clone()));
        assert_eq!(told.await?.warnings, Vec::<String>::new());
        follows_source_only(scene, "made").await?;
        assert_eq!(claims_read(scene, mark)?, 0);

        // A run without a placeholder is cleaned up too.
        let scene = scene.stack.scene().await?;
        let cleaned = run("cleaned")
            .metadata(
                "annotations",
                json!({"tekton.dev/auto-cleanup-pvc": "true"}),
            )
            .workspace("datasets", template)
            .task("reads", &["datasets"], &[]);
        scene.submit(cleaned).await?;
        scene.succeeds("cleaned").await?;
        scene.nothing_left_but(&[]).await?;
        let stays = scene.stack.history.stays(&scene.namespace).await?;
        assert!(!stays.iter().any(|stay| stay.placeholder), "{stays:?}");

        let scene = scene.stack.scene().await?;
        let existing = create_datasets(&scene).await?;
        let told = scene.submit_told(of_two_claims("existing", existing.clone()));
        assert_eq!(told.await?.warnings, Vec::<String>::new());
        follows_source_only(&scene, "existing").await?;
        assert_eq!(claims_read(&scene, mark)?, 1);

        // A run keeps the value of the key with which it was created, and nobody can change its annotation.
        let scene = scene.stack.scene().await?;
        let existing = create_datasets(&scene).await?;
        let pending =
            of_two_claims("pending", existing).spec("status", json!("PipelineRunPending"));
        scene.submit(pending).await?;
        scene.set_flags(&[("coschedule", "workspaces")]).await?;
        scene
            .config_until("all claims are coscheduled", |status| {
                let configuration = status.configuration.as_ref();
                configuration.is_some_and(|it| it.coschedule_claims() == CoscheduledClaims::All)
            })
            .await?;
        let start = Patch::Merge(json!({
            "metadata": {"annotations": {"coscheduler.dev/claims": "{}"}},
            "spec": {"status": null},
        }));
        let runs = scene.api::<PipelineRun>();
        runs.patch("pending", &PatchParams::default(), &start)
            .await?;
        follows_source_only(&scene, "pending").await
    })
}

#[test]
fn v8_m2_with_all_a_claim_of_many_nodes_counts_and_authors_cannot_change_that() -> Outcome {
    let change = |services: &mut testbed::services::ServicesConfig| {
        services.mode = Some("workspaces".to_owned());
    };
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    alone_with(config, change, async |scene| {
        let mark = scene.mark()?;
        let existing = create_datasets(scene).await?;
        let forged = r#"{"datasets":{"name":"datasets","shared":true}}"#;
        let run = of_two_claims("refused", existing)
            .metadata("annotations", json!({"coscheduler.dev/claims": forged}));
        let told = scene.submit_told(run).await?.warnings.join(" ");
        assert!(told.contains("Task \"both\" will not run"), "{told}");
        let sets = |sets: &[Arc<StatefulSet>]| sets.len() == 2;
        scene.until_sets("are two", sets).await?;
        scene.end("refused", "reads").await?;
        let ended = scene.done("refused").await?;
        assert_eq!(condition(&ended).unwrap()["reason"], "Failed");
        let told = scene.told("refused", "TaskRunRefused").await?;
        assert!(told[0].1.contains("claim datasets"), "{told:?}");
        assert_eq!(claims_read(scene, mark)?, 0);
        Ok(())
    })
}

/// Stops the webhook, and makes the API server create every PipelineRun without it, which the operator must not do.
async fn stop_admission(scene: &Scene<'_>) -> Outcome {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client.clone());
    let ignored = [0, 1].map(|index| {
        let path = format!("/webhooks/{index}/failurePolicy");
        json!({"op": "replace", "path": path, "value": "Ignore"})
    });
    let patch = Patch::Json::<()>(serde_json::from_value(json!(ignored))?);
    configurations
        .patch(CONFIGURATION_NAME, &PatchParams::default(), &patch)
        .await?;
    scene.stack.services.kill(Service::AdmissionWebhook)
}

/// Creates a run with the annotations that admission would write, but with this schema version and this group. Tries again until
/// the API server ignores that the webhook is down.
async fn create_pinned(
    scene: &Scene<'_>,
    run: Run,
    version: Option<&str>,
    group: &str,
) -> anyhow::Result<PipelineRun> {
    let mut pinned = scene.plan(run.clone()).await?.annotations;
    let drawn = pinned[GROUP].clone();
    for value in pinned.values_mut() {
        *value = value.replace(&drawn, group);
    }
    assert!(pinned.remove(SCHEMA_VERSION).is_some());
    pinned.extend(version.map(|version| (SCHEMA_VERSION.to_owned(), version.to_owned())));
    let run = run.metadata("annotations", json!(pinned));
    let created = async {
        loop {
            match scene.submit(run.clone()).await {
                Err(error) if error.to_string().contains("failed calling webhook") => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                created => return created,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), created).await?
}

#[test]
fn m8_a_run_pinned_before_schema_versions_is_served_and_one_of_an_unknown_version_is_left_alone()
-> Outcome {
    in_mode("pipelineruns", async |scene| {
        let services = &scene.stack.services;
        let one_task = |name: &str| run(name).task("one", &[], &[]).held("one");
        stop_admission(scene).await?;
        let older = create_pinned(scene, one_task("older"), None, "0123456789").await?;
        assert!(!older.annotations().contains_key(SCHEMA_VERSION));
        let newer = create_pinned(scene, one_task("newer"), Some("4"), "9876543210").await?;
        assert_eq!(newer.annotations()[SCHEMA_VERSION], "4");
        services.start_service(Service::AdmissionWebhook)?;
        services.wait_ready().await?;

        let (set, _) = scene.placeholder().await?;
        assert_eq!(set.name_any(), "affinity-assistant-0123456789");
        scene.end("older", "one").await?;
        scene.succeeds("older").await?;
        scene.nothing_left_but(&[]).await?;

        let told = scene.told("newer", "SchemaVersionUnknown").await?;
        assert!(
            told.iter().any(|(_, note)| note.contains("is \"4\"")),
            "{told:?}"
        );
        // The pod waits for a placeholder that only the other version would create.
        let pods = scene
            .until_all::<Pod>("have the pod of the newer run", |pods| {
                pods.iter().any(|pod| is_of(pod, "newer"))
            })
            .await?;
        let pod = pods.iter().find(|pod| is_of(pod, "newer")).unwrap();
        assert!(pod.spec.as_ref().unwrap().affinity.is_some());
        assert_eq!(node(pod), None);
        assert!(scene.objects().await?.stateful_sets.is_empty());
        anyhow::Ok(())
    })
}

fn is_of(pod: &Pod, run: &str) -> bool {
    pod.labels()
        .get("tekton.dev/pipelineRun")
        .map(String::as_str)
        == Some(run)
}
