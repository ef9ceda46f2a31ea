//! How a run's mode, placement and reservation are chosen: by annotations of the PipelineRun, the Pipeline and the Namespace,
//! within the values that the operator and the Namespace allow. Nothing else in a Pipeline or a Task chooses them. Also tests
//! TaskRuns that are refused because of their run's mode.
//!
//! All tests share one stack in mode `pipelineruns`. Its operator allows `disabled`, `workspaces`, `placement=pack` and
//! `placeholder-reserves=peak`, and lets a Namespace allow `placement=none` too.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_core::annotations::{
    ALLOWED_OVERRIDES, AWAITS_PIPELINE, CHOSEN_PLACEMENT, CHOSEN_RESERVES, CLAIMS, GROUP, MODE,
    MODE_SOURCE, OVERRIDE, PART_OF, PINNED, PLACEHOLDER, REFUSED, TEKTON_AFFINITY_ASSISTANT,
};
use coscheduler_core::event_texts::ReasonCode;
use coscheduler_core::reconcile::tell::blocked_reason;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, to_json};
use coscheduler_proto::config::Reserves;
use coscheduler_proto::json::object_to_struct;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::{PlanRequest, PlanResponse, Separation};
use integration_tests::installation::kubectl;
use integration_tests::look::{self, condition, node};
use integration_tests::runs::run;
use integration_tests::send::Answer;
use integration_tests::sets::only_pods;
use integration_tests::{Scene, grpc, shared};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::{CONFIG_MAP, NAMESPACE, OPERATOR, Service};
use tokio::sync::OnceCell;
use tonic::Status;

type Outcome = anyhow::Result<()>;

const PIPELINE_RUNS: &str = "tekton.dev/v1/pipelineruns";
const PIPELINES: &str = "tekton.dev/v1/pipelines";

/// Runs a test on the shared stack, after the planner has seen the values that the operator allows.
fn overridable(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    static ALLOWED: OnceCell<()> = OnceCell::const_new();
    shared(async |scene| {
        let allow = async || {
            let config: Api<ConfigMap> = Api::namespaced(scene.client.clone(), NAMESPACE);
            let patch = Patch::Merge(json!({"data": {
                "allowed-overrides": "disabled, workspaces, placement=pack, placeholder-reserves=peak",
                "namespace-may-allow": "placement=none",
            }}));
            config
                .patch(CONFIG_MAP, &PatchParams::default(), &patch)
                .await?;
            let overriding = run("dry")
                .task("one", &[], &[])
                .metadata("annotations", json!({OVERRIDE: "disabled"}))
                .into_json();
            let allowed = async {
                while plan(&scene, &overriding).await?.is_err() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                anyhow::Ok(())
            };
            tokio::time::timeout(Duration::from_secs(60), allowed).await?
        };
        ALLOWED.get_or_try_init(allow).await?;
        test(scene).await
    })
}

/// The planner's answer about a run: a response or a status.
async fn plan(scene: &Scene<'_>, object: &Value) -> anyhow::Result<Result<PlanResponse, Status>> {
    let request = PlanRequest {
        pipeline_run: Some(object_to_struct(object)),
        ..PlanRequest::default()
    };
    let services = &scene.stack.services;
    let planner = grpc::connect(services, Service::AffinityPlanner, OPERATOR).await?;
    let answer = PlannerServiceClient::new(planner).plan(request).await;
    Ok(answer.map(tonic::Response::into_inner))
}

/// Writes annotations on the scene's namespace.
async fn annotate_namespace(scene: &Scene<'_>, annotations: &Value) -> Outcome {
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    Api::<Namespace>::all(scene.client.clone())
        .patch(&scene.namespace, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// A Pipeline with one task.
fn pipeline(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "tekton.dev/v1",
        "kind": "Pipeline",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"tasks": [{"name": "one", "taskSpec": {"steps": steps()}}]},
    })
}

fn steps() -> Value {
    json!([{"name": "step", "image": "example/image", "command": ["true"]}])
}

/// A pending run of the Pipeline that `reference` names. It does not start by itself.
fn pending(name: &str, reference: &Value, annotations: &Value) -> Value {
    json!({
        "apiVersion": "tekton.dev/v1",
        "kind": "PipelineRun",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"pipelineRef": reference, "status": "PipelineRunPending"},
    })
}

/// A run of a Pipeline, which starts at once.
fn started(name: &str, pipeline: &str, annotations: &Value) -> Value {
    let mut object = pending(name, &json!({"name": pipeline}), annotations);
    object["spec"].as_object_mut().unwrap().remove("status");
    object
}

/// The annotations with which an object chooses this mode; none if `mode` is `None`.
fn choice(mode: Option<&str>) -> Value {
    mode.map_or_else(|| json!({}), |mode| json!({OVERRIDE: mode}))
}

