//! Waits for states of the cluster, with watches or polls and a generous limit, and never for a fixed time.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Scene;
use crate::runs::Run;
use crate::sets::{is_alone, set_of};

/// How long anything may take on a busy machine. A wait that reaches this limit is a failure.
pub const LIMIT: Duration = Duration::from_secs(300);

/// A kind of objects that a test can wait for.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// The pods, claims and StatefulSets of a namespace.
#[derive(Debug)]
pub struct Objects {
    /// Pods of TaskRuns.
    pub task_pods: Vec<Pod>,
    /// Placeholder pods.
    pub placeholders: Vec<Pod>,
    /// StatefulSets. For a placeholder that is only a pod: the StatefulSet that it would have ([`set_of`]).
    pub stateful_sets: Vec<StatefulSet>,
    /// Claims.
    pub claims: Vec<PersistentVolumeClaim>,
}

impl Scene<'_> {
    /// The API of a kind in the scene's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a run.
    ///
    /// # Errors
    ///
    /// The API server refuses the run.
    pub async fn submit(&self, run: Run) -> anyhow::Result<PipelineRun> {
        run.create(self.api()).await
    }

    /// Waits until a run is done, and returns it.
    ///
    /// # Errors
    ///
    /// The run does not end in time. The error describes the namespace.
    pub async fn done(&self, name: &str) -> anyhow::Result<PipelineRun> {
        self.until(name, "is done", |run: Option<&PipelineRun>| {
            run.is_some_and(is_done)
        })
        .await?
        .context("the run is gone")
    }

    /// Waits until a run is done, and checks that it succeeded.
    ///
    /// # Errors
    ///
    /// The run failed, or does not end in time. The error describes the namespace.
    pub async fn succeeds(&self, name: &str) -> anyhow::Result<PipelineRun> {
        let run = self.done(name).await?;
        match assert_succeeded(&run) {
            Ok(()) => Ok(run),
            Err(error) => bail!("{error}\n{}", self.describe().await),
        }
    }

    /// Waits until `condition` holds for the object with this name, and returns the object. `None` means that the object does not
    /// exist.
    ///
    /// # Errors
    ///
    /// `condition` does not hold in time. The error describes the namespace.
    pub async fn until<K>(
        &self,
        name: &str,
        what: &str,
        mut condition: impl FnMut(Option<&K>) -> bool,
    ) -> anyhow::Result<Option<K>>
    where
        K: Kind,
    {
        let wait = async {
            let mut states = pin!(watcher::watch_object(self.api::<K>(), name).default_backoff());
            while let Some(state) = states.next().await {
                if let Ok(state) = state
                    && condition(state.as_ref())
                {
                    return Ok(state);
                }
            }
            bail!("the watch of {name} ended")
        };
        match tokio::time::timeout(LIMIT, wait).await {
            Ok(outcome) => outcome,
            Err(_) => bail!(
                "after {LIMIT:?} it does not hold that {} {name} {what}\n{}",
                K::kind(&()),
                self.describe().await
            ),
        }
    }

    /// Waits until `condition` holds for all objects of a kind in the namespace, and returns these objects.
    ///
    /// # Errors
    ///
    /// `condition` does not hold in time. The error describes the namespace.
    pub async fn until_all<K>(
        &self,
        what: &str,
        mut condition: impl FnMut(&[std::sync::Arc<K>]) -> bool,
    ) -> anyhow::Result<Vec<std::sync::Arc<K>>>
    where
        K: Kind,
    {
        let wait = async {
            let (store, writer) = reflector::store();
            let events = watcher(self.api::<K>(), watcher::Config::default()).default_backoff();
            let mut events = pin!(reflector(writer, events));
            let mut listed = false;
            while let Some(event) = events.next().await {
                listed |= matches!(event, Ok(watcher::Event::InitDone));
                if listed && condition(&store.state()) {
                    return Ok(store.state());
                }
            }
            bail!("the watch ended")
        };
        match tokio::time::timeout(LIMIT, wait).await {
            Ok(outcome) => outcome,
            Err(_) => bail!(
                "after {LIMIT:?} it does not hold that {}s {what}\n{}",
                K::kind(&()),
                self.describe().await
            ),
        }
    }

    /// Waits until `condition` holds for at least `total` objects of a kind in the namespace, and returns the number of these
    /// objects. On a busy machine, this may take long in total, so each fifty objects have a time limit of their own.
    ///
    /// # Errors
    ///
    /// `condition` does not hold for more objects in time. The error describes the namespace.
    pub async fn until_many<K: Kind>(
        &self,
        what: &str,
        total: usize,
        condition: impl Fn(&K) -> bool,
    ) -> anyhow::Result<usize> {
        let count = |all: &[std::sync::Arc<K>]| all.iter().filter(|one| condition(one)).count();
        let mut seen = 0;
        while seen < total {
            let next = (seen + 50).min(total);
            let what = format!("{what}, {next} of {total}");
            let all = self.until_all(&what, |all| count(all) >= next).await?;
            seen = count(&all);
        }
        Ok(seen)
    }

    /// Waits until the namespace has a placeholder that is bound to a node, and returns its StatefulSet and pod. If it has no
    /// StatefulSet (`placeholder-backend: pod`), returns the StatefulSet that it would have ([`set_of`]). For namespaces with one
    /// placeholder.
    ///
    /// # Errors
    ///
    /// No placeholder is bound in time. The error describes the namespace.
    pub async fn placeholder(&self) -> anyhow::Result<(StatefulSet, Pod)> {
        self.until_all::<Pod>("have a bound placeholder", |pods| {
            pods.iter()
                .any(|pod| is_placeholder(pod) && node(pod).is_some())
        })
        .await?;
        let objects = self.objects().await?;
        let set = objects.stateful_sets.into_iter().next();
        let pod = objects.placeholders.into_iter().next();
        set.zip(pod).context("the placeholder has gone")
    }

    /// Waits until our services have written an Event with reason `code` about a run. Returns reason and note of each of their
    /// Events about this run.
    ///
    /// # Errors
    /// There is no such Event in time. The error describes the namespace.
    pub async fn told(&self, run: &str, code: &str) -> anyhow::Result<Vec<(String, String)>> {
        self.told_about(("PipelineRun", run), code).await
    }

    /// As [`Scene::told`], about the object with this kind and name.
    ///
    /// # Errors
    /// As [`Scene::told`].
    pub async fn told_about(
        &self,
        object: (&str, &str),
        code: &str,
    ) -> anyhow::Result<Vec<(String, String)>> {
        let events = self
            .until_all::<Event>(&format!("tell {object:?} {code}"), |events| {
                events
                    .iter()
                    .filter_map(|event| of_ours(event, object))
                    .any(|(told, _)| told == code)
            })
            .await?;
        Ok(events
            .iter()
            .filter_map(|event| of_ours(event, object))
            .collect())
    }

    /// Reason and note of each Event that our services have written about a run so far.
    ///
    /// # Errors
    ///
    /// The Events cannot be listed.
    pub async fn told_so_far(&self, run: &str) -> anyhow::Result<Vec<(String, String)>> {
        let events = self.api::<Event>().list(&ListParams::default()).await?;
        Ok(events
            .iter()
            .filter_map(|event| of_ours(event, ("PipelineRun", run)))
            .collect())
    }

    /// Waits until the namespace has no StatefulSet and no placeholder.
    ///
    /// # Errors
    ///
    /// An object is left. The error describes the namespace.
    pub async fn no_placeholder_left(&self) -> anyhow::Result<()> {
        self.until_all::<StatefulSet>("are gone", |sets| sets.is_empty())
            .await?;
        self.until_all::<Pod>("have no placeholder", |pods| {
            !pods.iter().any(|pod| is_placeholder(pod))
        })
        .await?;
        Ok(())
    }

    /// Waits until the namespace has no StatefulSet, no placeholder, and no claims except `existing`.
    ///
    /// # Errors
    ///
    /// An object is left. The error describes the namespace, or names a claim that is left.
    pub async fn nothing_left_but(&self, existing: &[&str]) -> anyhow::Result<()> {
        self.no_placeholder_left().await?;
        let left = self
            .until_all::<PersistentVolumeClaim>("are gone", |claims| claims.len() == existing.len())
            .await?;
        for claim in left {
            ensure!(
                existing.contains(&claim.name_any().as_str()),
                "claim {} is left",
                claim.name_any()
            );
        }
        Ok(())
    }

    /// The current objects of the namespace.
    ///
    /// # Errors
    ///
    /// A list fails.
    pub async fn objects(&self) -> anyhow::Result<Objects> {
        let all = ListParams::default();
        let pods = self.api::<Pod>().list(&all).await?.items;
        let (placeholders, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(is_placeholder);
        let mut stateful_sets = self.api::<StatefulSet>().list(&all).await?.items;
        let alone = placeholders.iter().filter(|pod| is_alone(pod));
        stateful_sets.extend(alone.map(set_of));
        Ok(Objects {
            task_pods: others
                .into_iter()
                .filter(|pod| pod.labels().contains_key("tekton.dev/taskRun"))
                .collect(),
            placeholders,
            stateful_sets,
            claims: self.api::<PersistentVolumeClaim>().list(&all).await?.items,
        })
    }

    pub(crate) async fn describe(&self) -> String {
        let Ok(objects) = self.objects().await else {
            return "the namespace cannot be listed".to_owned();
        };
        let runs: Vec<PipelineRun> = match self.api().list(&ListParams::default()).await {
            Ok(list) => list.items,
            Err(_) => Vec::new(),
        };
        let mut lines = vec![format!("namespace {} has:", self.namespace)];
        for run in runs {
            lines.push(format!(
                "  PipelineRun {} {:?}",
                run.name_any(),
                run.status.get("conditions")
            ));
        }
        for pod in objects.task_pods.iter().chain(&objects.placeholders) {
            let status = pod.status.clone().unwrap_or_default();
            lines.push(format!(
                "  Pod {} on {:?} {:?} {:?} {:?} deleting={:?} {:?} {:?}",
                pod.name_any(),
                node(pod),
                status.phase,
                status.reason,
                status.message,
                pod.metadata.deletion_timestamp,
                status.conditions.unwrap_or_default(),
                status.container_statuses.unwrap_or_default()
            ));
        }
        for set in objects.stateful_sets {
            lines.push(format!("  StatefulSet {}", set.name_any()));
        }
        for claim in objects.claims {
            lines.push(format!(
                "  PersistentVolumeClaim {} deleting={} finalizers={:?}",
                claim.name_any(),
                claim.metadata.deletion_timestamp.is_some(),
                claim.finalizers()
            ));
        }
        let events = self.api::<Event>().list(&ListParams::default()).await;
        let mut events: Vec<_> = events.into_iter().flatten().collect();
        events.sort_by_key(|event| event.metadata.creation_timestamp.clone());
        for event in events.into_iter().rev().take(50).rev() {
            let regarding = event.regarding.unwrap_or_default();
            lines.push(format!(
                "  Event {:?} {} {} from {}: {}",
                event.event_time.map(|at| at.0),
                regarding.name.unwrap_or_default(),
                event.reason.unwrap_or_default(),
                event.reporting_controller.unwrap_or_default(),
                event.note.unwrap_or_default()
            ));
        }
        lines.join("\n")
    }
}

