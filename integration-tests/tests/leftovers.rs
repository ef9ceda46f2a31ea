//! Objects that ended runs have left behind, also those of another version with fewer labels, or of another mode (N6, P6). The
//! manager finds these objects by their owner, deletes them and writes a line in its log. Objects that only look like leftovers
//! stay (P7, V4).
#![allow(clippy::unwrap_used, clippy::panic)]

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::look::until;
use integration_tests::runs::run;
use integration_tests::sets::only_pods;
use integration_tests::{Scene, alone_with};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::Service;

type Outcome = anyhow::Result<()>;

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const RUN_UID: &str = "tekton.dev/pipelineRunUID";

/// Creates a StatefulSet that looks like a placeholder, with these labels in addition. It creates no pods.
async fn set(
    scene: &Scene<'_>,
    digits: &str,
    owner: Option<&PipelineRun>,
    labels: Value,
) -> Outcome {
    let name = format!("affinity-assistant-{digits}");
    let chosen = json!({
        "app.kubernetes.io/component": "affinity-assistant",
        "app.kubernetes.io/instance": name,
    });
    let mut all = chosen.clone();
    for (key, value) in labels.as_object().unwrap() {
        all[key] = value.clone();
    }
    let object: StatefulSet = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": all, "ownerReferences": owners(owner, true)},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": chosen},
            "serviceName": "",
            "template": {
                "metadata": {"labels": all},
                "spec": {"containers": [{"name": "affinity-assistant", "image": "example/image"}]},
            },
        },
    }))?;
    scene.api().create(&PostParams::default(), &object).await?;
    Ok(())
}

async fn claim(
    scene: &Scene<'_>,
    name: &str,
    owner: Option<&PipelineRun>,
    labels: Value,
) -> Outcome {
    let object: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels, "ownerReferences": owners(owner, false)},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))?;
    scene.api().create(&PostParams::default(), &object).await?;
    Ok(())
}

fn owners(run: Option<&PipelineRun>, controller: bool) -> Value {
    let reference = run.map(|run| {
        json!({
            "apiVersion": "tekton.dev/v1", "kind": "PipelineRun",
            "name": run.name_any(), "uid": run.uid(), "controller": controller,
        })
    });
    reference.into_iter().collect()
}

/// True if the manager's log has a line with all these parts.
fn is_said(scene: &Scene<'_>, parts: &[&str]) -> anyhow::Result<bool> {
    let log = scene.stack.services.log(Service::PlaceholderManager);
    let log = std::fs::read_to_string(log).context("failed to read the manager's log")?;
    let mut lines = log.lines();
    Ok(lines.any(|line| parts.iter().all(|part| line.contains(part))))
}