fn message(answer: &Answer) -> String {
    answer.object["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The source of a mode that no annotation chooses.
async fn version_of_map(scene: &Scene<'_>) -> anyhow::Result<String> {
    let maps = Api::<ConfigMap>::namespaced(scene.client.clone(), NAMESPACE);
    let map = maps.get(CONFIG_MAP).await?;
    let version = map.resource_version().unwrap_or_default();
    Ok(format!(
        "key coschedule of ConfigMap {CONFIG_MAP}, resourceVersion {version}"
    ))
}

/// Checks that admission warns that the annotation has an effect on new runs only.
#[track_caller]
fn assert_too_late(edited: &Answer) {
    let mut warnings = edited.warnings.iter();
    assert!(
        warnings.any(|told| told.contains("create a new run")),
        "{:?}",
        edited.warnings
    );
}

#[test]
fn b1_the_run_chooses_before_the_pipeline_before_the_namespace_before_the_cluster() -> Outcome {
    overridable(async |plain| {
        let annotated = plain.stack.scene().await?;
        annotate_namespace(&annotated, &choice(Some("workspaces"))).await?;
        // Wait until the webhook's watch of Namespaces has seen the annotation.
        let probe = pending("probe", &json!({"resolver": "none"}), &json!({}));
        let sees = |answer: &Answer| answer.annotation(MODE) == Some("workspaces");
        once(&annotated, &probe, sees).await?;

        let (scenes, mut count) = ([("", &plain), ("workspaces", &annotated)], 0);
        for (of_namespace, scene) in scenes {
            for of_pipeline in [
                None,
                Some("pipelineruns"),
                Some("workspaces"),
                Some("disabled"),
            ] {
                for of_run in [
                    None,
                    Some("pipelineruns"),
                    Some("workspaces"),
                    Some("disabled"),
                ] {
                    count += 1;
                    let name = format!("case-{count}");
                    // The run is created directly after its Pipeline, as with `kubectl apply -f both.yaml`.
                    let object = pipeline(&name, &choice(of_pipeline));
                    scene.send("POST", PIPELINES, &object).await?.accepted()?;
                    let object = pending(&name, &json!({"name": name}), &choice(of_run));
                    let created = scene
                        .send("POST", PIPELINE_RUNS, &object)
                        .await?
                        .accepted()?;
                    let of_namespace = (!of_namespace.is_empty()).then_some(of_namespace);
                    let expect = of_run
                        .or(of_pipeline)
                        .or(of_namespace)
                        .unwrap_or("pipelineruns");
                    let expect = (expect != "disabled").then_some(expect);
                    assert_eq!(
                        created.annotation(MODE),
                        expect,
                        "run {of_run:?}, Pipeline {of_pipeline:?}, Namespace {of_namespace:?}"
                    );
                    assert_eq!(created.warnings, Vec::<String>::new());
                    let source = match (of_run, of_pipeline, of_namespace) {
                        (Some(_), _, _) => format!("annotation {OVERRIDE} of the PipelineRun"),
                        (_, Some(_), _) => format!("annotation {OVERRIDE} of the Pipeline"),
                        (_, _, Some(_)) => format!("annotation {OVERRIDE} of the Namespace"),
                        (None, None, None) => version_of_map(scene).await?,
                    };
                    let source = expect.map(|_| source);
                    assert_eq!(created.annotation(MODE_SOURCE), source.as_deref());
                }
            }
        }
        Ok(())
    })
}

#[test]
fn b1_what_is_not_allowed_is_refused_with_who_allows_what() -> Outcome {
    overridable(async |scene| {
        let refused = async |name: &str, of_pipeline: Option<&str>, of_run: Option<&str>| {
            let object = pipeline(name, &choice(of_pipeline));
            scene.send("POST", PIPELINES, &object).await?.accepted()?;
            let object = pending(name, &json!({"name": name}), &choice(of_run));
            let answer = scene.send("POST", PIPELINE_RUNS, &object).await?;
            ensure!(answer.code == 422, "{answer:?}");
            let message = message(&answer);
            ensure!(
                answer.blamed().len() == 1 && message.contains(answer.blamed()[0]),
                "{answer:?}"
            );
            Ok(message)
        };
        let allowed = "\"isolate-pipelinerun\" is not allowed; allowed: workspaces, pipelineruns, disabled. Your operator can \
             allow more values with key allowed-overrides of ConfigMap coscheduler-config.";
        let told = refused("own", None, Some("isolate-pipelinerun")).await?;
        assert!(
            told.contains("metadata.annotations[coscheduler.dev/coschedule]")
                && told.contains(allowed),
            "{told}"
        );
        let told = refused("of-pipeline", Some("isolate-pipelinerun"), None).await?;
        assert!(
            told.contains("spec.pipelineRef.name")
                && told.contains("of Pipeline \"of-pipeline\"")
                && told.contains(allowed),
            "{told}"
        );
        let told = refused("no-mode", Some("sideways"), None).await?;
        assert!(
            told.contains("\"sideways\" is not a coschedule mode; allowed: workspaces"),
            "{told}"
        );

        annotate_namespace(&scene, &choice(Some("isolate-pipelinerun"))).await?;
        let object = run("of-namespace").task("one", &[], &[]).into_json();
        let told = message(&once(&scene, &object, |answer| answer.code == 422).await?);
        assert!(
            told.contains(&format!("of Namespace {:?}", scene.namespace)) && told.contains(allowed),
            "{told}"
        );
        // The run's own choice has priority, so the run is not refused because of the Namespace's choice. A misspelt annotation
        // chooses nothing.
        let object = pending(
            "own-choice",
            &json!({"name": "own"}),
            &json!({"coscheduler.dev/coschedule": "disabled", "coscheduler.dev/coshedule": "workspaces"}),
        );
        let created = scene
            .send("POST", PIPELINE_RUNS, &object)
            .await?
            .accepted()?;
        assert_eq!(created.warnings.len(), 1, "{:?}", created.warnings);
        assert!(created.warnings[0].contains("coscheduler.dev/coshedule has no effect"));
        Ok(())
    })
}

/// Creates a run as a dry run, again and again, until the answer is `wanted`: then the webhook's watch of Namespaces has seen the
/// change. Returns this answer.
async fn once(
    scene: &Scene<'_>,
    object: &Value,
    wanted: impl Fn(&Answer) -> bool,
) -> anyhow::Result<Answer> {
    let path = format!("{PIPELINE_RUNS}?dryRun=All");
    let answered = async {
        loop {
            let answer = scene.send("POST", &path, object).await?;
            if wanted(&answer) {
                return anyhow::Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), answered).await?
}

#[test]
fn b1_b3_p4_placement_and_reservation_are_chosen_and_a_namespace_limits_the_choice() -> Outcome {
    overridable(async |scene| {
        // The Pipeline chooses the placement, and the Namespace the reservation. The Namespace's placement has no effect.
        let reserve = json!({CHOSEN_RESERVES: "peak", CHOSEN_PLACEMENT: "none"});
        annotate_namespace(&scene, &reserve).await?;
        let packed = pipeline("packed", &json!({CHOSEN_PLACEMENT: "pack"}));
        scene.send("POST", PIPELINES, &packed).await?.accepted()?;
        let chosen = |answer: &Answer| -> Option<(Value, Value)> {
            let pinned: Value = serde_json::from_str(answer.annotation(PLACEHOLDER)?).ok()?;
            Some((pinned["placement"].clone(), pinned["reserves"].clone()))
        };
        let packs = (json!("pack"), json!("peak"));
        let mut object = started("run", "packed", &json!({}));
        object["spec"]["taskRunSpecs"] = json!([{
            "pipelineTaskName": "one",
            "metadata": {"annotations": {testbed::DURATION_ANNOTATION: "3600s"}},
            // Without a request, there is nothing to reserve.
            "computeResources": {"requests": {"cpu": "10m"}},
        }]);
        once(&scene, &object, |answer| {
            chosen(answer).as_ref() == Some(&packs)
        })
        .await?;
        let created = scene
            .send("POST", PIPELINE_RUNS, &object)
            .await?
            .accepted()?;
        assert_eq!(created.warnings, Vec::<String>::new());
        let response = plan(&scene, &created.object).await??;
        let planned = response.plan.context("no plan")?.placeholders;
        assert_eq!(planned.len(), 1);
        assert_eq!(
            (planned[0].separation(), planned[0].reserves()),
            (Separation::Pack, Reserves::Peak)
        );
        let (set, _) = scene.placeholder().await?;
        let template = set
            .spec
            .context("no spec")?
            .template
            .spec
            .context("no pod")?;
        // The manager has removed the gate of the placeholder's pod.
        let gates = template.scheduling_gates.unwrap_or_default().len();
        assert_eq!(gates, usize::from(!only_pods()));
        let affinity = template.affinity.context("no affinity")?;
        assert!(affinity.pod_affinity.is_some() && affinity.pod_anti_affinity.is_none());

        // A later change of the Namespace does not change the run.
        let limit = json!({CHOSEN_PLACEMENT: null, ALLOWED_OVERRIDES: "placement=none, isolate-pipelinerun"});
        annotate_namespace(&scene, &limit).await?;
        let asking = |placement: &str| {
            run("dry")
                .task("one", &[], &[])
                .metadata("annotations", json!({CHOSEN_PLACEMENT: placement}))
                .into_json()
        };
        let widened = once(&scene, &asking("none"), |answer| {
            !answer.warnings.is_empty()
        })
        .await?;
        assert_eq!(chosen(&widened), Some((json!("none"), json!("peak"))));
        assert_eq!(widened.warnings.len(), 1, "{:?}", widened.warnings);
        for part in [
            "coscheduler.dev/allowed-overrides",
            "\"isolate-pipelinerun\"",
            "namespace-may-allow",
        ] {
            assert!(widened.warnings[0].contains(part), "{:?}", widened.warnings);
        }
        let narrowed = scene.send("POST", PIPELINE_RUNS, &asking("pack")).await?;
        assert_eq!(narrowed.code, 422, "{narrowed:?}");
        assert_eq!(
            narrowed.blamed(),
            ["metadata.annotations[coscheduler.dev/placement]"]
        );
        let told = message(&narrowed);
        let denial = format!(
            "\"pack\" is not allowed; allowed: spread, none. Annotation coscheduler.dev/allowed-overrides of Namespace {:?} can \
             allow it.",
            scene.namespace
        );
        assert!(told.contains(&denial), "{told}");
        let late = json!({"metadata": {"annotations": {CHOSEN_PLACEMENT: "none"}}});
        let path = format!("{PIPELINE_RUNS}/run");
        let edited = scene.send("PATCH", &path, &late).await?.accepted()?;
        assert_eq!(chosen(&edited), Some(packs));
        assert_too_late(&edited);
        let told = scene.told("run", "OverrideIgnored").await?;
        assert!(
            told.iter()
                .any(|(_, told)| told.contains("with placement: pack")),
            "{told:?}"
        );
        scene.end("run", "one").await?;
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn b1_a_pipeline_that_chooses_disabled_leaves_its_runs_to_tekton() -> Outcome {
    overridable(async |scene| {
        let object = pipeline("left-alone", &choice(Some("disabled")));
        scene.send("POST", PIPELINES, &object).await?.accepted()?;
        let object = started("left-alone", "left-alone", &json!({}));
        scene
            .send("POST", PIPELINE_RUNS, &object)
            .await?
            .accepted()?;
        let done = scene.succeeds("left-alone").await?;
        let pinned: Vec<_> = PINNED
            .into_iter()
            .filter(|key| done.annotations().contains_key(*key))
            .collect();
        assert_eq!(pinned, Vec::<&str>::new());
        let objects = scene.objects().await?;
        assert_eq!(objects.task_pods.len(), 1);
        assert!(
            objects.task_pods[0]
                .spec
                .as_ref()
                .unwrap()
                .affinity
                .is_none()
        );
        assert!(objects.stateful_sets.is_empty());

        // A later change of the Pipeline has an effect on later runs only: this run keeps its mode (M8).
        let object = pipeline("changes", &choice(Some("workspaces")));
        scene.send("POST", PIPELINES, &object).await?.accepted()?;
        let object = pending("before", &json!({"name": "changes"}), &json!({}));
        scene
            .send("POST", PIPELINE_RUNS, &object)
            .await?
            .accepted()?;
        let change = json!({"metadata": {"annotations": choice(Some("disabled"))}});
        scene
            .send("PATCH", &format!("{PIPELINES}/changes"), &change)
            .await?
            .accepted()?;
        let edited = scene
            .send("PATCH", &format!("{PIPELINE_RUNS}/before"), &change)
            .await?
            .accepted()?;
        assert_eq!(edited.annotation(MODE), Some("workspaces"));
        assert_too_late(&edited);
        Ok(())
    })
}

#[test]
fn b1_the_multi_arch_example_runs_on_nodes_of_both_architectures() -> Outcome {
    overridable(async |scene| {
        // From now on, half of the nodes are arm64.
        let nodes: Api<Node> = Api::all(scene.client.clone());
        let arm64 = Patch::Merge(json!({"metadata": {"labels": {"kubernetes.io/arch": "arm64"}}}));
        for name in ["node-2", "node-4"] {
            nodes.patch(name, &PatchParams::default(), &arm64).await?;
        }
        let arguments = |more| {
            let file = ["create", "-f", "examples/multi-arch.yaml", "-o", "json"];
            [&file[..], &["--namespace", &scene.namespace], more].concat()
        };
        let created = kubectl(&scene.stack.bed, &arguments(&[])).await?;
        let created: PipelineRun = serde_json::from_str(&created)?;
        let done = scene.succeeds(&created.name_any()).await?;
        assert_eq!(done.annotations()[MODE], "pipelineruns");
        let pods = scene.objects().await?.task_pods;
        assert_eq!(pods.len(), 5);
        let arch = |name: &str| {
            if ["node-2", "node-4"].contains(&name) {
                "arm64"
            } else {
                "amd64"
            }
        };
        for pod in &pods {
            let task = &pod.labels()["tekton.dev/pipelineTask"];
            if let Some((_, wanted)) = task.split_once('-') {
                assert_eq!(arch(node(pod).unwrap()), wanted, "{task}");
            }
        }

        Ok(())
    })
}

/// The webhook may see a Pipeline only after the API server has asked about a run of it, so it waits up to two seconds for the
/// Pipeline. In this test, three runs must wait. An attempt does not count if a slow machine created the Pipeline too late.
#[test]
fn b1_a_run_waits_a_moment_for_its_pipeline() -> Outcome {
    /// Later than the answer to a review that does not wait, and well within the two seconds.
    const LATER: Duration = Duration::from_millis(500);
    const IN_TIME: Duration = Duration::from_millis(1200);
    overridable(async |scene| {
        let (mut counted, mut number) = (0, 0);
        while counted < 3 {
            ensure!(
                number < 30,
                "the machine stands still: {counted} tries of {number}"
            );
            let name = format!("attempt-{number}");
            number += 1;
            let object = pending(&name, &json!({"name": name}), &json!({}));
            let begin = Instant::now();
            let late = async {
                tokio::time::sleep(LATER).await;
                let object = pipeline(&name, &choice(Some("workspaces")));
                let created = scene.send("POST", PIPELINES, &object).await?.accepted();
                created.map(|_| begin.elapsed())
            };
            let run = async {
                let created = scene.send("POST", PIPELINE_RUNS, &object).await?.accepted();
                created.map(|created| (created, begin.elapsed()))
            };
            let (run, late) = tokio::join!(run, late);
            let ((run, answered), late) = (run?, late?);
            if late > IN_TIME {
                continue;
            }
            counted += 1;
            assert_eq!(
                run.annotation(MODE),
                Some("workspaces"),
                "{answered:?}, {late:?}"
            );
            assert!(
                answered > LATER,
                "it was answered before there was a Pipeline"
            );
        }
        Ok(())
    })
}

#[test]
fn b1_a_pipeline_that_is_not_there_is_said_to_be_missing() -> Outcome {
    overridable(async |scene| {
        let object = pending("early", &json!({"name": "late"}), &json!({}));
        let created = scene
            .send("POST", PIPELINE_RUNS, &object)
            .await?
            .accepted()?;
        assert_eq!(created.annotation(MODE), Some("pipelineruns"));
        let told = created.warnings.join("\n");
        assert!(
            told.contains("there is no Pipeline \"late\"") && told.contains(OVERRIDE),
            "{told}"
        );

        // When the Pipeline exists, Tekton copies its annotations to the run, and the plan says that they came too late.
        let mut late = pipeline("late", &choice(Some("disabled")));
        late["spec"]["tasks"][0]["taskSpec"]["metadata"] =
            json!({"annotations": {testbed::DURATION_ANNOTATION: "600s"}});
        scene.send("POST", PIPELINES, &late).await?.accepted()?;
        let start = json!({"spec": {"status": null}});
        scene
            .send("PATCH", &format!("{PIPELINE_RUNS}/early"), &start)
            .await?
            .accepted()?;
        override_is_ignored(&scene, "early").await
    })
}

/// Waits until Tekton has copied the Pipeline's choice to the run, and checks that the plan says that the choice has no effect.
async fn override_is_ignored(scene: &Scene<'_>, name: &str) -> Outcome {
    let stored = scene
        .until(
            name,
            "has its Pipeline's annotations",
            |run: Option<&PipelineRun>| {
                run.is_some_and(|run| run.annotations().contains_key(OVERRIDE))
            },
        )
        .await?
        .context("the run is gone")?;
    assert_eq!(stored.annotations()[MODE], "pipelineruns");
    let response = plan(scene, &Value::Object(to_json(&stored))).await??;
    let reasons = response.plan.context("no plan")?.reasons;
    let ignored = reasons
        .iter()
        .find(|reason| reason.message.contains("has no effect"));
    let told = &ignored.with_context(|| format!("{reasons:?}"))?.message;
    ensure!(
        told.contains("\"disabled\"") && told.contains("mode pipelineruns"),
        "{told}"
    );
    Ok(())
}

/// A run with these workspaces. This test delivers the run's Pipeline, as a resolver does.
fn remote(name: &str, workspaces: Value) -> Value {
    let mut object = pending(name, &json!({"resolver": "test"}), &json!({}));
    object["spec"].as_object_mut().unwrap().remove("status");
    object["spec"]["workspaces"] = workspaces;
    object
}

/// A Pipeline that chooses this mode. With `uses_workspace`, its two tasks use workspace `source`.
fn chosen_pipeline(mode: Option<&str>, uses_workspace: bool) -> Value {
    let mut found = pipeline("found", &choice(mode));
    let mut tasks = json!([
        {"name": "one", "taskSpec": {"steps": steps()}},
        {"name": "two", "taskSpec": {"steps": steps()}, "runAfter": ["one"]},
    ]);
    if uses_workspace {
        found["spec"]["workspaces"] = json!([{"name": "source"}]);
        for task in tasks.as_array_mut().unwrap() {
            task["workspaces"] = json!([{"name": "source"}]);
            task["taskSpec"]["workspaces"] = json!([{"name": "source"}]);
        }
    }
    found["spec"]["tasks"] = tasks;
    found
}

fn source_from_template() -> Value {
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    json!([{"name": "source", "volumeClaimTemplate": {"spec": spec}}])
}

/// Creates a run, delivers its Pipeline, and waits until the run has succeeded. Returns the stored run, and the placeholders
/// that each task's pod follows.
async fn fetched(
    scene: &Scene<'_>,
    object: &Value,
    pipeline: &Value,
) -> anyhow::Result<(PipelineRun, BTreeMap<String, Vec<String>>)> {
    // The run before has ended, but perhaps its placeholder is still there.
    scene.no_placeholder_left().await?;
    let created = scene
        .send("POST", PIPELINE_RUNS, object)
        .await?
        .accepted()?;
    assert_eq!(created.warnings, Vec::<String>::new());
    let name = object["metadata"]["name"].as_str().unwrap();
    // Nothing is created for the run before its Pipeline is known.
    assert!(scene.objects().await?.stateful_sets.is_empty());
    scene.resolve(pipeline).await?;
    let done = scene.succeeds(name).await?;
    let pods = scene.objects().await?.task_pods;
    let of_run = pods
        .into_iter()
        .filter(|pod| pod.labels()["tekton.dev/pipelineRun"] == name);
    Ok((done, assistants(&of_run.collect::<Vec<_>>())))
}

#[test]
fn b1_a_remote_pipeline_chooses_the_mode_of_its_run_before_the_run_begins() -> Outcome {
    overridable(async |scene| {
        let claim = json!([{"name": "source", "persistentVolumeClaim": {"claimName": "brought"}}]);
        let existing = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "brought"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
        });
        let path = format!(
            "/api/v1/namespaces/{}/persistentvolumeclaims",
            scene.namespace
        );
        scene.send_to("POST", &path, &existing).await?.accepted()?;

        let (done, pods) = fetched(
            &scene,
            &remote("off", claim.clone()),
            &chosen_pipeline(Some("disabled"), true),
        )
        .await?;
        assert_eq!(done.annotations().get(MODE), None);
        assert_eq!(pods["one"], Vec::<String>::new());
        assert_eq!(pods["two"], Vec::<String>::new());

        let (done, pods) = fetched(
            &scene,
            &remote("each", claim),
            &chosen_pipeline(Some("workspaces"), true),
        )
        .await?;
        assert_eq!(done.annotations()[MODE], "workspaces");
        let source = "annotation coscheduler.dev/coschedule of the Pipeline";
        assert_eq!(done.annotations()[MODE_SOURCE], source);
        assert_eq!(done.annotations()[TEKTON_AFFINITY_ASSISTANT], "");
        assert_eq!(pods["one"].len(), 1);
        assert_eq!(pods["one"], pods["two"]);

        // Without a choice, the run keeps the cluster's mode.
        let (done, pods) = fetched(
            &scene,
            &remote("whole", source_from_template()),
            &chosen_pipeline(None, true),
        )
        .await?;
        assert_eq!(done.annotations()[MODE], "pipelineruns");
        let own = done.annotations()[TEKTON_AFFINITY_ASSISTANT].clone();
        let own = vec![own];
        assert_eq!([&pods["one"], &pods["two"]], [&own, &own]);
        scene.nothing_left_but(&["brought"]).await
    })
}

#[test]
fn b1_a_remote_pipeline_chooses_coscheduling_where_the_namespace_is_left_alone() -> Outcome {
    overridable(async |scene| {
        annotate_namespace(
            &scene,
            &json!({OVERRIDE: "disabled", ALLOWED_OVERRIDES: "workspaces, pipelineruns"}),
        )
        .await?;
        let probe = run("probe").task("one", &[], &[]).into_json();
        let path = format!("{PIPELINE_RUNS}?dryRun=All");
        look::until("the webhook knows the annotations", async || {
            let created = scene.send("POST", &path, &probe).await?.accepted()?;
            Ok(created.annotation(MODE).is_none())
        })
        .await?;
        for mode in ["workspaces", "pipelineruns"] {
            let object = remote(mode, source_from_template());
            let (done, pods) = fetched(&scene, &object, &chosen_pipeline(Some(mode), true)).await?;
            assert_eq!(done.annotations()[MODE], mode);
            assert_eq!(pods["one"].len(), 1, "{mode}");
            assert_eq!(pods["one"], pods["two"], "{mode}");
        }
        let (done, pods) = fetched(
            &scene,
            &remote("none", source_from_template()),
            &chosen_pipeline(None, true),
        )
        .await?;
        assert_eq!(done.annotations().get(MODE), None);
        assert_eq!(pods["one"], Vec::<String>::new());
        Ok(())
    })
}

#[test]
fn b1_a_remote_pipeline_that_chooses_too_late_is_told_so_by_an_event() -> Outcome {
    overridable(async |scene| {
        // The run's binding names a claim that only the placeholder creates, so the run needs its placeholder.
        let object = remote("run", source_from_template());
        let (done, pods) =
            fetched(&scene, &object, &chosen_pipeline(Some("disabled"), true)).await?;
        assert_eq!(done.annotations()[MODE], "pipelineruns");
        let own = done.annotations()[TEKTON_AFFINITY_ASSISTANT].clone();
        assert_eq!(pods["two"], [own]);
        let told = scene.told("run", "OverrideIgnored").await?;
        assert!(
            told.iter()
                .any(|(_, told)| told.contains("create a new run with it")),
            "{told:?}"
        );
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn b1_the_limit_of_the_namespace_holds_for_a_late_choice_too() -> Outcome {
    overridable(async |scene| {
        let limits = json!({OVERRIDE: "workspaces", ALLOWED_OVERRIDES: "placement=pack"});
        annotate_namespace(&scene, &limits).await?;
        let mut object = remote("probe", json!([]));
        object["spec"]["status"] = json!("PipelineRunPending");
        let path = format!("{PIPELINE_RUNS}?dryRun=All");
        look::until("the webhook knows the annotations", async || {
            let created = scene.send("POST", &path, &object).await?.accepted()?;
            Ok(created.annotation(MODE) == Some("workspaces"))
        })
        .await?;
        scene
            .send("POST", PIPELINE_RUNS, &object)
            .await?
            .accepted()?;
        // The author also tries to hide that the run awaits its Pipeline.
        for (key, value) in [(OVERRIDE, "disabled"), (CHOSEN_PLACEMENT, "pack")] {
            let change = json!({"metadata": {"annotations": {key: value, AWAITS_PIPELINE: null}}});
            let path = format!("{PIPELINE_RUNS}/probe");
            let edited = scene.send("PATCH", &path, &change).await?.accepted()?;
            assert_eq!(edited.annotation(MODE), Some("workspaces"), "{key}");
            assert_eq!(edited.annotation(AWAITS_PIPELINE), Some("true"), "{key}");
        }
        Ok(())
    })
}

/// Annotations that look like those of another run. Only admission may write them.
fn forged() -> Value {
    let mut annotations: serde_json::Map<_, _> = PINNED
        .into_iter()
        .map(|key| (key.to_owned(), json!("forged")))
        .collect();
    annotations.insert(MODE.to_owned(), json!("pipelineruns"));
    annotations.insert(GROUP.to_owned(), json!("ffffffffff"));
    annotations.insert(CLAIMS.to_owned(), json!("{}"));
    Value::Object(annotations)
}

/// `forged`, without the annotation that Tekton itself reads. In a run that our services leave alone, Tekton uses that
/// annotation.
fn forged_of_ours() -> Value {
    let mut annotations = forged();
    annotations
        .as_object_mut()
        .unwrap()
        .remove(TEKTON_AFFINITY_ASSISTANT);
    annotations
}

/// Creates a Pipeline with these forged annotations on itself, on an embedded task, and on a Task that it refers to.
async fn forging_pipeline(scene: &Scene<'_>, name: &str, annotations: &Value) -> Outcome {
    let task = json!({
        "apiVersion": "tekton.dev/v1",
        "kind": "Task",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"steps": steps()},
    });
    scene
        .send("POST", "tekton.dev/v1/tasks", &task)
        .await?
        .accepted()?;
    let embedded = json!({"metadata": {"annotations": annotations}, "steps": steps()});
    let mut object = pipeline(name, annotations);
    object["spec"] = json!({
        "tasks": [
            {"name": "referenced", "taskRef": {"name": name}},
            {"name": "embedded", "taskSpec": embedded},
            {"name": "plain", "taskSpec": {"steps": steps()}, "runAfter": ["embedded"]},
        ],
        "finally": [{"name": "last", "taskSpec": embedded}],
    });
    scene.send("POST", PIPELINES, &object).await?.accepted()?;
    Ok(())
}

/// For each task, the placeholders that its pod requires on its node.
fn assistants(pods: &[Pod]) -> BTreeMap<String, Vec<String>> {
    let of = |pod: &Pod| -> Option<Vec<String>> {
        let affinity = pod
            .spec
            .as_ref()?
            .affinity
            .as_ref()?
            .pod_affinity
            .as_ref()?;
        let terms = affinity
            .required_during_scheduling_ignored_during_execution
            .iter()
            .flatten();
        let labels = terms.filter_map(|term| {
            let selector = term.label_selector.as_ref()?.match_labels.as_ref()?;
            selector.get("app.kubernetes.io/instance").cloned()
        });
        Some(labels.collect())
    };
    pods.iter()
        .map(|pod| {
            let task = pod.labels()["tekton.dev/pipelineTask"].clone();
            (task, of(pod).unwrap_or_default())
        })
        .collect()
}

#[test]
fn m8_what_pipelines_and_tasks_carry_moves_no_pod_of_a_coscheduled_run() -> Outcome {
    overridable(async |scene| {
        forging_pipeline(&scene, "forging", &forged()).await?;
        for (name, mode) in [("whole", "pipelineruns"), ("single", "workspaces")] {
            let object = started(name, "forging", &choice(Some(mode)));
            let created = scene
                .send("POST", PIPELINE_RUNS, &object)
                .await?
                .accepted()?;
            let done = scene.succeeds(name).await?;
            for key in PINNED {
                let now = done.annotations().get(key).map(String::as_str);
                assert_eq!(now, created.annotation(key), "{name}: {key}");
            }
            let own = match created.annotation(TEKTON_AFFINITY_ASSISTANT).unwrap() {
                "" => vec![],
                assistant => vec![assistant.to_owned()],
            };
            let pods = scene.objects().await?.task_pods;
            let of_run: Vec<_> = pods
                .into_iter()
                .filter(|pod| pod.labels()["tekton.dev/pipelineRun"] == name)
                .collect();
            let found = assistants(&of_run);
            assert_eq!(found.len(), 4, "{found:?}");
            for (task, assistants) in found {
                assert_eq!(assistants, own, "{name}: {task}");
            }
        }
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn m8_what_pipelines_and_tasks_carry_makes_no_run_that_is_left_alone_coscheduled() -> Outcome {
    overridable(async |scene| {
        forging_pipeline(&scene, "forging", &forged_of_ours()).await?;
        let object = started("left-alone", "forging", &choice(Some("disabled")));
        scene
            .send("POST", PIPELINE_RUNS, &object)
            .await?
            .accepted()?;
        let done = scene.succeeds("left-alone").await?;
        let pinned: Vec<_> = PINNED
            .into_iter()
            .filter(|key| done.annotations().contains_key(*key))
            .collect();
        assert_eq!(pinned, Vec::<&str>::new());
        let objects = scene.objects().await?;
        let found = assistants(&objects.task_pods);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found.values().all(Vec::is_empty), "{found:?}");
        assert!(objects.stateful_sets.is_empty());
        Ok(())
    })
}

#[test]
fn p7_nobody_becomes_a_part_of_a_run_by_saying_so() -> Outcome {
    overridable(async |scene| {
        let parent = run("parent")
            .template("source")
            .task("one", &["source"], &[])
            .lasting("one", 600);
        let parent = scene.submit(parent).await?;
        let mut annotations: serde_json::Map<_, _> = parent
            .annotations()
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        annotations.insert(PART_OF.to_owned(), json!("parent"));
        let owner = json!([{
            "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "parent", "uid": parent.uid(),
            "controller": true, "blockOwnerDeletion": false,
        }]);
        let child = run("child")
            .task("one", &[], &[])
            .metadata("annotations", json!(annotations))
            .metadata("ownerReferences", owner)
            .into_json();
        let child = scene
            .send("POST", PIPELINE_RUNS, &child)
            .await?
            .accepted()?;
        assert_eq!(child.annotation(PART_OF), None);
        assert_eq!(child.annotation(MODE), Some("pipelineruns"));
        let own = child.annotation(GROUP).context("no group")?;
        assert_ne!(own, parent.annotations()[GROUP]);
        // The child's pods require the child's own placeholder, and the end of the child does not delete the parent's
        // placeholder.
        scene.succeeds("child").await?;
        let pods = scene.objects().await?.task_pods;
        let of_child: Vec<_> = pods
            .into_iter()
            .filter(|pod| pod.labels()["tekton.dev/pipelineRun"] == "child")
            .collect();
        assert_eq!(
            assistants(&of_child)["one"],
            [format!("affinity-assistant-{own}")]
        );
        let of_parent = format!("affinity-assistant-{}", parent.annotations()[GROUP]);
        let left = scene
            .until_sets("are the parent's alone", |sets| sets.len() == 1)
            .await?;
        assert_eq!(left[0].name_any(), of_parent);
        Ok(())
    })
}

#[test]
fn m2_a_task_run_with_two_claims_fails_its_run_at_once_and_the_author_is_told() -> Outcome {
    overridable(async |scene| {
        let refused = |name: &str| {
            run(name)
                .metadata("annotations", choice(Some("workspaces")))
                .template("source")
                .template("cache")
                .task("both", &["source", "cache"], &[])
                .with("retries", json!(2))
                .task("fanned", &["source", "cache"], &[])
                .with(
                    "matrix",
                    json!({"params": [{"name": "os", "value": ["a", "b"]}]}),
                )
                .task("named", &["source", "cache"], &[])
                .referring("two-claims")
                .with("retries", json!(1))
                .task("other", &["source"], &[])
                .task("after", &["source"], &["both"])
                .finally("report", &["cache"])
                .lasting("other", 3)
                .into_json()
        };
        let two_claims = json!({
            "apiVersion": "tekton.dev/v1",
            "kind": "Task",
            "metadata": {"name": "two-claims"},
            "spec": {"steps": steps(), "workspaces": [{"name": "source"}, {"name": "cache"}]},
        });
        scene
            .send("POST", "tekton.dev/v1/tasks", &two_claims)
            .await?
            .accepted()?;
        // The Pipeline is embedded, so the webhook can warn in advance.
        let begin = Instant::now();
        let created = scene
            .send("POST", PIPELINE_RUNS, &refused("refused"))
            .await?
            .accepted()?;
        let told = created.warnings.join("\n");
        assert!(
            told.contains("Task \"both\" will not run")
                && told.contains("2 persistent volume claims"),
            "{told}"
        );

        let ended = scene.done("refused").await?;
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(60), "it took {took:?}");
        let end = condition(&ended).unwrap();
        assert_eq!(end["status"], "False");
        assert_eq!(end["reason"], "Failed");
        assert_eq!(
            end["message"],
            "Tasks Completed: 5 (Failed: 3, Cancelled 0), Skipped: 1"
        );
        let ran: Vec<_> = assistants(&scene.objects().await?.task_pods)
            .into_keys()
            .collect();
        assert_eq!(
            ran,
            ["other", "report"],
            "the other task and `finally`, and nothing after the refused one"
        );

        let events = self::events(&scene, "refused", 4).await?;
        assert_eq!(events.len(), 4, "{events:?}");
        let about = |events: &[Event], name: &str| {
            let note = format!("TaskRun {name} does not run");
            let found = events
                .iter()
                .find(|event| event.note.as_ref().is_some_and(|told| told.contains(&note)));
            found.cloned()
        };
        let event = about(&events, "refused-both").context("no Event about refused-both")?;
        assert_eq!(
            event.reporting_controller.as_deref(),
            Some("coscheduler.dev/admission-webhook")
        );
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.regarding.as_ref().unwrap().uid, ended.uid());
        let claim = |workspace: &str| {
            coscheduler_core::names::tekton_claim_name(workspace, None, &ended.uid().unwrap())
        };
        let note = event.note.as_deref().unwrap_or_default();
        for part in [
            format!("claim {} (workspace source)", claim("source")),
            format!("claim {} (workspace cache)", claim("cache")),
            "coschedule mode workspaces".to_owned(),
        ] {
            assert!(note.contains(&part), "{part:?} is not in {note:?}");
        }
        // The run has the text of one of its Events.
        let told = scene
            .until::<PipelineRun>("refused", "has the annotation", |run| {
                run.is_some_and(|run| run.annotations().contains_key(REFUSED))
            })
            .await?
            .context("the run is gone")?;
        let told = blocked_reason(&told.annotations()[REFUSED]).context("cannot be read")?;
        assert_eq!(told.code, ReasonCode::TaskRunRefused);
        let notes: Vec<_> = events.iter().filter_map(|it| it.note.as_deref()).collect();
        assert!(notes.contains(&told.message.as_str()), "{told:?}");

        // Each TaskRun fails with the text, also if it has retries, and whether its Task is embedded or not.
        let task_runs = "tekton.dev/v1/taskruns";
        let task_run = async |name: &str| {
            let path = format!("{task_runs}/{name}");
            scene.send("GET", &path, &Value::Null).await?.accepted()
        };
        for name in [
            "refused-both",
            "refused-fanned-0",
            "refused-fanned-1",
            "refused-named",
        ] {
            let refused = task_run(name).await?.object;
            let end = &refused["status"]["conditions"][0];
            assert_eq!(end["reason"], "TaskRunValidationFailed", "{name}: {end}");
            let event = about(&events, name).with_context(|| format!("no Event about {name}"))?;
            let (message, note) = (end["message"].as_str(), event.note.unwrap_or_default());
            assert!(
                message.is_some_and(|message| message.contains(&note)),
                "{note:?} is not in {message:?}"
            );
            assert_eq!(refused["status"].get("retriesStatus"), None, "{name}");
        }
        let both = task_run("refused-both").await?;

        // A dry run leads to no Event. Events are written in order, so an Event about the dry run `tried` would exist before the
        // Event about `made`.
        let tekton = scene
            .stack
            .bed
            .kubeconfig_for("tekton-pipelines", "tekton-pipelines-controller")
            .await?;
        let tekton = Scene {
            stack: scene.stack,
            client: testbed::services::kube_client(&tekton).await?,
            namespace: scene.namespace.clone(),
        };
        for (name, query) in [("tried", "?dryRun=All"), ("made", "")] {
            let object = json!({
                "apiVersion": "tekton.dev/v1",
                "kind": "TaskRun",
                "metadata": {
                    "name": name,
                    "annotations": ended.annotations(),
                    "ownerReferences": both.object["metadata"]["ownerReferences"],
                },
                "spec": {
                    "taskSpec": {"steps": steps(), "workspaces": [{"name": "source"}, {"name": "cache"}]},
                    "workspaces": both.object["spec"]["workspaces"],
                },
            });
            let answer = tekton
                .send("POST", &format!("{task_runs}{query}"), &object)
                .await?;
            let declared = &answer.accepted()?.object["spec"]["taskSpec"]["workspaces"];
            assert_eq!(declared.as_array().map(Vec::len), Some(3), "{name}");
        }
        let events = self::events(&scene, "refused", 5).await?;
        assert!(
            events.len() == 5
                && about(&events, "made").is_some()
                && about(&events, "tried").is_none(),
            "{events:?}"
        );
        Ok(())
    })
}

/// The Events that the webhook has written about refused TaskRuns of a run, as soon as there are at least `count`.
async fn events(scene: &Scene<'_>, run: &str, count: usize) -> anyhow::Result<Vec<Event>> {
    let ours = |event: &Event| {
        let regarding = event.regarding.as_ref();
        event.reason.as_deref() == Some("TaskRunRefused")
            && regarding.and_then(|regarding| regarding.name.as_deref()) == Some(run)
    };
    scene
        .until_all::<Event>("are there", |events| {
            events.iter().filter(|event| ours(event)).count() >= count
        })
        .await?;
    let mut all = scene
        .api::<Event>()
        .list(&ListParams::default())
        .await?
        .items;
    all.retain(ours);
    Ok(all)
}
