//! Makes the API server refuse changes: a real `ValidatingAdmissionPolicy` refuses changes of the pods of one namespace, or of
//! one node, and a real ResourceQuota refuses objects beyond its limits.

use std::time::Duration;

use anyhow::Context as _;
use coscheduler_core::labels::HOSTNAME;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::Scene;
use crate::look::{LIMIT, until};

const QUOTA: &str = "quota";

/// The API server's answer to a change that it refuses.
#[derive(Clone, Copy, Debug)]
pub enum Refusal {
    /// The answer to an invalid object (422).
    Invalid,
    /// The answer to a body that is too large (413). Our services retry after this answer, so they stay at the step before the
    /// change.
    TooLarge,
}

impl Scene<'_> {
    /// Creates the ResourceQuota `quota` with these limits, and waits until Kubernetes counts objects for it.
    pub async fn quota(&self, hard: Value) -> anyhow::Result<()> {
        self.quota_of(json!({"hard": hard})).await
    }

    /// As [`Self::quota`], with this `spec`.
    pub async fn quota_of(&self, spec: Value) -> anyhow::Result<()> {
        let quota = json!({"metadata": {"name": QUOTA}, "spec": spec});
        let quota: ResourceQuota = serde_json::from_value(quota)?;
        let quotas = self.api::<ResourceQuota>();
        quotas.create(&PostParams::default(), &quota).await?;
        let counts = |quota: Option<&ResourceQuota>| {
            let status = quota.and_then(|quota| quota.status.as_ref());
            status.is_some_and(|status| status.used.is_some())
        };
        self.until(QUOTA, "counts", counts).await?;
        Ok(())
    }

    /// Deletes the ResourceQuota of [`Self::quota`].
    pub async fn without_quota(&self) -> anyhow::Result<()> {
        let quotas = self.api::<ResourceQuota>();
        quotas.delete(QUOTA, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Makes the API server refuse each creation and change of a pod or StatefulSet in this namespace for which the CEL expression
    /// `allowed` is false. In this expression, `variables.creates` is true for a creation, and `variables.resizes` for a resize.
    ///
    /// # Errors
    ///
    /// The API server does not enforce the policy in time.
    pub async fn refuse(&self, refusal: Refusal, allowed: &str) -> anyhow::Result<()> {
        let allowed = format!("variables.binds || ({allowed})");
        self.refuse_unless(refusal, &allowed).await
    }

    /// Makes the API server refuse to bind the placeholders of this namespace to nodes.
    ///
    /// # Errors
    ///
    /// The API server does not enforce the policy in time.
    pub async fn refuse_to_bind_placeholders(&self) -> anyhow::Result<()> {
        let allowed = "!variables.binds || !object.metadata.name.startsWith('affinity-assistant-')";
        self.refuse_unless(Refusal::Invalid, allowed).await
    }

    async fn refuse_unless(&self, refusal: Refusal, allowed: &str) -> anyhow::Result<()> {
        let name = &self.namespace;
        let reason = match refusal {
            Refusal::Invalid => "Invalid",
            Refusal::TooLarge => "RequestEntityTooLarge",
        };
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [{"apiGroups": ["", "apps"], "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"],
                    "resources": ["pods", "pods/binding", "pods/resize", "statefulsets"]}]},
                "variables": [
                    {
                        "name": "binds",
                        "expression": "has(request.subResource) && request.subResource == 'binding'",
                    },
                    {"name": "creates", "expression": "request.operation == 'CREATE'"},
                    {
                        "name": "resizes",
                        "expression": "has(request.subResource) && request.subResource == 'resize'",
                    },
                ],
                "validations": [{
                    "expression": format!("object.metadata.name != 'probe' && ({allowed})"),
                    "reason": reason,
                }],
            },
        }))?;
        let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"],
                "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}},
        }))?;
        let probe: Pod = serde_json::from_value(json!({
            "metadata": {"name": "probe"},
            "spec": {"schedulingGates": [{"name": "example.dev/probe"}],
                "containers": [{"name": "c", "image": "example/image"}]},
        }))?;
        let pods = self.api::<Pod>();
        pods.create(&PostParams::default(), &probe).await?;
        self.create_policy(&policy, &binding).await?;

        // The API server enforces a new policy only after a moment.
        let change = Patch::Merge(json!({"metadata": {"labels": {"changed": "yes"}}}));
        let dry_run = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let enforced = async {
            while pods.patch("probe", &dry_run, &change).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(LIMIT, enforced)
            .await
            .context("the policy is not enforced")?;
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete("probe", &at_once).await?;
        Ok(())
    }

    async fn create_policy(
        &self,
        policy: &ValidatingAdmissionPolicy,
        binding: &ValidatingAdmissionPolicyBinding,
    ) -> anyhow::Result<()> {
        let params = PostParams::default();
        let policies = Api::all(self.client.clone());
        policies.create(&params, policy).await?;
        let bindings = Api::all(self.client.clone());
        bindings.create(&params, binding).await?;
        Ok(())
    }

    /// Removes label `kubernetes.io/hostname` from a node. The bed's KWOK would set it again, as a kubelet does when it starts.
    /// So the API server refuses each change after which this node has the label.
    ///
    /// # Errors
    ///
    /// The API server does not enforce the policy in time.
    pub async fn take_hostname(&self, node: &str) -> anyhow::Result<()> {
        let name = &self.namespace;
        let policy = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                    "operations": ["UPDATE"], "resources": ["nodes"], "resourceNames": [node]}]},
                "validations": [{"expression": format!("!({HOSTNAME:?} in object.metadata.labels)")}],
            },
        }))?;
        let binding = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        }))?;
        self.create_policy(&policy, &binding).await?;

        // The node still has the label, so the API server refuses every change of it as soon as it enforces the policy.
        let nodes: Api<Node> = Api::all(self.client.clone());
        let change = Patch::Merge(json!({"metadata": {"labels": {"changed": "yes"}}}));
        let dry_run = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        until("the policy is enforced", async || {
            Ok(nodes.patch(node, &dry_run, &change).await.is_err())
        })
        .await?;
        let change = Patch::Merge(json!({"metadata": {"labels": {HOSTNAME: null}}}));
        let params = PatchParams::default();
        nodes.patch(node, &params, &change).await?;
        Ok(())
    }

    /// Sets label `kubernetes.io/hostname` of a node to the node's name, as soon as the API server allows this.
    ///
    /// # Errors
    ///
    /// The API server still refuses this after the time limit.
    pub async fn give_hostname(&self, node: &str) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let change = Patch::Merge(json!({"metadata": {"labels": {HOSTNAME: node}}}));
        let params = PatchParams::default();
        until(&format!("{node} has a hostname label"), async || {
            Ok(nodes.patch(node, &params, &change).await.is_ok())
        })
        .await
    }

    /// Ends the refusals that [`Scene::refuse`], [`Scene::refuse_to_bind_placeholders`] or [`Scene::take_hostname`] began.
    ///
    /// # Errors
    ///
    /// There is no policy.
    pub async fn refuse_no_more(&self) -> anyhow::Result<()> {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        let params = DeleteParams::default();
        bindings.delete(&self.namespace, &params).await?;
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
        policies.delete(&self.namespace, &params).await?;
        Ok(())
    }
}
