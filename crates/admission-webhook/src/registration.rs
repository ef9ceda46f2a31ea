//! Writes and removes the rules of the webhook configurations. The installation creates these configurations without rules, so
//! that the API server does not call a webhook that cannot answer. This service writes its rules when it can answer, and removes
//! them when tekton-coscheduler is being uninstalled (B8). `docs/decisions/webhook-rules.md` has the reasons.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_runtime::Process;
use coscheduler_runtime::client::{self, Channel};
use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::core::DynamicObject;
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::object::{Configurations, Object};

/// The time between two checks while this process has not been ready for long enough.
const PERIOD: Duration = Duration::from_millis(200);
/// The delay before a failed request is repeated.
const RETRY: Duration = Duration::from_secs(2);
/// If somebody else removes the rules, this process waits for this time before it writes them again. Another replica may have
/// removed them because it noticed an uninstallation first.
const LOST: Duration = Duration::from_secs(2);
/// How long the planner may take to answer.
const PLANNER: Duration = Duration::from_secs(2);

/// The webhook that reviews new PipelineRuns without annotations that only admission may write.
const NEW_RUNS: &str = "pipelineruns.coscheduler.dev";
/// The webhook that reviews new PipelineRuns with such annotations. It has a `failurePolicy` of its own.
const ANNOTATED_RUNS: &str = "annotated-pipelineruns.coscheduler.dev";
/// The rules: name of the webhook, operations, and API group, version and resource.
const RULES: [(&str, &[&str], [&str; 3]); 6] = [
    (
        ANNOTATED_RUNS,
        &["CREATE"],
        ["tekton.dev", "v1", "pipelineruns"],
    ),
    (NEW_RUNS, &["CREATE"], ["tekton.dev", "v1", "pipelineruns"]),
    (
        "pipelinerun-updates.coscheduler.dev",
        &["UPDATE"],
        ["tekton.dev", "v1", "pipelineruns"],
    ),
    (
        "runs.coscheduler.dev",
        &["CREATE"],
        ["tekton.dev", "v1", "taskruns"],
    ),
    (
        "runs.coscheduler.dev",
        &["CREATE"],
        ["tekton.dev", "v1beta1", "customruns"],
    ),
    (
        "config.coscheduler.dev",
        &["CREATE", "UPDATE"],
        ["", "v1", "configmaps"],
    ),
];

/// The flags for the rules.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Rules of the webhooks")]
pub(crate) struct RegistrationArgs {
    /// How long this process must be ready before it writes the rules of its webhooks. During this time, the nodes of the API
    /// servers learn that this process is an endpoint of its Service
    #[arg(
        long,
        env = "RULES_DELAY",
        value_name = "DURATION",
        default_value = "15s"
    )]
    rules_delay: SignedDuration,

    /// The Deployments of the five services. The last must be this service's own. The rules are entered when each Deployment has
    /// an available pod. While a Deployment does not exist, has no replicas or is being deleted, new PipelineRuns are not
    /// reviewed. Without this flag, the state of Deployments and of this service's Service has no effect
    #[arg(
        long,
        env = "DEPLOYMENTS",
        value_name = "NAME,…",
        value_delimiter = ','
    )]
    deployments: Vec<String>,
}

/// The state of the installation on which the rules depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// This process has not been ready for long enough, a part has no available pod, or the state of a part is not known yet.
    Starting,
    /// All services are available, and this process has been ready for long enough.
    Ready,
    /// The Deployment of another service is gone.
    Incomplete,
    /// The Namespace, or this service's own Deployment or Service, is gone.
    Leaving,
}

/// An object that is part of the installation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Namespace,
    /// This service's own Service.
    Service,
    /// The Deployment of another service, by name.
    Deployment(String),
    /// This service's own Deployment.
    Own,
}

/// The state of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It does not exist, has no replicas, or is being deleted.
    Gone,
    /// It has no available pod.
    Waiting,
    Available,
}

/// A new state of an object.
enum Seen {
    Part(Part, State),
    Mutating(Option<DynamicObject>),
    Validating(Option<DynamicObject>),
}

