//! Texts about the claims of a run's workspaces.

use crate::names::AssistantName;
use crate::volumes::Conflict;

use super::{Reason, ReasonCode};

texts! {
    claim_name_variable(workspace: &str, claim: &str): ClaimNameVariable =
        "Workspace {workspace:?} is bound to claim {claim:?}. This name has a variable that was not known when the run was \
         created, so no placeholder mounts the claim. In a new run, use a name without variables, or set the parameter in the \
         run itself.";

    claim_name_empty(workspace: &str): ClaimNameEmpty =
        "Workspace {workspace:?} is bound to a claim without a name, so no placeholder mounts the claim. Create the run \
         again, and set persistentVolumeClaim.claimName.";

    claim_template_not_replaced(workspace: &str): ClaimTemplateNotReplaced =
        "Somebody added the volumeClaimTemplate of workspace {workspace:?} after the run was created. Tekton creates the \
         claim, and no placeholder mounts this claim. Create the run again if a placeholder must mount the claim.";

    volume_node_affinity_conflict(conflict: &Conflict, placeholder: &AssistantName): VolumeNodeAffinityConflict =
        "No node can reach the volumes of all these claims: {conflict}. So placeholder {placeholder} waits. Add a node that can \
         reach all these volumes, or create the run again with claims that one node can reach.";
}

/// The placeholder does not mount a `ReadWriteOncePod` claim (V8). `workspace` is the workspace of the claim, if known.
pub fn claim_not_mounted(claim: &str, workspace: Option<&str>) -> Reason {
    let of = workspace.map_or_else(String::new, |name| format!(" of workspace {name:?}"));
    let message = format!(
        "Only one pod at a time can use claim {claim:?}{of}, because it is ReadWriteOncePod. So the placeholder does not mount \
         the claim, and the tasks that use the claim run one after the other."
    );
    Reason::new(ReasonCode::ClaimNotMounted, message)
}

/// There is no node that reaches the volumes of a placeholder's claims (N1).
pub fn claims_out_of_reach(claims: &[&str]) -> Reason {
    let claims = claims.join(", ");
    let message = format!(
        "No node can reach the volumes of claims {claims}. Add a node that can reach these volumes, or bring back a node that \
         could. The run then continues."
    );
    Reason::new(ReasonCode::ClaimsNotMovable, message)
}

/// Every node that reaches the volumes of a placeholder's claims is cordoned or tainted (N1). `first` names one of these nodes
/// with the cause. `more` is the number of the other nodes.
pub fn claims_not_movable(claims: &[&str], first: &str, more: usize) -> Reason {
    let claims = claims.join(", ");
    let more = match more {
        0 => String::new(),
        1 => ", and 1 more node".to_owned(),
        more => format!(", and {more} more nodes"),
    };
    let message = format!(
        "Every node that can reach the volumes of claims {claims} is cordoned or has a taint ({first}{more}). Uncordon one of \
         these nodes, or remove its taint."
    );
    Reason::new(ReasonCode::ClaimsNotMovable, message)
}
