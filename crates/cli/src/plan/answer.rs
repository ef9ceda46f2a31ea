//! The answer of `plan`, and its text for people.

use std::collections::BTreeMap;

use coscheduler_core::admit::{RewrittenBinding, RewrittenSource};
use coscheduler_core::config::Reserves;
use coscheduler_core::plan::Reason;
use serde::Serialize;
use serde_json::Value;

use crate::output::{self, Branch};

/// The plans of the runs of a file.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub(super) runs: Vec<RunPlan>,
}

/// The plan of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunPlan {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) mode: String,
    /// Where the mode comes from, in words.
    pub(super) mode_from: String,
    pub(super) group: Option<String>,
    /// The annotations that admission sets on the run.
    pub(super) annotations: BTreeMap<String, String>,
    /// The author's annotations that admission removes from the run.
    pub(super) removed_annotations: Vec<String>,
    /// The workspaces that get another volume source.
    pub(super) bindings: Vec<Binding>,
    pub(super) placeholders: Vec<PlaceholderPlan>,
    /// The reasons for the plan.
    pub(super) reasons: Vec<Note>,
    /// The warnings that the author gets from the API server.
    pub(super) warnings: Vec<String>,
}

/// A workspace that gets another volume source.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Binding {
    workspace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_claim_template: Option<Value>,
}

/// A reason of `core`.
#[derive(Debug, Serialize)]
pub(super) struct Note {
    code: &'static str,
    message: String,
}

/// A placeholder to create.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlaceholderPlan {
    pub(super) name: String,
    /// The value of `placeholder-reserves` for the placeholder.
    pub(super) reserves: Reserves,
    /// The requests of the placeholder itself.
    pub(super) requests: BTreeMap<String, String>,
    /// The requests of its first pod: the manager sets them one after the other, until the scheduler finds a node. Empty if the
    /// pod keeps `requests`.
    pub(super) asks: Vec<String>,
    pub(super) claims: Vec<Claim>,
    /// The objects that the manager creates.
    pub(super) objects: Vec<Value>,
}

/// A claim of a placeholder.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Claim {
    pub(super) name: String,
    pub(super) workspaces: Vec<String>,
    /// Empty if the file does not have the claim.
    pub(super) access_modes: Vec<String>,
    pub(super) made_by: MadeBy,
    /// True if the placeholder mounts the claim.
    pub(super) mounted: bool,
}

/// The creator of a claim.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MadeBy {
    /// The Kubernetes controller that also creates the placeholder's pod.
    Placeholder,
    /// The placeholder-manager: only one pod at a time may use the claim (V8), or the placeholder is a pod without a
    /// controller.
    PlaceholderManager,
    /// Tekton, for the run.
    Tekton,
    /// A user, before the run.
    User,
}

impl From<RewrittenBinding> for Binding {
    fn from(binding: RewrittenBinding) -> Self {
        let (claim_name, volume_claim_template) = match binding.source {
            RewrittenSource::Claim(name) => (Some(name), None),
            RewrittenSource::Template(template) => (None, Some(template)),
        };
        Self {
            workspace: binding.workspace,
            claim_name,
            volume_claim_template,
        }
    }
}

impl From<Reason> for Note {
    fn from(reason: Reason) -> Self {
        Self {
            code: reason.code.as_str(),
            message: reason.message,
        }
    }
}

impl output::Answer for Answer {
    fn text(&self, wide: bool) -> String {
        let runs: Vec<_> = self.runs.iter().map(|run| run.text(wide)).collect();
        runs.join("\n")
    }

    fn names(&self) -> Vec<String> {
        let placeholders = self.runs.iter().flat_map(|run| &run.placeholders);
        let objects = placeholders.flat_map(|placeholder| &placeholder.objects);
        objects.map(name).collect()
    }
}

/// The name of an object with its kind and API group, as kubectl writes it.
fn name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let group = match text(&object["apiVersion"]).split_once('/') {
        Some((group, _)) => format!(".{group}"),
        None => String::new(),
    };
    let kind = text(&object["kind"]).to_lowercase();
    format!("{kind}{group}/{}", text(&object["metadata"]["name"]))
}

impl RunPlan {
    fn text(&self, wide: bool) -> String {
        let mut lines = vec![format!("mode: {} ({})", self.mode, self.mode_from)];
        if wide {
            let set = self.annotations.iter();
            lines.extend(set.map(|(key, value)| format!("sets annotation {key}: {value}")));
            let removed = self.removed_annotations.iter();
            lines.extend(removed.map(|key| format!("removes annotation {key}")));
        }
        lines.extend(self.bindings.iter().map(Binding::text));
        if self.placeholders.is_empty() {
            lines.push("no placeholder".to_owned());
        }
        let mut tree = Branch::new(
            format!("PipelineRun {}/{}", self.namespace, self.name),
            lines,
        );
        let placeholders = self.placeholders.iter();
        tree.below.extend(placeholders.map(PlaceholderPlan::branch));
        let reasons = self.reasons.iter();
        tree.below
            .extend(reasons.map(|it| format!("{}: {}", it.code, it.message).into()));
        let warnings = self.warnings.iter();
        let warnings = warnings.map(|warning| format!("warning: {warning}\n"));
        tree.text() + &warnings.collect::<String>()
    }
}

impl Binding {
    fn text(&self) -> String {
        let source = match &self.claim_name {
            Some(name) => format!("claim {name}"),
            None => "a new claim".to_owned(),
        };
        format!("workspace {} gets {source}", self.workspace)
    }
}

impl PlaceholderPlan {
    fn branch(&self) -> Branch {
        let own = self.requests.iter();
        let own: Vec<_> = own
            .map(|(name, amount)| format!("{name} {amount}"))
            .collect();
        let own = own.join(", ");
        let asks = match self.asks.split_first() {
            None => format!("asks for {own}"),
            Some((peak, less)) => {
                let less: Vec<_> = less.iter().map(|it| format!(", or else {it}")).collect();
                let kept = match self.reserves {
                    Reserves::Nothing | Reserves::Placement => format!("only {own}"),
                    Reserves::Peak => "less with each pod of the run".to_owned(),
                };
                format!(
                    "asks for {peak}{}; once it has a node, for {kept}",
                    less.concat()
                )
            }
        };
        let asks = format!("{asks} (placeholder-reserves: {})", self.reserves);
        let lines = [asks]
            .into_iter()
            .chain(self.claims.iter().map(Claim::text));
        Branch::new(format!("placeholder {}", self.name), lines)
    }
}

impl Claim {
    fn text(&self) -> String {
        let mut facts = vec![format!("workspace {}", self.workspaces.join(", "))];
        facts.extend(self.access_modes.iter().cloned());
        let made_by = match self.made_by {
            MadeBy::Placeholder => "made with the placeholder",
            MadeBy::PlaceholderManager => "made by the placeholder-manager",
            MadeBy::Tekton => "made by Tekton",
            MadeBy::User => "must exist before the run",
        };
        facts.push(made_by.to_owned());
        if !self.mounted {
            facts.push("not mounted".to_owned());
        }
        format!("claim {} ({})", self.name, facts.join(", "))
    }
}