/// The task that writes and removes the rules.
struct Registration {
    configurations: Configurations,
    /// The state of each part. `None` until the state is known.
    parts: BTreeMap<Part, Option<State>>,
    process: Process,
    planner: Channel,
    delay: Duration,
    /// The time since when the process has been ready and the installation complete.
    ready_since: Option<Instant>,
    /// True if this process has entered its rules, or has found that they were entered.
    entered: bool,
    /// The time when somebody else last removed the rules.
    lost: Option<Instant>,
    /// The last stage in the log.
    logged: Option<Stage>,
    rules: Gauge,
}

/// Starts the task that writes and removes the rules.
///
/// # Errors
/// The delay is negative.
pub(crate) fn start(
    args: RegistrationArgs,
    namespace: &str,
    configurations: Configurations,
    planner: Channel,
    client: &Client,
    process: &Process,
) -> anyhow::Result<()> {
    let delay = Duration::try_from(args.rules_delay);
    let delay = delay.context("--rules-delay must not be negative")?;
    let found = Object::<Namespace>::new(Api::all(client.clone()), namespace);
    let mut changes = vec![
        configurations.mutating.follow(Seen::Mutating),
        configurations.validating.follow(Seen::Validating),
        found.follow(|found| Seen::Part(Part::Namespace, state(found.as_ref()))),
    ];
    let mut parts = BTreeMap::from([(Part::Namespace, None)]);
    let mut deployments = args.deployments;
    if let Some(own) = deployments.pop() {
        let named = |name: String| (Part::Deployment(name.clone()), name);
        let deployments = deployments.into_iter().map(named);
        for (part, name) in deployments.chain([(Part::Own, own)]) {
            parts.insert(part.clone(), None);
            let api = Api::namespaced(client.clone(), namespace);
            let found = Object::new(api, &name);
            let follow = found.follow(move |found| Seen::Part(part.clone(), available(found)));
            changes.push(follow);
        }
        parts.insert(Part::Service, None);
        let api = Api::<Service>::namespaced(client.clone(), namespace);
        let found = Object::new(api, crate::SERVICE.name);
        changes.push(found.follow(|found| Seen::Part(Part::Service, state(found.as_ref()))));
    }
    let registration = Registration {
        configurations,
        parts,
        process: process.clone(),
        planner,
        delay,
        ready_since: None,
        entered: false,
        lost: None,
        logged: None,
        rules: process.metrics().register(
            "webhook_rules",
            "1 while the API server calls the admission webhook about new PipelineRuns",
            Gauge::default(),
        ),
    };
    process.spawn("enter and remove the rules", registration.run(changes));
    Ok(())
}

fn state<K: kube::Resource>(found: Option<&K>) -> State {
    let stays = found.is_some_and(|found| found.meta().deletion_timestamp.is_none());
    if stays { State::Available } else { State::Gone }
}

fn available(found: Option<Deployment>) -> State {
    let spec = found.as_ref().and_then(|found| found.spec.as_ref());
    let is_off = spec.is_some_and(|spec| spec.replicas == Some(0));
    let status = found.as_ref().and_then(|found| found.status.as_ref());
    let available = status.and_then(|status| status.available_replicas);
    match state(found.as_ref()) {
        State::Available if is_off => State::Gone,
        State::Available if available.unwrap_or_default() == 0 => State::Waiting,
        state => state,
    }
}

impl Registration {
    async fn run(mut self, changes: Vec<BoxStream<'static, Seen>>) -> anyhow::Result<()> {
        let mut changes = select_all(changes);
        let mut wait = PERIOD;
        loop {
            match tokio::time::timeout(wait, changes.next()).await {
                Ok(Some(Seen::Part(part, state))) => {
                    self.parts.insert(part, Some(state));
                }
                Ok(Some(Seen::Mutating(seen))) => {
                    let had_rules = self.has_rules();
                    self.configurations.mutating.seen = Some(seen);
                    if had_rules && !self.has_rules() {
                        self.lost = Some(Instant::now());
                    }
                }
                Ok(Some(Seen::Validating(seen))) => {
                    self.configurations.validating.seen = Some(seen);
                }
                Ok(None) => return Ok(()),
                Err(_) => {}
            }
            let stage = self.stage();
            if self.logged != Some(stage) {
                info!(?stage, parts = ?self.parts, "checked the state of the installation");
                self.logged = Some(stage);
            }
            let is_done = self.act(stage).await;
            self.rules.set(self.has_rules().into());
            wait = match stage {
                Stage::Starting => PERIOD,
                Stage::Ready | Stage::Incomplete | Stage::Leaving if is_done => Duration::MAX,
                Stage::Ready | Stage::Incomplete | Stage::Leaving => RETRY,
            };
        }
    }

