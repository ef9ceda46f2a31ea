//! PipelineRuns to submit: short builders for the shapes that tests need. Steps name a command, because there is no image
//! registry from which Tekton could read the image's entrypoint.

use coscheduler_core::config::Reserves;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use testbed::{DURATION_ANNOTATION, EXIT_CODE_ANNOTATION, MESSAGE_ANNOTATION};

/// A PipelineRun under construction.
#[derive(Clone, Debug)]
pub struct Run {
    name: String,
    object: Value,
}

/// A run without tasks and workspaces.
pub fn run(name: &str) -> Run {
    Run {
        name: name.to_owned(),
        object: json!({
            "apiVersion": "tekton.dev/v1",
            "kind": "PipelineRun",
            "metadata": {"name": name, "labels": {}, "annotations": {}},
            "spec": {
                "pipelineSpec": {"workspaces": [], "tasks": [], "finally": []},
                "workspaces": [],
                "taskRunSpecs": [],
            },
        }),
    }
}

impl Run {
    /// The run's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A run from JSON.
    pub fn from_json(object: Value) -> Self {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        Self {
            name: name.to_owned(),
            object,
        }
    }

    /// The run as JSON.
    pub fn into_json(self) -> Value {
        self.object
    }

    /// Creates the run. If Tekton's own webhook closes a connection at the moment at which the API server uses it, tries again.
    ///
    /// # Errors
    ///
    /// The API server refuses the run.
    pub async fn create(self, runs: Api<PipelineRun>) -> anyhow::Result<PipelineRun> {
        let object = serde_json::from_value(self.into_json())?;
        let params = PostParams::default();
        match runs.create(&params, &object).await {
            Err(kube::Error::Api(refusal)) if is_connection_of_tekton(&refusal.message) => {
                Ok(runs.create(&params, &object).await?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Adds a workspace with a `volumeClaimTemplate`, with access mode `ReadWriteOnce`.
    pub fn template(self, workspace: &str) -> Self {
        self.template_with_access(workspace, "ReadWriteOnce")
    }

    /// Adds a workspace with a `volumeClaimTemplate`, with this access mode.
    pub fn template_with_access(self, workspace: &str, access_mode: &str) -> Self {
        self.workspace(
            workspace,
            json!({"volumeClaimTemplate": {"spec": {
                "accessModes": [access_mode],
                "resources": {"requests": {"storage": "1Gi"}},
            }}}),
        )
    }

    /// Adds a workspace with a `volumeClaimTemplate` of this storage class. If our services coschedule the run, the claim
    /// is deleted after the run has ended.
    pub fn template_of_class(mut self, workspace: &str, class: &str) -> Self {
        self.object["metadata"]["annotations"]["tekton.dev/auto-cleanup-pvc"] = "true".into();
        self.workspace(
            workspace,
            json!({"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            }}}),
        )
    }

    /// Adds an annotation to the claim templates.
    pub fn annotate_claims(mut self, key: &str, value: &str) -> Self {
        let workspaces = self.object["spec"]["workspaces"].as_array_mut();
        for template in workspaces
            .into_iter()
            .flatten()
            .filter_map(|workspace| workspace.get_mut("volumeClaimTemplate"))
        {
            template["metadata"]["annotations"][key] = value.into();
        }
        self
    }

    /// Adds a workspace with this source.
    pub fn workspace(mut self, workspace: &str, source: Value) -> Self {
        let mut binding = source;
        binding["name"] = workspace.into();
        push(&mut self.object["spec"]["workspaces"], binding);
        push(
            &mut self.object["spec"]["pipelineSpec"]["workspaces"],
            json!({"name": workspace}),
        );
        self
    }

    /// Adds a parameter with a default to the Pipeline.
    pub fn param(mut self, name: &str, default: &str) -> Self {
        let params = &mut self.object["spec"]["pipelineSpec"]["params"];
        if params.is_null() {
            *params = json!([]);
        }
        push(params, json!({"name": name, "default": default}));
        self
    }

    /// Adds a task that uses these workspaces and runs after the tasks `after`.
    pub fn task(mut self, task: &str, workspaces: &[&str], after: &[&str]) -> Self {
        let mut task = task_json(task, workspaces);
        task["runAfter"] = json!(after);
        push(&mut self.object["spec"]["pipelineSpec"]["tasks"], task);
        self
    }

    /// Sets a field of the task that was added last.
    pub fn with(mut self, field: &str, value: Value) -> Self {
        if let Some(task) = self.object["spec"]["pipelineSpec"]["tasks"]
            .as_array_mut()
            .and_then(|tasks| tasks.last_mut())
        {
            task[field] = value;
        }
        self
    }

    /// Makes the task that was added last use the Task of this name, instead of steps in the run.
    pub fn referring(self, name: &str) -> Self {
        let mut run = self.with("taskRef", json!({"name": name}));
        let tasks = run.object["spec"]["pipelineSpec"]["tasks"].as_array_mut();
        let last = tasks.and_then(|tasks| tasks.last_mut()?.as_object_mut());
        last.and_then(|task| task.remove("taskSpec"));
        run
    }

    /// Adds a `finally` task that uses these workspaces.
    pub fn finally(mut self, task: &str, workspaces: &[&str]) -> Self {
        push(
            &mut self.object["spec"]["pipelineSpec"]["finally"],
            task_json(task, workspaces),
        );
        self
    }

    /// Makes the task that was added last request this much CPU.
    pub fn asking(self, cpu: &str) -> Self {
        self.asking_of("cpu", cpu)
    }

    /// Makes the task that was added last request this much of a resource. For an extended resource, Kubernetes requires a limit
    /// that is equal to the request.
    pub fn asking_of(mut self, resource: &str, amount: &str) -> Self {
        if let Some(task) = self.object["spec"]["pipelineSpec"]["tasks"]
            .as_array_mut()
            .and_then(|tasks| tasks.last_mut())
        {
            let resources = &mut task["taskSpec"]["steps"][0]["computeResources"];
            resources["requests"][resource] = amount.into();
            if resource.contains('/') {
                resources["limits"][resource] = amount.into();
            }
        }
        self
    }

    /// Makes a task's pod run for this time.
    pub fn lasting(self, task: &str, seconds: u32) -> Self {
        self.task_annotation(task, DURATION_ANNOTATION, &format!("{seconds}s"))
    }

    /// Makes a task's pod run until [`Scene::end`](crate::Scene::end), so that it does not end while the test checks the cluster.
    pub fn held(self, task: &str) -> Self {
        self.lasting(task, 3600)
    }

    /// Makes a task fail.
    pub fn failing(self, task: &str) -> Self {
        self.task_annotation(task, EXIT_CODE_ANNOTATION, "1")
    }

    /// Makes a task return a result.
    pub fn resulting(self, task: &str, result: &str, value: &str) -> Self {
        let message = json!([{"key": result, "value": value, "type": 1}]);
        self.task_annotation(task, MESSAGE_ANNOTATION, &message.to_string())
    }

    /// Chooses the run's mode.
    pub fn in_mode(mut self, mode: &str) -> Self {
        self.object["metadata"]["annotations"]["coscheduler.dev/coschedule"] = mode.into();
        self
    }

    /// Chooses the run's value of `placeholder-reserves`.
    pub fn reserving(mut self, reserves: Reserves) -> Self {
        self.object["metadata"]["annotations"]["coscheduler.dev/placeholder-reserves"] =
            reserves.as_str().into();
        self
    }

    /// Sets a field of `metadata`.
    pub fn metadata(mut self, field: &str, value: Value) -> Self {
        self.object["metadata"][field] = value;
        self
    }

    /// Sets a field of `spec`.
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.object["spec"][field] = value;
        self
    }

    /// Sets the `podTemplate` of a task's pods.
    pub fn task_pod_template(mut self, task: &str, template: Value) -> Self {
        self.task_run_spec(task)["podTemplate"] = template;
        self
    }

    fn task_annotation(mut self, task: &str, key: &str, value: &str) -> Self {
        self.task_run_spec(task)["metadata"]["annotations"][key] = value.into();
        self
    }

    /// The settings of a task. Tekton reads only one entry for each task.
    fn task_run_spec(&mut self, task: &str) -> &mut Value {
        let specs = &mut self.object["spec"]["taskRunSpecs"];
        let mut all = specs.as_array().into_iter().flatten();
        let known = all.position(|spec| spec["pipelineTaskName"] == task);
        let index = known.unwrap_or_else(|| {
            push(specs, json!({"pipelineTaskName": task}));
            specs.as_array().map_or(0, |all| all.len() - 1)
        });
        &mut specs[index]
    }
}

fn task_json(name: &str, workspaces: &[&str]) -> Value {
    let named: Vec<_> = workspaces
        .iter()
        .map(|name| json!({"name": name}))
        .collect();
    json!({
        "name": name,
        "workspaces": named,
        "taskSpec": {
            "workspaces": named,
            "steps": [{"name": "step", "image": "example/image", "command": ["true"]}],
        },
    })
}

fn push(list: &mut Value, item: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}

/// True if the API server lost a connection to Tekton's webhook: it wrote to a connection that the webhook had just closed.
fn is_connection_of_tekton(refusal: &str) -> bool {
    let tekton = "failed calling webhook \"webhook.pipeline.tekton.dev\"";
    refusal.contains(tekton) && refusal.contains("broken pipe")
}
