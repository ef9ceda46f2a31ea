//! Texts about the claims of a run's workspaces.

use crate::names::AssistantName;
use crate::volumes::Conflict;

use super::{Reason, ReasonCode};

texts! {
    /// The name of a workspace's claim has a variable (V9).
    claim_name_variable(workspace: &str, claim: &str): ClaimNameVariable =
        "Workspace {workspace:?} is bound to claim {claim:?}. Its name was not known when the run was created, so no \
         placeholder mounts the claim.";

    /// The claim of a workspace has no name.
    claim_name_empty(workspace: &str): ClaimNameEmpty =
        "Workspace {workspace:?} is bound to a claim without a name, so no placeholder mounts it. Set \
         persistentVolumeClaim.claimName.";

    /// Admission did not see the template of a workspace.
    claim_template_not_replaced(workspace: &str): ClaimTemplateNotReplaced =
        "Workspace {workspace:?} has a volumeClaimTemplate that was added after the run was created. Tekton makes the claim, \
         and no placeholder mounts it.";

    /// No node can reach all volumes of a placeholder (V7).
    volume_node_affinity_conflict(conflict: &Conflict, placeholder: &AssistantName): VolumeNodeAffinityConflict =
        "No node can reach the volumes of all these claims: {conflict}. Placeholder {placeholder} waits for a node that can.";
}

/// The placeholder does not mount a `ReadWriteOncePod` claim (V8); `workspace` if it is known.
pub fn claim_not_mounted(claim: &str, workspace: Option<&str>) -> Reason {
    let of = workspace.map_or_else(String::new, |name| format!(" of workspace {name:?}"));
    let message = format!(
        "Claim {claim:?}{of} is ReadWriteOncePod, so the placeholder does not mount it. The tasks that use it take turns."
    );
    Reason::new(ReasonCode::ClaimNotMounted, message)
}

/// There is no node that reaches the volumes of a placeholder's claims (N1).
pub fn claims_out_of_reach(claims: &[&str]) -> Reason {
    let claims = claims.join(", ");
    let message = format!(
        "No node reaches the volumes of claims {claims}. The run goes on once a node does."
    );
    Reason::new(ReasonCode::ClaimsNotMovable, message)
}

/// Every node that reaches the volumes of a placeholder's claims turns pods away (N1): `first` is one of them with the cause,
/// `more` counts the others.
pub fn claims_not_movable(claims: &[&str], first: &str, more: usize) -> Reason {
    let claims = claims.join(", ");
    let more = match more {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let message = format!(
        "Only nodes that turn pods away reach the volumes of claims {claims} ({first}{more}). Uncordon one of these nodes, or \
         remove its taint."
    );
    Reason::new(ReasonCode::ClaimsNotMovable, message)
}
