//! A fake API server for tests, with one Lease in memory. Resource versions, conflicts and watches work as in Kubernetes. A test
//! can make connections and requests fail.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body as Answer;
use http::{Method, Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;

/// A fault of one write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The request never arrives.
    RequestLost,
    /// The server carries out the request, but its answer is lost.
    AnswerLost,
    /// The request arrives this many milliseconds later, even if the client has stopped waiting.
    Late(u64),
    /// The server does nothing and answers 500.
    Refused,
    /// The server carries out the request, but answers 500.
    RefusedAfterAll,
}

/// The server. Clones share its state.
#[derive(Clone)]
pub(super) struct ApiServer {
    store: Arc<Mutex<Store>>,
    version: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct Store {
    version: u64,
    lease: Option<Value>,
    events: Vec<(u64, Value)>,
    /// The holder of the Lease after each change of the Lease.
    holders: Vec<String>,
}

/// One candidate's connection to the server.
#[derive(Clone, Default)]
pub(super) struct Connection {
    faults: Arc<Mutex<VecDeque<Fault>>>,
    /// True while no data passes. Requests in progress at this time are lost, as on a dead connection.
    cut: Arc<watch::Sender<bool>>,
}

impl Connection {
    pub(super) fn fault(&self, fault: Fault) {
        self.faults.lock().unwrap().push_back(fault);
    }

    pub(super) fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }

    pub(super) fn mend(&self) {
        self.cut(false);
        self.faults.lock().unwrap().clear();
    }

    async fn until_cut(&self) {
        let mut cut = self.cut.subscribe();
        let _ = cut.wait_for(|cut| *cut).await;
    }
}

impl ApiServer {
    pub(super) fn new() -> Self {
        Self {
            store: Arc::default(),
            version: Arc::new(watch::Sender::new(0)),
        }
    }

    /// A server that has the Lease, without a holder.
    pub(super) fn with_free_lease(name: &str) -> Self {
        let server = Self::new();
        server.change(|_| Some(json!({"metadata": {"name": name}})));
        server
    }