    /// True if the API server calls the webhook for new PipelineRuns.
    fn has_rules(&self) -> bool {
        let mut webhooks = self.configurations.mutating.webhooks();
        webhooks.any(|webhook| webhook["name"] == NEW_RUNS && !webhook["rules"].is_null())
    }

    fn stage(&mut self) -> Stage {
        let stage = stage(&self.parts);
        if stage != Stage::Ready || !self.process.health().is_ready() {
            self.ready_since = None;
            return match stage {
                Stage::Ready => Stage::Starting,
                stage => stage,
            };
        }
        let since = *self.ready_since.get_or_insert_with(Instant::now);
        let was_lost = self.lost.is_some_and(|lost| lost.elapsed() < LOST);
        match was_lost || since.elapsed() < self.delay {
            true => Stage::Starting,
            false => Stage::Ready,
        }
    }

    /// Changes the rules that must change. Returns `false` if something is left to do.
    async fn act(&mut self, stage: Stage) -> bool {
        let Configurations {
            mutating,
            validating,
        } = &mut self.configurations;
        let mut is_done = mutating.seen.is_some() && validating.seen.is_some();
        // The rule for the ConfigMap is entered first and removed last. So this rule exists while the rules for PipelineRuns
        // exist. (If a patch fails, this is not certain.)
        let mut configurations = [mutating, validating];
        if stage == Stage::Ready {
            configurations.reverse();
        }
        for configuration in configurations {
            let webhooks = configuration.webhooks();
            let changes = webhooks.filter_map(|webhook| {
                let rules = next(webhook, stage, self.entered)?;
                Some(json!({"name": webhook["name"], "rules": rules}))
            });
            let changes: Vec<_> = changes.collect();
            if changes.is_empty() {
                continue;
            }
            if stage == Stage::Ready {
                let mut webhooks = configuration.webhooks();
                if webhooks.any(|webhook| webhook["clientConfig"]["caBundle"].is_null()) {
                    return false;
                }
                // Rules are entered only while the planner answers. If the planner fails later, existing rules stay.
                if !client::is_serving(self.planner.clone(), PLANNER).await {
                    warn!("the planner does not answer, so the webhooks get no rules");
                    return false;
                }
            }
            if configuration.patch_webhooks(changes.clone()).await {
                info!(?stage, ?changes, "changed the rules of the webhooks");
            } else {
                is_done = false;
            }
        }
        self.entered |= is_done && stage == Stage::Ready;
        is_done
    }
}

/// The stage of a process that has been ready for long enough.
fn stage(parts: &BTreeMap<Part, Option<State>>) -> Stage {
    let is_gone = |part| parts.get(&part) == Some(&Some(State::Gone));
    if [Part::Namespace, Part::Service, Part::Own]
        .into_iter()
        .any(is_gone)
    {
        Stage::Leaving
    } else if parts.values().any(|state| *state == Some(State::Gone)) {
        Stage::Incomplete
    } else if parts.values().all(|state| *state == Some(State::Available)) {
        Stage::Ready
    } else {
        Stage::Starting
    }
}

