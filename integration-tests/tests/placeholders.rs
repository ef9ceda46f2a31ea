//! The shape, lifetime and owner of a placeholder (requirements P1 to P9), in every mode. Each run may choose its mode.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_proto::config::Reserves;
use coscheduler_proto::error::reason;
use coscheduler_proto::placeholder::EnsureOutcome;
use coscheduler_proto::planner::report_pipeline_run_response::Outcome as Reported;
use coscheduler_proto::planner::{NothingToDo, Separation};
use integration_tests::look::{is_placeholder, node, succeeded};
use integration_tests::runs::{Run, run};
use integration_tests::sets::{object_name, only_pods};
use integration_tests::{Scene, alone, shared_with};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Affinity, ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::{CONFIG_MAP, NAMESPACE, Service, ServicesConfig};
use tonic::{Code, Status};

type Outcome = anyhow::Result<()>;

/// The answer to a report about a run for which there is nothing to do.
const NOTHING: Option<Reported> = Some(Reported::Nothing(NothingToDo {}));

/// The modes that coschedule.
const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];

/// The cluster's default pod template for placeholders.
const DEFAULTS: &str = r#"{
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "of-default", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "of-default"}],
    "securityContext": {"fsGroup": 1111}
}"#;

/// Runs a test on a stack on which every run may choose its mode, with enough nodes for isolated runs.
fn everything(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 30,
        ..Config::default()
    };
    let change = |services: &mut ServicesConfig| {
        let flags = [
            (
                "allowed-overrides",
                "workspaces, pipelineruns, isolate-pipelinerun, disabled",
            ),
            ("default-affinity-assistant-pod-template", DEFAULTS),
        ];
        let flags = flags.map(|(key, value)| (key.to_owned(), value.to_owned()));
        services.flags.extend(flags);
    };
    shared_with(config, change, test)
}

fn in_mode(mode: &str, run: Run) -> Run {
    run.metadata("annotations", json!({"coscheduler.dev/coschedule": mode}))
}

/// A run with one workspace and two tasks that use it.
fn two(name: &str) -> Run {
    run(name)
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
}

fn name_of(pod: &Pod) -> &str {
    &pod.labels()["tekton.dev/pipelineRun"]
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Running")
}

/// Waits until the run has a running task.
async fn under_way(scene: &Scene<'_>, name: &str) -> Outcome {
    let running = |pod: &Arc<Pod>| !is_placeholder(pod) && name_of(pod) == name && is_running(pod);
    scene
        .until_all::<Pod>("have a running task", |pods| pods.iter().any(running))
        .await?;
    Ok(())
}

/// Waits until the run has `count` StatefulSets, and returns them.
async fn sets_of(
    scene: &Scene<'_>,
    name: &str,
    count: usize,
) -> anyhow::Result<Vec<Arc<StatefulSet>>> {
    let of = |sets: &[Arc<StatefulSet>]| {
        let of_run = sets
            .iter()
            .filter(|set| set.labels()["tekton.dev/pipelineRun"] == name);
        of_run.cloned().collect::<Vec<_>>()
    };
    let sets = scene
        .until_sets("are as many as the run has placeholders", |sets| {
            of(sets).len() == count
        })
        .await?;
    Ok(of(&sets))
}

/// Waits until no placeholder is left, and no claim that was made for a placeholder.
async fn nothing_of_ours_left(scene: &Scene<'_>) -> Outcome {
    scene.until_sets("are gone", |sets| sets.is_empty()).await?;
    scene
        .until_all::<Pod>("have no placeholder", |pods| {
            !pods.iter().any(|pod| is_placeholder(pod))
        })
        .await?;
    // In mode `workspaces`, Tekton's own claims stay as long as their run.
    let ours = |claim: &Arc<PersistentVolumeClaim>| claim.name_any().ends_with("-0");
    scene
        .until_all::<PersistentVolumeClaim>("are Tekton's alone", |claims| !claims.iter().any(ours))
        .await?;
    Ok(())
}

async fn patch(scene: &Scene<'_>, name: &str, patch: Value) -> anyhow::Result<PipelineRun> {
    let runs = scene.api::<PipelineRun>();
    let params = PatchParams::default();
    Ok(runs.patch(name, &params, &Patch::Merge(patch)).await?)
}

async fn cancel(scene: &Scene<'_>, name: &str) -> Outcome {
    patch(scene, name, json!({"spec": {"status": "Cancelled"}})).await?;
    Ok(())
}