    pub(super) fn client(&self, connection: &Connection) -> Client {
        let (server, connection) = (self.clone(), connection.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, connection) = (server.clone(), connection.clone());
            async move { Ok::<_, std::io::Error>(server.serve(request, connection).await) }
        });
        Client::new(service, "ns")
    }

    /// The holder of the Lease; empty if there is no holder or no Lease.
    pub(super) fn holder(&self) -> String {
        holder(self.store.lock().unwrap().lease.as_ref())
    }

    /// The holder of the Lease after each change of the Lease.
    pub(super) fn holders(&self) -> Vec<String> {
        self.store.lock().unwrap().holders.clone()
    }

    /// How often the Lease has changed.
    pub(super) fn changes(&self) -> usize {
        self.store.lock().unwrap().events.len()
    }

    /// Deletes the Lease, as a user might.
    pub(super) fn delete(&self) {
        self.change(|_| None);
    }

    /// Changes the Lease, as a user might.
    pub(super) fn edit(&self, change: impl FnOnce(&mut Value)) {
        self.change(|lease| {
            let mut lease = lease?;
            change(&mut lease);
            Some(lease)
        });
    }

    async fn serve(&self, request: Request<Body>, connection: Connection) -> Response<Answer> {
        if *connection.cut.borrow() {
            std::future::pending::<()>().await;
        }
        if request.method() == Method::GET {
            let query = request.uri().query().unwrap_or_default().to_owned();
            assert!(query.contains("fieldSelector=metadata.name"), "{query}");
            return match query
                .split('&')
                .find_map(|part| part.strip_prefix("resourceVersion="))
            {
                Some(version) if query.contains("watch=true") => {
                    self.watch(version.parse().unwrap(), connection)
                }
                _ => self.list(),
            };
        }
        let method = request.method().clone();
        let body = request.into_body().collect_bytes().await.unwrap();
        let lease: Value = serde_json::from_slice(&body).unwrap();
        // Like Kubernetes, fail if the body is no Lease.
        let _: Lease = serde_json::from_value(lease.clone()).unwrap();
        let fault = connection.faults.lock().unwrap().pop_front();
        let server = self.clone();
        let write = move || server.write(&method, lease);
        match fault {
            None => write(),
            Some(Fault::RequestLost) => std::future::pending().await,
            Some(Fault::AnswerLost) => {
                write();
                std::future::pending().await
            }
            Some(Fault::Late(delay)) => {
                let late = tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(delay)).await;
                    write()
                });
                late.await.unwrap()
            }
            Some(Fault::Refused) => status(500, "InternalError"),
            Some(Fault::RefusedAfterAll) => {
                write();
                status(500, "InternalError")
            }
        }
    }

    fn write(&self, method: &Method, lease: Value) -> Response<Answer> {
        let known = self.store.lock().unwrap().lease.clone();
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        match known {
            Some(_) if method == Method::POST => return status(409, "AlreadyExists"),
            None if method == Method::PUT => return status(404, "NotFound"),
            Some(known) if version(&known) != version(&lease) => return status(409, "Conflict"),
            Some(_) | None => {}
        }
        let stored = self.change(|_| Some(lease));
        json_answer(200, &stored.unwrap())
    }

    /// Replaces the Lease by the result of `change`, and notifies the watches.
    fn change(&self, change: impl FnOnce(Option<Value>) -> Option<Value>) -> Option<Value> {
        let mut store = self.store.lock().unwrap();
        let before = store.lease.take();
        store.lease = change(before.clone());
        if before.is_none() && store.lease.is_none() {
            return None;
        }
        store.version += 1;
        let version = store.version;
        let holder = holder(store.lease.as_ref());
        store.holders.push(holder);
        if let Some(lease) = &mut store.lease {
            lease["apiVersion"] = "coordination.k8s.io/v1".into();
            lease["kind"] = "Lease".into();
            lease["metadata"]["resourceVersion"] = version.to_string().into();
        }
        let event = match (&before, &store.lease) {
            (None, Some(lease)) => json!({"type": "ADDED", "object": lease}),
            (Some(_), Some(lease)) => json!({"type": "MODIFIED", "object": lease}),
            (gone, None) => {
                let mut gone = gone.clone().unwrap();
                gone["metadata"]["resourceVersion"] = version.to_string().into();
                json!({"type": "DELETED", "object": gone})
            }
        };
        store.events.push((version, event));
        let lease = store.lease.clone();
        drop(store);
        self.version.send_replace(version);
        lease
    }

    fn list(&self) -> Response<Answer> {
        let store = self.store.lock().unwrap();
        json_answer(
            200,
            &json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "LeaseList",
                "metadata": {"resourceVersion": store.version.to_string()},
                "items": store.lease.iter().collect::<Vec<_>>(),
            }),
        )
    }

    fn watch(&self, from: u64, connection: Connection) -> Response<Answer> {
        let server = self.clone();
        let start = (from, server.version.subscribe());
        let events = futures::stream::unfold(start, move |(mut seen, mut version)| {
            let (server, connection) = (server.clone(), connection.clone());
            async move {
                let news = async { drop(version.wait_for(|version| *version > seen).await) };
                let dead = tokio::select! {
                    biased;
                    () = connection.until_cut() => true,
                    () = news => false,
                };
                if dead {
                    std::future::pending::<()>().await;
                }
                let store = server.store.lock().unwrap();
                let news = store.events.iter().filter(|(version, _)| *version > seen);
                let lines: String = news.map(|(_, event)| format!("{event}\n")).collect();
                seen = store.version;
                drop(store);
                Some((Ok::<_, std::io::Error>(lines), (seen, version)))
            }
        });
        Response::new(Answer::from_stream(events))
    }
}

fn holder(lease: Option<&Value>) -> String {
    let holder = lease.and_then(|lease| lease["spec"]["holderIdentity"].as_str());
    holder.unwrap_or_default().to_owned()
}

fn status(code: u16, reason: &str) -> Response<Answer> {
    json_answer(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": reason, "reason": reason, "code": code}),
    )
}

fn json_answer(code: u16, body: &Value) -> Response<Answer> {
    let mut response = Response::new(Answer::from(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}
