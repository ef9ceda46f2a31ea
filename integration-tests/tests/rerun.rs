//! Manifests that are applied again, and runs that are created again from stored runs (V2a), with kubectl and Tekton's own
//! webhook. Users never notice that the bindings of a run's workspaces were rewritten.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::installation::kubectl;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, shared_with};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::ServicesConfig;

type Outcome = anyhow::Result<()>;

fn everything(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let change = |services: &mut ServicesConfig| {
        let overrides = "workspaces, isolate-pipelinerun, disabled".to_owned();
        services
            .flags
            .extend([("allowed-overrides".to_owned(), overrides)]);
    };
    shared_with(Config::default(), change, test)
}

fn two(name: &str, mode: &str) -> Run {
    run(name)
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
        .lasting("one", 4)
        .metadata("annotations", json!({"coscheduler.dev/coschedule": mode}))
}

/// Calls kubectl with a file that contains `object`, in the test's namespace.
async fn with_file(
    scene: &Scene<'_>,
    arguments: &[&str],
    object: &Value,
) -> anyhow::Result<String> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let file = format!("{}-{name}.json", scene.namespace);
    let path = scene.stack.bed.dir().join(file);
    std::fs::write(&path, object.to_string())?;
    let path = path.to_string_lossy();
    let mut all = vec!["--namespace", &scene.namespace];
    all.extend(arguments);
    all.extend(["--filename", &*path]);
    kubectl(&scene.stack.bed, &all).await
}

/// The parts of a run that only its author and admission write.
fn settled(run: &PipelineRun) -> (Option<String>, Option<i64>, Value, BTreeMap<String, String>) {
    let mut annotations = run.annotations().clone();
    annotations.retain(|key, _| {
        key.starts_with("coscheduler.dev/") || key == "pipeline.tekton.dev/affinity-assistant"
    });
    (
        run.uid(),
        run.metadata.generation,
        serde_json::to_value(&run.spec).unwrap(),
        annotations,
    )
}

