//! Mode `pipelineruns`, end to end: one placeholder per run, all pods on its node, and claims that are created with the
//! placeholder and deleted after it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use integration_tests::look::{condition, is_placeholder, node, succeeded};
use integration_tests::runs::{Run, run};
use integration_tests::sets::only_pods;
use integration_tests::{Scene, grpc, shared};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::{Value, json};
use testbed::services::Service;

type Outcome = anyhow::Result<()>;

/// True if `name` is `prefix` and ten hex digits.
fn is_hashed(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|hash| hash.len() == 10 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn nodes(pods: &[Pod]) -> BTreeSet<&str> {
    pods.iter()
        .map(|pod| node(pod).unwrap_or("no node"))
        .collect()
}

#[test]
fn m3_all_pods_of_a_run_are_on_its_placeholders_node() -> Outcome {
    shared(async |scene| {
        let run = run("all-pods")
            .template("source")
            .template("cache")
            .task("clone", &["source"], &[])
            .task("warm", &["cache"], &[])
            .task("build", &["source", "cache"], &["clone", "warm"])
            .task("bare", &[], &[])
            .task("many", &[], &[])
            .with("matrix", json!({"params": [{"name": "n", "value": ["1", "2", "3"]}]}))
            .with(
                "taskSpec",
                json!({"params": [{"name": "n"}], "steps": [{"name": "s", "image": "i/i", "command": ["true"]}]}),
            )
            .task("flaky", &[], &["build"])
            .with("retries", json!(1))
            .failing("flaky")
            .finally("notify", &[])
            .held("clone");
        scene.submit(run).await?;
        let (_, placeholder) = scene.placeholder().await?;
        scene.end("all-pods", "clone").await?;
        scene.done("all-pods").await?;
        let pods = scene.objects().await?.task_pods;
        // clone, warm, build, bare, three of the matrix, flaky and its retry, notify.
        assert_eq!(
            pods.len(),
            10,
            "{:?}",
            pods.iter().map(|pod| pod.name_any()).collect::<Vec<_>>()
        );
        assert_eq!(nodes(&pods), BTreeSet::from([node(&placeholder).unwrap()]));
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn m3_custom_runs_carry_the_annotation() -> Outcome {
    shared(async |scene| {
        let run = run("custom").task("wait", &[], &[]).with(
            "taskSpec",
            json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": {}}),
        );
        let created = scene.submit(run).await?;
        let kind =
            ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1beta1", "CustomRun"));
        let api = kube::Api::<DynamicObject>::namespaced_with(
            scene.client.clone(),
            &scene.namespace,
            &kind,
        );
        let custom = await_condition(api, "custom-wait", |custom: Option<&DynamicObject>| {
            custom.is_some()
        });
        let custom = tokio::time::timeout(std::time::Duration::from_secs(60), custom)
            .await??
            .unwrap();
        let key = "pipeline.tekton.dev/affinity-assistant";
        assert!(is_hashed(&custom.annotations()[key], "affinity-assistant-"));
        assert_eq!(custom.annotations()[key], created.annotations()[key]);
        assert!(!custom.annotations().contains_key("coscheduler.dev/group"));
        scene
            .api::<PipelineRun>()
            .delete("custom", &DeleteParams::default())
            .await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn m5_a_run_that_somebody_else_manages_is_left_alone() -> Outcome {
    shared(async |scene| {
        let run = run("managed")
            .template("source")
            .task("one", &["source"], &[])
            .spec("managedBy", json!("example.com/other"));
        let created = scene.submit(run).await?;
        assert!(
            created.annotations().is_empty(),
            "{:?}",
            created.annotations()
        );
        assert!(created.spec["workspaces"][0]["volumeClaimTemplate"].is_object());
        Ok(())
    })
}

#[test]
fn p1_the_placeholder_is_a_stateful_set_owned_by_the_run() -> Outcome {
    shared(async |scene| {
        let run = run("shape")
            .template("source")
            .task("one", &["source"], &[])
            .held("one")
            .metadata(
                "labels",
                json!({
                    "team": "ci",
                    "app.kubernetes.io/component": "mine",
                    "kueue.x-k8s.io/queue-name": "q",
                }),
            );
        let created = scene.submit(run).await?;
        let (set, pod) = scene.placeholder().await?;
        assert!(is_hashed(&set.name_any(), "affinity-assistant-"));
        for labels in [set.labels(), pod.labels()] {
            assert_eq!(labels["app.kubernetes.io/component"], "affinity-assistant");
            assert_eq!(labels["app.kubernetes.io/instance"], set.name_any());
            assert_eq!(labels["tekton.dev/pipelineRun"], "shape");
            assert_eq!(labels["team"], "ci");
            assert!(!labels.contains_key("kueue.x-k8s.io/queue-name"));
        }
        let owner = &set.owner_references()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.uid.as_str()),
            ("PipelineRun", created.uid().unwrap().as_str())
        );
        assert_eq!(owner.controller, Some(true));
        let spec = set.spec.as_ref().unwrap();
        assert_eq!(spec.replicas, Some(1));
        if !only_pods() {
            let strategy = spec.update_strategy.as_ref().unwrap();
            assert_eq!(strategy.type_.as_deref(), Some("OnDelete"));
        }
        let generation = set.metadata.generation;
        // The StatefulSet is created once and never updated: a later label of the run does not reach it.
        let mark = scene.mark()?;
        let patch = Patch::Merge(json!({"metadata": {"labels": {"late": "yes"}}}));
        let changed = scene
            .api::<PipelineRun>()
            .patch("shape", &PatchParams::default(), &patch)
            .await?;
        assert_eq!(changed.labels()["late"], "yes");
        // The planner answers when the manager has handled this version.
        scene.report(&changed).await?;
        let objects = scene.objects().await?;
        let (set, pod) = (&objects.stateful_sets[0], &objects.placeholders[0]);
        assert_eq!(set.metadata.generation, generation);
        assert!(!set.labels().contains_key("late") && !pod.labels().contains_key("late"));
        let updates = scene.requests_since(mark)?.into_iter().filter(|request| {
            request.is_by(Service::PlaceholderManager)
                && request.is_write()
                && request.object.namespace == scene.namespace
        });
        assert_eq!(updates.count(), 0);
        scene.end("shape", "one").await?;
        scene.succeeds("shape").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p2_task_run_pods_require_the_placeholders_node() -> Outcome {
    shared(async |scene| {
        scene
            .submit(run("affinity").task("one", &[], &[]).held("one"))
            .await?;
        let (set, _) = scene.placeholder().await?;
        scene.end("affinity", "one").await?;
        scene.succeeds("affinity").await?;
        let pods = scene.objects().await?.task_pods;
        let affinity = pods[0].spec.as_ref().unwrap().affinity.as_ref().unwrap();
        assert_eq!(
            serde_json::to_value(&affinity.pod_affinity)?,
            json!({"requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": {"matchLabels": {
                    "app.kubernetes.io/component": "affinity-assistant",
                    "app.kubernetes.io/instance": set.name_any(),
                }},
                "topologyKey": "kubernetes.io/hostname",
            }]})
        );
        Ok(())
    })
}

#[test]
fn p5_the_placeholder_meets_pod_security_restricted_and_costs_little() -> Outcome {
    shared(async |scene| {
        let namespace = format!("{}-restricted", scene.namespace);
        let labels = [("pod-security.kubernetes.io/enforce", "restricted")];
        scene
            .stack
            .bed
            .create_namespace(&namespace, &labels)
            .await?;
        let scene = Scene { namespace, ..scene };
        // The namespace refuses Tekton's own pods. A custom task keeps the run active without a pod.
        let run = run("small").template("source").task("wait", &[], &[]).with(
            "taskSpec",
            json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": {}}),
        );
        scene.submit(run).await?;
        let (_, pod) = scene.placeholder().await?;
        let spec = serde_json::to_value(pod.spec.unwrap())?;
        let containers = spec["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1);
        assert_eq!(containers[0]["image"], "registry.k8s.io/pause:3.10.1");
        for field in ["command", "args", "env", "lifecycle"] {
            assert_eq!(containers[0].get(field), None, "{field}");
        }
        assert_eq!(spec.get("initContainers"), None);
        let resources = json!({"cpu": "50m", "memory": "100Mi"});
        assert_eq!(
            spec["containers"][0]["resources"],
            json!({"limits": resources, "requests": resources})
        );
        assert_eq!(spec["automountServiceAccountToken"], json!(false));
        let tokens = spec["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|volume| volume.get("projected").is_some());
        assert_eq!(tokens.count(), 0, "no service account token is mounted");
        assert!(spec["terminationGracePeriodSeconds"].as_i64().unwrap() <= 1);
        Ok(())
    })
}

#[test]
fn p6_nothing_is_left_of_a_run_however_it_ends() -> Outcome {
    shared(async |scene| {
        let two = |name: &str| {
            run(name)
                .template("source")
                .task("one", &["source"], &[])
                .task("two", &["source"], &["one"])
        };
        scene.submit(two("completed").held("one")).await?;
        scene
            .submit(two("failed").failing("one").held("one"))
            .await?;
        let endless = [
            two("cancelled"),
            two("stopped"),
            two("deleted"),
            two("timed-out").spec("timeouts", json!({"pipeline": "20s"})),
        ];
        for run in endless {
            scene.submit(run.lasting("one", 600)).await?;
        }
        scene
            .until_all::<Pod>("are six placeholders", |pods| {
                let placeholders = pods.iter().filter(|pod| is_placeholder(pod));
                placeholders.count() == 6
            })
            .await?;
        for name in ["completed", "failed"] {
            scene.end(name, "one").await?;
        }
        let runs = scene.api::<PipelineRun>();
        for (name, status) in [
            ("cancelled", "Cancelled"),
            ("stopped", "CancelledRunFinally"),
        ] {
            let patch = Patch::Merge(json!({"spec": {"status": status}}));
            runs.patch(name, &PatchParams::default(), &patch).await?;
        }
        let deleted = runs.get("deleted").await?.uid().unwrap();
        runs.delete("deleted", &DeleteParams::default()).await?;
        let gone = await_condition(runs.clone(), "deleted", conditions::is_deleted(&deleted));
        tokio::time::timeout(std::time::Duration::from_secs(60), gone).await??;

        scene.succeeds("completed").await?;
        for name in ["failed", "cancelled", "stopped", "timed-out"] {
            let run = scene.done(name).await?;
            assert_eq!(succeeded(&run), Some("False"), "{name}");
        }
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p6_the_placeholder_stays_while_a_pod_of_the_run_is_running() -> Outcome {
    shared(async |scene| {
        use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
        use coscheduler_proto::placeholder::{PipelineRunRef, ReleaseOutcome, ReleaseRequest};

        let created = scene
            .submit(
                run("lingers")
                    .template("source")
                    .task("one", &["source"], &[]),
            )
            .await?;
        // This pod of the run still runs when the PipelineRun has ended, as on a node that reacts late.
        let late: Pod = serde_json::from_value(json!({
            "metadata": {"name": "late", "labels": {
                "tekton.dev/pipelineRun": "lingers",
                "tekton.dev/pipelineRunUID": created.uid().unwrap(),
                "tekton.dev/taskRun": "lingers-late",
            }},
            "spec": {"containers": [{"name": "c", "image": "i/i"}]},
        }))?;
        let pods = scene.api::<Pod>();
        pods.create(&PostParams::default(), &late).await?;
        let done = scene.succeeds("lingers").await?;

        let (services, planner) = (&scene.stack.services, Service::AffinityPlanner.name());
        let manager = grpc::connect(services, Service::PlaceholderManager, planner).await?;
        let mut manager = PlaceholderServiceClient::new(manager);
        let request = ReleaseRequest {
            pipeline_run: Some(PipelineRunRef {
                namespace: scene.namespace.clone(),
                name: "lingers".to_owned(),
                uid: done.uid().unwrap(),
                resource_version: done.resource_version().unwrap(),
            }),
        };
        // The manager's own watch may be a moment behind.
        let outcome = loop {
            let outcome = manager
                .release(request.clone())
                .await?
                .into_inner()
                .outcome();
            if outcome != ReleaseOutcome::RunActive {
                break outcome;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(outcome, ReleaseOutcome::WaitingForPods);
        let objects = scene.objects().await?;
        assert_eq!((objects.stateful_sets.len(), objects.claims.len()), (1, 1));

        pods.delete("late", &DeleteParams::default().grace_period(0))
            .await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn v1_every_claim_of_the_run_is_mounted_on_the_placeholder() -> Outcome {
    shared(async |scene| {
        let existing: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "existing"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }))?;
        scene
            .api()
            .create(&PostParams::default(), &existing)
            .await?;
        let run = run("mounts")
            .template("source")
            .workspace(
                "cache",
                json!({"persistentVolumeClaim": {"claimName": "existing"}}),
            )
            .workspace("scratch", json!({"emptyDir": {}}))
            .task("one", &["source", "cache", "scratch"], &[])
            .held("one");
        scene.submit(run).await?;
        let (set, pod) = scene.placeholder().await?;
        let spec = pod.spec.as_ref().unwrap();
        let volumes = spec.volumes.as_ref().unwrap();
        let mounts: BTreeSet<_> = spec.containers[0]
            .volume_mounts
            .iter()
            .flatten()
            .map(|mount| mount.name.as_str())
            .collect();
        let mut claims = BTreeSet::new();
        for volume in volumes {
            assert!(
                mounts.contains(volume.name.as_str()),
                "{} is not mounted",
                volume.name
            );
            claims.insert(
                volume
                    .persistent_volume_claim
                    .as_ref()
                    .unwrap()
                    .claim_name
                    .clone(),
            );
        }
        assert!(claims.remove("existing"));
        let made = claims.pop_first().unwrap();
        assert!(claims.is_empty() && made.ends_with(&format!("-{}-0", set.name_any())));
        scene.end("mounts", "one").await?;
        scene.succeeds("mounts").await?;
        // V4: a claim that existed before the run is never deleted.
        scene.nothing_left_but(&["existing"]).await
    })
}

#[test]
fn v2_templates_become_claims_of_the_stateful_set() -> Outcome {
    shared(async |scene| {
        let named = json!({"volumeClaimTemplate": {
            "metadata": {"name": "cache", "labels": {"tier": "fast"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
        }});
        let run = run("templates")
            .template("source")
            .workspace("cache", named)
            .task("one", &["source", "cache"], &[])
            .held("one");
        let created = scene.submit(run).await?;
        let (set, _) = scene.placeholder().await?;
        let suffix = format!("-{}-0", set.name_any());
        let bound: Vec<String> = created.spec["workspaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|binding| {
                binding["persistentVolumeClaim"]["claimName"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert!(
            is_hashed(bound[0].strip_suffix(&suffix).unwrap(), "pvc-"),
            "{bound:?}"
        );
        assert!(
            is_hashed(bound[1].strip_suffix(&suffix).unwrap(), "cache-"),
            "{bound:?}"
        );

        let templates = set.spec.as_ref().unwrap().volume_claim_templates.as_ref();
        let templates = match templates {
            None if only_pods() => scene.objects().await?.claims,
            templates => templates.unwrap().clone(),
        };
        let names = templates.iter().map(|it| match only_pods() {
            true => it.name_any(),
            false => format!("{}{suffix}", it.name_any()),
        });
        let names: BTreeSet<_> = names.collect();
        assert_eq!(names, bound.iter().cloned().collect());
        let mut of = BTreeSet::new();
        for template in &templates {
            of.insert(template.labels()["tekton.dev/workspace"].as_str());
            assert_eq!(template.labels()["tekton.dev/pipelineRun"], "templates");
            let owner = &template.owner_references()[0];
            assert_eq!(owner.uid, created.uid().unwrap());
        }
        assert_eq!(of, ["cache", "source"].into());

        let claims = scene.api::<PersistentVolumeClaim>();
        for (name, workspace, storage) in
            [(&bound[0], "source", "1Gi"), (&bound[1], "cache", "2Gi")]
        {
            let claim = claims.get(name).await?;
            assert_eq!(claim.labels()["tekton.dev/workspace"], workspace);
            assert_eq!(claim.labels()["tekton.dev/pipelineRun"], "templates");
            let owner = &claim.owner_references()[0];
            assert_eq!(
                (owner.kind.as_str(), owner.uid.as_str()),
                ("PipelineRun", created.uid().unwrap().as_str())
            );
            assert_eq!((owner.controller, owner.block_owner_deletion), (None, None));
            let spec = serde_json::to_value(&claim.spec)?;
            assert_eq!(spec["resources"]["requests"]["storage"], storage);
            assert_eq!(spec["accessModes"], json!(["ReadWriteOnce"]), "{name}");
        }
        assert_eq!(claims.get(&bound[1]).await?.labels()["tier"], "fast");

        scene.end("templates", "one").await?;
        scene.succeeds("templates").await?;
        let path = "tekton.dev/v1/taskruns/templates-one";
        let task_run = scene.send("GET", path, &Value::Null).await?.accepted()?;
        let workspaces = &task_run.object["spec"]["workspaces"];
        assert_eq!(workspaces, &created.spec["workspaces"]);
        let pods = scene.objects().await?.task_pods;
        let used: BTreeSet<String> = integration_tests::look::claims(&pods[0])
            .into_iter()
            .collect();
        assert_eq!(used, bound.into_iter().collect());
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn v4_claims_have_the_labels_of_pipeline_and_run_however_late_tekton_labels_the_run() -> Outcome {
    shared(async |scene| {
        for (name, reference, pipeline) in [
            ("embedded", Value::Null, Some("embedded")),
            ("by-name", json!({"name": "in-cluster"}), Some("in-cluster")),
            // The placeholder does not wait until the Pipeline is fetched.
            ("fetched", json!({"resolver": "test"}), None),
        ] {
            let mut object = run(name)
                .template("source")
                .template_with_access("lock", "ReadWriteOncePod")
                .task("one", &["source"], &[])
                .held("one")
                .into_json();
            let found = json!({
                "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
                "metadata": {"name": pipeline.unwrap_or("found")}, "spec": object["spec"]["pipelineSpec"],
            });
            if !reference.is_null() {
                let spec = object["spec"].as_object_mut().unwrap();
                spec.remove("pipelineSpec");
                spec.insert("pipelineRef".to_owned(), reference.clone());
            }
            if reference["name"].is_string() {
                let pipelines = "tekton.dev/v1/pipelines";
                scene.send("POST", pipelines, &found).await?.accepted()?;
            }
            scene.submit(Run::from_json(object)).await?;
            let (set, _) = scene.placeholder().await?;
            let claims = scene
                .until_all::<PersistentVolumeClaim>("are two", |claims| claims.len() == 2)
                .await?;
            let workspaces = claims.iter().map(|claim| {
                let labels = claim.labels();
                for (key, value) in [
                    ("app.kubernetes.io/component", Some("affinity-assistant")),
                    ("app.kubernetes.io/instance", Some(&*set.name_any())),
                    ("tekton.dev/pipeline", pipeline),
                    ("tekton.dev/pipelineRun", Some(name)),
                ] {
                    let label = labels.get(key).map(String::as_str);
                    assert_eq!(label, value, "{name}: {key}");
                }
                labels["tekton.dev/workspace"].as_str()
            });
            assert_eq!(
                workspaces.collect::<BTreeSet<_>>(),
                ["lock", "source"].into()
            );
            if reference["resolver"].is_string() {
                scene.resolve(&found).await?;
            }
            // Tekton gives the run the same label.
            scene
                .until(name, "has Tekton's label", |run: Option<&PipelineRun>| {
                    let label = run.and_then(|run| run.labels().get("tekton.dev/pipeline"));
                    label.is_some_and(|label| label == pipeline.unwrap_or("found"))
                })
                .await?;
            scene.end(name, "one").await?;
            scene.succeeds(name).await?;
            scene.nothing_left_but(&[]).await?;
        }
        Ok(())
    })
}

#[test]
fn v4_claims_go_after_the_placeholder_and_only_when_no_pod_uses_them() -> Outcome {
    shared(async |scene| {
        let created = scene
            .submit(
                run("clean")
                    .template("source")
                    .task("one", &["source"], &[])
                    .held("one"),
            )
            .await?;
        let claim = created.spec["workspaces"][0]["persistentVolumeClaim"]["claimName"]
            .as_str()
            .unwrap()
            .to_owned();
        let (_, placeholder) = scene.placeholder().await?;
        // A pod of no run, on the same node, which uses the claim and outlives the run.
        let stranger: Pod = serde_json::from_value(json!({
            "metadata": {"name": "stranger"},
            "spec": {
                "nodeName": node(&placeholder),
                "containers": [{"name": "c", "image": "i/i"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
            },
        }))?;
        let pods = scene.api::<Pod>();
        pods.create(&PostParams::default(), &stranger).await?;
        scene.end("clean", "one").await?;
        scene.succeeds("clean").await?;
        let deleting = scene
            .until(
                &claim,
                "is being deleted",
                |claim: Option<&PersistentVolumeClaim>| {
                    claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
                },
            )
            .await?
            .expect("the claim went although a running pod uses it");
        let objects = scene.objects().await?;
        assert!(
            objects.stateful_sets.is_empty() && objects.placeholders.is_empty(),
            "the claim went first"
        );
        assert_eq!(deleting.finalizers(), ["kubernetes.io/pvc-protection"]);
        pods.delete("stranger", &DeleteParams::default().grace_period(0))
            .await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn m8_a_finished_run_reported_again_late_or_twice_changes_nothing() -> Outcome {
    shared(async |scene| {
        use coscheduler_proto::placeholder::{EnsureOutcome, ReleaseOutcome};
        use coscheduler_proto::planner::ReportPipelineRunRequest;
        use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
        use coscheduler_proto::planner::report_pipeline_run_response::Outcome as Reported;

        scene
            .submit(
                run("repeat")
                    .template("source")
                    .task("one", &["source"], &[])
                    .held("one"),
            )
            .await?;
        scene.placeholder().await?;
        let running = scene.api::<PipelineRun>().get("repeat").await?;
        let (services, watcher) = (&scene.stack.services, Service::Watcher.name());
        let planner = grpc::connect(services, Service::AffinityPlanner, watcher).await?;
        let mut planner = PlannerServiceClient::new(planner);
        let mut report = async |run: &PipelineRun| {
            let object = coscheduler_kubernetes::pipeline_run::to_json(run);
            let request = ReportPipelineRunRequest {
                pipeline_run: Some(coscheduler_proto::json::to_struct(&object)),
            };
            anyhow::Ok(planner.report_pipeline_run(request).await?.into_inner())
        };
        let ensured = |outcome: EnsureOutcome| Some(Reported::Ensured(outcome.into()));
        let answer = report(&running).await?.outcome;
        assert!(
            [EnsureOutcome::Unchanged, EnsureOutcome::Superseded]
                .map(ensured)
                .contains(&answer),
            "{answer:?}"
        );

        scene.end("repeat", "one").await?;
        let done = scene.succeeds("repeat").await?;
        scene.nothing_left_but(&[]).await?;
        // This is a late report of a version in which the run was still active.
        let run_done = ensured(EnsureOutcome::RunDone);
        assert_eq!(report(&running).await?.outcome, run_done);
        // The manager's own watch may be a moment behind this test's.
        let released = Some(Reported::Released(ReleaseOutcome::Released.into()));
        let until_released = async {
            while report(&done).await?.outcome != released {}
            anyhow::Ok(())
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), until_released).await??;
        assert_eq!(report(&done).await?.outcome, released);
        let sets = scene
            .api::<StatefulSet>()
            .list(&ListParams::default())
            .await?;
        assert!(sets.items.is_empty());
        Ok(())
    })
}

#[test]
fn a_run_that_cannot_be_read_is_refused_with_the_field_and_the_reason() -> Outcome {
    shared(async |scene| {
        let template: Value =
            json!({"volumeClaimTemplate": {"metadata": {"name": "x"}, "spec": "none"}});
        let error = scene
            .submit(
                run("unreadable")
                    .workspace("source", template)
                    .task("one", &["source"], &[]),
            )
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("spec.workspaces[0].volumeClaimTemplate"),
            "{error}"
        );
        Ok(())
    })
}

#[test]
fn runs_side_by_side_all_succeed_and_leave_nothing() -> Outcome {
    shared(async |scene| {
        let names: Vec<String> = (0..10).map(|index| format!("run-{index}")).collect();
        for name in &names {
            scene
                .submit(
                    run(name)
                        .template("a")
                        .template("b")
                        .task("one", &["a", "b"], &[])
                        .task("two", &["a"], &["one"])
                        .held("one"),
                )
                .await?;
        }
        // There are more runs than nodes.
        scene
            .until_all::<Pod>("run side by side", |pods| {
                let pods = pods.iter().filter(|pod| !is_placeholder(pod));
                pods.filter(|pod| pods::has_started(pod)).count() == names.len()
            })
            .await?;
        for name in &names {
            scene.end(name, "one").await?;
        }
        for name in &names {
            let done = scene.succeeds(name).await?;
            assert!(condition(&done).is_some());
        }
        let pods = scene.objects().await?.task_pods;
        for name in &names {
            let of_run: Vec<Pod> = pods
                .iter()
                .filter(|pod| pod.labels()["tekton.dev/pipelineRun"] == *name)
                .cloned()
                .collect();
            assert_eq!((of_run.len(), nodes(&of_run).len()), (2, 1), "{name}");
        }
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn m8_what_was_pinned_is_restored_when_a_run_is_edited() -> Outcome {
    shared(async |scene| {
        let created = scene
            .submit(
                run("edited")
                    .template("source")
                    .task("one", &["source"], &[])
                    .held("one"),
            )
            .await?;
        let runs = scene.api::<PipelineRun>();
        let patch = |patch: Value| {
            let runs = runs.clone();
            async move {
                runs.patch("edited", &PatchParams::default(), &Patch::Merge(patch))
                    .await
            }
        };
        let pinned = |run: &PipelineRun| {
            let mut annotations = run.annotations().clone();
            annotations.retain(|key, _| {
                key.starts_with("coscheduler.dev/")
                    || key == "pipeline.tekton.dev/affinity-assistant"
            });
            annotations
        };
        let forged = patch(json!({"metadata": {"annotations": {
            "coscheduler.dev/group": "ffffffffff",
            "coscheduler.dev/mode": null,
            "pipeline.tekton.dev/affinity-assistant": "affinity-assistant-ffffffffff",
        }}}))
        .await?;
        assert_eq!(pinned(&forged), pinned(&created));
        // V2a: somebody applies the manifest again, which contains the template.
        let mut template = created.spec["workspaces"].clone();
        template[0] = json!({"name": "source", "volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }}});
        let again = patch(json!({"spec": {"workspaces": template}})).await?;
        assert_eq!(again.spec["workspaces"], created.spec["workspaces"]);
        assert_eq!(
            again.metadata.generation, created.metadata.generation,
            "the spec is what it was"
        );
        scene.end("edited", "one").await?;
        scene.succeeds("edited").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn m3_annotations_forged_by_an_author_are_stripped() -> Outcome {
    shared(async |scene| {
        let theirs = "affinity-assistant-ffffffffff";
        let forged = run("forger")
            .task("one", &[], &[])
            .metadata("annotations", json!({"coscheduler.dev/group": "ffffffffff", "pipeline.tekton.dev/affinity-assistant": theirs}))
            .spec("taskRunSpecs", json!([{
                "pipelineTaskName": "one",
                "metadata": {"annotations": {"pipeline.tekton.dev/affinity-assistant": theirs}},
            }]));
        let created = scene.submit(forged).await?;
        assert_ne!(
            created.annotations()["pipeline.tekton.dev/affinity-assistant"],
            theirs
        );
        scene.succeeds("forger").await?;
        let pods = scene.objects().await?.task_pods;
        assert!(!serde_json::to_string(&pods[0].spec)?.contains(theirs));
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p3_a_run_that_may_run_on_one_node_only_has_its_placeholder_there() -> Outcome {
    shared(async |scene| {
        let template =
            json!({"podTemplate": {"nodeSelector": {"kubernetes.io/hostname": "node-3"}}});
        let run = run("choosy")
            .template("source")
            .task("one", &["source"], &[])
            .held("one")
            .spec("taskRunTemplate", template);
        scene.submit(run).await?;
        let (_, placeholder) = scene.placeholder().await?;
        assert_eq!(node(&placeholder), Some("node-3"));
        scene.end("choosy", "one").await?;
        scene.succeeds("choosy").await?;
        assert_eq!(
            nodes(&scene.objects().await?.task_pods),
            BTreeSet::from(["node-3"])
        );
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn a_deeply_nested_custom_task_does_not_keep_a_run_from_being_created() -> Outcome {
    shared(async |scene| {
        let nested =
            |levels: usize| (0..levels).fold(json!({}), |inner, _| json!({"inner": inner}));
        let deep = run("deep").task("wait", &[], &[]).with(
            "taskSpec",
            json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": nested(60)}),
        );
        let created = scene.submit(deep).await?;
        assert!(created.annotations().contains_key("coscheduler.dev/group"));
        scene.placeholder().await?;
        scene
            .api::<PipelineRun>()
            .delete("deep", &DeleteParams::default())
            .await?;
        // In a field that our services read, JSON of this depth is refused.
        let template = json!({"volumeClaimTemplate": {"spec": nested(60)}});
        let refused = scene
            .submit(
                run("refused")
                    .workspace("source", template)
                    .task("one", &["source"], &[]),
            )
            .await;
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("spec.workspaces[0].volumeClaimTemplate.spec")
                && error.contains("deeper"),
            "{error}"
        );
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p6_labels_of_the_author_do_not_make_a_task_pod_a_placeholder() -> Outcome {
    shared(async |scene| {
        let run = run("labelled")
            .template("source")
            .task("one", &["source"], &[])
            .metadata(
                "labels",
                json!({"app.kubernetes.io/component": "affinity-assistant"}),
            );
        scene.submit(run).await?;
        scene.succeeds("labelled").await?;
        scene.nothing_left_but(&[]).await
    })
}
