//! Runs with names, annotations, labels or claims of another run. None of these makes a service of ours write in another
//! namespace or to another run's objects. The audit log shows every write (P6, P7, N1, N2).
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_core::annotations::{CLAIMS, GROUP, TEKTON_AFFINITY_ASSISTANT};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use integration_tests::audit::{Mark, Request};
use integration_tests::look::{is_placeholder, node};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_with};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::{CONFIGURATION_NAME, Service, ServicesConfig};
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const RUN_UID: &str = "tekton.dev/pipelineRunUID";
const COMPONENT: &str = "app.kubernetes.io/component";
const INSTANCE: &str = "app.kubernetes.io/instance";
/// The time limit of a polled condition.
const PATIENCE: Duration = Duration::from_secs(90);

fn stack(nodes: usize, test: impl AsyncFnOnce(&Scene<'_>) -> Outcome) -> Outcome {
    let config = Config {
        nodes,
        audit_log: true,
        ..Config::default()
    };
    let change = |services: &mut ServicesConfig| {
        services.mode = Some("pipelineruns".to_owned());
    };
    alone_with(config, change, async |scene| {
        scene.stack.allow_overrides().await?;
        test(scene).await
    })
}

/// An active run of another tenant, with its placeholder and its other objects.
struct Victim {
    namespace: String,
    run: PipelineRun,
    set: StatefulSet,
    node: String,
    claim: String,
    /// The names of the run and of its objects.
    has: BTreeSet<String>,
}

impl Victim {
    async fn new(scene: &Scene<'_>, run: Run) -> anyhow::Result<Self> {
        let name = run.name().to_owned();
        let created = scene.submit(run).await?;
        let uid = created.uid().context("a run without a uid")?;
        let is_its = |pod: &Pod| pod.labels().get(RUN_UID) == Some(&uid);
        let pods = scene
            .until_all::<Pod>("have two of the run on a node", |pods| {
                let bound = pods.iter().filter(|pod| is_its(pod) && node(pod).is_some());
                bound.count() == 2
            })
            .await?;
        let placeholder = pods.iter().find(|pod| is_its(pod) && is_placeholder(pod));
        let placeholder = placeholder.context("no placeholder")?;
        let set = placeholder.labels()[INSTANCE].clone();
        let set = scene.set(&set).await?;
        let claim = integration_tests::look::claims(placeholder);
        let claim = claim.into_iter().next();
        let mut has: BTreeSet<_> = pods
            .iter()
            .filter(|pod| is_its(pod))
            .map(|pod| pod.name_any())
            .collect();
        has.extend(claim.clone());
        has.extend([name.clone(), format!("{name}-one"), set.name_any()]);
        Ok(Self {
            namespace: scene.namespace.clone(),
            node: node(placeholder).unwrap().to_owned(),
            claim: claim.unwrap_or_default(),
            run: created,
            set,
            has,
        })
    }

    /// Checks that, since `mark`, no service of ours wrote to the run's objects, and that there is no Event about the run.
    async fn is_left_alone(&self, scene: &Scene<'_>, mark: Mark) -> Outcome {
        for request in scene.requests_since(mark)? {
            let ours = Service::ALL
                .into_iter()
                .any(|service| request.is_by(service));
            let object = &request.object;
            let its = object.namespace == self.namespace && self.has.contains(&object.name);
            ensure!(!(ours && request.is_write() && its), "{request:#?}");
        }
        let told = scene.told_so_far(&self.run.name_any()).await?;
        ensure!(told.is_empty(), "{told:?}");
        Ok(())
    }
}

/// A scene in another namespace of the same stack.
async fn other<'a>(scene: &Scene<'a>) -> anyhow::Result<Scene<'a>> {
    let namespace = format!("{}-elsewhere", scene.namespace);
    scene.stack.bed.create_namespace(&namespace, &[]).await?;
    Ok(Scene {
        stack: scene.stack,
        client: scene.client.clone(),
        namespace,
    })
}

/// Writes annotations on a run that only admission may write. An administrator can do this while the webhook is down and
/// `failurePolicy` is `Ignore`.
async fn forge(scene: &Scene<'_>, name: &str, annotations: Value) -> Outcome {
    let services = &scene.stack.services;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(scene.client.clone());
    let policy = async |policy: &str| {
        let configuration = configurations.get(CONFIGURATION_NAME).await?;
        let webhooks = configuration.webhooks.unwrap_or_default().len();
        let patches: Vec<_> = (0..webhooks)
            .map(|index| json!({"op": "replace", "path": format!("/webhooks/{index}/failurePolicy"), "value": policy}))
            .collect();
        let patch = Patch::Json::<()>(serde_json::from_value(patches.into())?);
        let params = PatchParams::default();
        configurations
            .patch(CONFIGURATION_NAME, &params, &patch)
            .await?;
        anyhow::Ok(())
    };
    services.kill(Service::AdmissionWebhook)?;
    policy("Ignore").await?;
    let forged = json!({"metadata": {"annotations": annotations}});
    let written = async {
        let path = format!("tekton.dev/v1/pipelineruns/{name}");
        // The API server uses the new policy after a moment.
        while scene
            .send("PATCH", &path, &forged)
            .await?
            .refusal()
            .is_some()
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, written).await??;
    policy("Fail").await?;
    services.start_service(Service::AdmissionWebhook)?;
    services.wait_ready().await
}

