//! Pods of no run, which compete for the room on the nodes (foreign pods). They are created at a steady rate, and deleted a
//! while after they were bound. Each takes the room of one parallel task of a run with an even number, or of two parallel tasks
//! of a run with an odd number.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use integration_tests::look::node;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, interval, sleep_until};

use super::{Options, runs};

/// The namespace of the foreign pods.
pub(crate) const NAMESPACE: &str = "foreign";

/// How long each foreign pod stays on its node: three quarters of the mean time of a task.
pub(crate) fn stay(options: &Options) -> Duration {
    Duration::from_secs(u64::from(options.task_seconds)) * 3 / 4
}

/// The number of foreign pods created per second. With this number, foreign pods request their share of the CPUs on average.
pub(crate) fn rate(options: &Options) -> f64 {
    let cpus = runs::nodes(options.runs) as f64 * f64::from(runs::NODE_CPU);
    cpus * f64::from(options.foreign_percent) / 100.0 / stay(options).as_secs_f64()
}

/// Creates and deletes foreign pods until the future is dropped.
pub(crate) async fn compete(client: Client, options: &Options) -> anyhow::Result<Infallible> {
    let (rate, stay) = (rate(options), stay(options));
    if rate <= 0.0 {
        return std::future::pending().await;
    }
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let mut events = pin!(watcher(pods.clone(), watcher::Config::default()).default_backoff());
    let mut next = interval(Duration::from_secs_f64(1.0 / rate));
    let mut created = 0;
    let mut bound = HashSet::new();
    let mut leaving: VecDeque<(Instant, String)> = VecDeque::new();
    loop {
        let first = leaving.front().map(|(when, _)| *when);
        tokio::select! {
            _ = next.tick() => {
                created += 1;
                pods.create(&PostParams::default(), &pod(created)?).await?;
            }
            Some(event) = events.next() => {
                if let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event
                    && node(&pod).is_some()
                    && bound.insert(pod.name_any())
                {
                    leaving.push_back((Instant::now() + stay, pod.name_any()));
                }
            }
            () = sleep_until(first.unwrap_or_else(Instant::now)), if first.is_some() => {
                if let Some((_, name)) = leaving.pop_front() {
                    pods.delete(&name, &DeleteParams::default().grace_period(0)).await?;
                }
            }
        }
    }
}

fn pod(number: usize) -> anyhow::Result<Pod> {
    let asks = json!({"requests": {"cpu": "1"}});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("foreign-{number}")},
        "spec": {"containers": [{"name": "c", "image": "example/image", "resources": asks}]},
    }))?)
}
