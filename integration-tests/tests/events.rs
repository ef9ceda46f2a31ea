//! Events about runs: each is written once. Each run may choose its mode.
#![allow(clippy::unwrap_used, clippy::panic)]

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::audit::Mark;
use integration_tests::runs::run;
use integration_tests::{Scene, shared_with_overrides};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::Service;

type Outcome = anyhow::Result<()>;

const BLOCKED: &str = "coscheduler.dev/blocked";
const OVERRIDE: &str = "coscheduler.dev/coschedule";

fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    shared_with_overrides(config, |_| {}, test)
}

async fn patch(scene: &Scene<'_>, name: &str, patch: Value) -> anyhow::Result<PipelineRun> {
    let runs = scene.api::<PipelineRun>();
    let patch = Patch::Merge(patch);
    Ok(runs.patch(name, &PatchParams::default(), &patch).await?)
}

/// The manager's writes to Events and PipelineRuns in the test's namespace that the API server accepted.
fn tellings(scene: &Scene<'_>, mark: Mark) -> anyhow::Result<Vec<String>> {
    let requests = scene.requests_since(mark)?;
    let tellings = requests.iter().filter(|request| {
        request.is_by(Service::PlaceholderManager)
            && request.is_write()
            && request.answer.code < 300
            && request.object.namespace == scene.namespace
            && ["events", "pipelineruns"].contains(&request.object.resource.as_str())
    });
    Ok(tellings
        .map(|request| format!("{} {}", request.verb, request.object.resource))
        .collect())
}

