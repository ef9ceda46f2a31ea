//! Runs the files of `examples/` unchanged on one control plane, and checks the promises in their comments. All of them run at
//! the same time, so that the isolated run must keep others away.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use futures::future::join_all;
use integration_tests::look::{is_placeholder, node};
use integration_tests::stack::Stack;
use integration_tests::{Scene, on_bed};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::{CONFIG_MAP, NAMESPACE, Services, ServicesConfig, backend};

type Outcome = anyhow::Result<()>;

/// The promises in an example's comments. A claim is given by the beginning of its name.
struct Promise {
    file: &'static str,
    /// The mode that is pinned on the run; `None` if none is pinned.
    mode: Option<&'static str>,
    /// The claims that the run's only placeholder mounts; `None` if the run has no placeholder.
    placeholder: Option<&'static [&'static str]>,
    /// The tasks whose pods must be on the placeholder's node.
    together: &'static [&'static str],
    /// The tasks whose pods may run anywhere.
    anywhere: &'static [&'static str],
    /// The claims that exist after the run has ended and its placeholder was deleted.
    stay: &'static [&'static str],
}

/// A run that chooses no mode gets the cluster's mode, `pipelineruns`, as in `deploy/base`.
const PROMISES: [Promise; 12] = [
    Promise {
        file: "claim-name-from-param.yaml",
        mode: Some("pipelineruns"),
        placeholder: Some(&["cache-go"]),
        together: &["use", "warm"],
        anywhere: &[],
        stay: &["cache-go"],
    },
    Promise {
        file: "disabled.yaml",
        mode: None,
        placeholder: None,
        together: &[],
        anywhere: &["check-registry", "check-site"],
        stay: &[],
    },
    Promise {
        file: "existing-claim.yaml",
        mode: Some("pipelineruns"),
        placeholder: Some(&["build-cache", "pvc-"]),
        together: &["clone", "compile"],
        anywhere: &[],
        stay: &["build-cache"],
    },
    Promise {
        file: "isolate-pipelinerun.yaml",
        mode: Some("isolate-pipelinerun"),
        placeholder: Some(&["pvc-"]),
        together: &["benchmark", "clone"],
        anywhere: &[],
        stay: &[],
    },
    Promise {
        file: "one-claim-two-workspaces.yaml",
        mode: Some("workspaces"),
        placeholder: Some(&["team-volume"]),
        together: &["use", "warm", "write"],
        anywhere: &[],
        stay: &["team-volume"],
    },
    Promise {
        file: "other-volumes.yaml",
        mode: Some("workspaces"),
        placeholder: None,
        together: &[],
        anywhere: &["pack", "push"],
        stay: &[],
    },
    Promise {
        file: "pipelineruns.yaml",
        mode: Some("pipelineruns"),
        placeholder: Some(&["pvc-", "pvc-"]),
        together: &["clone", "fetch", "report", "test", "test"],
        anywhere: &[],
        stay: &[],
    },
    Promise {
        file: "read-write-many.yaml",
        mode: Some("pipelineruns"),
        placeholder: Some(&["datasets"]),
        together: &["train", "validate"],
        anywhere: &[],
        stay: &["datasets"],
    },
    Promise {
        file: "read-write-once-pod.yaml",
        mode: Some("pipelineruns"),
        placeholder: Some(&[]),
        together: &["first", "second"],
        anywhere: &[],
        stay: &[],
    },
    Promise {
        file: "two-volumes.yaml",
        mode: Some("pipelineruns"),
        placeholder: Some(&["pvc-", "pvc-"]),
        together: &["build", "cache", "clone", "notify"],
        anywhere: &[],
        stay: &[],
    },
    Promise {
        file: "volume-claim-template.yaml",
        mode: Some("pipelineruns"),
        placeholder: Some(&["scratch-"]),
        together: &["read", "write"],
        anywhere: &[],
        stay: &[],
    },
    Promise {
        file: "workspaces.yaml",
        mode: Some("workspaces"),
        placeholder: Some(&["pvc-"]),
        together: &["clone", "test", "vet"],
        anywhere: &["announce"],
        stay: &["pvc-"],
    },
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// The objects of an example, in the order in which `kubectl create -f` creates them.
fn documents(file: &str) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(folder().join(file))?;
    serde_saphyr::from_multiple(&text).with_context(|| format!("failed to parse {file}"))
}