#[test]
fn n6_p6_what_another_version_and_another_mode_left_is_swept_and_said() -> Outcome {
    let change = |services: &mut testbed::services::ServicesConfig| {
        services.mode = Some("pipelineruns".to_owned());
    };
    alone_with(
        Config {
            audit_log: true,
            ..Config::default()
        },
        change,
        async |scene| {
            scene.stack.allow_overrides().await?;
            let services = &scene.stack.services;
            let one = |name: &str| run(name).task("one", &[], &[]);
            scene.submit(one("done")).await?;
            scene
                .submit(one("left-alone").in_mode("disabled").metadata(
                    "annotations",
                    json!({"coscheduler.dev/coschedule": "disabled"}),
                ))
                .await?;
            scene.submit(one("active").held("one")).await?;
            let done = scene.succeeds("done").await?;
            let left_alone = scene.succeeds("left-alone").await?;
            let active = scene.api::<PipelineRun>().get("active").await?;
            let (mine, _) = scene.placeholder().await?;
            scene
                .until_all::<StatefulSet>("are the active run's alone", |sets| {
                    sets.iter().all(|set| set.name_any() == mine.name_any())
                })
                .await?;
            services.kill(Service::PlaceholderManager)?;
            // Without this annotation, nothing on the run concerns the next manager, so it does not know the run and must ask the
            // API server.
            let unmarked =
                json!({"metadata": {"annotations": {"coscheduler.dev/coschedule": null}}});
            let unmarked = scene
                .send("PATCH", "tekton.dev/v1/pipelineruns/left-alone", &unmarked)
                .await?
                .accepted()?;
            assert_eq!(unmarked.annotation("coscheduler.dev/coschedule"), None);

            let uid = |run: &PipelineRun| json!({RUN_UID: run.uid()});
            let ours =
                |run: &PipelineRun| json!({MANAGED_BY: "tekton-coscheduler", RUN_UID: run.uid()});
            // Objects of another version: their names differ from those of this version, and the run's uid is their only label.
            set(scene, "0000000001", Some(&done), uid(&done)).await?;
            claim(scene, "of-another-version", Some(&done), uid(&done)).await?;
            // An object of another mode: a placeholder for one claim, although the run has one placeholder for all claims.
            set(scene, "0000000002", Some(&done), ours(&done)).await?;
            // An object of a run that has no pinned annotations.
            set(scene, "0000000003", Some(&left_alone), ours(&left_alone)).await?;

            // Objects that stay: Tekton's own affinity assistant, objects without an owner, and objects of an active run. Anybody
            // can write labels.
            set(
                scene,
                "0000000004",
                Some(&done),
                json!({"tekton.dev/pipelineRun": "done"}),
            )
            .await?;
            set(scene, "0000000005", None, uid(&done)).await?;
            set(scene, "0000000006", None, ours(&done)).await?;
            set(scene, "0000000007", Some(&active), uid(&done)).await?;
            // Tekton's own affinity assistant of a run with this label.
            let copied = json!({MANAGED_BY: "tekton-coscheduler"});
            set(scene, "0000000008", Some(&done), copied).await?;
            claim(scene, "existing", None, ours(&done)).await?;
            claim(scene, "of-the-active-run", Some(&active), ours(&active)).await?;

            services.start_service(Service::PlaceholderManager)?;
            let stay = [
                "0000000004".to_owned(),
                "0000000005".to_owned(),
                "0000000006".to_owned(),
                "0000000007".to_owned(),
                "0000000008".to_owned(),
                mine.name_any().replace("affinity-assistant-", ""),
            ];
            let is_to_stay =
                |set: &StatefulSet| stay.iter().any(|digits| set.name_any().ends_with(digits));
            let left = scene
                .until_all::<StatefulSet>("are those that are to stay", |sets| {
                    sets.iter().all(|set| is_to_stay(set))
                })
                .await?;
            // The active run's own placeholder is perhaps only a pod.
            let expected = stay.len() - usize::from(only_pods());
            assert_eq!(left.len(), expected, "{left:#?}");
            let of_another = "of-another-version";
            let left = scene
                .until_all::<PersistentVolumeClaim>("are those that are to stay", |claims| {
                    claims.iter().all(|claim| claim.name_any() != of_another)
                })
                .await?;
            assert_eq!(left.len(), 2, "{left:#?}");

            for (run, object) in [
                (&done, "placeholder=\"affinity-assistant-0000000001\""),
                (&done, "placeholder=\"affinity-assistant-0000000002\""),
                (&done, "claim=\"of-another-version\""),
                (&left_alone, "placeholder=\"affinity-assistant-0000000003\""),
            ] {
                let deleted = ["deleted ", &run.uid().unwrap(), object];
                until(object, async || is_said(scene, &deleted)).await?;
            }

            // The sweep that found the other objects has checked all these objects too.
            for request in scene.requests_since(integration_tests::audit::Mark::default())? {
                let deletes =
                    request.verb == "delete" && request.is_by(Service::PlaceholderManager);
                let name = &request.object.name;
                let stays = stay.iter().any(|digits| name.ends_with(digits));
                let stays = stays || ["existing", "of-the-active-run"].contains(&name.as_str());
                ensure!(!(deletes && stays), "{request:?}");
            }
            scene.end("active", "one").await?;
            scene.succeeds("active").await?;
            scene
                .until_all::<PersistentVolumeClaim>("are the existing one", |claims| {
                    claims.len() == 1 && claims[0].name_any() == "existing"
                })
                .await?;
            Ok(())
        },
    )
}
