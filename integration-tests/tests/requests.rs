//! What a run costs the API server: every request of ours for one, from the audit log, and those that Tekton's own
//! assistant takes for the same run. `cargo test --test requests -- --nocapture` prints both.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::time::Duration;

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::audit::{Request, requests};
use integration_tests::look::{LIMIT, is_placeholder, node, succeeded};
use integration_tests::metrics;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_with, on_bed};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use testbed::Config;
use testbed::services::Service;

type Outcome = anyhow::Result<()>;

fn audited() -> Config {
    Config {
        audit_log: true,
        ..Config::default()
    }
}

fn two_templates() -> Run {
    run("measured")
        .template("source")
        .template("cache")
        .task("one", &["source", "cache"], &[])
        .task("two", &["source"], &["one"])
        .finally("last", &["cache"])
}

fn one_claim() -> Run {
    run("measured")
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
        .finally("last", &["source"])
}

/// Requests by verb and what they were about.
fn table(requests: &[Request]) -> BTreeMap<(String, String), usize> {
    let mut table = BTreeMap::new();
    for request in requests {
        let mut object = request.object.resource.clone();
        if !request.object.subresource.is_empty() {
            object = format!("{object}/{}", request.object.subresource);
        }
        *table.entry((request.verb.clone(), object)).or_default() += 1;
    }
    table
}

fn print(title: &str, table: &BTreeMap<(String, String), usize>) {
    eprintln!("{title}: {} requests", table.values().sum::<usize>());
    for ((verb, object), count) in table {
        eprintln!("  {count:3} {verb} {object}");
    }
}

/// Whether one of our services asked, Leases and watches aside, which come and go by the clock. With watches go the lists of all
/// namespaces that caches begin with, and once more where the API server has lost a watch's place, as when a kind is changed.
fn is_ours(request: &Request) -> bool {
    let of_caches = request.verb == "list" && request.object.namespace.is_empty();
    Service::ALL
        .into_iter()
        .any(|service| request.is_by(service))
        && request.verb != "watch"
        && !of_caches
        && request.object.resource != "leases"
}

/// The requests of our services for a run in this mode, from before its creation until nothing of it is left.
fn ours(mode: &str, run: Run, brought: usize) -> anyhow::Result<Vec<Request>> {
    let mut asked = Vec::new();
    let change = |services: &mut testbed::services::ServicesConfig| {
        services.mode = Some(mode.to_owned());
    };
    alone_with(audited(), change, async |scene| {
        let mark = scene.mark()?;
        scene.submit(run).await?;
        scene.succeeds("measured").await?;
        scene
            .until_all::<StatefulSet>("are gone", |sets| sets.is_empty())
            .await?;
        scene
            .until_all::<Pod>("have no placeholder", |pods| {
                !pods.iter().any(|pod| is_placeholder(pod))
            })
            .await?;
        scene
            .until_all::<PersistentVolumeClaim>("are as many as Tekton made", |claims| {
                claims.len() == brought
            })
            .await?;
        // The last of them may be answered a moment after it was seen to be done.
        reported_once_more(scene).await?;
        asked = scene.requests_since(mark)?;
        asked.retain(is_ours);
        anyhow::Ok(())
    })?;
    print(&format!("{mode}, our services"), &table(&asked));
    Ok(asked)
}

/// Changes the run in a way that is nobody's business, and waits until the manager has answered for it.
async fn reported_once_more(scene: &Scene<'_>) -> Outcome {
    let manager = scene
        .stack
        .services
        .http_address(Service::PlaceholderManager);
    let handled = async || {
        let metrics = metrics::scrape(&manager).await?;
        let of = |method| {
            let labels = [("grpc_method", method), ("grpc_code", "OK")];
            metrics::sum(&metrics, "grpc_server_handled_total", &labels)
        };
        anyhow::Ok(of("Ensure") + of("Release"))
    };
    let before = handled().await?;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"example.com/touched": "yes"}}}));
    scene
        .api::<PipelineRun>()
        .patch("measured", &PatchParams::default(), &patch)
        .await?;
    let answered = async {
        while handled().await? <= before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(60), answered).await?
}

fn writes(asked: &[Request]) -> usize {
    asked.iter().filter(|request| request.is_write()).count()
}

#[test]
fn p6_v2_v4_a_run_with_two_templates_costs_at_most_eight_writes_and_one_read() -> Outcome {
    for mode in ["pipelineruns", "isolate-pipelinerun"] {
        let asked = ours(mode, two_templates(), 0)?;
        let reads: Vec<_> = asked.iter().filter(|request| !request.is_write()).collect();
        assert!(writes(&asked) <= 8, "{mode}: {:#?}", table(&asked));
        assert!(reads.len() <= 1, "{mode}: {reads:#?}");
        // The placeholder comes and goes, and each claim is deleted and let go of: less cannot do it.
        assert!(writes(&asked) >= 6, "{mode}: {:#?}", table(&asked));
        assert_eq!(
            reads
                .iter()
                .map(|read| read.object.resource.as_str())
                .collect::<Vec<_>>(),
            ["pods"],
            "{mode}"
        );
    }
    Ok(())
}