/// The new rules of the webhook, as the API server stores them. `None` if the webhook keeps its rules.
fn next(webhook: &Value, stage: Stage, entered: bool) -> Option<Value> {
    let name = webhook["name"].as_str()?;
    let current = webhook["rules"].as_array();
    let rules = RULES.iter().filter(|(webhook, ..)| *webhook == name);
    let rules = rules.map(|(_, operations, [group, version, resource])| {
        json!({
            "operations": operations,
            "apiGroups": [group],
            "apiVersions": [version],
            "resources": [resource],
            "scope": "Namespaced",
        })
    });
    let rules: Vec<_> = rules.collect();
    let wanted = match stage {
        Stage::Starting => return None,
        // Another product's webhook.
        _ if rules.is_empty() => return None,
        // During an upgrade, a process of another version may have entered other rules. Each process replaces the rules of
        // another version only once.
        Stage::Ready if entered && current.is_some() => return None,
        Stage::Ready => rules,
        // The other webhooks keep their rules. If the planner is gone, TaskRuns of existing runs wait until it is back.
        Stage::Incomplete if ![NEW_RUNS, ANNOTATED_RUNS].contains(&name) => return None,
        Stage::Incomplete | Stage::Leaving => Vec::new(),
    };
    let current = current.map(Vec::as_slice).unwrap_or_default();
    (current != wanted).then(|| json!(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(name: &str, rules: &Value) -> Value {
        json!({"name": name, "rules": rules})
    }

    #[test]
    fn b8_rules_come_when_all_is_there_and_go_before_it_goes() {
        let (yes, no, late) = (
            Some(State::Available),
            Some(State::Gone),
            Some(State::Waiting),
        );
        for (namespace, service, own, planner, expect) in [
            (yes, yes, yes, None, Stage::Starting),
            (yes, yes, yes, late, Stage::Starting),
            (yes, yes, yes, yes, Stage::Ready),
            (yes, yes, yes, no, Stage::Incomplete),
            (None, None, None, no, Stage::Incomplete),
            (yes, yes, no, yes, Stage::Leaving),
            (yes, no, yes, yes, Stage::Leaving),
            (no, yes, yes, no, Stage::Leaving),
        ] {
            let parts = BTreeMap::from([
                (Part::Namespace, namespace),
                (Part::Service, service),
                (Part::Own, own),
                (Part::Deployment("affinity-planner".to_owned()), planner),
            ]);
            assert_eq!(stage(&parts), expect, "{parts:?}");
        }
    }

    #[test]
    fn b8_a_deployment_counts_while_it_has_an_available_pod() {
        let of = |deployment: Value| available(serde_json::from_value(deployment).unwrap());
        assert_eq!(of(json!({"metadata": {}})), State::Waiting);
        let status = json!({"availableReplicas": 1});
        let found = json!({"metadata": {}, "status": status});
        assert_eq!(of(found), State::Available);
        let off = json!({"replicas": 0, "selector": {}, "template": {}});
        assert_eq!(of(json!({"metadata": {}, "spec": off})), State::Gone);
        let ends = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        assert_eq!(of(json!({"metadata": ends, "status": status})), State::Gone);
        assert_eq!(available(None), State::Gone);
    }

    #[test]
    fn b8_runs_under_way_keep_their_rules_while_another_service_is_missing() {
        let updates = "pipelinerun-updates.coscheduler.dev";
        let none = json!(null);
        let entered = next(&webhook(NEW_RUNS, &none), Stage::Ready, false).unwrap();
        assert_eq!(entered[0]["resources"], json!(["pipelineruns"]));
        assert_eq!(entered[0]["operations"], json!(["CREATE"]));
        let children = webhook("runs.coscheduler.dev", &none);
        let children = next(&children, Stage::Ready, true).unwrap();
        assert_eq!(children.as_array().unwrap().len(), 2);

        for (name, rules, stage, expect) in [
            (NEW_RUNS, &none, Stage::Starting, None),
            (NEW_RUNS, &entered, Stage::Starting, None),
            (NEW_RUNS, &entered, Stage::Ready, None),
            (NEW_RUNS, &entered, Stage::Incomplete, Some(json!([]))),
            (NEW_RUNS, &none, Stage::Incomplete, None),
            (ANNOTATED_RUNS, &none, Stage::Ready, Some(entered.clone())),
            (ANNOTATED_RUNS, &entered, Stage::Incomplete, Some(json!([]))),
            (updates, &entered, Stage::Incomplete, None),
            (updates, &entered, Stage::Leaving, Some(json!([]))),
            ("webhook.example.dev", &entered, Stage::Ready, None),
            ("webhook.example.dev", &entered, Stage::Leaving, None),
        ] {
            let found = next(&webhook(name, rules), stage, false);
            assert_eq!(found, expect, "{name} {stage:?}");
        }
    }

    #[test]
    fn b8_two_versions_do_not_replace_each_others_rules_for_ever() {
        let other = json!([{"operations": ["*"]}]);
        let other = webhook(NEW_RUNS, &other);
        assert!(next(&other, Stage::Ready, false).is_some());
        assert!(next(&other, Stage::Ready, true).is_none());
    }
}
