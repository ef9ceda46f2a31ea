//! A task without a pod, at which a run waits until the test opens it: [`Run::gate`].

use anyhow::bail;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::wait::await_condition;
use serde_json::json;

use crate::Scene;
use crate::look::LIMIT;
use crate::runs::Run;

const TASK: &str = "gate";

impl Run {
    /// Adds the gate, which runs after these tasks. Its name is `gate`, so that later tasks can run after it.
    pub fn gate(self, after: &[&str]) -> Self {
        let wait = json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": {}});
        self.task(TASK, &[], after).with("taskSpec", wait)
    }
}

impl Scene<'_> {
    /// The API of the gates that runs have reached. A gate is a CustomRun, which Tekton leaves to another controller.
    pub fn gates(&self) -> Api<DynamicObject> {
        let kind =
            ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1beta1", "CustomRun"));
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind)
    }

    /// Waits until a run is at its gate: the tasks before the gate have ended, and no task after it has begun.
    ///
    /// # Errors
    ///
    /// The run does not reach its gate in time. The error describes the namespace.
    pub async fn at_gate(&self, run: &str) -> anyhow::Result<()> {
        let name = name(run);
        let there = await_condition(self.gates(), &name, |gate: Option<&DynamicObject>| {
            gate.is_some()
        });
        match tokio::time::timeout(LIMIT, there).await {
            Ok(there) => Ok(there.map(drop)?),
            Err(_) => bail!(
                "after {LIMIT:?} {run} has not come to its gate\n{}",
                self.describe().await
            ),
        }
    }

    /// Lets a run that is at its gate continue.
    ///
    /// # Errors
    ///
    /// The run is not at its gate.
    pub async fn open_gate(&self, run: &str) -> anyhow::Result<()> {
        let succeeded = json!({"status": {"conditions": [{
            "type": "Succeeded", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let path = format!("tekton.dev/v1beta1/customruns/{}/status", name(run));
        self.send("PATCH", &path, &succeeded).await?.accepted()?;
        Ok(())
    }
}

fn name(run: &str) -> String {
    format!("{run}-{TASK}")
}
