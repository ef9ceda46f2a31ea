//! Serves `coscheduler.placeholder.v1.PlaceholderService`: converts requests and answers, and decides nothing.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use tokio::sync::broadcast::error::RecvError;
use tonic::{Request, Response, Status};

use coscheduler_core::annotations::MODE_SOURCE;
use coscheduler_core::observed::Pod;
use coscheduler_core::pipeline_run::RunState;
use coscheduler_core::reconcile::Released;
use coscheduler_core::reconcile::tell::waiting::cause;
use coscheduler_core::violation::Violation;
use coscheduler_proto::Timestamp;
use coscheduler_proto::convert;
use coscheduler_proto::error::{bad_request, with_reason};
use coscheduler_proto::placeholder::placeholder_service_server::PlaceholderService;
use coscheduler_proto::placeholder::watch_placeholders_response::Event;
use coscheduler_proto::placeholder::{
    EnsureOutcome, EnsureRequest, EnsureResponse, ExplainRequest, ExplainResponse,
    GetPlaceholderRequest, GetPlaceholderResponse, ListPlaceholdersRequest,
    ListPlaceholdersResponse, PipelineRunRef, Placeholder, PlaceholderPhase, ReleaseOutcome,
    ReleaseRequest, ReleaseResponse, SnapshotComplete, TaskRunPod, WatchPlaceholdersRequest,
    WatchPlaceholdersResponse,
};
use coscheduler_proto::reason::ErrorReason;
use coscheduler_runtime::Health;
use coscheduler_runtime::kubernetes::watch::ObjectKey;

use crate::cache::{Change, Listed, Phase};
use crate::call::{Ensured, ensure, release};
use crate::error::Error;
use crate::reconciler::Reconciler;

const DEFAULT_PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// The gRPC service.
pub(crate) struct Placeholders {
    reconciler: Arc<Reconciler>,
    health: Health,
}

impl Placeholders {
    pub(crate) fn new(reconciler: Arc<Reconciler>, health: Health) -> Self {
        Self { reconciler, health }
    }

