//! Claims of every kind on a control plane with two zones: the topology of their volumes, their access modes, names with
//! variables, and their deletion with a run.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use coscheduler_core::annotations::SIZES;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::cramped::waits;
use integration_tests::look::{self, is_placeholder, node, succeeded};
use integration_tests::plugin::explanation;
use integration_tests::runs::{Run, run};
use integration_tests::sets::resource;
use integration_tests::{Scene, shared_with_overrides};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::Service;
use testbed::{Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS, ZONAL_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

/// The time limit for the Event about a conflict.
const REPORTED: Duration = Duration::from_secs(5);
const BLOCKED: &str = "coscheduler.dev/blocked";
const ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";

/// Runs a test on a stack with two zones, on which each run may choose its mode. Each zone has so many nodes that an isolated
/// run finds one there beside the runs of the other tests.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 24,
        zones: 2,
        audit_log: true,
        ..Config::default()
    };
    shared_with_overrides(config, |_| {}, test)
}

fn bound_to(claim: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": claim}})
}

/// Creates a claim. If it has the zonal class, waits until it is bound.
async fn create_claim(scene: &Scene<'_>, name: &str, class: &str, access_mode: &str) -> Outcome {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": [access_mode],
            "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))?;
    scene.api().create(&PostParams::default(), &claim).await?;
    if class == ZONAL_STORAGE_CLASS {
        scene
            .until(name, "is bound", |claim: Option<&PersistentVolumeClaim>| {
                claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some("Bound")
            })
            .await?;
    }
    Ok(())
}

fn claims(pod: &Pod) -> BTreeSet<String> {
    integration_tests::look::claims(pod).into_iter().collect()
}

fn nodes(pods: &[Pod]) -> BTreeSet<&str> {
    let nodes = pods.iter().map(|pod| node(pod).unwrap_or("no node"));
    nodes.collect()
}

fn codes(told: &[(String, String)]) -> Vec<&str> {
    let mut codes: Vec<_> = told.iter().map(|(code, _)| code.as_str()).collect();
    codes.sort_unstable();
    codes
}

