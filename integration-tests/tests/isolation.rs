//! How long a run in `isolate-pipelinerun` keeps its node. The bed has only one node, so that other runs must wait.
#![allow(clippy::unwrap_used, clippy::panic)]

use integration_tests::history::Stay;
use integration_tests::look::{is_placeholder, node};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_with};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::Config;
use testbed::services::ServicesConfig;

type Outcome = anyhow::Result<()>;

/// Runs a test on one node, in mode `isolate-pipelinerun` with this scope.
fn on_one_node(scope: &str, test: impl AsyncFnOnce(&Scene<'_>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    let change = |services: &mut ServicesConfig| {
        services.mode = Some("isolate-pipelinerun".to_owned());
        let flags = [
            ("isolation-scope", scope),
            ("allowed-overrides", "disabled"),
        ];
        let flags = flags.map(|(flag, value)| (flag.to_owned(), value.to_owned()));
        services.flags.extend(flags);
    };
    alone_with(config, change, test)
}

fn one(name: &str) -> Run {
    run(name)
        .template("source")
        .task("one", &["source"], &[])
        .lasting("one", 3)
}

/// Checks that the placeholder has only one requirement on its node: no other placeholder of any namespace, or of its own
/// namespace.
fn requires_a_node_of_its_own(set: StatefulSet, everywhere: bool) -> Outcome {
    let mut term = json!({
        "labelSelector": {
            "matchLabels": {"app.kubernetes.io/component": "affinity-assistant"},
            "matchExpressions": [{"key": "tekton.dev/taskRun", "operator": "DoesNotExist"}],
        },
        "topologyKey": "kubernetes.io/hostname",
    });
    if everywhere {
        term["namespaceSelector"] = json!({});
    }
    let apart = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    let affinity = set.spec.unwrap().template.spec.unwrap().affinity;
    let affinity = serde_json::to_value(affinity)?;
    assert_eq!(affinity, json!({"podAntiAffinity": apart}));
    Ok(())
}

/// Waits until the run has a placeholder that is unschedulable.
async fn waits(scene: &Scene<'_>, run: &str) -> Outcome {
    scene
        .until_all::<Pod>("have a placeholder without a node", |pods| {
            pods.iter().any(|pod| {
                let conditions = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.conditions.as_ref());
                let refused = conditions.into_iter().flatten().any(|condition| {
                    condition.type_ == "PodScheduled" && condition.status == "False"
                });
                is_placeholder(pod) && pod.labels()["tekton.dev/pipelineRun"] == run && refused
            })
        })
        .await?;
    Ok(())
}

async fn stays(scene: &Scene<'_>, run: &str) -> anyhow::Result<Vec<Stay>> {
    let stays = scene.stack.history.stays(&scene.namespace).await?;
    Ok(stays.into_iter().filter(|stay| stay.run == run).collect())
}

/// The time at which the first pod of a run came to a node, and the time at which its last pod had left.
fn span(stays: &[Stay]) -> (u64, u64) {
    let from = stays.iter().map(|stay| stay.from).min().unwrap();
    let until = stays.iter().map(|stay| stay.until.unwrap()).max().unwrap();
    (from, until)
}

#[test]
fn m4_an_isolated_runs_node_is_free_once_its_last_pod_has_ended_across_namespaces() -> Outcome {
    on_one_node("cluster", async |scene| {
        let elsewhere = scene.stack.scene().await?;
        let first = scene.submit(one("first").held("one")).await?;
        let (set, placeholder) = scene.placeholder().await?;
        requires_a_node_of_its_own(set, true)?;
        // This pod of the run still runs when the PipelineRun has ended, as on a node that reacts late.
        let late: Pod = serde_json::from_value(json!({
            "metadata": {"name": "late", "labels": {
                "tekton.dev/pipelineRun": "first",
                "tekton.dev/pipelineRunUID": first.uid().unwrap(),
                "tekton.dev/taskRun": "first-late",
            }},
            "spec": {"nodeName": node(&placeholder), "containers": [{"name": "c", "image": "i/i"}]},
        }))?;
        let pods = scene.api::<Pod>();
        pods.create(&PostParams::default(), &late).await?;
        elsewhere.submit(one("second")).await?;
        waits(&elsewhere, "second").await?;
        scene.end("first", "one").await?;
        scene.succeeds("first").await?;
        // The scheduler tries again when the pod of the first run's task ends.
        waits(&elsewhere, "second").await?;
        pods.delete("late", &DeleteParams::default().grace_period(0))
            .await?;
        elsewhere.succeeds("second").await?;
        scene.nothing_left_but(&[]).await?;
        elsewhere.nothing_left_but(&[]).await?;

        let (_, first_left) = span(&stays(scene, "first").await?);
        let (second_came, _) = span(&stays(&elsewhere, "second").await?);
        assert!(first_left <= second_came, "{first_left} {second_came}");
        Ok(())
    })
}

#[test]
fn m4_with_scope_namespace_runs_of_other_namespaces_may_share_the_node() -> Outcome {
    on_one_node("namespace", async |scene| {
        let elsewhere = scene.stack.scene().await?;
        scene.submit(one("first").held("one")).await?;
        let (set, _) = scene.placeholder().await?;
        requires_a_node_of_its_own(set, false)?;
        scene.submit(one("second")).await?;
        waits(scene, "second").await?;
        elsewhere.submit(one("third")).await?;
        elsewhere.succeeds("third").await?;
        scene.end("first", "one").await?;
        for name in ["first", "second"] {
            scene.succeeds(name).await?;
        }
        scene.nothing_left_but(&[]).await?;
        elsewhere.nothing_left_but(&[]).await?;
        let first = span(&stays(scene, "first").await?);
        let second = span(&stays(scene, "second").await?);
        let third = span(&stays(&elsewhere, "third").await?);
        assert!(
            first.1 <= second.0,
            "one after the other: {first:?} {second:?}"
        );
        assert!(third.0 < first.1, "side by side: {first:?} {third:?}");
        Ok(())
    })
}

#[test]
fn m4_the_label_of_placeholders_on_an_authors_run_keeps_no_isolated_run_away() -> Outcome {
    on_one_node("cluster", async |scene| {
        let elsewhere = scene.stack.scene().await?;
        let forged = json!({"app.kubernetes.io/component": "affinity-assistant"});
        let forged = run("forged")
            .task("one", &[], &[])
            .held("one")
            .in_mode("disabled")
            .metadata("labels", forged);
        scene.submit(forged).await?;
        scene
            .until_all::<Pod>("have a running pod with the label", |pods| {
                let labelled = |pod: &&std::sync::Arc<Pod>| {
                    let component = pod.labels().get("app.kubernetes.io/component");
                    component.is_some_and(|it| it == "affinity-assistant") && node(pod).is_some()
                };
                pods.iter().filter(labelled).count() == 1
            })
            .await?;
        elsewhere.submit(one("isolated")).await?;
        elsewhere.succeeds("isolated").await?;
        scene.end("forged", "one").await?;
        scene.succeeds("forged").await?;
        elsewhere.nothing_left_but(&[]).await?;
        scene.nothing_left_but(&[]).await
    })
}