    /// Fails until the process is ready. Before that, the cache may lack objects that exist.
    fn ready(&self) -> Result<(), Error> {
        if self.health.is_ready() {
            return Ok(());
        }
        Err(Error::NotReady {
            missing: self.health.missing().join(", "),
        })
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl PlaceholderService for Placeholders {
    async fn ensure(&self, request: Request<EnsureRequest>) -> Answer<EnsureResponse> {
        let identity = identity(request.into_inner().pipeline_run)?;
        self.ready()?;
        let ensured = ensure(&self.reconciler, &identity).await;
        let outcome = match ensured.map_err(|error| Status::from(&*error))? {
            Ensured::Created => EnsureOutcome::Created,
            Ensured::Unchanged => EnsureOutcome::Unchanged,
            Ensured::Superseded => EnsureOutcome::Superseded,
            Ensured::RunDone => EnsureOutcome::RunDone,
            Ensured::NotNeeded => EnsureOutcome::NotNeeded,
        };
        Ok(Response::new(EnsureResponse {
            outcome: outcome.into(),
        }))
    }

    async fn release(&self, request: Request<ReleaseRequest>) -> Answer<ReleaseResponse> {
        let identity = identity(request.into_inner().pipeline_run)?;
        self.ready()?;
        let released = release(&self.reconciler, &identity).await;
        let outcome = match released.map_err(|error| Status::from(&*error))? {
            Released::Done => ReleaseOutcome::Released,
            Released::InProgress => ReleaseOutcome::InProgress,
            Released::WaitingForPods => ReleaseOutcome::WaitingForPods,
            Released::RunActive => ReleaseOutcome::RunActive,
        };
        Ok(Response::new(ReleaseResponse {
            outcome: outcome.into(),
        }))
    }

    async fn list_placeholders(
        &self,
        request: Request<ListPlaceholdersRequest>,
    ) -> Answer<ListPlaceholdersResponse> {
        let request = request.into_inner();
        let size = page_size(request.page_size);
        let after = page_token(&request.page_token);
        let (size, after) = both(size, after)?;
        self.ready()?;
        let mut page = self.reconciler.cache.list(after, size + 1, |own| {
            let asked = (&*request.namespace, &*request.pipeline_run);
            is_wanted((&own.namespace, own.run_name()), asked)
        });
        let more = page.len() > size;
        page.truncate(size);
        let next_page_token = match page.last() {
            Some(last) if more => format!("{}/{}", last.namespace, last.name),
            Some(_) | None => String::new(),
        };
        Ok(Response::new(ListPlaceholdersResponse {
            placeholders: page.into_iter().map(to_wire).collect(),
            next_page_token,
        }))
    }

    async fn get_placeholder(
        &self,
        request: Request<GetPlaceholderRequest>,
    ) -> Answer<GetPlaceholderResponse> {
        let GetPlaceholderRequest { namespace, name } = request.into_inner();
        let key = named(namespace, name)?;
        self.ready()?;
        match self.reconciler.cache.placeholder(&key) {
            Some(found) => Ok(Response::new(GetPlaceholderResponse {
                placeholder: Some(to_wire(found)),
            })),
            None => Err(with_reason(
                ErrorReason::PlaceholderNotFound,
                format!("there is no placeholder {}/{}", key.0, key.1),
            )),
        }
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Answer<ExplainResponse> {
        let ExplainRequest { namespace, name } = request.into_inner();
        let key = named(namespace, name)?;
        self.ready()?;
        let cache = &self.reconciler.cache;
        let mut observed = cache
            .top_run(&key)
            .map(|run| cache.observe(&run))
            .unwrap_or_default();
        observed.now = k8s_openapi::jiff::Timestamp::now();
        let Some((run, _)) = &observed.run else {
            return Err(with_reason(
                ErrorReason::PipelineRunNotFound,
                format!("there is no coscheduled PipelineRun {}/{}", key.0, key.1),
            ));
        };
        let placeholders = observed.placeholders.keys();
        let placeholders =
            placeholders.filter_map(|name| cache.placeholder(&(key.0.clone(), name.clone())));
        let tasks = observed
            .pods
            .values()
            .filter(|pod| pod.placeholder.is_none());
        Ok(Response::new(ExplainResponse {
            pipeline_run: Some(PipelineRunRef {
                namespace: run.namespace.clone(),
                name: run.name.clone(),
                uid: run.uid.clone(),
                resource_version: String::new(),
            }),
            placeholders: placeholders.map(to_wire).collect(),
            pods: tasks.map(|pod| task_run_pod(pod)).collect(),
            cause: cause(&observed).as_ref().map(convert::reason_to_wire),
            done: run.state == RunState::Done,
            mode_source: run
                .annotations
                .get(MODE_SOURCE)
                .cloned()
                .unwrap_or_default(),
        }))
    }

    type WatchPlaceholdersStream =
        Pin<Box<dyn Stream<Item = Result<WatchPlaceholdersResponse, Status>> + Send>>;

    async fn watch_placeholders(
        &self,
        request: Request<WatchPlaceholdersRequest>,
    ) -> Answer<Self::WatchPlaceholdersStream> {
        self.ready()?;
        let WatchPlaceholdersRequest {
            namespace,
            pipeline_run,
        } = request.into_inner();
        let wanted = move |namespace_of: &str, run_of: &str| {
            is_wanted((namespace_of, run_of), (&namespace, &pipeline_run))
        };
        // The subscription begins before the list is read. So a change between the two may be sent twice, but is never lost.
        let cache = &self.reconciler.cache;
        let changes = cache.subscribe();
        let first: Vec<_> = cache
            .list(None, usize::MAX, |own| {
                wanted(&own.namespace, own.run_name())
            })
            .into_iter()
            .map(|item| Event::Changed(to_wire(item)))
            .chain([Event::SnapshotComplete(SnapshotComplete {})])
            .map(|event| Ok(watched(event)))
            .collect();
        let later = futures::stream::unfold((changes, wanted), |(mut changes, wanted)| async {
            loop {
                let item = match changes.recv().await {
                    Ok(Change {
                        placeholder: item, ..
                    }) if !wanted(&item.namespace, &item.run_name) => {
                        continue;
                    }
                    Ok(change) => {
                        let placeholder = to_wire(change.placeholder);
                        Ok(watched(if change.deleted {
                            Event::Deleted(placeholder)
                        } else {
                            Event::Changed(placeholder)
                        }))
                    }
                    Err(RecvError::Lagged(missed)) => Err(with_reason(
                        ErrorReason::WatchTooSlow,
                        format!("the client missed {missed} changes; watch again"),
                    )),
                    Err(RecvError::Closed) => return None,
                };
                return Some((item, (changes, wanted)));
            }
        });
        let stream = futures::StreamExt::chain(futures::stream::iter(first), later);
        Ok(Response::new(Box::pin(until_error(stream))))
    }
}

fn identity(of: Option<PipelineRunRef>) -> Result<convert::Identity, Error> {
    convert::identity(of).map_err(Error::BadRequest)
}

/// The namespace and the name, which must not be empty.
fn named(namespace: String, name: String) -> Result<ObjectKey, Status> {
    let empty = [("namespace", &namespace), ("name", &name)]
        .into_iter()
        .filter(|(_, value)| value.is_empty())
        .map(|(field, _)| Violation::new(field, "is empty; it is required"));
    let violations: Vec<_> = empty.collect();
    if violations.is_empty() {
        Ok((namespace, name))
    } else {
        Err(bad_request(&violations))
    }
}

/// Ends a stream after its first error, as gRPC does.
fn until_error<T: Send + 'static>(
    stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> impl Stream<Item = Result<T, Status>> + Send {
    futures::StreamExt::scan(stream, false, |failed, item| {
        let end = std::mem::replace(failed, item.is_err());
        std::future::ready(if end { None } else { Some(item) })
    })
}

/// Both values, or all violations.
fn both<A, B>(a: Result<A, Vec<Violation>>, b: Result<B, Vec<Violation>>) -> Result<(A, B), Error> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(mut violations), Err(more)) => {
            violations.extend(more);
            Err(Error::BadRequest(violations))
        }
        (Err(violations), Ok(_)) | (Ok(_), Err(violations)) => Err(Error::BadRequest(violations)),
    }
}

