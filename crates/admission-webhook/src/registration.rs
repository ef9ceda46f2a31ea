//! The rules of the webhooks. The installation has webhook configurations without rules, so that the API server does not call a
//! webhook that cannot answer. This service enters the rules when it can answer, and removes them when it is being uninstalled
//! (B8). `docs/decisions/webhook-rules.md` has the reasons.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_runtime::Process;
use coscheduler_runtime::client::{self, Channel};
use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use crate::object::{Configurations, Object};

/// The time between two looks at a process that is not ready for long enough.
const PERIOD: Duration = Duration::from_millis(200);
/// The delay before a failed request is repeated.
const RETRY: Duration = Duration::from_secs(2);
/// How long the planner may take to answer.
const PLANNER: Duration = Duration::from_secs(2);

/// The webhook that reviews new PipelineRuns.
const NEW_RUNS: &str = "pipelineruns.coscheduler.dev";
/// What each webhook reviews: its name, the operation, and API group, version and resource.
const RULES: [(&str, &[&str], [&str; 3]); 5] = [
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
    /// How long this process must be ready before it enters the rules of its webhooks. In this time, the nodes of the API servers
    /// learn its address
    #[arg(
        long,
        env = "RULES_DELAY",
        value_name = "DURATION",
        default_value = "15s"
    )]
    rules_delay: SignedDuration,

    /// The Deployments of the five services. While one of them does not exist or is being deleted, new PipelineRuns are not
    /// reviewed. Without this flag, Deployments are not looked at
    #[arg(
        long,
        env = "DEPLOYMENTS",
        value_name = "NAME,…",
        value_delimiter = ','
    )]
    deployments: Vec<String>,
}

/// The state of the installation, as far as it decides about the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// This process cannot answer reviews yet, or does not know everything yet.
    Starting,
    /// All services are installed, and this process has been ready for long enough.
    Ready,
    /// The Deployment of another service does not exist or is being deleted.
    Incomplete,
    /// This service's own Deployment or the Namespace does not exist or is being deleted.
    Leaving,
}

/// An object that is part of the installation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Namespace,
    Deployment(String),
}

/// A new state of an object.
enum Seen {
    Part(Part, bool),
    Mutating(Option<DynamicObject>),
    Validating(Option<DynamicObject>),
}

/// The task that enters and removes the rules.
struct Registration {
    configurations: Configurations,
    /// Whether each part exists and is not being deleted. `None` until it was looked at.
    parts: BTreeMap<Part, Option<bool>>,
    process: Process,
    planner: Channel,
    delay: Duration,
    /// Since when the process is ready and the installation is complete.
    ready_since: Option<Instant>,
    /// True if this process has compared the rules with its own.
    entered: bool,
}

/// Starts the task that enters and removes the rules.
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
        found.follow(|found| Seen::Part(Part::Namespace, stays(found.as_ref()))),
    ];
    let mut parts = BTreeMap::from([(Part::Namespace, None)]);
    for name in args.deployments {
        let part = Part::Deployment(name.clone());
        parts.insert(part.clone(), None);
        let api = Api::<Deployment>::namespaced(client.clone(), namespace);
        let follow = Object::new(api, &name)
            .follow(move |found| Seen::Part(part.clone(), stays(found.as_ref())));
        changes.push(follow);
    }
    let registration = Registration {
        configurations,
        parts,
        process: process.clone(),
        planner,
        delay,
        ready_since: None,
        entered: false,
    };
    process.spawn("enter and remove the rules", registration.run(changes));
    Ok(())
}

fn stays<K: kube::Resource>(found: Option<&K>) -> bool {
    found.is_some_and(|found| found.meta().deletion_timestamp.is_none())
}

impl Registration {
    async fn run(mut self, changes: Vec<BoxStream<'static, Seen>>) -> anyhow::Result<()> {
        let mut changes = select_all(changes);
        let mut wait = PERIOD;
        loop {
            match tokio::time::timeout(wait, changes.next()).await {
                Ok(Some(Seen::Part(part, stays))) => {
                    self.parts.insert(part, Some(stays));
                }
                Ok(Some(Seen::Mutating(seen))) => self.configurations.mutating.seen = Some(seen),
                Ok(Some(Seen::Validating(seen))) => {
                    self.configurations.validating.seen = Some(seen);
                }
                Ok(None) => return Ok(()),
                Err(_) => {}
            }
            let stage = self.stage();
            let is_done = self.act(stage).await;
            wait = match stage {
                Stage::Starting => PERIOD,
                Stage::Ready | Stage::Incomplete | Stage::Leaving if is_done => Duration::MAX,
                Stage::Ready | Stage::Incomplete | Stage::Leaving => RETRY,
            };
        }
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
        match since.elapsed() < self.delay {
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
        // Whoever waits for the rules of PipelineRuns finds the check of the ConfigMap too.
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
            // The planner may be down later: existing rules stay.
            if stage == Stage::Ready && !client::is_serving(self.planner.clone(), PLANNER).await {
                return false;
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
fn stage(parts: &BTreeMap<Part, Option<bool>>) -> Stage {
    let own = Part::Deployment(crate::SERVICE.name.to_owned());
    let goes = |part| parts.get(part) == Some(&Some(false));
    if goes(&Part::Namespace) || goes(&own) {
        Stage::Leaving
    } else if parts.values().any(|stays| *stays == Some(false)) {
        Stage::Incomplete
    } else if parts.values().all(Option::is_some) {
        Stage::Ready
    } else {
        Stage::Starting
    }
}

/// The rules that the webhook must get, as the API server stores them. `None` if it keeps its own.
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
        // During an upgrade, a process of another version may have entered other rules. Each replaces them only once.
        Stage::Ready if entered && current.is_some() => return None,
        Stage::Ready => rules,
        Stage::Incomplete if name != NEW_RUNS => return None,
        // TaskRuns of runs under way wait until the other service is there again.
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
        let own = "admission-webhook";
        let of = |present: &[(&str, Option<bool>)]| {
            let parts = present.iter().map(|(name, stays)| match *name {
                "" => (Part::Namespace, *stays),
                name => (Part::Deployment(name.to_owned()), *stays),
            });
            stage(&parts.collect())
        };
        let (yes, no) = (Some(true), Some(false));
        for (namespace, webhook, planner, expect) in [
            (yes, yes, None, Stage::Starting),
            (yes, yes, yes, Stage::Ready),
            (yes, yes, no, Stage::Incomplete),
            (None, None, no, Stage::Incomplete),
            (yes, no, yes, Stage::Leaving),
            (no, yes, no, Stage::Leaving),
        ] {
            let parts = [
                ("", namespace),
                (own, webhook),
                ("affinity-planner", planner),
            ];
            assert_eq!(of(&parts), expect, "{parts:?}");
        }
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
            (updates, &entered, Stage::Incomplete, None),
            (updates, &entered, Stage::Leaving, Some(json!([]))),
            ("webhook.example.dev", &none, Stage::Ready, None),
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
