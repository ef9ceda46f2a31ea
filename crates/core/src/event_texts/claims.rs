//! Texts about the claims of a run's workspaces.

use crate::names::AssistantName;
use crate::volumes::Conflict;

texts! {
    claim_name_variable(workspace: &str, claim: &str): ClaimNameVariable =
        "Workspace {workspace:?} is bound to claim {claim:?}. The value of the variable in this name is not known, or it \
         differs between tasks of the run, so no placeholder mounts this claim. In mode workspaces, the pods that use the \
         claim may run on different nodes. In other modes, the run's placeholder may be on a node that cannot reach the claim's \
         volume. To prevent this, create a new run with a claim name that has no variables. Or, if the variable is a parameter, \
         create a new run that sets this parameter in spec.params.";

    claim_name_empty(workspace: &str): ClaimNameEmpty =
        "Workspace {workspace:?} is bound to a persistent volume claim without a name, so tekton-coscheduler ignores the \
         workspace. Create the run again, and set persistentVolumeClaim.claimName.";

    claim_template_not_replaced(workspace: &str): ClaimTemplateNotReplaced =
        "tekton-coscheduler did not see the volumeClaimTemplate of workspace {workspace:?} when the run was created. Tekton \
         creates the claim, and tekton-coscheduler ignores it. In mode workspaces, the pods that use the claim may run on \
         different nodes. In other modes, the run's placeholder may be on a node that cannot reach the claim's volume. To \
         prevent this, create the run again. If the new run gets this Event too, another admission webhook adds the template after \
         tekton-coscheduler has reviewed the run. Then ask your operator to change that webhook.";

    volume_node_affinity_conflict(conflict: &Conflict, placeholder: &AssistantName): VolumeNodeAffinityConflict =
        "No node can reach the volumes of all these claims, shown with the node affinity of each volume: {conflict}. So no node \
         can run a new pod of placeholder {placeholder}, and the next pods of the run wait. Create the run again with claims \
         whose volumes can all be reached from one node. Or delete one of these claims, and create it again with the same name \
         and another volume. If all the volumes can then be reached from one node, this run continues, and you need not create \
         a new run.";

    claims_apart(conflict: &Conflict, placeholder: &AssistantName, left_out: &str): VolumeNodeAffinityConflict =
        "No node can reach the volumes of all these claims, shown with the node affinity of each volume: {conflict}. So \
         placeholder {placeholder} does not mount these claims: {left_out}. Pods that use only such unmounted claims run without \
         the placeholder, and may run on different nodes. If a pod uses both an unmounted claim and a mounted claim, it waits, \
         because no node can run it. To run all pods on one node, create the run again with claims whose volumes can all be \
         reached from one node.";

    /// A placeholder does not mount a `ReadWriteOncePod` claim (V8). `workspace` is the workspace of the claim, or `None` if it
    /// is not known.
    claim_not_mounted(claim: &str, workspace: Option<&str>): ClaimNotMounted =
        "Only one pod at a time can use claim {claim:?}{of}, because its access mode is ReadWriteOncePod. So the run's \
         placeholder pod does not mount the claim, and the tasks that use the claim run one after the other. You need not \
         change anything.",
        of = workspace.map_or_else(String::new, |name| format!(" of workspace {name:?}"));

    /// The claim has no placeholder, because several nodes can mount it at once (V8).
    claim_shared(claim: &str, workspace: &str): ClaimShared =
        "Several nodes can mount claim {claim:?} of workspace {workspace:?} at once, so the claim has no placeholder. A pod that \
         uses only such claims runs on any node. You need not change anything.";

    /// No node of the cluster reaches the volumes of all these claims of a placeholder (N1).
    claims_out_of_reach(claims: &[&str]): ClaimsNotMovable =
        "No node of the cluster can reach the volumes of all these claims: {claims}. So the run's placeholder pod waits, and the \
         next pods of the run wait for it. Add a node that can reach all these volumes, or bring back such a node. The run then \
         continues.",
        claims = claims.join(", ");

    /// The nodes that a placeholder may use do not reach the volumes of all these claims (N3).
    volume_out_of_reach(conflict: &Conflict): VolumeOutOfReach =
        "No node that the placeholder may use can reach the volumes of all these claims, shown with the node affinity of each \
         volume: {conflict}. The placeholder may use only the nodes that its podTemplate allows. This podTemplate comes from the \
         run, from its tasks or from your operator's configuration. Change the podTemplate so that it allows a node that can \
         reach these volumes, or use other claims. Then create the run again. A new node helps only if it can reach these \
         volumes, and the podTemplate allows it.";

    /// Every node that reaches the volumes of a placeholder's claims is cordoned or tainted (N1). `first` has the name and the
    /// problem of one of these nodes. `more` is the number of the other nodes.
    claims_not_movable(claims: &[&str], first: &str, more: usize): ClaimsNotMovable =
        "The run's placeholder pod can run only on a node that reaches the volumes of all these claims: {claims}. Each such node \
         is cordoned, or has a taint that the placeholder does not tolerate. For example, {first}.{more} Uncordon one of these \
         nodes, or remove its taint. The run then continues.",
        claims = claims.join(", "),
        more = match more {
            0 => String::new(),
            1 => " There is 1 other such node.".to_owned(),
            more => format!(" There are {more} other such nodes."),
        };
}
