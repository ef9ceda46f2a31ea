//! The installation is applied, rolled out and deleted while PipelineRuns are created every 200 ms. None is ever refused (B8).
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_core::annotations::{GROUP, MODE};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::future::try_join_all;
use integration_tests::installation::{kubectl, lead, serve};
use integration_tests::look::LIMIT;
use integration_tests::on_bed;
use integration_tests::runs::{Run, run};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use testbed::services::{CONFIGURATION_NAME, NAMESPACE, Service, Services};
use testbed::{Config, TestBed};
use tokio::sync::watch;

type Outcome = anyhow::Result<()>;

/// The time between two pairs of runs.
const PERIOD: Duration = Duration::from_millis(200);
/// How long a pod of the webhook continues to serve after its deletion (`preStop` in its Deployment).
const PRE_STOP: Duration = Duration::from_secs(5);
/// The number of further runs that are created during the rollout.
const BURST: usize = 100;
/// The overlay with the components that a large cluster needs.
const PRODUCTION: &str = "deploy/overlays/production";
const OPENSHIFT: &str = "deploy/overlays/openshift";
/// The tag of the images after an upgrade.
const NEXT: &str = ":next";
const NEW_RUNS: &str = "pipelineruns.coscheduler.dev";
const PLANNER: &str = "deploy/base/affinity-planner/deployment.yaml";

/// The runs that were created so far.
#[derive(Clone, Copy, Debug, Default)]
struct Created {
    number: usize,
    /// True if the last run is coscheduled.
    coscheduled: bool,
    /// The number of runs that are not.
    left_alone: usize,
}

/// The manifest of the webhook's own Deployment.
const OWN: &str = "deploy/base/admission-webhook/deployment.yaml";

/// A run that Tekton does not start.
fn pending(name: &str) -> Run {
    let pending = json!("PipelineRunPending");
    run(name).task("one", &[], &[]).spec("status", pending)
}

/// Creates two runs at the same time every 200 ms, until one is refused.
async fn create(runs: Api<PipelineRun>, created: &watch::Sender<Created>) -> anyhow::Error {
    let mut period = tokio::time::interval(PERIOD);
    loop {
        period.tick().await;
        let Created {
            number, left_alone, ..
        } = *created.borrow();
        let number = number + 1;
        let name = format!("run-{number}");
        let beside = pending(&format!("beside-{number}")).create(runs.clone());
        match tokio::try_join!(pending(&name).create(runs.clone()), beside) {
            Ok((run, _)) => {
                let coscheduled = run.annotations().contains_key(MODE);
                // Admission writes all its annotations or none.
                if run.annotations().contains_key(GROUP) != coscheduled {
                    return anyhow::anyhow!("half pinned: {:?}", run.annotations());
                }
                created.send_replace(Created {
                    number,
                    coscheduled,
                    left_alone: left_alone + usize::from(!coscheduled),
                });
            }
            Err(error) => return error.context(format!("{name} is refused")),
        }
    }
}

/// The installation, on a bed on which runs are created all the time.
struct Installation<'a> {
    bed: &'a TestBed,
    client: Client,
    created: watch::Receiver<Created>,
}

