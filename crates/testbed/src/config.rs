//! The settings of a test bed, such as the number and size of its nodes. The default suits most tests.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of one test bed. `Config::default()` has four nodes of 8 CPUs and 16Gi, without zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of nodes. They are named `node-1`, `node-2` and so on.
    pub nodes: usize,
    /// CPU of each node, as a Kubernetes quantity.
    pub node_cpu: String,
    /// Memory of each node, as a Kubernetes quantity.
    pub node_memory: String,
    /// The maximum number of pods on each node.
    pub pods_per_node: usize,
    /// Number of zones, at most 26. The nodes are assigned to `zone-a`, `zone-b` and so on, in turn. 0 means no zone labels and
    /// no `zonal` storage class.
    pub zones: usize,
    /// How long a task pod runs before it succeeds. Annotation [`DURATION_ANNOTATION`] on a TaskRun overrides it.
    pub task_duration: Duration,
    /// Tekton's own `coschedule` flag.
    pub tekton_coschedule: String,
    /// True if the API server writes an audit log: one JSON line with the metadata of each request.
    pub audit_log: bool,
    /// True if the API server supports streaming lists (feature gate `WatchList`), which is its default.
    pub streaming_lists: bool,
    /// True if the API server serves `pods/resize`, as Kubernetes does since 1.33. Otherwise, it behaves like Kubernetes 1.34
    /// without this feature.
    pub resizes_pods: bool,
    /// True if Karpenter adds nodes of 2, 4, 8 or 16 CPUs for pods that fit on no node. Karpenter is built if it is missing. In
    /// a bed with Karpenter, taints never cause the deletion of a pod.
    pub karpenter: bool,
    /// The folder of the programs and of the beds' files; `None` means `target/testbed` of this workspace.
    pub folder: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 4,
            node_cpu: "8".to_owned(),
            node_memory: "16Gi".to_owned(),
            pods_per_node: 110,
            zones: 0,
            task_duration: Duration::from_secs(1),
            tekton_coschedule: "disabled".to_owned(),
            audit_log: false,
            streaming_lists: true,
            resizes_pods: true,
            karpenter: false,
            folder: None,
        }
    }
}

/// Annotation that sets the duration of one task (a Go duration such as `5s`). Tekton copies it to the pod from the TaskRun,
/// and from `spec.taskRunSpecs[].metadata` of the PipelineRun. On a claim whose volume is created once a pod is scheduled, the
/// annotation sets how long this creation takes.
pub const DURATION_ANNOTATION: &str = "testbed.coscheduler.dev/duration";

/// Annotation that sets the exit code of one task's steps. Any code except 0 makes the task fail. Tekton copies it in the same
/// way as [`DURATION_ANNOTATION`].
pub const EXIT_CODE_ANNOTATION: &str = "testbed.coscheduler.dev/exit-code";

/// Annotation that sets the termination message of one task's steps, from which Tekton reads the task's results (`[{"key":
/// "name", "value": "text", "type": 1}]`). Tekton copies it in the same way as [`DURATION_ANNOTATION`].
pub const MESSAGE_ANNOTATION: &str = "testbed.coscheduler.dev/message";

/// The default storage class: a volume is created on the node that the scheduler chose, and only that node reaches it.
pub const LOCAL_STORAGE_CLASS: &str = "local";

/// A storage class whose volumes are created once a pod is scheduled. Every node reaches them.
pub const MOVABLE_STORAGE_CLASS: &str = "movable";

/// A storage class whose volumes are created when the claim is created, in a zone that depends on the claim's name. It exists
/// only if the bed has zones.
pub const ZONAL_STORAGE_CLASS: &str = "zonal";

/// With value [`CUSTOM_STATUS`], this annotation of a node or pod tells KWOK not to change its status. For example, a pod that
/// has not started never starts, unless the test writes its status.
pub const STATUS_ANNOTATION: &str = "kwok.x-k8s.io/status";

/// The value of [`STATUS_ANNOTATION`].
pub const CUSTOM_STATUS: &str = "custom";