/// A new file needs a promise here, or another test that runs it.
#[test]
fn every_example_is_run_by_a_test_and_says_how_to_create_it() {
    let here = Path::new(file!()).file_name().unwrap();
    let others: Vec<String> =
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file() && path.file_name() != Some(here))
            .map(|path| std::fs::read_to_string(path).unwrap())
            .collect();
    let promised: BTreeSet<String> = PROMISES.iter().map(|one| one.file.to_owned()).collect();
    let found: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let unknown: Vec<_> = found
        .difference(&promised)
        .filter(|file| !others.iter().any(|test| test.contains(file.as_str())))
        .collect();
    assert!(unknown.is_empty(), "no test runs {unknown:?}");
    assert!(promised.is_subset(&found), "promised, but not there");
    for file in found {
        let text = std::fs::read_to_string(folder().join(&file)).unwrap();
        let command = format!("\n#   kubectl create -f examples/{file}");
        assert!(
            text.contains(&command),
            "{file} does not say how to create it"
        );
        for step in steps(&documents(&file).unwrap()) {
            assert!(
                step["command"].is_array() && step["image"].is_string(),
                "{file}: {step}"
            );
        }
    }
}

/// The steps of all Pipelines, also of those that are embedded in PipelineRuns.
fn steps(documents: &[Value]) -> Vec<Value> {
    let specs = documents
        .iter()
        .flat_map(|document| [&document["spec"], &document["spec"]["pipelineSpec"]]);
    specs
        .flat_map(|spec| [&spec["tasks"], &spec["finally"]])
        .flat_map(|tasks| tasks.as_array().into_iter().flatten())
        .flat_map(|task| task["taskSpec"]["steps"].as_array().into_iter().flatten())
        .cloned()
        .collect()
}

#[test]
fn m1_m3_m4_m5_v1_v2_v3_v5_v6_v8_v9_the_examples_do_what_their_comments_promise() -> Outcome {
    let config = Config {
        nodes: 8,
        ..Config::default()
    };
    on_bed(config, async |bed| {
        bed.create_namespace(NAMESPACE, &[]).await?;
        let mut flags: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": CONFIG_MAP},
            "data": {
                "coschedule": "pipelineruns",
                "allowed-overrides": "workspaces, isolate-pipelinerun, disabled",
            },
        }))?;
        flags.data.get_or_insert_default().extend(backend());
        Api::namespaced(bed.client(), NAMESPACE)
            .create(&PostParams::default(), &flags)
            .await?;
        let services = Services::start(ServicesConfig::new(bed.kubeconfig())?).await?;
        let stack = Stack::new(bed, services);
        let kept = join_all(PROMISES.iter().map(|promise| keep(&stack, promise))).await;
        let broken: Vec<String> = PROMISES
            .iter()
            .zip(kept)
            .filter_map(|(promise, kept)| Some(format!("{}: {:#}", promise.file, kept.err()?)))
            .collect();
        ensure!(broken.is_empty(), "{}", broken.join("\n"));
        let Stack { bed, services, .. } = stack;
        services.stop().await?;
        bed.stop().await
    })
}

/// Creates the objects of an example in a namespace of its own, and checks its promise.
async fn keep(stack: &Stack, promise: &Promise) -> Outcome {
    let scene = &stack.scene().await?;
    let mut created = Vec::new();
    for document in documents(promise.file)? {
        created.push(create(scene, document).await?);
    }
    let run = created.pop().context("no object")?;
    let pinned = run.annotations().get("coscheduler.dev/mode");
    ensure!(
        pinned.map(String::as_str) == promise.mode,
        "mode {pinned:?} is pinned"
    );
    let home = match promise.placeholder {
        Some(claims) => Some(placeholder(scene, claims, promise.mode).await?),
        None => None,
    };
    scene.succeeds(&run.name_any()).await?;
    check_pods(scene, promise, home.as_deref()).await?;
    if promise.file == "read-write-once-pod.yaml" {
        took_turns(scene).await?;
    }
    left(scene, promise.stay).await
}

async fn create(scene: &Scene<'_>, document: Value) -> anyhow::Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(document)?;
    let types = object
        .types
        .clone()
        .context("neither apiVersion nor kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    let api =
        Api::<DynamicObject>::namespaced_with(scene.client.clone(), &scene.namespace, &resource);
    let kind = types.kind;
    api.create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("failed to create the {kind}"))
}

