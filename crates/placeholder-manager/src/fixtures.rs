//! Fixtures: a run with its objects as the watches deliver them, and a manager with a scripted API server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::FromArgMatches as _;
use coscheduler_core::admit::{Question, TEKTON_CONTROLLER, admit};
use coscheduler_core::config::Configuration;
use coscheduler_core::mode::Mode;
use coscheduler_core::observed::{Done, KnownClaim, Placeholder, Pod};
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::plan;
use coscheduler_kubernetes::{claims, placeholder, pods};
use coscheduler_runtime::lease::{Leadership, LeaseArgs};
use coscheduler_runtime::queue::{self, Options};
use coscheduler_runtime::{Process, ProcessArgs, Supervisor, command};
use http::{Method, Request, Response};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower_test::mock;

use crate::SERVICE;
use crate::cache::{Cache, RunKey};
use crate::reconciler::Reconciler;
use crate::requests::Requests;

pub(crate) fn key() -> RunKey {
    RunKey::new("ci", "u")
}

pub(crate) fn name(name: &str) -> (String, String) {
    ("ci".to_owned(), name.to_owned())
}

/// A run in mode `pipelineruns` whose workspaces are bound to these claims.
pub(crate) fn run(claims: &[&str]) -> PipelineRun {
    run_in(Mode::PipelineRuns, claims)
}

pub(crate) fn run_in(mode: Mode, claims: &[&str]) -> PipelineRun {
    let bound = |name: &&str| json!({"name": name.trim_matches(['$', '(', ')', '.']), "persistentVolumeClaim": {"claimName": name}});
    stored(mode, &json!(claims.iter().map(bound).collect::<Vec<_>>()))
}

/// A run with these workspaces, as the API server stores it after admission.
pub(crate) fn stored(mode: Mode, workspaces: &Value) -> PipelineRun {
    let run = PipelineRun::parse(&json!({
        "metadata": {"namespace": "ci", "name": "build", "uid": "u", "resourceVersion": "10"},
        "spec": {"workspaces": workspaces},
    }))
    .unwrap();
    let configuration = Configuration {
        mode,
        ..Configuration::default()
    };
    let question = Question::about(&run, "request", "alice");
    let admission = admit(Ok(&configuration), TEKTON_CONTROLLER, &question);
    admission.unwrap().apply(&run)
}

/// The names of the placeholders of a run.
pub(crate) fn planned(run: &PipelineRun) -> Vec<String> {
    let plan = plan(run).unwrap();
    let specs = plan.action.placeholders().iter();
    specs.map(|spec| spec.name.to_string()).collect()
}

pub(crate) fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// The StatefulSet of the run's first placeholder, at this version.
pub(crate) fn set(run: &PipelineRun, version: &str) -> Value {
    json!({
        "metadata": {
            "namespace": run.namespace, "name": planned(run)[0], "uid": "s", "resourceVersion": version,
            "labels": {"app.kubernetes.io/managed-by": "tekton-coscheduler", "tekton.dev/pipelineRunUID": run.uid},
            "ownerReferences": [{
                "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": run.name, "uid": run.uid, "controller": true,
            }],
        },
        "spec": {"selector": {}, "serviceName": "", "template": {"spec": {"containers": []}}},
    })
}

/// The run's first placeholder.
pub(crate) fn placeholder(run: &PipelineRun) -> Placeholder {
    read_set(set(run, "5"))
}

pub(crate) fn read_set(set: Value) -> Placeholder {
    placeholder::view(object(set)).unwrap()
}

/// The pod of the run's first placeholder, with this status.
pub(crate) fn placeholder_pod(run: &PipelineRun, node: Option<&str>, status: Value) -> Pod {
    let mut pod = placeholder_pod_json(run);
    pod["spec"]["nodeName"] = node.into();
    pod["status"] = status;
    read_pod(pod)
}

/// The pod of the run's first placeholder, as Kubernetes JSON, without a node and a status.
pub(crate) fn placeholder_pod_json(run: &PipelineRun) -> Value {
    let set = &planned(run)[0];
    json!({
        "metadata": {
            "namespace": run.namespace, "name": format!("{set}-0"), "uid": "p", "resourceVersion": "7",
            "labels": {
                "tekton.dev/pipelineRunUID": run.uid,
                "app.kubernetes.io/component": "affinity-assistant",
                "app.kubernetes.io/instance": set,
                "app.kubernetes.io/managed-by": "tekton-coscheduler",
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": set, "uid": "s", "controller": true}],
        },
        "spec": {"containers": []},
    })
}

pub(crate) fn read_pod(pod: Value) -> Pod {
    pods::view(object(pod)).unwrap()
}

/// The pod of a TaskRun, as Kubernetes JSON. The TaskRun belongs to the PipelineRun with this uid.
pub(crate) fn task_pod(uid: &str, name: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "ci", "name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "8",
            "labels": {"tekton.dev/pipelineRunUID": uid},
            "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": "task", "uid": "t", "controller": true}],
        },
        "spec": {"containers": []},
        "status": {"phase": "Pending"},
    })
}

pub(crate) fn read_claim(claim: Value) -> KnownClaim {
    claims::view(object(claim))
}

/// A request that the scripted API server received.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub method: Method,
    pub path: String,
    pub query: String,
    pub body: Value,
}

