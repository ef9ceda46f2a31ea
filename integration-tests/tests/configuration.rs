//! Changes of the ConfigMap, and their effect on runs created before and after. The test has a stack of its own, because the
//! ConfigMap applies to the whole cluster.
#![allow(clippy::unwrap_used, clippy::panic)]

use anyhow::Context as _;
use coscheduler_proto::config::{ConfigStatus, Mode, WatchConfigRequest, WatchConfigResponse};
use integration_tests::runs::run;
use integration_tests::{Scene, alone};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::Config;
use testbed::services::{CONFIG_MAP, NAMESPACE};
use tonic::Streaming;

/// Writes keys of the ConfigMap, and waits until the config-service sends a status for which `expect` is true.
async fn set(
    scene: &Scene<'_>,
    watch: &mut Streaming<WatchConfigResponse>,
    flags: serde_json::Value,
    expect: impl Fn(&ConfigStatus) -> bool,
) -> anyhow::Result<ConfigStatus> {
    let api: Api<ConfigMap> = Api::namespaced(scene.client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"data": flags}));
    api.patch(CONFIG_MAP, &PatchParams::default(), &patch)
        .await?;
    loop {
        let status = next(watch).await?;
        if expect(&status) {
            return Ok(status);
        }
    }
}

async fn next(watch: &mut Streaming<WatchConfigResponse>) -> anyhow::Result<ConfigStatus> {
    let message =
        tokio::time::timeout(std::time::Duration::from_secs(60), watch.message()).await??;
    message
        .context("the stream ended")?
        .status
        .context("no status")
}

fn mode(status: &ConfigStatus) -> Mode {
    status.configuration.as_ref().unwrap().mode()
}

#[test]
fn m8_a_run_keeps_what_was_in_force_when_it_was_created_and_m5_disabled_changes_nothing()
-> anyhow::Result<()> {
    alone(Config::default(), async |scene| {
        let mut config = scene.config_service().await?;
        let mut watch = config
            .watch_config(WatchConfigRequest {})
            .await?
            .into_inner();
        let first = next(&mut watch).await?;
        assert_eq!(mode(&first), Mode::Pipelineruns);
        assert_eq!(first.generation, scene.config().await?.generation);

        let two = |name: &str| {
            run(name)
                .template("source")
                .task("one", &["source"], &[])
                .task("two", &["source"], &["one"])
        };
        scene.submit(two("before").held("one")).await?;
        let (before, _) = scene.placeholder().await?;

        // M5: from now on, our services change nothing in new runs.
        let disabled = json!({"coschedule": "disabled"});
        let second = set(scene, &mut watch, disabled, |status| {
            mode(status) == Mode::Disabled
        })
        .await?;
        assert!(first.generation < second.generation);
        scene.planned_in(Mode::Disabled).await?;
        let created = scene.submit(two("after")).await?;
        assert!(
            created.annotations().is_empty(),
            "{:?}",
            created.annotations()
        );
        assert!(created.spec["workspaces"][0]["volumeClaimTemplate"].is_object());
        scene.succeeds("after").await?;

        // M8: the earlier run keeps its mode, its placeholder and its clean-up.
        let objects = scene.objects().await?;
        assert_eq!(objects.stateful_sets.len(), 1);
        assert_eq!(objects.stateful_sets[0].uid(), before.uid());
        scene.end("before", "one").await?;
        scene.succeeds("before").await?;
        let affine = |pod: &Pod| pod.spec.as_ref().unwrap().affinity.is_some();
        for pod in &scene.objects().await?.task_pods {
            assert_eq!(
                affine(pod),
                pod.labels()["tekton.dev/pipelineRun"] == "before",
                "{}",
                pod.name_any()
            );
        }
        // Tekton keeps the claim of `after`. The claim of `before` is deleted.
        let left = scene
            .until_all::<PersistentVolumeClaim>("are one", |claims| claims.len() == 1)
            .await?;
        assert_eq!(left[0].owner_references()[0].name, "after");
        scene.nothing_left_but(&[&left[0].name_any()]).await?;

        // P5: a placeholder's requests are configurable, and pinned like the mode.
        let flags = json!({"coschedule": "pipelineruns", "placeholder-cpu": "75m"});
        set(scene, &mut watch, flags, |status| {
            mode(status) == Mode::Pipelineruns
        })
        .await?;
        scene.planned_in(Mode::Pipelineruns).await?;
        scene.submit(two("sized").held("one")).await?;
        let (_, pod) = scene.placeholder().await?;
        let resources = pod.spec.unwrap().containers[0].resources.clone().unwrap();
        assert_eq!(resources.requests.unwrap()["cpu"].0, "75m");
        scene.end("sized", "one").await?;
        scene.succeeds("sized").await?;
        anyhow::Ok(())
    })
}
