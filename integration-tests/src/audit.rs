//! The API server's audit log, read from a mark on. A request is in it as soon as it is answered, a watch once it has ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::{Context as _, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;
use testbed::TestBed;
use testbed::services::Service;

use crate::Scene;

/// A place in the audit log: its length at some time. The default is its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark(u64);

/// An answered request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub uri: String,
    /// When the API server received it.
    #[serde(rename = "requestReceivedTimestamp")]
    pub received: MicroTime,
    /// The account that asked.
    #[serde(default)]
    pub user: User,
    /// The name of the program that asked.
    #[serde(default)]
    pub user_agent: String,
    /// The object it was about.
    #[serde(default, rename = "objectRef")]
    pub object: Object,
    /// The answer.
    #[serde(default, rename = "responseStatus")]
    pub answer: Answer,
}

/// The account of a request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    /// `system:serviceaccount:<namespace>:<name>` for a service account.
    pub username: String,
}

/// The object of a request; empty where the request names none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Object {
    /// The API group, empty for the core one.
    pub api_group: String,
    /// The plural, `persistentvolumeclaims`.
    pub resource: String,
    /// The part of the object, `status`.
    pub subresource: String,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
}

impl Request {
    /// Says whether this service asked.
    pub fn is_by(&self, service: Service) -> bool {
        let (program, _) = self.user_agent.split_once('/').unwrap_or_default();
        program == service.name()
    }

    /// Says whether it would change an object.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

impl Scene<'_> {
    /// The end of the audit log as it is now.
    ///
    /// # Errors
    ///
    /// Where the bed has no audit log.
    pub fn mark(&self) -> anyhow::Result<Mark> {
        end(&self.stack.bed)
    }

    /// Every request that the audit log got since `mark`. A request answered just before it may be among them:
    /// [`Request::received`] says when it came.
    ///
    /// # Errors
    ///
    /// Where the audit log cannot be read, or was rotated since.
    pub fn requests_since(&self, mark: Mark) -> anyhow::Result<Vec<Request>> {
        requests(&self.stack.bed, mark)
    }
}

/// The end of a bed's audit log as it is now.
///
/// # Errors
///
/// Where the bed has no audit log.
pub fn end(bed: &TestBed) -> anyhow::Result<Mark> {
    let log = bed.audit_log().context("no audit log is kept")?;
    let metadata = std::fs::metadata(&log).context("failed to look at the audit log")?;
    Ok(Mark(metadata.len()))
}

/// Every request to a bed that was answered since `mark`.
///
/// # Errors
///
/// Where the audit log cannot be read, or was rotated since.
pub fn requests(bed: &TestBed, Mark(from): Mark) -> anyhow::Result<Vec<Request>> {
    let log = bed.audit_log().context("no audit log is kept")?;
    let mut file = File::open(&log).context("failed to open the audit log")?;
    ensure!(
        file.metadata()?.len() >= from,
        "the audit log has been rotated since"
    );
    file.seek(SeekFrom::Start(from))?;
    let mut text = String::new();
    file.read_to_string(&mut text)
        .context("failed to read the audit log")?;
    // The last line may be half written.
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("not a request: {line}")))
        .collect()
}

/// The requests of our services. Without Leases and watches, which come and go by the clock, and without the list of all
/// namespaces by which a cache begins anew when the API server has ended its watch. Every other list counts.
pub fn of_services(requests: Vec<Request>) -> Vec<Request> {
    let mut ended = BTreeMap::<_, usize>::new();
    let mut ours = Vec::new();
    for request in requests {
        let service = Service::ALL.into_iter().find(|of| request.is_by(*of));
        let Some(service) = service.filter(|_| request.object.resource != "leases") else {
            continue;
        };
        let cache = (service.name(), request.object.resource.clone());
        let of_all = request.object.namespace.is_empty();
        match request.verb.as_str() {
            "watch" => *ended.entry(cache).or_default() += 1,
            "list" if of_all && ended.get(&cache).is_some_and(|ended| *ended > 0) => {
                ended.entry(cache).and_modify(|ended| *ended -= 1);
            }
            _ => ours.push(request),
        }
    }
    ours
}

/// How many requests there are of each verb and kind.
pub fn table(requests: &[Request]) -> BTreeMap<(String, String), usize> {
    let mut table = BTreeMap::new();
    for request in requests {
        let mut object = request.object.resource.clone();
        if !request.object.subresource.is_empty() {
            object = format!("{object}/{}", request.object.subresource);
        }
        *table.entry((request.verb.clone(), object)).or_default() += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(verb: &str, program: &str, namespace: &str) -> Request {
        let object = serde_json::json!({"resource": "pods", "namespace": namespace});
        serde_json::from_value(serde_json::json!({
            "verb": verb,
            "requestURI": "/",
            "requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z",
            "userAgent": format!("{program}/1"),
            "objectRef": object,
        }))
        .unwrap()
    }

    #[test]
    fn only_the_list_that_follows_the_end_of_a_watch_does_not_count() {
        let verbs = |requests: &[(&str, &str, &str)]| {
            let made = requests.iter().map(|(verb, by, of)| request(verb, by, of));
            of_services(made.collect()).len()
        };
        let manager = "placeholder-manager";
        let (watch, list) = (("watch", manager, ""), ("list", manager, ""));
        assert_eq!(verbs(&[list]), 1);
        assert_eq!(verbs(&[watch, list]), 0);
        assert_eq!(verbs(&[watch, list, list]), 1);
        assert_eq!(verbs(&[watch, ("list", "watcher", "")]), 1);
        assert_eq!(verbs(&[watch, ("list", manager, "ci")]), 1);
        assert_eq!(verbs(&[("list", "kubectl", "")]), 0);
    }
}