/// Waits until a namespace has neither a StatefulSet nor a placeholder.
///
/// # Errors
///
/// The API server does not answer, or an object is left after [`LIMIT`].
pub async fn no_placeholder_left(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let all = ListParams::default();
    let gone = async {
        while !sets.list(&all).await?.items.is_empty()
            || pods.list(&all).await?.items.iter().any(is_placeholder)
        {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::Ok(())
    };
    let gone = tokio::time::timeout(LIMIT, gone).await;
    gone.context("a placeholder is left")?
}

/// Reason and note of an Event; `None` unless one of our services wrote it about the object with this kind and name.
fn of_ours(event: &Event, (kind, name): (&str, &str)) -> Option<(String, String)> {
    let about = event.regarding.as_ref()?;
    let ours = event
        .reporting_controller
        .as_ref()?
        .starts_with("coscheduler.dev/");
    let about_it = about.kind.as_deref() == Some(kind) && about.name.as_deref() == Some(name);
    (ours && about_it).then_some((event.reason.clone()?, event.note.clone()?))
}

/// The status of the run's condition `Succeeded`.
pub fn succeeded(run: &PipelineRun) -> Option<&str> {
    condition(run)?.get("status")?.as_str()
}

/// True if the run has succeeded or failed.
pub fn is_done(run: &PipelineRun) -> bool {
    matches!(succeeded(run), Some("True" | "False"))
}

/// Checks that a run that is done has succeeded.
///
/// # Errors
///
/// The run has not succeeded. The error contains its conditions.
pub fn assert_succeeded(run: &PipelineRun) -> anyhow::Result<()> {
    ensure!(
        succeeded(run) == Some("True"),
        "run {} did not succeed: {:?}",
        run.name_any(),
        run.status.get("conditions")
    );
    Ok(())
}

/// Checks the priority of a placeholder's pod.
///
/// # Errors
///
/// The pod has another priority.
pub fn has_priority(placeholder: &Pod, expect: i32) -> anyhow::Result<()> {
    let priority = placeholder.spec.as_ref().and_then(|spec| spec.priority);
    ensure!(priority == Some(expect), "priority {priority:?}");
    Ok(())
}

/// The run's condition `Succeeded`.
pub fn condition(run: &PipelineRun) -> Option<&Value> {
    let conditions = run.status.get("conditions")?.as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == "Succeeded")
}

/// The names of the claims among the pod's volumes. The claim of a generic ephemeral volume is named after pod and volume.
pub fn claims(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| match &volume.persistent_volume_claim {
            Some(source) => Some(source.claim_name.clone()),
            None => {
                (volume.ephemeral.is_some()).then(|| format!("{}-{}", pod.name_any(), volume.name))
            }
        })
        .collect()
}

/// Waits until `holds` is true.
///
/// # Errors
///
/// `holds` fails, or is not true in time. Then the error says `what`.
pub async fn until(
    what: &str,
    mut holds: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let waits = async {
        while !holds().await? {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    let waited = tokio::time::timeout(LIMIT, waits).await;
    waited.with_context(|| format!("not so: {what}"))?
}

/// True if a pod is a placeholder.
pub fn is_placeholder(pod: &Pod) -> bool {
    coscheduler_kubernetes::pods::is_placeholder(pod)
}

/// The node that a pod is bound to.
pub fn node(pod: &Pod) -> Option<&str> {
    coscheduler_kubernetes::pods::node(pod)
}
