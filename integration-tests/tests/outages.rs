//! Services that are down for a while: a run is delayed, and nothing else. On a stack of its own.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use integration_tests::alone;
use integration_tests::look::node;
use integration_tests::runs::run;
use kube::ResourceExt as _;
use testbed::Config;
use testbed::services::Service;

/// How long a service is down: the scenario, not a wait for something.
const DOWN: Duration = Duration::from_secs(30);

#[test]
fn planner_manager_or_config_service_down_for_half_a_minute_delays_a_run_and_nothing_else()
-> anyhow::Result<()> {
    alone(Config::default(), async |scene| {
        let services = &scene.stack.services;
        for service in [
            Service::AffinityPlanner,
            Service::PlaceholderManager,
            Service::ConfigService,
        ] {
            let name = format!("without-{service}");
            let run = run(&name)
                .template("source")
                .template("cache")
                .task("one", &["source"], &[])
                .task("two", &["source", "cache"], &["one"])
                .finally("last", &[]);
            // Down from the moment the run exists: before its placeholder does, unless the stack is quicker.
            let created = scene.submit(run).await?;
            services.kill(service)?;
            tokio::time::sleep(DOWN).await;
            services.start_service(service)?;
            services.wait_ready().await?;
            scene.succeeds(&name).await?;
            let objects = scene.objects().await?;
            let pods = objects
                .task_pods
                .iter()
                .filter(|pod| pod.labels()["tekton.dev/pipelineRun"] == name);
            let nodes: Vec<_> = pods.map(|pod| node(pod).unwrap()).collect();
            assert_eq!(nodes.len(), 3, "{name}");
            assert_eq!(BTreeSet::from_iter(nodes).len(), 1, "{name}");
            assert!(created.annotations().contains_key("coscheduler.dev/group"));
            scene.nothing_left_but(&[]).await?;
        }
        anyhow::Ok(())
    })
}

#[test]
fn a_watcher_or_webhook_that_restarts_loses_no_run() -> anyhow::Result<()> {
    alone(Config::default(), async |scene| {
        let services = &scene.stack.services;
        scene
            .submit(
                run("seen-late")
                    .template("source")
                    .task("one", &["source"], &[]),
            )
            .await?;
        services.kill(Service::Watcher)?;
        services.start_service(Service::Watcher)?;
        scene.succeeds("seen-late").await?;
        scene.nothing_left_but(&[]).await?;

        scene
            .submit(
                run("webhook-gone")
                    .template("source")
                    .task("one", &["source"], &[])
                    .task("two", &["source"], &["one"]),
            )
            .await?;
        services.kill(Service::AdmissionWebhook)?;
        services.start_service(Service::AdmissionWebhook)?;
        services.wait_ready().await?;
        scene.succeeds("webhook-gone").await?;
        scene.nothing_left_but(&[]).await
    })
}