impl Installation<'_> {
    /// Waits until new runs are coscheduled, or, if `expect` is false, until they are not.
    async fn coschedules(&mut self, expect: bool) -> Outcome {
        let seen = self.created.wait_for(|it| it.coscheduled == expect);
        let seen = tokio::time::timeout(LIMIT, seen).await;
        seen.with_context(|| format!("runs are coscheduled: never {expect}"))??;
        Ok(())
    }

    /// Checks that none of the next ten runs is coscheduled, and that the API server does not call the webhook for new runs.
    async fn is_quiet(&mut self) -> Outcome {
        let first = self.created.borrow().number;
        for number in first + 1..=first + 10 {
            let seen = self.created.wait_for(|it| it.number >= number).await?;
            ensure!(!seen.coscheduled, "run {} is coscheduled", seen.number);
        }
        let rules = self.webhooks_with_rules().await?;
        ensure!(!rules.contains(&NEW_RUNS.to_owned()), "{rules:?}");
        Ok(())
    }

    async fn webhooks_with_rules(&self) -> anyhow::Result<Vec<String>> {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let found = configurations.get_opt(CONFIGURATION_NAME).await?;
        let webhooks = found.into_iter().flat_map(|found| found.webhooks);
        let with_rules = webhooks.flatten().filter(|it| it.rules.is_some());
        Ok(with_rules.map(|webhook| webhook.name).collect())
    }

    async fn kubectl(&self, arguments: &[&str]) -> Outcome {
        kubectl(self.bed, arguments).await.map(drop)
    }

    /// Starts the processes, and makes the API server reach them. The webhook must not write its rules before that, so Deployment
    /// `missing` is deleted first.
    async fn serve(&self, missing: &str) -> anyhow::Result<Services> {
        self.kubectl(&["delete", "-f", missing]).await?;
        let services = serve(self.bed, 2).await?;
        lead(&self.client, &services).await?;
        Ok(services)
    }

    /// Acts as a kubelet: kills the processes of a service five seconds after the service's pods were deleted.
    async fn kubelet(&self, services: &Services) -> Outcome {
        let end = async |service: Service| {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
            let label = format!("app.kubernetes.io/name={service}");
            let of_service = ListParams::default().labels(&label);
            for pod in pods.list(&of_service).await? {
                let gone = |found: Option<&Pod>| {
                    found.is_none_or(|found| found.metadata.deletion_timestamp.is_some())
                };
                await_condition(pods.clone(), &pod.name_any(), gone).await?;
            }
            tokio::time::sleep(PRE_STOP).await;
            let mut replicas = services.replicas(service);
            replicas.try_for_each(|replica| services.kill(replica))
        };
        try_join_all(Service::ALL.map(end)).await?;
        Ok(())
    }
}

#[test]
fn b8_no_run_is_refused_while_the_installation_comes_rolls_and_goes() -> Outcome {
    on_bed(Config::default(), async |bed| {
        let client = bed.client();
        let (sender, created) = watch::channel(Created::default());
        let installation = Installation {
            bed: &bed,
            client: client.clone(),
            created,
        };
        tokio::select! {
            refused = create(Api::default_namespaced(client), &sender) => return Err(refused),
            done = scenario(installation) => done?,
        }
        println!("{} runs were created", sender.borrow().number);
        bed.stop().await
    })
}

async fn scenario(mut installation: Installation<'_>) -> Outcome {
    // No process runs yet, as if no image could be pulled.
    let tekton = ["create", "namespace", "openshift-pipelines"];
    installation.kubectl(&tekton).await?;
    installation.kubectl(&["apply", "-k", OPENSHIFT]).await?;
    installation.is_quiet().await?;
    let delete = ["delete", "-k", OPENSHIFT, "--ignore-not-found"];
    installation.kubectl(&delete).await?;
    installation.kubectl(&["apply", "-k", PRODUCTION]).await?;
    installation.is_quiet().await?;

    // First the processes run, but the planner's Deployment is missing. Then the Deployment is there, but no planner runs.
    let services = installation.serve(PLANNER).await?;
    installation.is_quiet().await?;
    for replica in services.replicas(Service::AffinityPlanner) {
        services.kill(replica)?;
    }
    installation.kubectl(&["apply", "-f", PLANNER]).await?;
    installation.is_quiet().await?;
    for replica in services.replicas(Service::AffinityPlanner) {
        services.start_service(replica)?;
    }
    installation.coschedules(true).await?;
    assert_eq!(installation.webhooks_with_rules().await?.len(), 4);
    // This is the command with which README.md waits.
    let rules = "jsonpath={.webhooks[0].rules[0].operations[0]}=CREATE";
    let webhooks = "mutatingwebhookconfiguration";
    let wait = ["wait", webhooks, CONFIGURATION_NAME, "--for", rules];
    installation.kubectl(&wait).await?;

    // All processes are replaced while many runs are created.
    let runs: Api<PipelineRun> = Api::default_namespaced(installation.client.clone());
    let burst = (0..BURST).map(|number| pending(&format!("burst-{number}")).create(runs.clone()));
    let (burst, rolled) = tokio::join!(try_join_all(burst), roll(&services));
    rolled?;
    for run in burst.context("a run of the burst is refused")? {
        assert!(run.annotations().contains_key(MODE), "{}", run.name_any());
    }

    upgrade(&mut installation, &services).await?;

    // The planner's Deployment is deleted. The webhook does not review new runs any more, but still reviews the TaskRuns of
    // existing runs.
    installation.kubectl(&["delete", "-f", PLANNER]).await?;
    installation.coschedules(false).await?;
    let left = installation.webhooks_with_rules().await?;
    let expect = [
        "pipelinerun-updates.coscheduler.dev",
        "runs.coscheduler.dev",
    ];
    assert_eq!(left, expect);
    installation.kubectl(&["apply", "-f", PLANNER]).await?;
    installation.coschedules(true).await?;

    // Only the webhook's own Deployment is deleted: all rules are removed, and come back with the Deployment.
    installation.kubectl(&["delete", "-f", OWN]).await?;
    installation.coschedules(false).await?;
    installation.is_quiet().await?;
    assert_eq!(installation.webhooks_with_rules().await?, [""; 0]);
    installation.kubectl(&["apply", "-f", OWN]).await?;
    installation.coschedules(true).await?;

    Box::pin(removals(&mut installation, services)).await
}