/// The fields of `manifest` that have other values in `live`. A list counts as one field. Argo CD without server-side diff gets
/// the same result, because `manifest` is also the manifest that was applied last. The Pipeline is left out, because Tekton's own
/// webhook completes it.
fn differing(manifest: &Value, live: &Value, path: &str) -> Vec<String> {
    match (manifest, live) {
        _ if path == "/spec/pipelineSpec" || *manifest == json!({}) => Vec::new(),
        (Value::Object(wanted), Value::Object(found)) => wanted
            .iter()
            .flat_map(|(key, wanted)| {
                let found = found.get(key).unwrap_or(&Value::Null);
                differing(wanted, found, &format!("{path}/{key}"))
            })
            .collect(),
        _ if manifest == live => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

/// Checks that the manifest has no difference to the stored run. If Tekton changed the run between the two times that kubectl read
/// it, compares again.
async fn equals_stored(scene: &Scene<'_>, diff: &[&str], manifest: &Value) -> Outcome {
    loop {
        match with_file(scene, diff, manifest).await {
            Err(error) if format!("{error:#}").contains("\n-  resourceVersion: ") => {}
            compared => return compared.map(drop),
        }
    }
}

/// Applies a manifest to create a run, and again while the run is in progress and when it is done. Also compares the manifest
/// with the stored run, as GitOps tools do.
fn applied_again(version: &str, how: &[&str]) -> Outcome {
    everything(async |scene| {
        let with = |command| [&[command][..], how].concat();
        let (apply, diff) = (with("apply"), with("diff"));
        for mode in ["workspaces", "pipelineruns"] {
            let name = format!("applied-{mode}");
            let mut manifest = two(&name, mode).into_json();
            manifest["apiVersion"] = json!(format!("tekton.dev/{version}"));
            if version == "v1beta1" {
                // Tekton itself refuses an embedded v1beta1 Pipeline that is applied again after the run has started, coscheduled
                // or not. So the run refers to a Pipeline.
                let spec = manifest["spec"]["pipelineSpec"].take();
                let pipeline = json!({
                    "apiVersion": "tekton.dev/v1",
                    "kind": "Pipeline",
                    "metadata": {"name": format!("of-{mode}")},
                    "spec": spec,
                });
                with_file(&scene, &["create"], &pipeline).await?;
                manifest["spec"] = json!({
                    "pipelineRef": {"name": format!("of-{mode}")},
                    "workspaces": manifest["spec"]["workspaces"],
                });
            }
            let runs = scene.api::<PipelineRun>();
            with_file(&scene, &apply, &manifest).await?;
            let created = runs.get(&name).await?;
            if version == "v1" {
                // Tekton's own webhook completes the templates in this field, too.
                let differing = differing(&manifest, &json!(created), "");
                assert_eq!(differing, ["/spec/workspaces"], "{mode}");
            }
            scene
                .until_all::<Pod>("are there", |pods| !pods.is_empty())
                .await?;
            with_file(&scene, &apply, &manifest).await?;
            let again = runs.get(&name).await?;
            assert_eq!(settled(&again), settled(&created), "{mode}");
            equals_stored(&scene, &diff, &manifest).await?;
            scene.succeeds(&name).await?;
            equals_stored(&scene, &diff, &manifest).await?;
            with_file(&scene, &apply, &manifest).await?;
            let done = runs.get(&name).await?;
            assert_eq!(settled(&done), settled(&created), "{mode}");
            scene.until_sets("are gone", |sets| sets.is_empty()).await?;
            runs.delete(&name, &Default::default()).await?;
            scene.nothing_left_but(&[]).await?;
            scene
                .until_all::<Pod>("are gone", |pods| pods.is_empty())
                .await?;
        }
        Ok(())
    })
}

#[test]
fn v2a_a_manifest_applied_again_by_the_client_changes_nothing() -> Outcome {
    applied_again("v1", &[])
}

#[test]
fn v2a_a_manifest_applied_again_by_the_server_changes_nothing() -> Outcome {
    applied_again("v1", &["--server-side"])
}

#[test]
fn v2a_a_v1beta1_manifest_applied_again_by_the_client_changes_nothing() -> Outcome {
    applied_again("v1beta1", &[])
}

#[test]
fn v2a_a_v1beta1_manifest_applied_again_by_the_server_changes_nothing() -> Outcome {
    applied_again("v1beta1", &["--server-side"])
}

/// The stored run as kubectl shows it in this API version, with another name, and without the fields that only a stored object
/// has.
async fn copy(scene: &Scene<'_>, version: &str, name: &str, copy: &str) -> anyhow::Result<Value> {
    let kind = format!("pipelineruns.{version}.tekton.dev");
    let arguments = [
        "--namespace",
        &scene.namespace,
        "get",
        &kind,
        name,
        "--output",
        "json",
    ];
    let mut object: Value = serde_json::from_str(&kubectl(&scene.stack.bed, &arguments).await?)?;
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "ownerReferences",
        "managedFields",
    ] {
        metadata.remove(field);
    }
    metadata["name"] = json!(copy);
    Ok(object)
}

fn bound_claims(run: &PipelineRun) -> BTreeSet<String> {
    let bindings = run.spec["workspaces"].as_array().into_iter().flatten();
    bindings
        .filter_map(|binding| binding["persistentVolumeClaim"]["claimName"].as_str())
        .map(str::to_owned)
        .collect()
}

#[test]
fn v2a_a_run_started_again_with_its_annotations_has_a_group_and_claims_of_its_own() -> Outcome {
    everything(async |scene| {
        let runs = scene.api::<PipelineRun>();
        for mode in ["workspaces", "pipelineruns", "isolate-pipelinerun"] {
            let first = format!("first-{mode}");
            scene.submit(two(&first, mode)).await?;
            let original = runs.get(&first).await?;
            // The first run is copied while it is in progress, and after it has ended.
            let mut names = vec![first.clone()];
            for (when, version) in [("during", "v1"), ("after", "v1"), ("old", "v1beta1")] {
                if when == "after" {
                    scene.succeeds(&first).await?;
                }
                let name = format!("{when}-{mode}");
                let again = copy(&scene, version, &first, &name).await?;
                with_file(&scene, &["create"], &again).await?;
                let created = runs.get(&name).await?;
                let group = |run: &PipelineRun| run.annotations()["coscheduler.dev/group"].clone();
                assert_eq!(created.annotations()["coscheduler.dev/mode"], mode);
                assert_ne!(group(&created), group(&original), "{name}");
                assert!(
                    bound_claims(&created).is_disjoint(&bound_claims(&original)),
                    "{name}"
                );
                names.push(name);
            }
            for name in &names {
                scene.succeeds(name).await?;
            }
            // There are four runs, each with one claim.
            let pods = scene.objects().await?.task_pods;
            let claims: BTreeSet<_> = pods
                .iter()
                .flat_map(integration_tests::look::claims)
                .collect();
            assert_eq!((pods.len(), claims.len()), (8, 4), "{mode}");
            for name in &names {
                runs.delete(name, &Default::default()).await?;
            }
            scene.nothing_left_but(&[]).await?;
            scene
                .until_all::<Pod>("are gone", |pods| pods.is_empty())
                .await?;
        }
        Ok(())
    })
}

/// Creates a run again from a copy of another run's stored object without annotations, as `tkn pipeline start --last` makes it.
async fn again(
    scene: &Scene<'_>,
    copied: &Value,
    mode: &str,
    name: &str,
) -> anyhow::Result<String> {
    let mut again = copied.clone();
    again["metadata"] = json!({
        "name": name, "annotations": {"coscheduler.dev/coschedule": mode},
    });
    again.as_object_mut().unwrap().remove("status");
    with_file(scene, &["create"], &again).await
}

#[test]
fn v2a_a_run_started_again_without_its_annotations_has_its_own_claims_while_the_first_run_is_stored()
-> Outcome {
    everything(async |scene| {
        let runs = scene.api::<PipelineRun>();
        for source in ["workspaces", "pipelineruns"] {
            let first = format!("first-{source}");
            scene.submit(two(&first, source)).await?;
            let copied = copy(&scene, "v1", &first, &first).await?;
            let original = runs.get(&first).await?;
            let modes = [
                "workspaces",
                "pipelineruns",
                "isolate-pipelinerun",
                "disabled",
            ];
            let name = |mode: &str| format!("{source}-{mode}");
            for mode in modes {
                again(&scene, &copied, mode, &name(mode)).await?;
                let created = runs.get(&name(mode)).await?;
                let claims = bound_claims(&created);
                assert!(claims.is_disjoint(&bound_claims(&original)), "{claims:?}");
                let mode_of = created.annotations().get("coscheduler.dev/mode");
                assert_eq!(mode_of.map_or("disabled", String::as_str), mode);
            }
            scene.succeeds(&first).await?;
            for mode in modes {
                scene.succeeds(&name(mode)).await?;
            }
            // There are five runs, each with one claim.
            let pods = scene.objects().await?.task_pods;
            let names: Vec<_> = modes.map(name).into_iter().chain([first.clone()]).collect();
            let of_source = |pod: &&Pod| names.contains(&pod.labels()["tekton.dev/pipelineRun"]);
            let claims: BTreeSet<_> = pods
                .iter()
                .filter(of_source)
                .flat_map(integration_tests::look::claims)
                .collect();
            assert_eq!(claims.len(), 5, "{claims:?}");

            for run in modes.map(name).iter().chain([&first]) {
                runs.delete(run, &Default::default()).await?;
                scene
                    .until::<PipelineRun>(run, "is gone", |run| run.is_none())
                    .await?;
            }
            if source == "workspaces" {
                continue;
            }
            for mode in modes {
                let outcome = again(&scene, &copied, mode, &name(mode)).await;
                let refusal = outcome.unwrap_err().to_string();
                let claim = bound_claims(&original).pop_first().unwrap();
                for word in [&*claim, "volumeClaimTemplate", "workspace", "source"] {
                    assert!(refusal.contains(word), "{mode}: {word}: {refusal}");
                }
            }
        }
        scene.nothing_left_but(&[]).await
    })
}