#[test]
fn m1_v3_a_run_with_one_claim_in_workspaces_costs_at_most_four_writes_and_no_read() -> Outcome {
    let asked = ours("workspaces", one_claim(), 1)?;
    assert!(asked.iter().all(Request::is_write), "{asked:#?}");
    assert!((2..=4).contains(&writes(&asked)), "{:#?}", table(&asked));
    Ok(())
}

#[test]
fn n6_a_change_of_a_run_that_is_nobodys_business_costs_no_request() -> Outcome {
    let change = |services: &mut testbed::services::ServicesConfig| {
        let overrides = "workspaces, isolate-pipelinerun".to_owned();
        services.flags = [("allowed-overrides".to_owned(), overrides)].into();
    };
    alone_with(audited(), change, async |scene| {
        for mode in ["workspaces", "pipelineruns", "isolate-pipelinerun"] {
            let long = one_claim()
                .lasting("one", 600)
                .metadata("annotations", json!({"coscheduler.dev/coschedule": mode}));
            scene.submit(long).await?;
            scene
                .until_all::<Pod>("have a running task", |pods| {
                    pods.iter().any(|pod| {
                        let status = pod.status.as_ref();
                        let phase = status.and_then(|status| status.phase.as_deref());
                        !is_placeholder(pod) && node(pod).is_some() && phase == Some("Running")
                    })
                })
                .await?;
            // Tekton's own last word on it.
            scene
                .until("measured", "is running", |run: Option<&PipelineRun>| {
                    let condition = run.and_then(integration_tests::look::condition);
                    condition.is_some_and(|condition| condition["reason"] == "Running")
                })
                .await?;
            let mark = scene.mark()?;
            reported_once_more(scene).await?;
            let mut asked = scene.requests_since(mark)?;
            asked.retain(is_ours);
            assert!(asked.is_empty(), "{mode}: {asked:#?}");
            let runs = scene.api::<PipelineRun>();
            runs.delete("measured", &Default::default()).await?;
            scene.nothing_left_but(&[]).await?;
            scene
                .until_all::<Pod>("are gone", |pods| pods.is_empty())
                .await?;
        }
        anyhow::Ok(())
    })
}

/// The requests of Tekton's controller for a run, with its own flag like that and none of our services.
fn tektons(flag: &str, run: Run) -> anyhow::Result<BTreeMap<(String, String), usize>> {
    let mut asked = Vec::new();
    let config = Config {
        tekton_coschedule: flag.to_owned(),
        ..audited()
    };
    on_bed(config, async |bed| {
        bed.create_namespace("measured", &[]).await?;
        let runs: Api<PipelineRun> = Api::namespaced(bed.client(), "measured");
        let mark = integration_tests::audit::end(&bed)?;
        let object: PipelineRun = serde_json::from_value(run.into_json())?;
        runs.create(&PostParams::default(), &object).await?;
        let done = await_condition(runs, "measured", |run: Option<&PipelineRun>| {
            run.is_some_and(|run| succeeded(run) == Some("True"))
        });
        tokio::time::timeout(LIMIT, done).await??;
        let sets: Api<StatefulSet> = Api::namespaced(bed.client(), "measured");
        let gone = async {
            while !sets.list(&ListParams::default()).await?.items.is_empty() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(LIMIT, gone).await??;
        asked = requests(&bed, mark)?;
        let controller = "system:serviceaccount:tekton-pipelines:tekton-pipelines-controller";
        asked.retain(|request| request.user.username == controller);
        bed.stop().await
    })?;
    asked.retain(|request| {
        let about = ["statefulsets", "pods", "persistentvolumeclaims", "nodes"];
        request.verb != "watch" && about.contains(&request.object.resource.as_str())
    });
    Ok(table(&asked))
}

#[test]
fn the_same_runs_under_tektons_own_assistant_are_measured_beside() -> Outcome {
    for (flag, measured) in [
        ("pipelineruns", two_templates as fn() -> Run),
        ("workspaces", one_claim),
    ] {
        let with = tektons(flag, measured())?;
        let without = tektons("disabled", measured())?;
        print(
            &format!("{flag}, Tekton's controller with its own assistant"),
            &with,
        );
        print(&format!("{flag}, Tekton's controller without"), &without);
        // It is its assistant that was measured.
        let made = ("create".to_owned(), "statefulsets".to_owned());
        assert_eq!(with.get(&made), Some(&1), "{with:?}");
        assert_eq!(without.get(&made), None, "{without:?}");
    }
    Ok(())
}
