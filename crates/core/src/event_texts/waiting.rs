//! Texts about a run that waits although tekton-coscheduler did its part. Parameter `pod` is the name of a pod of the run. Texts
//! that become Events name no pod, so that a run with many waiting pods gets one Event.

texts! {
    scheduling_gated(gate: &str): SchedulingGated =
        "The scheduler ignores pods of the run, because they have scheduling gate {gate}. Wait until the program that set the \
         gate, such as Kueue, removes the gate. Or configure this program so that it ignores the pods.";

    node_being_added(pod: &str): NodeBeingAdded =
        "An autoscaler adds a node for pod {pod}. Wait until the node is ready.";

    task_run_has_no_pod(task_run: &str, reason: &str): TaskRunHasNoPod =
        "Tekton has not created the pod of TaskRun {task_run}: {reason}. Correct this cause. If the cause is a quota, raise \
         the quota, or wait until pods of other runs have ended. The quota also counts the pod of the run's placeholder.";

    claim_not_bound(pod: &str): ClaimNotBound =
        "A claim of pod {pod} has no volume. Wait until the claim gets a volume. If it gets no volume, read the claim's Events.";

    claim_missing(claim: &str): ClaimMissing =
        "A pod of the run uses claim {claim}, which does not exist. Create the claim, or create the run again with a claim that exists.";

    claim_in_use(): ClaimInUse =
        "A pod of the run needs a ReadWriteOncePod claim that another pod uses. Wait until the other pod has ended. If the other \
         pod is a placeholder pod of this run, it does not end: create the run again.";

    placeholder_missing(pod: &str, placeholder: &str): PlaceholderMissing =
        "Pod {pod} follows placeholder {placeholder}, and this placeholder has no pod. Wait some seconds. If the placeholder's \
         pod does not appear, ask your operator whether placeholder-manager, affinity-planner and watcher are running.";

    waits_for_scheduler(pod: &str): WaitsForScheduler =
        "The scheduler has not yet bound pod {pod}, or the placeholder that the pod follows. Wait some seconds: the scheduler \
         tries again by itself.";

    scheduler_makes_room(pod: &str, node: &str): WaitsForScheduler =
        "The scheduler has chosen node {node} for pod {pod}, and may have to remove other pods first. Wait some seconds.";

    waits_for_own_pods(node: &str): WaitsForOwnPods =
        "Node {node} has no room for all pods of the run at the same time. Wait until some of them have ended. To run more pods \
         at the same time, use larger nodes, or reduce the requests of the pods.";

    pod_cannot_follow(pod: &str, node: &str): PodCannotFollow =
        "Pod {pod} cannot run on node {node}, where its placeholder is. Normally tekton-coscheduler moves the placeholder within \
         seconds, or an Event on the run says why this is not possible. But the placeholder stays while this node has a pod that \
         follows the placeholder, or a pod that uses one of the placeholder's claims.";

    pod_unschedulable(): PodUnschedulable =
        "The run has a pod that no node can run. An autoscaler may add a node. If none does, read the scheduler's message with \
         `kubectl describe pod`. Then add a node that the pod fits on, or change the podTemplate or the requests of the pod.";

    container_cannot_start(pod: &str, reason: &str): ContainerCannotStart =
        "A container of pod {pod} cannot start: {reason}. Correct the fault that this message names, for example in the image, \
         its pull secret, or a ConfigMap or Secret of the step.";

    sandbox_not_created(pod: &str, node: &str): SandboxNotCreated =
        "The kubelet of node {node} cannot create the sandbox of pod {pod}. Read the kubelet's message in the pod's Events, \
         and correct the fault that it names, such as a fault of the node's network.";

    volume_not_mounted(pod: &str, node: &str): VolumeNotMounted =
        "The kubelet of node {node} cannot mount a volume of pod {pod}. Read the kubelet's message in the pod's Events, and correct \
         the fault that it names. If the volume is attached to another node, wait until it is detached there.";
}