#[test]
fn p1_p3_m8_neither_labels_nor_defaults_that_come_later_move_a_placeholder() -> Outcome {
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    alone(config, async |scene| {
        scene.submit(two("kept").lasting("one", 600)).await?;
        let (set, pod) = scene.placeholder().await?;
        under_way(scene, "kept").await?;
        let mark = scene.mark()?;

        let elsewhere = if node(&pod) == Some("node-1") {
            "node-2"
        } else {
            "node-1"
        };
        let template = json!({"nodeSelector": {"kubernetes.io/hostname": elsewhere}});
        let flags = json!({"data": {
            "placeholder-cpu": "75m",
            "default-affinity-assistant-pod-template": template.to_string(),
        }});
        Api::<ConfigMap>::namespaced(scene.client.clone(), NAMESPACE)
            .patch(CONFIG_MAP, &PatchParams::default(), &Patch::Merge(flags))
            .await?;
        let in_force = async {
            while scene.plan(two("dry")).await?.placeholders[0].cpu != "75m" {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), in_force).await??;
        let labelled =
            json!({"metadata": {"labels": {"late": "yes", "tekton.dev/pipeline": "other"}}});
        patch(scene, "kept", labelled).await?;
        // After a restart, the manager knows only what the run's object contains.
        scene.stack.services.kill(Service::PlaceholderManager)?;
        scene
            .stack
            .services
            .start_service(Service::PlaceholderManager)?;
        scene.stack.services.wait_ready().await?;
        let now = scene.api::<PipelineRun>().get("kept").await?;
        assert_eq!(now.labels()["late"], "yes");
        let answer = scene.report(&now).await?;
        let unchanged = Reported::Ensured(EnsureOutcome::Unchanged.into());
        assert_eq!(answer.outcome, Some(unchanged));

        scene.submit(two("new").held("one")).await?;
        let new = sets_of(scene, "new", 1).await?;
        let spec = |set: &StatefulSet| set.spec.as_ref().unwrap().template.spec.clone().unwrap();
        assert_eq!(
            spec(&new[0]).node_selector.unwrap()["kubernetes.io/hostname"],
            elsewhere
        );
        scene.end("new", "one").await?;
        scene.succeeds("new").await?;

        let kept = sets_of(scene, "kept", 1).await?;
        assert_eq!(kept[0].metadata.uid, set.metadata.uid);
        assert_eq!(kept[0].metadata.generation, set.metadata.generation);
        assert_eq!(kept[0].metadata.labels, set.metadata.labels);
        assert_eq!(kept[0].spec, set.spec);
        let still = scene.api::<Pod>().get(&pod.name_any()).await?;
        assert_eq!((still.uid(), still.labels()), (pod.uid(), pod.labels()));
        assert_eq!(node(&still), node(&pod));
        let updated: Vec<_> = scene
            .requests_since(mark)?
            .into_iter()
            .filter(|request| request.is_by(Service::PlaceholderManager))
            .filter(|request| matches!(request.verb.as_str(), "update" | "patch"))
            .filter(|request| ["statefulsets", "pods"].contains(&request.object.resource.as_str()))
            .collect();
        assert!(updated.is_empty(), "{updated:#?}");
        cancel(scene, "kept").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p1_p2_in_workspaces_each_pod_requires_the_placeholder_of_its_claim() -> Outcome {
    everything(async |scene| {
        let mixed = run("mixed")
            .template("source")
            .template("cache")
            .task("clone", &["source"], &[])
            .task("warm", &["cache"], &[])
            .task("bare", &[], &[])
            .held("clone")
            .held("warm")
            .metadata("labels", json!({
                "team": "ci", "kueue.x-k8s.io/queue-name": "q", "app.kubernetes.io/instance": "mine", "tekton.dev/taskRun": "forged",
            }));
        let created = scene.submit(in_mode("workspaces", mixed)).await?;
        let sets = sets_of(&scene, "mixed", 2).await?;
        let mut by_claim = BTreeMap::new();
        for set in &sets {
            let spec = set.spec.as_ref().unwrap();
            let pod_labels = spec
                .template
                .metadata
                .as_ref()
                .unwrap()
                .labels
                .as_ref()
                .unwrap();
            for labels in [set.labels(), pod_labels] {
                assert_eq!(labels["app.kubernetes.io/component"], "affinity-assistant");
                assert_eq!(labels["app.kubernetes.io/instance"], set.name_any());
                assert_eq!(labels["tekton.dev/pipelineRun"], "mixed");
                assert_eq!(labels["team"], "ci");
                assert!(!labels.contains_key("kueue.x-k8s.io/queue-name"));
                assert!(!labels.contains_key("tekton.dev/taskRun"));
            }
            let owner = &set.owner_references()[0];
            assert_eq!(
                (&owner.uid, owner.controller),
                (&created.uid().unwrap(), Some(true))
            );
            let volumes = spec
                .template
                .spec
                .as_ref()
                .unwrap()
                .volumes
                .clone()
                .unwrap();
            assert_eq!(volumes.len(), 1);
            let claim = volumes[0]
                .persistent_volume_claim
                .clone()
                .unwrap()
                .claim_name;
            by_claim.insert(claim, set.name_any());
        }
        assert_eq!(by_claim.len(), 2, "{by_claim:?}");
        for task in ["clone", "warm"] {
            scene.end("mixed", task).await?;
        }
        scene.succeeds("mixed").await?;
        for pod in scene.objects().await?.task_pods {
            let affinity = pod.spec.as_ref().unwrap().affinity.clone();
            match integration_tests::look::claims(&pod).first() {
                None => assert_eq!(affinity, None),
                Some(claim) => assert_eq!(
                    serde_json::to_value(affinity)?,
                    json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                        "labelSelector": {"matchLabels": {
                            "app.kubernetes.io/component": "affinity-assistant",
                            "app.kubernetes.io/instance": by_claim[claim],
                        }},
                        "topologyKey": "kubernetes.io/hostname",
                    }]}})
                ),
            }
        }
        nothing_of_ours_left(&scene).await
    })
}