#[test]
fn p3_each_part_of_a_security_context_that_is_dropped_is_told_once() -> Outcome {
    shared(async |scene| {
        let mark = scene.mark()?;
        let context = json!({
            "runAsUser": 0,
            "runAsNonRoot": false,
            "fsGroup": 1000,
        });
        let rooted = run("rooted").task("one", &[], &[]).held("one").spec(
            "taskRunTemplate",
            json!({"podTemplate": {"securityContext": context}}),
        );
        scene.submit(rooted).await?;
        scene.told("rooted", "SecurityContextReduced").await?;
        // Each change of the run makes the manager reconcile it again.
        for index in 0..5 {
            let label = json!({"metadata": {"labels": {"round": index.to_string()}}});
            patch(&scene, "rooted", label).await?;
        }
        scene.end("rooted", "one").await?;
        scene.succeeds("rooted").await?;
        let told = scene.told_so_far("rooted").await?;
        let mut fields: Vec<&str> = Vec::new();
        for (code, message) in &told {
            assert_eq!(code, "SecurityContextReduced");
            for field in ["runAsUser", "runAsNonRoot", "fsGroup"] {
                if message.contains(&format!("sets {field} to ")) {
                    fields.push(field);
                }
            }
        }
        fields.sort_unstable();
        assert_eq!(fields, ["runAsNonRoot", "runAsUser"], "{told:?}");
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(tellings(&scene, mark)?, ["create events"; 2]);

        let events = scene.api::<Event>().list(&ListParams::default()).await?;
        let ours = events.iter().filter(|event| {
            event.reporting_controller.as_deref() == Some("coscheduler.dev/placeholder-manager")
        });
        for event in ours {
            let about = event.regarding.as_ref().unwrap();
            let run = scene.api::<PipelineRun>().get("rooted").await?;
            assert_eq!(about.uid, run.uid());
            assert_eq!(event.action.as_deref(), Some("Coschedule"));
            assert_eq!(event.type_.as_deref(), Some("Warning"));
        }
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn m1_m3_what_goes_as_it_should_is_not_told() -> Outcome {
    shared(async |scene| {
        let mark = scene.mark()?;
        for mode in [
            "workspaces",
            "pipelineruns",
            "isolate-pipelinerun",
            "disabled",
        ] {
            let ordinary = run(mode)
                .in_mode(mode)
                .template("source")
                .task("one", &["source"], &[])
                .task("two", &["source"], &["one"]);
            scene.submit(ordinary).await?;
            scene.succeeds(mode).await?;
        }
        scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        assert_eq!(tellings(&scene, mark)?, Vec::<String>::new());
        Ok(())
    })
}

#[test]
fn b1_an_override_that_has_no_effect_is_told_with_the_mode_of_the_run() -> Outcome {
    shared(async |scene| {
        // Tekton adds annotations in this way if a resolver has found the Pipeline.
        let late = |mode: &str| json!({"metadata": {"annotations": {OVERRIDE: mode}}});
        let started = run("started").task("one", &[], &[]).held("one");
        scene.submit(started).await?;
        patch(&scene, "started", late("disabled")).await?;
        let told = scene.told("started", "OverrideIgnored").await?;
        assert!(
            told[0].1.contains("\"disabled\"") && told[0].1.contains("mode pipelineruns"),
            "{told:?}"
        );

        let plain = run("plain")
            .in_mode("disabled")
            .task("one", &[], &[])
            .held("one");
        scene.submit(plain).await?;
        patch(&scene, "plain", late("pipelineruns")).await?;
        let told = scene.told("plain", "OverrideIgnored").await?;
        assert!(
            told[0].1.contains("\"pipelineruns\"") && told[0].1.contains("without coscheduling"),
            "{told:?}"
        );
        for name in ["started", "plain"] {
            scene.end(name, "one").await?;
            scene.succeeds(name).await?;
            assert_eq!(scene.told_so_far(name).await?.len(), 1);
        }
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p7_a_name_that_is_taken_is_told_once_and_the_run_goes_on_when_it_is_free() -> Outcome {
    shared(async |scene| {
        let mark = scene.mark()?;
        let clash = run("clash")
            .in_mode("pipelineruns")
            .task("one", &[], &[])
            .spec("status", json!("PipelineRunPending"));
        let created = scene.submit(clash).await?;
        let name = &created.annotations()["pipeline.tekton.dev/affinity-assistant"];
        let stranger = scene.take_name(name).await?;
        patch(&scene, "clash", json!({"spec": {"status": null}})).await?;
        let told = scene.told("clash", "PlaceholderNameTaken").await?;
        assert!(told[0].1.contains(name.as_str()), "{told:?}");
        // Each change of the run makes the manager try again to create the placeholder. This causes no further Event.
        for index in 0..3 {
            let label = json!({"metadata": {"labels": {"round": index.to_string()}}});
            patch(&scene, "clash", label).await?;
        }
        let (objects, stranger_name) = (scene.placeholder_objects(), stranger.name_any());
        let left = objects.get(&stranger_name).await?;
        assert_eq!(left.uid(), stranger.uid());
        let is_blocked = |run: Option<&PipelineRun>| {
            run.is_some_and(|run| run.annotations().contains_key(BLOCKED))
        };
        scene.until("clash", "is annotated", is_blocked).await?;
        let task_run = ("TaskRun", "clash-one");
        let of_task_run = scene.told_about(task_run, "PlaceholderNameTaken").await?;
        assert_eq!(of_task_run, told);
        objects
            .delete(&stranger_name, &DeleteParams::background())
            .await?;
        scene.succeeds("clash").await?;
        scene
            .until("clash", "is not annotated", |run| !is_blocked(run))
            .await?;
        assert_eq!(scene.told_so_far("clash").await?.len(), 1);
        let mut tellings = tellings(&scene, mark)?;
        tellings.sort();
        let (event, patch) = ("create events", "patch pipelineruns");
        let requests = scene.requests_since(mark)?;
        assert_eq!(tellings, [event, event, patch, patch], "{requests:#?}");
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn v7_why_a_run_waits_is_for_the_manager_to_say() -> Outcome {
    shared(async |scene| {
        let forged = run("forged")
            .in_mode("pipelineruns")
            .task("one", &[], &[])
            .held("one")
            .metadata(
                "annotations",
                json!({BLOCKED: "{}", OVERRIDE: "pipelineruns"}),
            );
        let created = scene.submit(forged).await?;
        assert!(!created.annotations().contains_key(BLOCKED));
        patch(
            &scene,
            "forged",
            json!({"metadata": {"annotations": {BLOCKED: "{}"}}}),
        )
        .await?;
        scene
            .until("forged", "is not blocked", |run: Option<&PipelineRun>| {
                run.is_some_and(|run| !run.annotations().contains_key(BLOCKED))
            })
            .await?;
        scene.end("forged", "one").await?;
        scene.succeeds("forged").await?;
        scene.nothing_left_but(&[]).await
    })
}