/// Applies the manifests with other images, and replaces each process meanwhile. Runs are coscheduled all the time.
async fn upgrade(installation: &mut Installation<'_>, services: &Services) -> Outcome {
    let rendered = kubectl(installation.bed, &["kustomize", PRODUCTION]).await?;
    // The port that leads to this machine, which `lead` has written.
    let port = format!("port: {}", services.ports().admission());
    let lines = rendered.lines().map(|line| match line.rsplit_once(':') {
        Some((image, _version)) if image.contains("image: ") => format!("{image}{NEXT}"),
        _ => line.replace("port: 443", &port),
    });
    let manifests = lines.collect::<Vec<_>>().join("\n");
    let file = installation.bed.dir().join("upgrade.yaml");
    std::fs::write(&file, manifests)?;
    let file = file.to_str().context("the path is not UTF-8")?;

    let before = *installation.created.borrow();
    let rollout = async {
        installation.kubectl(&["apply", "-f", file]).await?;
        let status = ["rollout", "status", "deployments", "-n", NAMESPACE];
        installation.kubectl(&status).await
    };
    tokio::try_join!(rollout, roll(services))?;
    let all = ["get", "pods", "-n", NAMESPACE, "-o", "jsonpath={..image}"];
    let images = kubectl(installation.bed, &all).await?;
    for service in Service::ALL {
        let image = format!("{service}{NEXT}");
        ensure!(images.contains(&image), "{images}");
    }
    let created = *installation.created.borrow();
    let number = created.number - before.number;
    println!("{number} runs during an upgrade");
    ensure!(
        number > 0 && created.left_alone == before.left_alone,
        "{before:?} {created:?}"
    );
    assert_eq!(installation.webhooks_with_rules().await?.len(), 4);
    Ok(())
}

/// Replaces all processes, one after the other.
async fn roll(services: &Services) -> Outcome {
    for service in Service::ALL {
        for replica in services.replicas(service) {
            services.roll(replica).await?;
        }
    }
    Ok(())
}

/// Removes the installation in several orders, and installs it again each time.
async fn removals(installation: &mut Installation<'_>, mut services: Services) -> Outcome {
    let bed = installation.bed;
    let orders: [&[&[&str]]; 4] = [
        &[&["delete", "namespace", NAMESPACE]],
        &[&["delete", "-k", PRODUCTION, "--ignore-not-found"]],
        // Argo CD prunes in this order, the opposite of a synchronization.
        &[
            &[
                "delete",
                "-f",
                "deploy/base/admission-webhook/webhook-configuration.yaml",
            ],
            &["delete", "deployments", "--all", "-n", NAMESPACE],
            &["delete", "-k", PRODUCTION, "--ignore-not-found"],
        ],
        // The services that other services call are deleted first.
        &[
            &["delete", "deployment", "config-service", "-n", NAMESPACE],
            &["delete", "-f", PLANNER],
            &["delete", "deployments", "--all", "-n", NAMESPACE],
            &["delete", "-k", PRODUCTION, "--ignore-not-found"],
        ],
    ];
    let last = orders.len() - 1;
    let created = installation.created.clone();
    for (index, order) in orders.into_iter().enumerate() {
        let remove = async {
            for command in order {
                println!("{command:?} after {} runs", created.borrow().number);
                kubectl(bed, command).await?;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(remove, installation.kubelet(&services))
            .with_context(|| format!("{order:?}"))?;
        installation.is_quiet().await?;
        let rules = installation.webhooks_with_rules().await?;
        ensure!(rules.is_empty(), "{order:?} left {rules:?}");
        services.stop().await?;
        if index == last {
            return Ok(());
        }
        installation.kubectl(&["apply", "-k", PRODUCTION]).await?;
        services = installation.serve(PLANNER).await?;
        installation.kubectl(&["apply", "-f", PLANNER]).await?;
        installation.coschedules(true).await?;
    }
    Ok(())
}