/// Waits until the run's only placeholder is bound, and checks its claims. If the run is isolated, also checks that no other
/// placeholder is on its node. Returns the node.
async fn placeholder(
    scene: &Scene<'_>,
    claims: &[&str],
    mode: Option<&str>,
) -> anyhow::Result<String> {
    let bound = |pod: &Pod| is_placeholder(pod) && node(pod).is_some();
    let seen = scene
        .until_all::<Pod>("have a bound placeholder", |pods| {
            pods.iter().any(|pod| bound(pod))
        })
        .await?;
    let pod = seen.iter().find(|pod| bound(pod)).context("none")?;
    let home = node(pod).context("not bound")?.to_owned();
    ensure!(seen.iter().filter(|pod| is_placeholder(pod)).count() == 1);
    same(&integration_tests::look::claims(pod), claims)
        .context("the placeholder mounts other claims")?;
    if mode == Some("isolate-pipelinerun") {
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        let apart = affinity
            .and_then(|affinity| affinity.pod_anti_affinity.as_ref())
            .and_then(|apart| {
                apart
                    .required_during_scheduling_ignored_during_execution
                    .as_ref()
            });
        ensure!(
            apart.is_some_and(|terms| !terms.is_empty()),
            "nothing keeps others away: {affinity:?}"
        );
        let everywhere = Api::<Pod>::all(scene.client.clone())
            .list(&ListParams::default())
            .await?;
        let there: Vec<_> = everywhere
            .iter()
            .filter(|pod| is_placeholder(pod) && node(pod) == Some(home.as_str()))
            .map(|pod| (pod.namespace(), pod.name_any()))
            .collect();
        ensure!(there.len() == 1, "on the isolated run's node are {there:?}");
    }
    Ok(home)
}

async fn check_pods(scene: &Scene<'_>, promise: &Promise, home: Option<&str>) -> Outcome {
    let (mut together, mut anywhere) = (Vec::new(), Vec::new());
    for pod in scene.objects().await?.task_pods {
        let task = pod.labels()["tekton.dev/pipelineTask"].clone();
        let affine = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.affinity.is_some());
        if affine {
            ensure!(
                node(&pod) == home,
                "{task} ran on {:?}, the placeholder was on {home:?}",
                node(&pod)
            );
            together.push(task);
        } else {
            anywhere.push(task);
        }
    }
    together.sort();
    anywhere.sort();
    ensure!(together == promise.together, "{together:?} ran together");
    ensure!(anywhere == promise.anywhere, "{anywhere:?} ran anywhere");
    Ok(())
}

/// Checks that no two task pods were on a node at the same time.
async fn took_turns(scene: &Scene<'_>) -> Outcome {
    let stays = scene.stack.history.stays(&scene.namespace).await?;
    let pods: Vec<_> = stays.iter().filter(|stay| !stay.placeholder).collect();
    for (index, one) in pods.iter().enumerate() {
        for other in &pods[index + 1..] {
            ensure!(!one.overlaps(other), "ran at once: {one:?}, {other:?}");
        }
    }
    Ok(())
}

/// Waits until the placeholder is deleted and only these claims are left.
async fn left(scene: &Scene<'_>, stay: &[&str]) -> Outcome {
    scene.until_sets("are gone", |sets| sets.is_empty()).await?;
    scene
        .until_all::<Pod>("have no placeholder", |pods| {
            !pods.iter().any(|pod| is_placeholder(pod))
        })
        .await?;
    let claims = scene
        .until_all::<PersistentVolumeClaim>("are those that stay", |claims| {
            claims.len() == stay.len()
        })
        .await?;
    if let Some(going) = claims
        .iter()
        .find(|claim| claim.metadata.deletion_timestamp.is_some())
    {
        bail!("claim {} is going", going.name_any());
    }
    let names: Vec<String> = claims.iter().map(|claim| claim.name_any()).collect();
    same(&names, stay).context("other claims are left")
}

/// Checks that each name begins as promised.
fn same(names: &[String], promised: &[&str]) -> Outcome {
    let mut names = names.to_vec();
    names.sort();
    let agree = names.len() == promised.len()
        && names
            .iter()
            .zip(promised)
            .all(|(name, beginning)| name.starts_with(beginning));
    ensure!(agree, "{names:?} instead of {promised:?}");
    Ok(())
}
