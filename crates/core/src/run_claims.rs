//! The claims of a run's workspaces, as far as admission knows their names when the run is created: existing claims, and claims
//! that Tekton creates. Admission pins these claims (V3, V6, V9). In mode `workspaces`, each of these claims has a placeholder. A
//! TaskRun gets the placeholder of one of these claims, or no placeholder.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::names::tekton_claim_name;
use crate::params::has_variable;
use crate::pipeline_run::{PipelineRun, WorkspaceSource};

/// The claims of a run. The key is the workspace.
pub type RunClaims = BTreeMap<String, RunClaim>;

/// A claim. This type does not contain the run's uid, because a new run has none yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunClaim {
    /// An existing claim with this name.
    Name(String),
    /// The claim that Tekton creates from a `volumeClaimTemplate`. The text is the template's `metadata.name`, or empty (V3).
    Template(String),
}

impl RunClaim {
    /// The claim's name, if the run has this uid.
    pub fn name(&self, workspace: &str, run_uid: &str) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Template(template) => tekton_claim_name(workspace, Some(template), run_uid),
        }
    }
}

/// The claims of a run. The run's parameters replace variables in claim names. A claim is left out if its name is empty, or still
/// has a variable after that (V9).
pub fn of_run(run: &PipelineRun) -> RunClaims {
    let claims = run.workspaces.iter().filter_map(|binding| {
        let claim = match &binding.source {
            WorkspaceSource::Claim { claim_name } => {
                let name = run.params.resolve(claim_name);
                (!name.is_empty() && !has_variable(&name)).then_some(RunClaim::Name(name))?
            }
            WorkspaceSource::ClaimTemplate(template) => {
                RunClaim::Template(template.name.clone().unwrap_or_default())
            }
            WorkspaceSource::Other => return None,
        };
        Some((binding.name.clone(), claim))
    });
    claims.collect()
}

/// The same claims, by the names that they have if the run has this uid.
pub(crate) fn named(claims: &RunClaims, run_uid: &str) -> RunClaims {
    let named = claims.iter().map(|(workspace, claim)| {
        let name = claim.name(workspace, run_uid);
        (workspace.clone(), RunClaim::Name(name))
    });
    named.collect()
}

/// The names of the existing claims: those that Tekton does not create.
pub fn brought(claims: &RunClaims) -> BTreeSet<&str> {
    let brought = claims.values().filter_map(|claim| match claim {
        RunClaim::Name(name) => Some(name.as_str()),
        RunClaim::Template(_) => None,
    });
    brought.collect()
}

/// True if one of the run's claims has this name.
pub fn contains(claims: &RunClaims, claim_name: &str, run_uid: &str) -> bool {
    claims
        .iter()
        .any(|(workspace, claim)| claim.name(workspace, run_uid) == claim_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims() -> RunClaims {
        let run = PipelineRun::parse(&json!({"spec": {
            "params": [{"name": "cache", "value": "build-cache"}],
            // Tekton does not use the defaults of a Pipeline's parameters in bindings.
            "pipelineSpec": {"params": [{"name": "models", "default": "models-v1"}]},
            "workspaces": [
                {"name": "defaulted", "persistentVolumeClaim": {"claimName": "$(params.models)"}},
                {"name": "source", "volumeClaimTemplate": {"metadata": {"name": "src"}, "spec": {}}},
                {"name": "scratch", "volumeClaimTemplate": {"spec": {}}},
                {"name": "cache", "persistentVolumeClaim": {"claimName": "$(params.cache)"}},
                {"name": "models", "persistentVolumeClaim": {"claimName": "$(params.cache)-ro"}},
                {"name": "result", "persistentVolumeClaim": {"claimName": "$(tasks.make.results.claim)"}},
                {"name": "nameless", "persistentVolumeClaim": {}},
                {"name": "token", "secret": {"secretName": "t"}},
            ],
        }}))
        .unwrap();
        of_run(&run)
    }

    #[test]
    fn v3_v9_what_can_be_known_is_known() {
        let claim = |workspace: &str, claim| (workspace.to_owned(), claim);
        let expect = [
            claim("source", RunClaim::Template("src".to_owned())),
            claim("scratch", RunClaim::Template(String::new())),
            claim("cache", RunClaim::Name("build-cache".to_owned())),
            claim("models", RunClaim::Name("build-cache-ro".to_owned())),
        ];
        assert_eq!(claims(), expect.into());
    }

    #[test]
    fn v3_claims_of_templates_are_known_by_the_runs_uid() {
        let name = tekton_claim_name("source", Some("src"), "u1");
        assert!(contains(&claims(), &name, "u1"));
        assert!(!contains(&claims(), &name, "u2"));
        assert!(contains(&claims(), "build-cache", "u2"));
        assert!(!contains(&claims(), "$(tasks.make.results.claim)", "u1"));
        assert!(!contains(&claims(), "", "u1"));
    }

    #[test]
    fn they_are_readable_as_json() {
        let text = serde_json::to_string(&claims()).unwrap();
        assert_eq!(
            text,
            r#"{"cache":{"name":"build-cache"},"models":{"name":"build-cache-ro"},"scratch":{"template":""},"source":{"template":"src"}}"#
        );
        assert_eq!(serde_json::from_str::<RunClaims>(&text).unwrap(), claims());
    }
}