#[test]
fn m5_without_coscheduling_a_task_may_use_two_claims_and_waits_where_no_node_reaches_both()
-> Outcome {
    shared(async |scene| {
        let near = run("near")
            .in_mode("disabled")
            .template("source")
            .template("cache")
            .task("one", &["source", "cache"], &[]);
        scene.submit(near).await?;
        scene.succeeds("near").await?;
        for name in ["loose-0", "loose-1"] {
            create_claim(&scene, name, ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        }
        let apart = run("apart")
            .in_mode("disabled")
            .workspace("source", bound_to("loose-0"))
            .workspace("cache", bound_to("loose-1"))
            .task("one", &["source", "cache"], &[]);
        scene.submit(apart).await?;
        let waiting = waits(&scene).await?;
        assert_eq!(waiting.labels()["tekton.dev/pipelineRun"], "apart");
        assert_eq!(waiting.spec.as_ref().unwrap().affinity, None);
        assert!(scene.objects().await?.stateful_sets.is_empty());
        let apart = scene.api::<PipelineRun>().get("apart").await?;
        assert!(!apart.annotations().contains_key(BLOCKED));
        Ok(())
    })
}

/// A cache that all pods of a run mount without a workspace.
#[test]
fn v1_a_claim_of_the_pod_template_decides_the_zone_of_the_run() -> Outcome {
    shared(async |scene| {
        for name in ["cache-0", "cache-1"] {
            create_claim(&scene, name, ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        }
        for mode in ["pipelineruns", "isolate-pipelinerun"] {
            for cache in ["cache-0", "cache-1"] {
                let scene = &scene;
                let name = format!("{mode}-{cache}");
                let source = json!({"claimName": cache});
                let volumes = json!([{"name": "cache", "persistentVolumeClaim": source}]);
                let of_run = run(&name)
                    .in_mode(mode)
                    .template_of_class("source", MOVABLE_STORAGE_CLASS)
                    .spec(
                        "taskRunTemplate",
                        json!({"podTemplate": {"volumes": volumes}}),
                    )
                    .task("one", &["source"], &[])
                    .held("one");
                scene.submit(of_run).await?;
                let (_, placeholder) = scene.placeholder().await?;
                assert!(claims(&placeholder).contains(cache), "{name}");
                let own = zone_of_node(scene, &placeholder).await?;
                assert_eq!(own, zone(scene, cache).await?, "{name}");
                scene.end(&name, "one").await?;
                scene.succeeds(&name).await?;
                let told = scene.told_so_far(&name).await?;
                assert!(told.is_empty(), "{name}: {told:?}");
                scene.nothing_left_but(&["cache-0", "cache-1"]).await?;
            }
        }
        Ok(())
    })
}

/// Waits until the webhook knows the Task of a run with one task: until it pins the requests of the task's pod.
async fn knows_the_task(scene: &Scene<'_>, run: Run) -> Outcome {
    let object = run.into_json();
    look::until("the webhook knows the Task", async || {
        let resource = "tekton.dev/v1/pipelineruns?dryRun=All";
        let answer = scene.send("POST", resource, &object).await?.accepted()?;
        let sizes: Value = serde_json::from_str(answer.annotation(SIZES).unwrap())?;
        Ok(sizes["one"]["requests"].is_object())
    })
    .await
}

/// A cache that the pod of one task mounts, beside the run's workspace.
#[test]
fn v1_a_claim_of_one_tasks_volumes_decides_the_zone_of_the_run() -> Outcome {
    shared(async |scene| {
        let caches = ["of-task-0", "of-task-1"];
        for name in caches {
            create_claim(&scene, name, ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        }
        let spec = |cache: &str| {
            let requests = json!({"requests": {"cpu": "100m"}});
            json!({
                "workspaces": [{"name": "source"}],
                "steps": [{"name": "s", "image": "example/image", "command": ["true"], "computeResources": requests}],
                "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": cache}}],
            })
        };
        for name in caches {
            let task = json!({"apiVersion": "tekton.dev/v1", "kind": "Task", "metadata": {"name": name}, "spec": spec(name)});
            let created = scene.send("POST", "tekton.dev/v1/tasks", &task).await?;
            created.accepted()?;
        }
        for mode in ["pipelineruns", "isolate-pipelinerun"] {
            for cache in caches {
                let new = |place: &str| {
                    run(&format!("{mode}-{cache}-{place}"))
                        .in_mode(mode)
                        .template_of_class("source", MOVABLE_STORAGE_CLASS)
                        .task("one", &["source"], &[])
                        .held("one")
                };
                let volumes = &spec(cache)["volumes"];
                let referring = || new("task").referring(cache);
                knows_the_task(&scene, referring()).await?;
                for run in [
                    new("embedded").with("taskSpec", spec(cache)),
                    referring(),
                    new("template").task_pod_template("one", json!({"volumes": volumes})),
                ] {
                    let name = run.name().to_owned();
                    scene.submit(run).await?;
                    let (_, placeholder) = scene.placeholder().await?;
                    assert!(claims(&placeholder).contains(cache), "{name}");
                    let own = zone_of_node(&scene, &placeholder).await?;
                    assert_eq!(own, zone(&scene, cache).await?, "{name}");
                    scene.end(&name, "one").await?;
                    scene.succeeds(&name).await?;
                    let told = scene.told_so_far(&name).await?;
                    assert!(told.is_empty(), "{name}: {told:?}");
                    scene.nothing_left_but(&caches).await?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn v7_claims_in_two_zones_are_reported_and_the_run_goes_on_once_one_node_reaches_them() -> Outcome {
    shared(async |scene| {
        // The provisioner chooses the zone by the number at the end of the claim's name.
        for name in ["data-0", "data-1"] {
            create_claim(&scene, name, ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        }
        let mark = scene.mark()?;
        let apart = run("apart")
            .in_mode("pipelineruns")
            .workspace("source", bound_to("data-0"))
            .workspace("cache", bound_to("data-1"))
            .task("one", &["source", "cache"], &[])
            .task("two", &["source"], &["one"]);
        let submitted = Instant::now();
        scene.submit(apart).await?;
        let told = scene.told("apart", "VolumeNodeAffinityConflict").await?;
        let blocked = scene
            .until("apart", "is blocked", |run: Option<&PipelineRun>| {
                run.is_some_and(|run| run.annotations().contains_key(BLOCKED))
            })
            .await?
            .unwrap();
        let took = submitted.elapsed();
        assert!(took < REPORTED, "reported after {took:?}");
        let blocked: Value = serde_json::from_str(&blocked.annotations()[BLOCKED])?;
        assert_eq!(blocked["reason"], "VolumeNodeAffinityConflict");
        let message = blocked["message"].as_str().unwrap();
        for part in [
            "\"data-0\" (topology.kubernetes.io/zone In zone-",
            "\"data-1\" (topology.kubernetes.io/zone In zone-",
            "zone-a",
            "zone-b",
        ] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(codes(&told), ["VolumeNodeAffinityConflict"]);
        assert_eq!(told[0].1, message);
        // The run's pod waits, and there is no placeholder. Otherwise, the placeholder could bind further volumes to the nodes of
        // a volume that must be replaced.
        scene
            .until_all::<Pod>("has a task's pod", |pods| pods.len() == 1)
            .await?;
        assert!(scene.objects().await?.stateful_sets.is_empty());

        // A claim whose volume is created where its pod is scheduled replaces one of the two claims.
        let api = scene.api::<PersistentVolumeClaim>();
        api.delete("data-1", &DeleteParams::default()).await?;
        scene
            .until::<PersistentVolumeClaim>("data-1", "is gone", |claim| claim.is_none())
            .await?;
        create_claim(&scene, "data-1", LOCAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        scene
            .until("apart", "is not blocked", |run: Option<&PipelineRun>| {
                run.is_some_and(|run| !run.annotations().contains_key(BLOCKED))
            })
            .await?;
        scene.succeeds("apart").await?;
        assert_eq!(nodes(&scene.objects().await?.task_pods).len(), 1);
        scene.nothing_left_but(&["data-0", "data-1"]).await?;

        let requests = scene.requests_since(mark)?;
        let on_runs = requests.iter().filter(|request| {
            request.is_by(Service::PlaceholderManager)
                && request.is_write()
                && request.object.namespace == scene.namespace
        });
        let mut on_runs: Vec<_> = on_runs
            .map(|request| format!("{} {}", request.verb, request.object.resource))
            .collect();
        on_runs.sort();
        // One Event is about the run. A second Event is about its TaskRun, if the scheduler tried the pod before the claim was
        // replaced.
        let events = on_runs.iter().take_while(|it| *it == "create events");
        let events = events.count();
        assert!([1, 2].contains(&events), "{on_runs:?}");
        let [created, deleted] = ["create", "delete"].map(|verb| format!("{verb} {}", resource()));
        let expected = [
            &*created,
            &*deleted,
            "patch pipelineruns",
            "patch pipelineruns",
        ];
        assert_eq!(on_runs[events..], expected);
        Ok(())
    })
}

#[test]
fn v7_claims_in_two_zones_that_no_task_uses_together_do_not_stop_a_run() -> Outcome {
    shared(async |scene| {
        for name in ["far-0", "far-1"] {
            create_claim(&scene, name, ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        }
        let apart = run("far")
            .in_mode("pipelineruns")
            .workspace("source", bound_to("far-0"))
            .workspace("cache", bound_to("far-1"))
            .template("made")
            .task("near", &["source", "made"], &[])
            .task("far", &["cache"], &["near"])
            .task("bare", &[], &["near"])
            .finally("report", &["made"])
            .held("near");
        let submitted = Instant::now();
        scene.submit(apart).await?;
        let parts = [
            "\"far-0\" (",
            "\"far-1\" (",
            "does not mount these claims: far-1.",
        ];
        scene
            .until_all::<Event>("tell what the placeholder mounts", |events| {
                let mut notes = events.iter().filter_map(|event| event.note.as_deref());
                notes.any(|note| parts.iter().all(|part| note.contains(part)))
            })
            .await?;
        let took = submitted.elapsed();
        assert!(took < REPORTED, "reported after {took:?}");
        let (_, placeholder) = scene.placeholder().await?;
        assert!(!claims(&placeholder).contains("far-1"));
        scene.end("far", "near").await?;
        let done = scene.succeeds("far").await?;
        assert!(!done.annotations().contains_key(BLOCKED));
        let told = scene.told_so_far("far").await?;
        let mut told = codes(&told);
        told.dedup();
        assert_eq!(told, ["PodLetGo", "VolumeNodeAffinityConflict"]);
        let mut pods = scene.objects().await?.task_pods;
        let of_run = node(&placeholder).unwrap();
        pods.retain(|pod| node(pod) != Some(of_run));
        let elsewhere: Vec<_> = pods
            .iter()
            .map(|pod| pod.labels()["tekton.dev/pipelineTask"].as_str())
            .collect();
        assert_eq!(elsewhere, ["far"]);
        scene.nothing_left_but(&["far-0", "far-1"]).await
    })
}

#[test]
fn b2_v7_a_volume_on_a_node_of_another_zone_is_reported_at_once() -> Outcome {
    shared(async |scene| {
        let mut in_zone = BTreeMap::new();
        for name in ["zone-0", "zone-1"] {
            create_claim(&scene, name, ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
            in_zone.insert(zone(&scene, name).await?, name);
        }
        assert_eq!(in_zone.len(), 2, "{in_zone:?}");
        let nodes: Api<Node> = Api::all(scene.client.clone());
        let nodes = nodes.list(&ListParams::default()).await?.items;
        let node = &nodes.first().context("no node")?;
        let zone = &node.labels()["topology.kubernetes.io/zone"];
        // The volume names its node by the label, as local volumes do. The volume exists, so the claim is bound at once.
        let volume: PersistentVolume = serde_json::from_value(json!({
            "metadata": {"name": format!("{}-local", scene.namespace)},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": {"namespace": scene.namespace, "name": "local"},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "by-hand",
                "local": {"path": "/data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name_any()]},
                ]}]}},
            },
        }))?;
        let volumes: Api<PersistentVolume> = Api::all(scene.client.clone());
        volumes.create(&PostParams::default(), &volume).await?;
        create_claim(&scene, "local", "by-hand", "ReadWriteOnce").await?;
        scene
            .until(
                "local",
                "is bound",
                |claim: Option<&PersistentVolumeClaim>| {
                    claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some("Bound")
                },
            )
            .await?;
        for (of_node, name) in in_zone.iter().map(|(of, name)| (of == zone, *name)) {
            let run_name = format!("with-{name}");
            let both = run(&run_name)
                .in_mode("pipelineruns")
                .workspace("source", bound_to("local"))
                .workspace("cache", bound_to(name))
                .task("one", &["source", "cache"], &[]);
            let submitted = Instant::now();
            scene.submit(both).await?;
            if of_node {
                scene.succeeds(&run_name).await?;
                assert_eq!(scene.told_so_far(&run_name).await?, []);
                continue;
            }
            let told = scene.told(&run_name, "VolumeNodeAffinityConflict").await?;
            let took = submitted.elapsed();
            assert!(took < REPORTED, "reported after {took:?}");
            for part in [
                "\"local\" (kubernetes.io/hostname In ",
                "next pods of the run wait",
            ] {
                assert!(told[0].1.contains(part), "{told:?}");
            }
            look::until("explain names it too", async || {
                let found = explanation(&scene, &run_name).await?;
                Ok(found["cause"]["message"] == told[0].1)
            })
            .await?;
        }
        Ok(())
    })
}

#[test]
fn v7_claims_that_are_used_one_by_one_may_be_in_two_zones() -> Outcome {
    shared(async |scene| {
        for name in ["part-0", "part-1"] {
            create_claim(&scene, name, ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        }
        let apart = run("one-by-one")
            .in_mode("workspaces")
            .workspace("source", bound_to("part-0"))
            .workspace("cache", bound_to("part-1"))
            .task("one", &["source"], &[])
            .task("two", &["cache"], &[]);
        scene.submit(apart).await?;
        let done = scene.succeeds("one-by-one").await?;
        assert!(!done.annotations().contains_key(BLOCKED));
        let pods = scene.objects().await?.task_pods;
        assert_eq!(nodes(&pods).len(), 2);
        for pod in &pods {
            let claim = claims(pod).pop_first().unwrap();
            assert_eq!(
                zone_of_node(&scene, pod).await?,
                zone(&scene, &claim).await?
            );
        }
        assert_eq!(scene.told_so_far("one-by-one").await?, []);
        scene.nothing_left_but(&["part-0", "part-1"]).await
    })
}

#[test]
fn v8_an_existing_claim_for_one_pod_keeps_the_placeholder_to_its_nodes_without_mounting_it()
-> Outcome {
    shared(async |scene| {
        for (mode, others) in [("pipelineruns", 1), ("workspaces", 0)] {
            let claim = format!("single-{mode}");
            create_claim(&scene, &claim, ZONAL_STORAGE_CLASS, "ReadWriteOncePod").await?;
            let mut turns = run(mode)
                .in_mode(mode)
                .workspace("source", bound_to(&claim))
                .task("one", &["source"], &[])
                .task("two", &["source"], &[])
                .held("one")
                .held("two");
            if others == 1 {
                turns = turns.template("cache").task("three", &["cache"], &[]);
            }
            scene.submit(turns).await?;
            let (_, placeholder) = scene.placeholder().await?;
            assert_eq!(claims(&placeholder).len(), others, "{mode}");
            assert!(!claims(&placeholder).contains(&claim));
            let affinity = placeholder.spec.as_ref().unwrap().affinity.as_ref();
            let required = serde_json::to_value(&affinity.unwrap().node_affinity)?;
            let terms =
                &required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
            assert_eq!(
                terms[0]["matchExpressions"][0]["key"], "topology.kubernetes.io/zone",
                "{mode}: {required}"
            );
            let told = scene.told(mode, "ClaimNotMounted").await?;
            assert_eq!(codes(&told), ["ClaimNotMounted"]);
            assert!(told[0].1.contains(&claim), "{told:?}");
            // Either task may run first.
            tokio::try_join!(scene.end(mode, "one"), scene.end(mode, "two"))?;
            scene.succeeds(mode).await?;
            let mut pods = scene.objects().await?.task_pods;
            pods.retain(|pod| pod.labels()["tekton.dev/pipelineRun"] == mode);
            assert_eq!(pods.len(), 2 + others);
            assert_eq!(nodes(&pods), BTreeSet::from([node(&placeholder).unwrap()]));
            scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        }
        scene
            .nothing_left_but(&["single-pipelineruns", "single-workspaces"])
            .await
    })
}

#[test]
fn v8_a_claim_for_one_pod_that_is_created_after_its_placeholder_is_said_to_be_in_use() -> Outcome {
    shared(async |scene| {
        let bound = run("early").workspace("source", bound_to("late"));
        let early = bound.in_mode("workspaces").task("one", &["source"], &[]);
        scene.submit(early).await?;
        scene
            .until_sets("are there", |sets| sets.len() == 1)
            .await?;
        create_claim(&scene, "late", MOVABLE_STORAGE_CLASS, "ReadWriteOncePod").await?;
        let told = scene.told("early", "ClaimInUse").await?;
        let (_, message) = told.iter().find(|(code, _)| code == "ClaimInUse").unwrap();
        assert!(message.contains("create the run again"), "{message}");
        // This Event would say that nobody has to act.
        assert!(!codes(&told).contains(&"ClaimNotMounted"), "{told:?}");
        let runs = scene.api::<PipelineRun>();
        runs.delete("early", &DeleteParams::default()).await?;
        scene.nothing_left_but(&["late"]).await
    })
}

#[test]
fn v8_claims_for_many_nodes_are_coscheduled_like_the_others() -> Outcome {
    shared(async |scene| {
        for (mode, access) in [
            ("workspaces", "ReadWriteMany"),
            ("pipelineruns", "ReadOnlyMany"),
        ] {
            let claim = format!("many-{mode}");
            create_claim(&scene, &claim, MOVABLE_STORAGE_CLASS, access).await?;
            let together = run(mode)
                .in_mode(mode)
                .workspace("source", bound_to(&claim))
                .task("one", &["source"], &[])
                .task("two", &["source"], &[])
                .held("one");
            scene.submit(together).await?;
            let (_, placeholder) = scene.placeholder().await?;
            assert_eq!(claims(&placeholder), BTreeSet::from([claim]));
            scene.end(mode, "one").await?;
            scene.succeeds(mode).await?;
            let mut pods = scene.objects().await?.task_pods;
            pods.retain(|pod| pod.labels()["tekton.dev/pipelineRun"] == mode);
            assert_eq!(nodes(&pods), BTreeSet::from([node(&placeholder).unwrap()]));
            scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        }
        scene
            .nothing_left_but(&["many-workspaces", "many-pipelineruns"])
            .await
    })
}

#[test]
fn v4_tektons_claims_go_after_the_pods_that_use_them_where_the_author_asks_for_it() -> Outcome {
    shared(async |scene| {
        create_claim(&scene, "existing", LOCAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        let two = |name: &str| {
            run(name)
                .in_mode("workspaces")
                .template("source")
                .workspace("cache", bound_to("existing"))
                .task("one", &["source"], &[])
                .task("two", &["cache"], &[])
        };
        scene.submit(two("kept")).await?;
        scene.succeeds("kept").await?;
        let asked = json!({
            "coscheduler.dev/coschedule": "workspaces",
            "tekton.dev/auto-cleanup-pvc": "true",
        });
        let cleaned = two("cleaned").held("one").metadata("annotations", asked);
        let uid = scene.submit(cleaned).await?.uid().unwrap();
        let made_for = |claim: &PersistentVolumeClaim| {
            claim
                .owner_references()
                .iter()
                .any(|owner| owner.uid == uid && owner.controller == Some(true))
        };
        let claim = scene
            .until_all::<PersistentVolumeClaim>("are made", |claims| {
                claims.iter().any(|claim| made_for(claim))
            })
            .await?
            .into_iter()
            .find(|claim| made_for(claim))
            .unwrap()
            .name_any();
        let pods = scene
            .until_all::<Pod>("use the claim", |pods| {
                pods.iter()
                    .any(|pod| claims(pod).contains(&claim) && node(pod).is_some())
            })
            .await?;
        let bound = pods.iter().find(|pod| claims(pod).contains(&claim));
        // A pod of no run, on the same node, which uses the claim and outlives the run.
        let stranger: Pod = serde_json::from_value(json!({
            "metadata": {"name": "stranger"},
            "spec": {
                "nodeName": node(bound.unwrap()),
                "containers": [{"name": "c", "image": "i/i"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
            },
        }))?;
        let pods = scene.api::<Pod>();
        pods.create(&PostParams::default(), &stranger).await?;
        scene.end("cleaned", "one").await?;
        scene.succeeds("cleaned").await?;
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
        assert_eq!(deleting.finalizers(), ["kubernetes.io/pvc-protection"]);
        let objects = scene.objects().await?;
        assert!(
            objects.stateful_sets.is_empty() && objects.placeholders.is_empty(),
            "the claim went first"
        );
        pods.delete("stranger", &DeleteParams::default().grace_period(0))
            .await?;
        // The existing claim stays, and so does Tekton's claim for the run without the annotation.
        let left = scene
            .until_all::<PersistentVolumeClaim>("are two", |claims| claims.len() == 2)
            .await?;
        assert!(left.iter().any(|claim| claim.name_any() == "existing"));
        assert!(left.iter().all(|left| left.name_any() != claim));
        Ok(())
    })
}

#[test]
fn v6_a_claim_that_is_bound_twice_is_one_claim() -> Outcome {
    shared(async |scene| {
        for mode in ["workspaces", "pipelineruns"] {
            let claim = format!("twice-{mode}");
            create_claim(&scene, &claim, LOCAL_STORAGE_CLASS, "ReadWriteOnce").await?;
            let part = |sub_path: &str| {
                let mut binding = bound_to(&claim);
                binding["subPath"] = sub_path.into();
                binding
            };
            let twice = run(mode)
                .in_mode(mode)
                .workspace("go", part("go"))
                .workspace("npm", part("npm"))
                .task("one", &["go"], &[])
                .task("two", &["npm"], &[])
                .task("both", &["go", "npm"], &["one", "two"])
                .held("one");
            scene.submit(twice).await?;
            let (_, placeholder) = scene.placeholder().await?;
            let objects = scene.objects().await?;
            assert_eq!(objects.stateful_sets.len(), 1, "{mode}");
            let volumes = placeholder.spec.as_ref().unwrap().volumes.as_ref();
            assert_eq!(volumes.map(Vec::len), Some(1), "{mode}");
            assert_eq!(claims(&placeholder), BTreeSet::from([claim]));
            scene.end(mode, "one").await?;
            scene.succeeds(mode).await?;
            let mut pods = scene.objects().await?.task_pods;
            pods.retain(|pod| pod.labels()["tekton.dev/pipelineRun"] == mode);
            assert_eq!(pods.len(), 3, "{mode}");
            assert_eq!(nodes(&pods), BTreeSet::from([node(&placeholder).unwrap()]));
            scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        }
        // A task uses two parts of the claim that Tekton makes from one template.
        let parts = json!([
            {"name": "go", "workspace": "source", "subPath": "go"},
            {"name": "npm", "workspace": "source", "subPath": "npm"},
        ]);
        let steps = json!([{"name": "step", "image": "example/image", "command": ["true"]}]);
        let spec = json!({"workspaces": [{"name": "go"}, {"name": "npm"}], "steps": steps});
        let parted = run("parted")
            .in_mode("workspaces")
            .template_of_class("source", MOVABLE_STORAGE_CLASS)
            .task("one", &["source"], &[])
            .task("both", &[], &["one"])
            .with("workspaces", parts)
            .with("taskSpec", spec);
        scene.submit(parted).await?;
        scene.succeeds("parted").await?;
        assert_eq!(scene.told_so_far("parted").await?, []);
        let mut pods = scene.objects().await?.task_pods;
        pods.retain(|pod| pod.labels()["tekton.dev/pipelineRun"] == "parted");
        assert_eq!((pods.len(), nodes(&pods).len()), (2, 1));
        for pod in &pods {
            assert!(pod.spec.as_ref().unwrap().affinity.is_some());
        }
        scene
            .nothing_left_but(&["twice-pipelineruns", "twice-workspaces"])
            .await
    })
}

#[test]
fn v5_workspaces_without_a_claim_are_left_alone() -> Outcome {
    shared(async |scene| {
        let kinds = [
            ("secret", json!({"secret": {"secretName": "s"}})),
            ("config", json!({"configMap": {"name": "c"}})),
            ("scratch", json!({"emptyDir": {}})),
            (
                "projected",
                json!({"projected": {"sources": [{"configMap": {"name": "c"}}]}}),
            ),
            (
                "csi",
                json!({"csi": {"driver": "storage.testbed.coscheduler.dev"}}),
            ),
        ];
        for mode in ["workspaces", "pipelineruns"] {
            let mut plain = run(mode).in_mode(mode);
            for (name, source) in &kinds {
                plain = plain.workspace(name, source.clone());
            }
            let used: Vec<_> = kinds.iter().map(|(name, _)| *name).collect();
            let plain = plain.task("one", &used, &[]).held("one");
            let created = scene.submit(plain).await?;
            for (index, (name, source)) in kinds.iter().enumerate() {
                let mut expected = source.clone();
                expected["name"] = (*name).into();
                assert_eq!(created.spec["workspaces"][index], expected, "{mode}");
            }
            if mode == "pipelineruns" {
                let (_, placeholder) = scene.placeholder().await?;
                assert_eq!(placeholder.spec.unwrap().volumes.unwrap_or_default(), []);
            }
            scene.end(mode, "one").await?;
            scene.succeeds(mode).await?;
            scene.nothing_left_but(&[]).await?;
            // No claim ties pods together, so there is no Event.
            assert_eq!(scene.told_so_far(mode).await?, []);
        }
        let pods = scene.objects().await?.task_pods;
        let alone = pods
            .iter()
            .find(|pod| pod.labels()["tekton.dev/pipelineRun"] == "workspaces");
        assert_eq!(alone.unwrap().spec.as_ref().unwrap().affinity, None);
        Ok(())
    })
}

#[test]
fn v9_a_claim_named_by_a_parameter_is_known_and_one_named_by_a_result_is_left_out() -> Outcome {
    shared(async |scene| {
        for claim in ["by-param", "by-result"] {
            create_claim(&scene, claim, LOCAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        }
        let makes = json!({
            "results": [{"name": "claim"}],
            "steps": [{"name": "step", "image": "example/image", "command": ["true"]}],
        });
        let named = run("named")
            .in_mode("workspaces")
            .spec("params", json!([{"name": "cache", "value": "by-param"}]))
            .workspace("cache", bound_to("$(params.cache)"))
            .workspace("made", bound_to("$(tasks.make.results.claim)"))
            .task("make", &[], &[])
            .with("taskSpec", makes)
            .resulting("make", "claim", "by-result")
            .task("cached", &["cache"], &[])
            .held("cached")
            .task("late", &["made"], &["make"]);
        scene.submit(named).await?;
        let (_, placeholder) = scene.placeholder().await?;
        assert_eq!(
            claims(&placeholder),
            BTreeSet::from(["by-param".to_owned()])
        );
        let told = scene.told("named", "ClaimNameVariable").await?;
        assert_eq!(codes(&told), ["ClaimNameVariable"]);
        assert!(
            told[0].1.contains("$(tasks.make.results.claim)"),
            "{told:?}"
        );
        scene.end("named", "cached").await?;
        scene.succeeds("named").await?;
        let pods = scene.objects().await?.task_pods;
        let of = |task: &str| {
            let found = pods
                .iter()
                .find(|pod| pod.labels()["tekton.dev/pipelineTask"] == task);
            found.unwrap()
        };
        assert_eq!(node(of("cached")), node(&placeholder));
        // Its pod uses the claim, but has no affinity.
        assert_eq!(claims(of("late")), BTreeSet::from(["by-result".to_owned()]));
        assert_eq!(of("late").spec.as_ref().unwrap().affinity, None);
        assert_eq!(
            of("late").annotations().get(ASSISTANT).map(String::as_str),
            Some("")
        );
        scene.nothing_left_but(&["by-param", "by-result"]).await
    })
}

#[test]
fn v9_defaults_of_pipelines_and_tasks_complete_the_names_of_claims() -> Outcome {
    shared(async |scene| {
        let mut existing = Vec::new();
        for (source, mode) in [
            ("embedded", "workspaces"),
            ("embedded", "pipelineruns"),
            ("in-cluster", "workspaces"),
            ("in-cluster", "isolate-pipelinerun"),
            ("fetched", "workspaces"),
            ("fetched", "pipelineruns"),
            ("of-task", "workspaces"),
        ] {
            let name = format!("{source}-{mode}");
            create_claim(&scene, &name, MOVABLE_STORAGE_CLASS, "ReadWriteOnce").await?;
            existing.push(name.clone());
            let mut named = run(&name)
                .in_mode(mode)
                .workspace("cache", bound_to("$(params.cache)"))
                .task("one", &["cache"], &[])
                .held("one")
                .task("two", &["cache"], &["one"]);
            if source != "of-task" {
                named = named.param("cache", &name);
            }
            let mut object = named.into_json();
            let spec = &mut object["spec"];
            let pipeline = json!({
                "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
                "metadata": {"name": name}, "spec": spec["pipelineSpec"],
            });
            match source {
                "in-cluster" => {
                    spec["pipelineRef"] = json!({"name": name});
                    let pipelines = "tekton.dev/v1/pipelines";
                    scene.send("POST", pipelines, &pipeline).await?.accepted()?;
                }
                "fetched" => spec["pipelineRef"] = json!({"resolver": "test"}),
                "of-task" => {
                    for task in spec["pipelineSpec"]["tasks"].as_array_mut().unwrap() {
                        task["taskSpec"]["params"] = json!([{"name": "cache", "default": name}]);
                    }
                }
                _ => {}
            }
            if !spec["pipelineRef"].is_null() {
                spec.as_object_mut().unwrap().remove("pipelineSpec");
            }
            scene.submit(Run::from_json(object)).await?;
            if source == "fetched" {
                scene.resolve(&pipeline).await?;
            }
            let (_, placeholder) = scene.placeholder().await?;
            assert_eq!(claims(&placeholder), BTreeSet::from([name.clone()]));
            scene.end(&name, "one").await?;
            scene.succeeds(&name).await?;
            let pods = scene.objects().await?.task_pods;
            let of_run = |pod: &&Pod| pod.labels()["tekton.dev/pipelineRun"] == name;
            let pods: Vec<_> = pods.into_iter().filter(|pod| of_run(&pod)).collect();
            assert_eq!(pods.len(), 2, "{name}");
            for pod in &pods {
                assert_eq!(claims(pod), BTreeSet::from([name.clone()]));
                assert_eq!(node(pod), node(&placeholder), "{name}");
                let spec = pod.spec.as_ref().unwrap();
                assert!(spec.affinity.is_some(), "{name}");
            }
            assert_eq!(scene.told_so_far(&name).await?, [], "{name}");
            let existing: Vec<_> = existing.iter().map(String::as_str).collect();
            scene.nothing_left_but(&existing).await?;
        }
        Ok(())
    })
}

#[test]
fn v9_a_run_whose_every_claim_is_named_by_a_result_is_told_so() -> Outcome {
    shared(async |scene| {
        // If the placeholder cannot know the claim, only a volume that every node can reach is safe.
        create_claim(&scene, "only", MOVABLE_STORAGE_CLASS, "ReadWriteOnce").await?;
        let makes = json!({
            "results": [{"name": "claim"}],
            "steps": [{"name": "step", "image": "example/image", "command": ["true"]}],
        });
        for (mode, sets) in [("workspaces", 0), ("pipelineruns", 1)] {
            let named = run(mode)
                .in_mode(mode)
                .workspace("made", bound_to("$(tasks.make.results.claim)"))
                .task("make", &[], &[])
                .with("taskSpec", makes.clone())
                .resulting("make", "claim", "only")
                .held("make")
                .task("late", &["made"], &["make"]);
            scene.submit(named).await?;
            let told = scene.told(mode, "ClaimNameVariable").await?;
            assert_eq!(codes(&told), ["ClaimNameVariable"]);
            if sets == 1 {
                let (_, placeholder) = scene.placeholder().await?;
                assert!(claims(&placeholder).is_empty());
            }
            scene.end(mode, "make").await?;
            scene.succeeds(mode).await?;
            scene.nothing_left_but(&["only"]).await?;
        }
        Ok(())
    })
}

#[test]
fn p8_claim_templates_may_have_names_of_57_characters() -> Outcome {
    shared(async |scene| {
        let long = "c".repeat(57);
        for mode in ["workspaces", "pipelineruns", "isolate-pipelinerun"] {
            let template = json!({"volumeClaimTemplate": {
                "metadata": {"name": long},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }});
            let named = run(mode)
                .in_mode(mode)
                .workspace("source", template)
                .task("one", &["source"], &[])
                .task("two", &["source"], &["one"])
                .held("one");
            scene.submit(named).await?;
            let bound = scene
                .until_all::<Pod>("has a bound placeholder", |pods| {
                    pods.iter()
                        .any(|pod| is_placeholder(pod) && node(pod).is_some())
                })
                .await?;
            let placeholder = bound.iter().find(|pod| is_placeholder(pod)).unwrap();
            let claim = claims(placeholder).pop_first().unwrap();
            assert!(claim.starts_with(&long[..40]), "{claim}");
            scene.end(mode, "one").await?;
            let done = scene.done(mode).await?;
            assert_eq!(succeeded(&done), Some("True"), "{:?}", done.status);
            let delete = DeleteParams::foreground();
            scene.api::<PipelineRun>().delete(mode, &delete).await?;
            scene.nothing_left_but(&[]).await?;
        }
        Ok(())
    })
}

#[test]
fn v1_a_claim_that_is_created_late_is_mounted_all_the_same() -> Outcome {
    shared(async |scene| {
        let waiting = run("waiting")
            .in_mode("pipelineruns")
            .workspace("source", bound_to("late"))
            .task("one", &["source"], &[])
            .held("one");
        scene.submit(waiting).await?;
        scene
            .until_sets("has a placeholder", |sets| sets.len() == 1)
            .await?;
        create_claim(&scene, "late", LOCAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        let (_, placeholder) = scene.placeholder().await?;
        assert_eq!(mounted(&placeholder), BTreeSet::from(["late".to_owned()]));
        scene.end("waiting", "one").await?;
        scene.succeeds("waiting").await?;
        scene.nothing_left_but(&["late"]).await
    })
}

/// The claims that a pod's first container mounts.
fn mounted(pod: &Pod) -> BTreeSet<String> {
    let spec = pod.spec.as_ref().unwrap();
    let mounts = spec.containers[0].volume_mounts.iter().flatten();
    let names: BTreeSet<_> = mounts.map(|mount| mount.name.as_str()).collect();
    let volumes = spec.volumes.iter().flatten();
    volumes
        .filter(|volume| names.contains(volume.name.as_str()))
        .filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone()))
        .collect()
}

/// A provisioner that chooses the zone by the claim's name puts claims whose names end with the same number into one zone
/// (`ChooseZoneForVolume` of `k8s.io/cloud-provider`). The claims of one StatefulSet's pod have such names. So the names of our
/// claims must have this form too.
#[test]
fn v2_templates_whose_volumes_are_made_at_once_are_in_one_zone() -> Outcome {
    shared(async |scene| {
        // With so many claims, chance would put two of them into different zones.
        let workspaces = ["a", "b", "c", "d"];
        for mode in ["pipelineruns", "isolate-pipelinerun"] {
            let mut zonal = run(mode).in_mode(mode);
            for workspace in workspaces {
                zonal = zonal.template_of_class(workspace, ZONAL_STORAGE_CLASS);
            }
            let zonal = zonal.task("one", &workspaces, &[]).held("one");
            scene.submit(zonal).await?;
            let (_, placeholder) = scene.placeholder().await?;
            let claims = claims(&placeholder);
            assert_eq!(claims.len(), workspaces.len(), "{mode}");
            let mut zones = BTreeSet::new();
            for claim in &claims {
                zones.insert(zone(&scene, claim).await?);
            }
            assert_eq!(zones.len(), 1, "{mode}: {claims:?} in {zones:?}");
            let own = zone_of_node(&scene, &placeholder).await?;
            assert!(zones.contains(&own), "{mode}: {own}, not {zones:?}");
            scene.end(mode, "one").await?;
            scene.succeeds(mode).await?;
            scene.nothing_left_but(&[]).await?;
        }
        Ok(())
    })
}

/// The zone of a bound pod's node.
async fn zone_of_node(scene: &Scene<'_>, pod: &Pod) -> anyhow::Result<String> {
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let on = nodes.get(node(pod).context("no node")?).await?;
    Ok(on.labels()["topology.kubernetes.io/zone"].clone())
}

/// The zone of a bound claim's volume.
async fn zone(scene: &Scene<'_>, claim: &str) -> anyhow::Result<String> {
    let claim = scene.api::<PersistentVolumeClaim>().get(claim).await?;
    let volume = claim.spec.and_then(|spec| spec.volume_name);
    let volumes: Api<PersistentVolume> = Api::all(scene.client.clone());
    let volume = volumes.get(&volume.context("not bound")?).await?;
    let affinity = serde_json::to_value(volume.spec.unwrap().node_affinity)?;
    let term = &affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(term["key"], "topology.kubernetes.io/zone", "{affinity}");
    let zone = term["values"][0].as_str();
    Ok(zone.context("no zone")?.to_owned())
}

#[test]
fn v7_a_claim_made_anew_in_another_zone_is_reported_while_the_placeholder_waits() -> Outcome {
    shared(async |scene| {
        for name in ["anew-0", "anew-1"] {
            create_claim(&scene, name, ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        }
        let conflict = |run: Option<&PipelineRun>| {
            let blocked = run.and_then(|run| run.annotations().get(BLOCKED));
            blocked.is_some_and(|blocked| blocked.contains("VolumeNodeAffinityConflict"))
        };
        let apart = run("anew")
            .in_mode("pipelineruns")
            .workspace("source", bound_to("anew-0"))
            .workspace("cache", bound_to("anew-1"))
            .task("one", &["source", "cache"], &[]);
        scene.submit(apart).await?;
        scene.until("anew", "is blocked", conflict).await?;
        // Without this claim there is no conflict, so the placeholder is created and waits.
        let api = scene.api::<PersistentVolumeClaim>();
        api.delete("anew-1", &DeleteParams::default()).await?;
        scene
            .until_sets("has a placeholder", |sets| sets.len() == 1)
            .await?;
        scene
            .until("anew", "is not blocked by it", |run| !conflict(run))
            .await?;
        create_claim(&scene, "anew-1", ZONAL_STORAGE_CLASS, "ReadWriteOnce").await?;
        let since = Instant::now();
        scene.until("anew", "is blocked again", conflict).await?;
        let took = since.elapsed();
        assert!(took < REPORTED, "reported after {took:?}");
        Ok(())
    })
}