/// The spec of a run's placeholder pod, bound or not.
async fn placeholder_of(scene: &Scene<'_>, name: &str) -> anyhow::Result<Value> {
    let of = |pod: &&Arc<Pod>| is_placeholder(pod) && name_of(pod) == name;
    let pods = scene
        .until_all::<Pod>("have the run's placeholder", |pods| {
            pods.iter().any(|pod| of(&pod))
        })
        .await?;
    let pod = pods.iter().find(of).unwrap();
    Ok(serde_json::to_value(&pod.spec)?)
}

/// The tolerations that were requested. Those that Kubernetes adds to every pod have `tolerationSeconds`.
fn tolerations(spec: &Value) -> Vec<&Value> {
    let all = spec["tolerations"].as_array().into_iter().flatten();
    all.filter(|toleration| toleration.get("tolerationSeconds").is_none())
        .collect()
}

#[test]
fn p3_each_field_of_the_runs_pod_template_wins_over_the_clusters_default() -> Outcome {
    everything(async |scene| {
        let own = scene.namespace.clone();
        scene
            .stack
            .bed
            .apply(&format!(
                "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {own}}}\nvalue: 7\n---\n\
                 apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: {own}}}\nhandler: other\n---\n\
                 apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: builder, namespace: {own}}}\n"
            ))
            .await?;
        // A run without a pod template gets the cluster's default.
        scene
            .submit(run("plain").task("one", &[], &[]).lasting("one", 600))
            .await?;
        let plain = placeholder_of(&scene, "plain").await?;
        assert_eq!(plain["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
        assert_eq!(
            tolerations(&plain),
            [&json!({"key": "of-default", "operator": "Exists"})]
        );
        assert_eq!(plain["imagePullSecrets"], json!([{"name": "of-default"}]));
        assert_eq!(plain["securityContext"]["fsGroup"], 1111);
        assert_eq!(plain["serviceAccountName"], "default");
        assert_eq!(plain["schedulerName"], "default-scheduler");

        let affinity = json!({
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]},
            ]}},
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "podAffinityTerm": {
                "labelSelector": {"matchLabels": {"app": "registry"}}, "topologyKey": "kubernetes.io/hostname"}}]},
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"app": "noisy"}}, "topologyKey": "kubernetes.io/hostname"}],
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"app": "loud"}}, "topologyKey": "kubernetes.io/hostname"}}],
            },
        });
        let template = json!({
            "nodeSelector": {"kubernetes.io/arch": "amd64"},
            "tolerations": [{"key": "of-run", "operator": "Exists", "effect": "NoSchedule"}],
            "imagePullSecrets": [{"name": "of-run"}],
            "securityContext": {"fsGroup": 2222, "runAsUser": 3333},
            "priorityClassName": own,
            "runtimeClassName": own,
            "affinity": affinity,
            "env": [{"name": "OF_RUN", "value": "x"}],
        });
        let full = run("full").task("one", &[], &[]).held("one").spec(
            "taskRunTemplate",
            json!({"serviceAccountName": "builder", "podTemplate": template}),
        );
        scene.submit(full).await?;
        let full = placeholder_of(&scene, "full").await?;
        for field in [
            "nodeSelector",
            "imagePullSecrets",
            "priorityClassName",
            "runtimeClassName",
        ] {
            assert_eq!(full[field], template[field], "{field}");
        }
        assert_eq!(full["priority"], 7);
        assert_eq!(tolerations(&full), [&template["tolerations"][0]]);
        assert_eq!(full["securityContext"]["fsGroup"], 2222);
        assert_eq!(full["securityContext"]["runAsUser"], 3333);
        assert_eq!(full["securityContext"]["runAsNonRoot"], true);
        assert_eq!(full["serviceAccountName"], "builder");
        assert_eq!(full["containers"][0].get("env"), None);
        // The run's terms are kept, and the placeholder's own term is added.
        let mut combined = affinity.clone();
        let preferred =
            &mut combined["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
        preferred
            .as_array_mut()
            .unwrap()
            .push(json!({"weight": 100, "podAffinityTerm": {
            "labelSelector": {
                "matchLabels": {"app.kubernetes.io/component": "affinity-assistant"},
                "matchExpressions": [{"key": "tekton.dev/taskRun", "operator": "DoesNotExist"}],
            },
            "namespaceSelector": {},
            "topologyKey": "kubernetes.io/hostname"}}));
        assert_eq!(full["affinity"], combined);
        // The pods of the run have the run's terms too.
        let set = &sets_of(&scene, "full", 1).await?[0];
        scene.end("full", "one").await?;
        scene.succeeds("full").await?;
        let pods = scene.objects().await?.task_pods;
        let pod = pods.iter().find(|pod| name_of(pod) == "full").unwrap();
        let mut combined = affinity;
        combined["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{
            "labelSelector": {"matchLabels": {
                "app.kubernetes.io/component": "affinity-assistant",
                "app.kubernetes.io/instance": set.name_any(),
            }},
            "topologyKey": "kubernetes.io/hostname",
        }]);
        assert_eq!(serde_json::to_value(&pod.spec)?["affinity"], combined);

        // The pod waits for a scheduler that does not exist.
        let other = json!({"podTemplate": {"schedulerName": "other"}});
        let other = run("other")
            .task("one", &[], &[])
            .spec("taskRunTemplate", other);
        scene.submit(other).await?;
        let spec = placeholder_of(&scene, "other").await?;
        assert_eq!(
            (&spec["schedulerName"], spec.get("nodeName")),
            (&json!("other"), None)
        );
        cancel(&scene, "plain").await?;
        // The run is deleted and not cancelled. If Tekton creates a pod at the moment of a cancellation, it leaves this pod, and
        // no scheduler would ever bind it.
        let runs = scene.api::<PipelineRun>();
        runs.delete("other", &DeleteParams::default()).await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p4_placeholders_take_nodes_without_one_before_nodes_with_more_room() -> Outcome {
    let config = Config {
        nodes: 3,
        ..Config::default()
    };
    alone(config, async |scene| {
        // All placeholders fit on node-1. Only the anti-affinity makes them take other nodes.
        let filled: Vec<Pod> = ["node-2", "node-3"]
            .iter()
            .map(|node| {
                serde_json::from_value(json!({
                    "metadata": {"name": format!("load-{node}")},
                    "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i/i", "resources": {
                        "requests": {"cpu": "4", "memory": "8Gi"}}}]},
                }))
                .unwrap()
            })
            .collect();
        for pod in &filled {
            scene.api().create(&PostParams::default(), pod).await?;
        }
        for (index, name) in ["first", "second", "third"].iter().enumerate() {
            let long = run(name).task("one", &[], &[]).lasting("one", 600);
            scene.submit(long).await?;
            scene
                .until_all::<Pod>("have a bound placeholder more", |pods| {
                    let bound = |pod: &&Arc<Pod>| is_placeholder(pod) && node(pod).is_some();
                    pods.iter().filter(bound).count() == index + 1
                })
                .await?;
        }
        let placeholders = scene.objects().await?.placeholders;
        let nodes: BTreeSet<_> = placeholders.iter().filter_map(node).collect();
        assert_eq!(nodes.len(), 3, "{nodes:?}");
        let spec = placeholders[0].spec.as_ref().unwrap();
        assert_eq!(
            serde_json::to_value(&spec.affinity)?,
            json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {
                        "matchLabels": {"app.kubernetes.io/component": "affinity-assistant"},
                        "matchExpressions": [{"key": "tekton.dev/taskRun", "operator": "DoesNotExist"}],
                    },
                    "namespaceSelector": {},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }]}})
        );
        for name in ["first", "second", "third"] {
            // If a TaskRun is cancelled while Tekton creates its pod, the pod runs to its end.
            let task = format!("{name}-one-pod");
            scene
                .until(&task, "is running", |pod| pod.is_some_and(is_running))
                .await?;
            cancel(scene, name).await?;
        }
        scene.nothing_left_but(&[]).await
    })
}

