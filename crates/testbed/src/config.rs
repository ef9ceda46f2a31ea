//! What a test bed is made of: how many nodes of which size, how long tasks take, how Tekton's own flag stands.
//! Plain data with a default that suits most tests; nothing here talks to a process or an API server.

use std::path::PathBuf;
use std::time::Duration;

/// The shape of one test bed. `Config::default()` is four nodes of 8 CPUs and 16Gi without zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of nodes, named `node-1` and upwards.
    pub nodes: usize,
    /// CPU of each node, as a Kubernetes quantity.
    pub node_cpu: String,
    /// Memory of each node, as a Kubernetes quantity.
    pub node_memory: String,
    /// Pods each node takes.
    pub pods_per_node: usize,
    /// Number of zones (`zone-a` and upwards) the nodes are spread over, round robin; 0 means no zone labels and
    /// no `zonal` storage class. At most 26.
    pub zones: usize,
    /// How long a task pod runs before it succeeds. Annotation [`DURATION_ANNOTATION`] on a TaskRun overrules it.
    pub task_duration: Duration,
    /// Tekton's own `coschedule` flag.
    pub tekton_coschedule: String,
    /// Whether Tekton's webhook (defaulting, validation, conversion) runs.
    pub tekton_webhook: bool,
    /// Whether the API server writes an audit log (every request's metadata, JSON lines).
    pub audit_log: bool,
    /// Where binaries are cached and test beds keep their files; `None` means `target/testbed` of this workspace.
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
            tekton_webhook: true,
            audit_log: false,
            folder: None,
        }
    }
}

/// Annotation that gives one task its own duration (a Go duration such as `5s`). Tekton copies the annotations of a
/// TaskRun, and of `spec.taskRunSpecs[].metadata` of a PipelineRun, to the pod.
pub const DURATION_ANNOTATION: &str = "testbed.coscheduler.dev/duration";

/// Annotation that makes one task fail: the exit code of its steps. Travels as [`DURATION_ANNOTATION`] does.
pub const EXIT_CODE_ANNOTATION: &str = "testbed.coscheduler.dev/exit-code";

/// Annotation that makes the steps of one task end with this termination message, in which Tekton finds the task's results
/// (`[{"key": "name", "value": "text", "type": 1}]`). Travels as [`DURATION_ANNOTATION`] does.
pub const MESSAGE_ANNOTATION: &str = "testbed.coscheduler.dev/message";

/// The default storage class: the volume is made on the node the scheduler chose and can be reached from there alone.
pub const LOCAL_STORAGE_CLASS: &str = "local";

/// A storage class whose volumes are made once a pod is scheduled and can be reached from every node.
pub const MOVABLE_STORAGE_CLASS: &str = "movable";

/// A storage class whose volumes are made at once, in a zone chosen by the claim's name. Exists with zones only.
pub const ZONAL_STORAGE_CLASS: &str = "zonal";

/// Annotation that, with [`CUSTOM_STATUS`] for a value, keeps everybody's hands off the status of a node or pod but the
/// test's: a node that is not ready stays so, a pod that has not started never does.
pub const STATUS_ANNOTATION: &str = "kwok.x-k8s.io/status";

/// The value of [`STATUS_ANNOTATION`].
pub const CUSTOM_STATUS: &str = "custom";