fn page_size(asked: i32) -> Result<usize, Vec<Violation>> {
    match usize::try_from(asked) {
        Ok(0) => Ok(DEFAULT_PAGE),
        Ok(size) => Ok(size.min(LARGEST_PAGE)),
        Err(_) => Err(vec![Violation::new(
            "page_size",
            format!("is {asked}; allowed: 0 to {LARGEST_PAGE}"),
        )]),
    }
}

fn page_token(token: &str) -> Result<Option<ObjectKey>, Vec<Violation>> {
    if token.is_empty() {
        return Ok(None);
    }
    match token.split_once('/') {
        Some((namespace, name)) => Ok(Some((namespace.to_owned(), name.to_owned()))),
        None => Err(vec![Violation::new(
            "page_token",
            format!("is {token:?}; allowed: a next_page_token of an earlier answer"),
        )]),
    }
}

/// True if a placeholder with this namespace and run name (`is`) matches the filter `asked`. An empty field of the filter
/// matches everything.
fn is_wanted(is: (&str, &str), asked: (&str, &str)) -> bool {
    let matches = |asked: &str, is: &str| asked.is_empty() || asked == is;
    matches(asked.0, is.0) && matches(asked.1, is.1)
}

fn watched(event: Event) -> WatchPlaceholdersResponse {
    WatchPlaceholdersResponse { event: Some(event) }
}

fn to_wire(placeholder: Listed) -> Placeholder {
    let phase = match placeholder.phase {
        Phase::Pending => PlaceholderPhase::Pending,
        Phase::Bound => PlaceholderPhase::Bound,
        Phase::Terminating => PlaceholderPhase::Terminating,
    };
    Placeholder {
        pipeline_run: Some(PipelineRunRef {
            namespace: placeholder.namespace.clone(),
            name: placeholder.run_name,
            uid: placeholder.run_uid,
            resource_version: String::new(),
        }),
        namespace: placeholder.namespace,
        name: placeholder.name,
        phase: phase.into(),
        node: placeholder.node,
        claim_names: placeholder.claim_names,
        mode: placeholder
            .mode
            .map_or(0, |mode| convert::mode_to_wire(mode).into()),
        create_time: placeholder.created.map(|time| Timestamp {
            seconds: time.as_second(),
            nanos: 0,
        }),
        waiting: placeholder.waiting.as_ref().map(convert::reason_to_wire),
    }
}

fn task_run_pod(pod: &Pod) -> TaskRunPod {
    TaskRunPod {
        name: pod.object.name.clone(),
        node: pod.node.clone().unwrap_or_default(),
        scheduler_message: pod.scheduler_said().unwrap_or_default().to_owned(),
        placeholders: pod.follows.clone(),
    }
}