/// Sets keys `placement` and `placeholder-reserves`, and waits until the planner uses them for new runs.
async fn place(
    scene: &Scene<'_>,
    (placement, reserves): (&str, &str),
    expect: (Separation, Reserves),
) -> Outcome {
    let flags = [
        ("coschedule", "pipelineruns"),
        ("placement", placement),
        ("placeholder-reserves", reserves),
    ];
    scene.set_flags(&flags).await?;
    let in_force = async {
        loop {
            let spec = scene.plan(two("dry")).await?.placeholders.remove(0);
            if (spec.separation(), spec.reserves()) == expect {
                return anyhow::Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), in_force).await?
}

/// The placeholders of two runs with this name. The runs are created one after the other, each in a namespace of its own, and
/// then cancelled.
async fn one_each(scenes: [&Scene<'_>; 2], name: &str) -> anyhow::Result<[(StatefulSet, Pod); 2]> {
    let mut seen = Vec::new();
    for scene in scenes {
        let long = run(name).task("one", &[], &[]).lasting("one", 600);
        scene.submit(long).await?;
        seen.push(scene.placeholder().await?);
    }
    for scene in scenes {
        cancel(scene, name).await?;
        scene.nothing_left_but(&[]).await?;
    }
    Ok(seen.try_into().unwrap())
}

#[test]
fn p4_m8_the_placement_decides_whether_runs_of_two_namespaces_share_a_node() -> Outcome {
    let config = Config {
        nodes: 2,
        ..Config::default()
    };
    alone(config, async |scene| {
        let elsewhere = scene.stack.scene().await?;
        let scenes = [scene, &elsewhere];

        // Without the affinity, the second placeholder would take the empty node.
        let pack = (Separation::Pack, Reserves::Nothing);
        place(scene, ("pack", "nothing"), pack).await?;
        let [(_, first), (_, second)] = one_each(scenes, "packed").await?;
        assert_eq!(node(&first), node(&second));

        let none = (Separation::None, Reserves::Nothing);
        place(scene, ("none", "nothing"), none).await?;
        for (set, _) in one_each(scenes, "free").await? {
            let affinity = set.spec.unwrap().template.spec.unwrap().affinity;
            assert_eq!(affinity.unwrap_or_default(), Affinity::default());
        }

        // Without the anti-affinity, the second placeholder would take the node with more room.
        let load: Pod = serde_json::from_value(json!({
            "metadata": {"name": "load"},
            "spec": {"nodeName": "node-2", "containers": [{"name": "c", "image": "i/i", "resources": {
                "requests": {"cpu": "4", "memory": "8Gi"}}}]},
        }))?;
        scene.api().create(&PostParams::default(), &load).await?;
        let spread = (Separation::Spread, Reserves::Nothing);
        place(scene, ("spread", "nothing"), spread).await?;
        let [(_, first), (_, second)] = one_each(scenes, "spread").await?;
        let nodes = (node(&first), node(&second));
        assert_eq!(nodes, (Some("node-1"), Some("node-2")));

        // Karpenter would add a node for each placeholder that reserves room and spreads. So a placeholder that reserves room
        // does not spread.
        let reserving = (Separation::None, Reserves::Placement);
        place(scene, ("spread", "placement"), reserving).await?;
        let reserving = (Separation::Pack, Reserves::Placement);
        place(scene, ("pack", "placement"), reserving).await
    })
}

#[test]
fn p5_p3_a_run_that_asks_for_too_much_has_a_placeholder_under_restricted_all_the_same() -> Outcome {
    everything(async |scene| {
        let namespace = format!("{}-restricted", scene.namespace);
        let labels = [("pod-security.kubernetes.io/enforce", "restricted")];
        scene
            .stack
            .bed
            .create_namespace(&namespace, &labels)
            .await?;
        let scene = Scene { namespace, ..scene };
        for mode in MODES {
            // The namespace refuses Tekton's own pods. A custom task keeps the run active without a pod.
            let run = run(mode)
                .template("source")
                .task("wait", &[], &[])
                .with(
                    "taskSpec",
                    json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": {}}),
                )
                .spec(
                    "taskRunTemplate",
                    json!({"podTemplate": {"securityContext": {
                        "runAsUser": 0,
                        "runAsNonRoot": false,
                        "seccompProfile": {"type": "Unconfined"},
                        "sysctls": [{"name": "kernel.msgmax", "value": "1"}],
                        "supplementalGroups": [4444],
                    }}}),
                );
            scene.submit(in_mode(mode, run)).await?;
            let spec = placeholder_of(&scene, mode).await?;
            let context = &spec["securityContext"];
            assert_eq!(context["runAsNonRoot"], true, "{mode}");
            assert_ne!(context["runAsUser"], 0, "{mode}");
            assert_eq!(
                context["seccompProfile"],
                json!({"type": "RuntimeDefault"}),
                "{mode}"
            );
            assert_eq!(context.get("sysctls"), None, "{mode}");
            assert_eq!(context["supplementalGroups"], json!([4444]), "{mode}");
            assert_eq!(spec["automountServiceAccountToken"], false, "{mode}");
            assert_eq!(spec["terminationGracePeriodSeconds"], 1, "{mode}");
            let resources = json!({"cpu": "50m", "memory": "100Mi"});
            assert_eq!(
                spec["containers"][0]["resources"],
                json!({"limits": resources, "requests": resources}),
                "{mode}"
            );
            cancel(&scene, mode).await?;
        }
        nothing_of_ours_left(&scene).await
    })
}

/// Tests every way in which a run ends, in one mode.
fn endings(mode: &str) -> Outcome {
    everything(async |scene| {
        let runs = scene.api::<PipelineRun>();
        let submit = async |run: Run| scene.submit(in_mode(mode, run)).await;
        submit(two("completed")).await?;
        submit(two("failed").failing("one")).await?;
        submit(
            two("timed-out")
                .lasting("one", 600)
                .spec("timeouts", json!({"pipeline": "8s"})),
        )
        .await?;
        submit(
            run("invalid")
                .template("source")
                .task("one", &["missing"], &[]),
        )
        .await?;
        let unknown = run("unknown")
            .template("source")
            .spec("pipelineSpec", Value::Null);
        submit(unknown.spec("pipelineRef", json!({"name": "missing"}))).await?;
        let nowhere =
            json!({"podTemplate": {"nodeSelector": {"kubernetes.io/hostname": "missing"}}});
        submit(two("unschedulable").spec("taskRunTemplate", nowhere)).await?;
        for name in [
            "cancelled",
            "cancelled-finally",
            "deleted",
            "deleted-foreground",
        ] {
            submit(two(name).lasting("one", 600).finally("last", &["source"])).await?;
        }
        submit(two("stopped").held("one").finally("last", &["source"])).await?;
        submit(two("deleted-at-once")).await?;
        runs.delete("deleted-at-once", &DeleteParams::default())
            .await?;

        // Each of these runs is ended while its first task runs. The tasks of the orphan end by themselves.
        let orphan = two("deleted-orphan").lasting("one", 6);
        submit(orphan.finally("last", &["source"])).await?;
        under_way(&scene, "deleted-orphan").await?;
        let orphan = DeleteParams::orphan();
        runs.delete("deleted-orphan", &orphan).await?;
        for (name, status) in [
            ("cancelled", "Cancelled"),
            ("cancelled-finally", "CancelledRunFinally"),
            ("stopped", "StoppedRunFinally"),
        ] {
            under_way(&scene, name).await?;
            patch(&scene, name, json!({"spec": {"status": status}})).await?;
        }
        scene.end("stopped", "one").await?;
        for (name, how) in [
            ("deleted", DeleteParams::background()),
            ("deleted-foreground", DeleteParams::foreground()),
        ] {
            under_way(&scene, name).await?;
            runs.delete(name, &how).await?;
        }
        sets_of(&scene, "unschedulable", 1).await?;
        cancel(&scene, "unschedulable").await?;

        for (name, status) in [
            ("completed", "True"),
            ("failed", "False"),
            ("timed-out", "False"),
            ("invalid", "False"),
            ("unknown", "False"),
            ("unschedulable", "False"),
            ("cancelled", "False"),
            ("cancelled-finally", "False"),
            ("stopped", "False"),
        ] {
            assert_eq!(succeeded(&scene.done(name).await?), Some(status), "{name}");
        }
        scene
            .until_all::<PipelineRun>("that were deleted are gone", |runs| {
                !runs.iter().any(|run| run.name_any().starts_with("deleted"))
            })
            .await?;
        nothing_of_ours_left(&scene).await?;
        // In mode `workspaces`, Tekton's claims are deleted with their runs, except the claim of the run that was deleted with
        // policy `Orphan`.
        for run in runs.list(&ListParams::default()).await? {
            runs.delete(&run.name_any(), &DeleteParams::default())
                .await?;
        }
        let orphans = usize::from(mode == "workspaces");
        scene
            .until_all::<PersistentVolumeClaim>("are gone with their runs", |claims| {
                claims.len() == orphans
            })
            .await?;
        Ok(())
    })
}

#[test]
fn p6_nothing_is_left_in_workspaces_however_a_run_ends() -> Outcome {
    endings("workspaces")
}

#[test]
fn p6_nothing_is_left_in_pipelineruns_however_a_run_ends() -> Outcome {
    endings("pipelineruns")
}

#[test]
fn p6_nothing_is_left_in_isolation_however_a_run_ends() -> Outcome {
    endings("isolate-pipelinerun")
}

#[test]
fn p7_workspace_src_of_pr_a_and_workspace_s_of_rcpr_a_do_not_share_a_placeholder() -> Outcome {
    everything(async |scene| {
        for mode in MODES {
            let pair = [("pr-a", "src"), ("rcpr-a", "s")];
            for (name, workspace) in pair {
                let one = run(name)
                    .template(workspace)
                    .task("one", &[workspace], &[])
                    .task("two", &[workspace], &["one"])
                    .held("one");
                scene.submit(in_mode(mode, one)).await?;
            }
            let mut names = BTreeSet::new();
            for (name, _) in pair {
                names.extend(
                    sets_of(&scene, name, 1)
                        .await?
                        .iter()
                        .map(|set| set.name_any()),
                );
            }
            assert_eq!(names.len(), 2, "{mode}");
            for (name, _) in pair {
                scene.end(name, "one").await?;
                scene.succeeds(name).await?;
            }
            for pod in scene.objects().await?.task_pods {
                // Each pod requires the placeholder of its own run, and not that of the other run.
                let affinity = serde_json::to_string(&pod.spec.as_ref().unwrap().affinity)?;
                let required: Vec<_> = names
                    .iter()
                    .filter(|name| affinity.contains(*name))
                    .collect();
                assert_eq!(required.len(), 1, "{mode} {affinity}");
            }
            nothing_of_ours_left(&scene).await?;
            for (name, _) in pair {
                let runs = scene.api::<PipelineRun>();
                runs.delete(name, &DeleteParams::default()).await?;
                scene
                    .until(name, "is gone", |run: Option<&PipelineRun>| run.is_none())
                    .await?;
            }
            scene
                .until_all::<Pod>("are gone", |pods| pods.is_empty())
                .await?;
        }
        Ok(())
    })
}

#[test]
fn p7_a_run_created_under_an_old_name_has_nothing_of_the_old_one() -> Outcome {
    everything(async |scene| {
        for mode in ["workspaces", "pipelineruns"] {
            let name = format!("again-{mode}");
            let objects = scene.placeholder_objects();
            scene
                .submit(in_mode(mode, two(&name).lasting("one", 600)))
                .await?;
            let old = sets_of(&scene, &name, 1).await?[0].name_any();
            under_way(&scene, &name).await?;
            let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
            let held = Patch::Merge(held);
            objects
                .patch(&object_name(&old), &PatchParams::default(), &held)
                .await?;
            let runs = scene.api::<PipelineRun>();
            runs.delete(&name, &DeleteParams::default()).await?;
            scene
                .until(&name, "is gone", |run: Option<&PipelineRun>| run.is_none())
                .await?;
            // Otherwise, Tekton would use TaskRuns with the same names for the new run.
            scene
                .until_all::<Pod>("are no task's", |pods| {
                    pods.iter()
                        .all(|pod| is_placeholder(pod) || name_of(pod) != name)
                })
                .await?;

            scene.submit(in_mode(mode, two(&name).held("one"))).await?;
            let both = sets_of(&scene, &name, 2).await?;
            let new = both.iter().find(|set| set.name_any() != old).unwrap();
            let created = runs.get(&name).await?;
            assert_eq!(
                new.owner_references()[0].uid,
                created.uid().unwrap(),
                "{mode}"
            );
            scene.end(&name, "one").await?;
            scene.succeeds(&name).await?;
            // The new placeholder is deleted as always. The old one is deleted when its finalizer is removed.
            let left = sets_of(&scene, &name, 1).await?;
            assert_eq!(left[0].name_any(), old, "{mode}");
            assert!(left[0].metadata.deletion_timestamp.is_some(), "{mode}");
            let free = json!({"metadata": {"finalizers": null}});
            let free = Patch::Merge(free);
            objects
                .patch(&object_name(&old), &PatchParams::default(), &free)
                .await?;
            nothing_of_ours_left(&scene).await?;
        }
        Ok(())
    })
}

#[test]
fn p7_somebody_elses_object_of_the_right_name_is_left_alone_and_reported() -> Outcome {
    everything(async |scene| {
        let pending = two("clash").spec("status", json!("PipelineRunPending"));
        let created = scene.submit(pending).await?;
        let name = created.annotations()["pipeline.tekton.dev/affinity-assistant"].clone();
        let theirs = scene.take_name(&name).await?;

        patch(&scene, "clash", json!({"spec": {"status": null}})).await?;
        scene
            .until_all::<Pod>("have the first task's", |pods| {
                let mut pods = pods.iter();
                pods.any(|pod| pod.labels().contains_key("tekton.dev/pipelineRun"))
            })
            .await?;
        // Tekton may change the run between the two requests.
        let refused = loop {
            let now = scene.api::<PipelineRun>().get("clash").await?;
            match scene.report(&now).await {
                Ok(answer) => assert!(format!("{answer:?}").contains("Superseded"), "{answer:?}"),
                Err(refused) => break refused,
            }
        };
        let refused = refused.downcast_ref::<Status>().unwrap();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!(reason(refused).as_deref(), Some("PLACEHOLDER_NAME_TAKEN"));
        assert!(
            refused.message().contains(&name) && refused.message().contains("nobody"),
            "{refused:?}"
        );

        let (objects, theirs_name) = (scene.placeholder_objects(), theirs.name_any());
        let still = objects.get(&theirs_name).await?;
        assert_eq!(still.metadata.uid, theirs.metadata.uid);
        assert_eq!(
            (still.labels(), still.owner_references()),
            (theirs.labels(), &[][..])
        );
        // The scheduler and the kubelet change a pod.
        if !only_pods() {
            assert_eq!(still.data["spec"], theirs.data["spec"]);
        }
        // The run continues by itself when the name is free.
        objects
            .delete(&theirs_name, &DeleteParams::default())
            .await?;
        scene.succeeds("clash").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p8_the_longest_names_work_in_every_mode() -> Outcome {
    everything(async |scene| {
        for mode in MODES {
            let name = format!("{mode}-{}", "n".repeat(62 - mode.len()));
            assert_eq!(name.len(), 63);
            let long = "w".repeat(200);
            let template = |name: String| {
                json!({"volumeClaimTemplate": {
                    "metadata": {"name": name},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }})
            };
            let run = run(&name)
                .workspace(&long, template("t".repeat(57)))
                .task("one", &[&long], &[])
                .task("two", &[&long], &["one"]);
            scene.submit(in_mode(mode, run)).await?;
            scene.succeeds(&name).await?;
            let pods = scene.objects().await?.task_pods;
            let of_mode = pods.iter().filter(|pod| pod.name_any().starts_with(mode));
            let nodes: Vec<_> = of_mode.filter_map(node).collect();
            assert_eq!((nodes.len(), nodes[0]), (2, nodes[1]), "{mode}");
            nothing_of_ours_left(&scene).await?;
        }
        Ok(())
    })
}

#[test]
fn p9_a_pending_run_gets_nothing_until_it_starts() -> Outcome {
    everything(async |scene| {
        for mode in MODES {
            let pending = |name: &str| {
                let run = two(&format!("{name}-{mode}")).held("one");
                in_mode(mode, run.spec("status", json!("PipelineRunPending")))
            };
            let [started, cancelled, deleted] =
                ["started", "cancelled", "deleted"].map(|name| format!("{name}-{mode}"));
            for name in ["started", "cancelled", "deleted"] {
                let created = scene.submit(pending(name)).await?;
                // The planner does not call the manager about a pending run.
                let answer = scene.report(&created).await?;
                assert_eq!(answer.outcome, NOTHING, "{mode}");
            }
            let runs = scene.api::<PipelineRun>();
            // Wait until Tekton has seen the pending run.
            scene
                .until(
                    &started,
                    "is known to be pending",
                    |run: Option<&PipelineRun>| {
                        let condition = run.and_then(integration_tests::look::condition);
                        condition
                            .is_some_and(|condition| condition["reason"] == "PipelineRunPending")
                    },
                )
                .await?;
            let objects = scene.objects().await?;
            assert!(
                objects.stateful_sets.is_empty() && objects.placeholders.is_empty(),
                "{mode}"
            );
            assert!(
                !objects
                    .claims
                    .iter()
                    .any(|claim| claim.name_any().ends_with("-0")),
                "{mode}"
            );
            cancel(&scene, &cancelled).await?;
            runs.delete(&deleted, &DeleteParams::default()).await?;
            patch(&scene, &started, json!({"spec": {"status": null}})).await?;
            sets_of(&scene, &started, 1).await?;
            scene.end(&started, "one").await?;
            scene.succeeds(&started).await?;
            scene.done(&cancelled).await?;
            nothing_of_ours_left(&scene).await?;
        }
        Ok(())
    })
}

#[test]
fn m5_what_is_disabled_or_managed_by_somebody_else_is_left_as_it_was() -> Outcome {
    everything(async |scene| {
        let runs = [
            in_mode("disabled", two("disabled")),
            in_mode("pipelineruns", two("managed")).spec("managedBy", json!("example.com/other")),
        ];
        for run in runs {
            let name = run.name().to_owned();
            let created = scene.submit(run).await?;
            let annotations: Vec<_> = created.annotations().keys().collect();
            assert_eq!(annotations, ["coscheduler.dev/coschedule"], "{name}");
            assert!(
                created.spec["workspaces"][0]["volumeClaimTemplate"].is_object(),
                "{name}"
            );
            let answer = scene.report(&created).await?;
            assert_eq!(answer.outcome, NOTHING, "{name}");
        }
        scene.succeeds("disabled").await?;
        for pod in scene.objects().await?.task_pods {
            assert_eq!(pod.spec.as_ref().unwrap().affinity, None);
        }
        let objects = scene.objects().await?;
        assert!(objects.stateful_sets.is_empty() && objects.placeholders.is_empty());
        Ok(())
    })
}