impl Asked {
    /// The last part of the path: the kind of a list, or a name.
    pub(crate) fn last(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The method and the last part of the path, such as `DELETE name`.
    pub(crate) fn short(&self) -> String {
        format!("{} {}", self.method, self.last())
    }
}

/// A scripted API server.
#[derive(Clone, Default)]
pub(crate) struct Server(Arc<Mutex<Vec<Asked>>>);

impl Server {
    /// A server that answers each request with `answer`, and a client of this server.
    pub(crate) fn new(answer: impl Fn(&Asked) -> (u16, Value) + Send + 'static) -> (Client, Self) {
        let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
        let server = Self::default();
        let asked = server.0.clone();
        tokio::spawn(async move {
            while let Some((request, respond)) = requests.next_request().await {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let request = Asked {
                    method: parts.method,
                    path: parts.uri.path().to_owned(),
                    query: parts.uri.query().unwrap_or_default().to_owned(),
                    body: serde_json::from_slice(&body).unwrap_or_default(),
                };
                let (code, answer) = answer(&request);
                asked.lock().unwrap().push(request);
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                respond.send_response(Response::builder().status(code).body(answer).unwrap());
            }
        });
        (Client::new(service, "ci"), server)
    }

    /// The requests since the last call of this function.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The requests that [`Self::asked`] returns, each in its short form.
    pub(crate) fn short(&self) -> Vec<String> {
        self.asked().iter().map(Asked::short).collect()
    }
}

/// An error answer of the API server.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    (code, status)
}

pub(crate) fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
}

/// The answer of an API server that accepts every request. Its lists are empty.
pub(crate) fn usual(asked: &Asked) -> (u16, Value) {
    let answer = match asked.method {
        Method::GET if asked.path.contains("/taskruns/") => json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {
            "name": "task", "uid": "t",
            "ownerReferences": [{
                "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u", "controller": true}],
        }}),
        Method::GET => json!({"metadata": {}, "items": []}),
        Method::DELETE => success(),
        Method::PATCH if asked.path.contains("/statefulsets/") => {
            let mut set = set(&run(&["data"]), "6");
            let mut annotations = asked.body["metadata"]["annotations"].clone();
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.retain(|_, value| !value.is_null());
            }
            set["metadata"]["annotations"] = annotations;
            let gates = &asked.body["spec"]["template"]["spec"]["schedulingGates"];
            set["spec"]["template"]["spec"]["schedulingGates"] = gates.clone();
            set
        }
        Method::PATCH => json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "x", "resourceVersion": "11"}}),
        _ => asked.body.clone(),
    };
    (200, answer)
}

/// A manager and its scripted API server.
pub(crate) struct Manager {
    pub cache: Arc<Cache>,
    pub reconciler: Arc<Reconciler>,
    pub server: Server,
}

impl Manager {
    pub(crate) async fn new(
        leads: bool,
        answer: impl Fn(&Asked) -> (u16, Value) + Send + 'static,
    ) -> Self {
        let flags = command::<LeaseArgs>(SERVICE).get_matches_from([
            "placeholder-manager",
            "--http-address=127.0.0.1:0",
            "--leader-elect-lease-duration=1000000s",
            "--leader-elect-renew-deadline=100000s",
        ]);
        let process_args = ProcessArgs::from_arg_matches(&flags).unwrap();
        let process = Supervisor::bind(SERVICE, &process_args)
            .await
            .unwrap()
            .process();
        let lease = LeaseArgs::from_arg_matches(&flags).unwrap();
        let leadership = leadership(&process, &lease, leads).await;
        let (client, server) = Server::new(answer);
        let (queue, _) = queue::queue("runs", Options::default(), process.metrics());
        let cache = Arc::new(Cache::default());
        let reconciler = Reconciler::new(
            cache.clone(),
            Requests::new(client),
            leadership,
            queue,
            Duration::ZERO,
        );
        Self {
            cache,
            reconciler: Arc::new(reconciler),
            server,
        }
    }

    /// A leader whose cache contains this run and its placeholder, with a pod on node-1.
    pub(crate) async fn with(run: &PipelineRun) -> Self {
        let manager = Self::new(true, usual).await;
        manager.know(run);
        manager
    }

    /// Records that the run's placeholder was evacuated once, long ago.
    pub(crate) fn moved_before(&self, run: &PipelineRun) {
        let mut own = placeholder(run);
        own.record.evacuated = Done::again(None, Timestamp::UNIX_EPOCH, "");
        self.cache.apply_placeholder(own);
    }

    pub(crate) fn know(&self, run: &PipelineRun) {
        self.cache.apply_run(run.clone());
        self.cache.apply_placeholder(placeholder(run));
        let running = json!({"phase": "Running"});
        self.cache
            .apply_pod(placeholder_pod(run, Some("node-1"), running));
    }
}

/// A leadership. This process gets the Lease only if `leads` is true.
async fn leadership(process: &Process, args: &LeaseArgs, leads: bool) -> Leadership {
    let (service, mut requests) = mock::pair::<Request<Body>, Response<Body>>();
    let leadership = args.campaign(process, Client::new(service, "ci"), SERVICE.name);
    let leadership = leadership.unwrap();
    if !leads {
        return leadership;
    }
    tokio::spawn(async move {
        let mut watches = Vec::new();
        while let Some((request, respond)) = requests.next_request().await {
            let watches_on = request
                .uri()
                .query()
                .is_some_and(|it| it.contains("watch=true"));
            if watches_on {
                watches.push(respond);
                continue;
            }
            let answer = if request.method() == Method::GET {
                let free = json!({"metadata": {"name": SERVICE.name, "resourceVersion": "1"}, "spec": {"holderIdentity": ""}});
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList", "metadata": {"resourceVersion": "1"}, "items": [free]})
            } else {
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut lease: Value = serde_json::from_slice(&body).unwrap();
                lease["metadata"]["resourceVersion"] = "2".into();
                lease
            };
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            respond.send_response(Response::new(answer));
        }
    });
    leadership.lead(async {}).await.unwrap();
    leadership
}