/// Creates a pod with these labels. The pod has a node name, or is left to the scheduler.
async fn pretend(scene: &Scene<'_>, name: &str, node: Option<&str>, labels: Value) -> Outcome {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node,
            "nodeSelector": {"example.dev/none": "such"},
            "containers": [{"name": "c", "image": "example/image"}],
        },
    }))?;
    scene.api().create(&PostParams::default(), &pod).await?;
    Ok(())
}

fn held(name: &str) -> Run {
    run(name)
        .template("source")
        .task("one", &["source"], &[])
        .held("one")
}

/// Ends the run's only task, and checks that the run succeeds and that its placeholder and claim are deleted.
async fn ends_well(scene: &Scene<'_>, victim: &Victim) -> Outcome {
    let name = victim.run.name_any();
    scene.end(&name, "one").await?;
    scene.succeeds(&name).await?;
    scene
        .until(
            &victim.set.name_any(),
            "is gone",
            |set: Option<&StatefulSet>| set.is_none(),
        )
        .await?;
    scene
        .until(
            &victim.claim,
            "is gone",
            |claim: Option<&PersistentVolumeClaim>| claim.is_none(),
        )
        .await?;
    Ok(())
}

#[test]
fn p6_p7_n1_what_says_that_it_is_another_runs_touches_nobody_but_itself() -> Outcome {
    stack(6, async |scene| {
        let services = &scene.stack.services;
        let elsewhere = other(scene).await?;
        let neighbour = Victim::new(scene, held("neighbour")).await?;
        let foreign = Victim::new(&elsewhere, held("foreign")).await?;
        let mark = scene.mark()?;

        // Each of these runs names a claim of another run. If the other run is in the same namespace, admission treats the new
        // run as a copy of the other run, and gives it a claim of its own. Otherwise, admission refuses the new run.
        let thief = |name: &str, claim: &str| {
            let source = json!({"persistentVolumeClaim": {"claimName": claim}});
            let run = run(name).workspace("source", source);
            run.task("one", &["source"], &[])
        };
        let copy = scene.submit_told(thief("thief", &neighbour.claim)).await?;
        let own = &copy.object["spec"]["workspaces"][0]["persistentVolumeClaim"]["claimName"];
        assert!(
            own.as_str().is_some_and(|own| own != neighbour.claim),
            "{own}"
        );
        scene.succeeds("thief").await?;
        let far = scene.submit_told(thief("far-thief", &foreign.claim)).await;
        let refused = far.unwrap_err().to_string();
        assert!(refused.contains(&foreign.claim), "{refused}");

        // Runs with the group, placeholder and claims of another run. One of these placeholders exists in this namespace, and the
        // other one in its own run's namespace.
        for (name, of) in [("hostile", &neighbour), ("far-hostile", &foreign)] {
            scene.submit(held(name)).await?;
            let set = of.set.name_any();
            let group = set.replace("affinity-assistant-", "");
            let claims = json!({"cache": of.claim}).to_string();
            let annotations = json!({GROUP: group, TEKTON_AFFINITY_ASSISTANT: set, CLAIMS: claims});
            forge(scene, name, annotations).await?;
        }

        // Pods with the labels of other runs' tasks and placeholders: without a node, and on a cordoned node.
        let victims = [&neighbour.node, &foreign.node];
        let free = (1..=6).map(|number| format!("node-{number}"));
        let free = free
            .into_iter()
            .find(|name| !victims.contains(&name))
            .unwrap();
        scene.cordon(&free, true).await?;
        for (of, name) in [(&neighbour, "a"), (&foreign, "b")] {
            let uid = of.run.uid();
            let task = json!({RUN_UID: uid});
            let placeholder = json!({
                RUN_UID: uid,
                COMPONENT: "affinity-assistant",
                INSTANCE: of.set.name_any(),
                "app.kubernetes.io/managed-by": "tekton-coscheduler",
            });
            pretend(scene, &format!("{name}-task"), Some(&free), task).await?;
            pretend(
                scene,
                &format!("{name}-placeholder"),
                Some(&free),
                placeholder.clone(),
            )
            .await?;
            pretend(scene, &format!("{name}-nowhere"), None, placeholder).await?;
        }
        let is_told =
            |pod: &Pod| pod.name_any().ends_with("nowhere") && pods::is_unschedulable(pod);
        scene
            .until_all::<Pod>("have two that no node is found for", |pods| {
                pods.iter().filter(|pod| is_told(pod)).count() == 2
            })
            .await?;

        // The sweep of a new leader checks all these objects. Then another run is created and cleaned up.
        services.kill(Service::PlaceholderManager)?;
        services.start_service(Service::PlaceholderManager)?;
        services.wait_ready().await?;
        scene.leader(Service::PlaceholderManager).await?;
        for name in ["hostile", "far-hostile"] {
            let params = DeleteParams::foreground();
            scene.api::<PipelineRun>().delete(name, &params).await?;
        }
        let after = run("after")
            .template("source")
            .task("one", &["source"], &[]);
        scene.submit(after).await?;
        scene.succeeds("after").await?;
        let neighbours_own = neighbour.set.name_any();
        scene
            .until_all::<StatefulSet>("are the neighbour's", |sets| {
                sets.iter().all(|set| set.name_any() == neighbours_own)
            })
            .await?;

        neighbour.is_left_alone(scene, mark).await?;
        foreign.is_left_alone(&elsewhere, mark).await?;
        // No service of ours wrote anything else in that namespace either.
        for request in scene.requests_since(mark)? {
            let ours = Service::ALL
                .into_iter()
                .any(|service| request.is_by(service));
            let there = request.object.namespace == elsewhere.namespace;
            ensure!(!(ours && request.is_write() && there), "{request:#?}");
        }
        for name in ["a", "b"] {
            for what in ["task", "placeholder", "nowhere"] {
                let pod = format!("{name}-{what}");
                let at_once = DeleteParams::default().grace_period(0);
                scene.api::<Pod>().delete(&pod, &at_once).await?;
            }
        }
        ends_well(scene, &neighbour).await?;
        ends_well(&elsewhere, &foreign).await
    })
}

