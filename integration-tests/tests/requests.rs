//! The number of requests that our services send to the API server for a run, from the audit log. `cargo xtask bench
//! compare` counts the requests of all programs. For comparison, it also measures Tekton with its own affinity assistant, without
//! our services.
#![allow(clippy::unwrap_used, clippy::panic)]

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::alone_with;
use integration_tests::audit::{Request, of_services, table};
use integration_tests::costs::{audited, one_claim, ours, reported_once_more, two_templates};
use integration_tests::look::{is_placeholder, node};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

type Outcome = anyhow::Result<()>;

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
        // At least, the placeholder is created and deleted, and each of the two claims is deleted and loses its finalizer.
        assert!(writes(&asked) >= 6, "{mode}: {:#?}", table(&asked));
        // A list of all namespaces would cost more with each run of other tenants.
        assert!(
            reads.iter().all(|read| !read.object.namespace.is_empty()),
            "{mode}: {reads:#?}"
        );
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
        services
            .flags
            .extend([("allowed-overrides".to_owned(), overrides)]);
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
            // After Tekton has written this reason, Tekton does not write to the run until a task ends.
            scene
                .until("measured", "is running", |run: Option<&PipelineRun>| {
                    let condition = run.and_then(integration_tests::look::condition);
                    condition.is_some_and(|condition| condition["reason"] == "Running")
                })
                .await?;
            let mark = scene.mark()?;
            reported_once_more(scene).await?;
            let asked = of_services(scene.requests_since(mark)?);
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