#[test]
fn n2_p7_a_task_that_says_that_it_is_another_runs_does_not_have_its_placeholder_moved() -> Outcome {
    stack(1, async |scene| {
        // The neighbour's placeholder is alone on a node that is too small for the stranger's pod, and could move to the other
        // node.
        scene.pool_of(&[("2", 110), ("8", 110)]).await?;
        scene.cordon(&scene.pool_node(2), true).await?;
        let movable = json!({"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": MOVABLE_STORAGE_CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        }}});
        let neighbour = run("neighbour")
            .in_pool_of(scene)
            .workspace("source", movable)
            .task("one", &["source"], &[])
            .gate(&["one"]);
        let neighbour = Victim::new(scene, neighbour).await?;
        scene
            .until_all::<Pod>("are a placeholder and a task that has ended", |pods| {
                let mut tasks = pods.iter().filter(|pod| !is_placeholder(pod));
                tasks.all(|pod| pods::phase(pod) == coscheduler_core::observed::PodPhase::Succeeded)
            })
            .await?;
        scene.cordon(&scene.pool_node(2), false).await?;
        let mark = scene.mark()?;

        let follows = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": {"matchLabels": {
                COMPONENT: "affinity-assistant",
                INSTANCE: neighbour.set.name_any(),
            }},
            "topologyKey": "kubernetes.io/hostname",
        }]}});
        let labels = json!({RUN_UID: neighbour.run.uid()});
        let stranger = run("stranger")
            .metadata("annotations", json!({}))
            .in_mode("disabled")
            .in_pool_with(scene, json!({"affinity": follows}))
            .task("big", &[], &[])
            .asking("4")
            .spec(
                "taskRunSpecs",
                json!([{"pipelineTaskName": "big", "metadata": {"labels": labels}}]),
            );
        scene.submit(stranger).await?;
        scene
            .until_all::<Pod>("have a stranger's that no node is found for", |pods| {
                pods.iter().any(|pod| {
                    let labels = pod.labels();
                    let stranger = pod.name_any().starts_with("stranger");
                    let pretends = labels.get(RUN_UID) == neighbour.run.uid().as_ref();
                    stranger && pretends && pods::is_unschedulable(pod)
                })
            })
            .await?;
        // Wait until the manager has asked to which run the stranger's pod belongs. Also wait for five seconds, which is longer
        // than the manager waits before it acts.
        let asks = |request: &Request| {
            let task_run = request.verb == "get" && request.object.resource == "taskruns";
            task_run && request.is_by(Service::PlaceholderManager)
        };
        let since = tokio::time::Instant::now();
        let asked = async {
            while since.elapsed() < Duration::from_secs(5)
                || !scene.requests_since(mark)?.iter().any(asks)
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, asked).await??;
        neighbour.is_left_alone(scene, mark).await
    })
}
