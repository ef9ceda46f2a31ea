//! Reads the API server's audit log, starting at a [`Mark`]. The log contains a request as soon as it is answered, and a watch
//! when it has ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::{Context as _, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;
use testbed::TestBed;
use testbed::services::Service;

use crate::Scene;

/// A position in the audit log. The default is its beginning.
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
    /// The time at which the API server received the request.
    #[serde(rename = "requestReceivedTimestamp")]
    pub received: MicroTime,
    /// The account that sent the request.
    #[serde(default)]
    pub user: User,
    /// The user agent of the program that sent the request.
    #[serde(default)]
    pub user_agent: String,
    /// The object of the request.
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

/// The object of a request. Its fields are empty if the request names no object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Object {
    /// The API group; empty for the core group.
    pub api_group: String,
    /// The plural name of the kind, such as `persistentvolumeclaims`.
    pub resource: String,
    /// The subresource, such as `status`; empty if there is none.
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
    /// True if this service sent the request.
    pub fn is_by(&self, service: Service) -> bool {
        let (program, _) = self.user_agent.split_once('/').unwrap_or_default();
        program == service.name()
    }

    /// True if the request can change an object.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

impl Scene<'_> {
    /// The current end of the audit log.
    ///
    /// # Errors
    ///
    /// The bed has no audit log.
    pub fn mark(&self) -> anyhow::Result<Mark> {
        end(&self.stack.bed)
    }

    /// Every request in the audit log after `mark`. A request that arrived just before `mark` may be among them: see
    /// [`Request::received`].
    ///
    /// # Errors
    ///
    /// The audit log cannot be read, or was rotated after `mark`.
    pub fn requests_since(&self, mark: Mark) -> anyhow::Result<Vec<Request>> {
        requests(&self.stack.bed, mark)
    }
}

/// The current end of a bed's audit log.
///
/// # Errors
///
/// The bed has no audit log.
pub fn end(bed: &TestBed) -> anyhow::Result<Mark> {
    let log = bed.audit_log().context("no audit log is kept")?;
    let metadata = std::fs::metadata(&log).context("failed to look at the audit log")?;
    Ok(Mark(metadata.len()))
}

/// Every request in a bed's audit log after `mark`.
///
/// # Errors
///
/// The audit log cannot be read, or was rotated after `mark`.
pub fn requests(bed: &TestBed, Mark(from): Mark) -> anyhow::Result<Vec<Request>> {
    let log = bed.audit_log().context("no audit log is kept")?;
    let mut file = File::open(&log).context("failed to open the audit log")?;
    ensure!(
        file.metadata()?.len() >= from,
        "the audit log has been rotated since"
    );
    file.seek(SeekFrom::Start(from.saturating_sub(1)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .context("failed to read the audit log")?;
    let text = String::from_utf8_lossy(&bytes);
    // The last line may be half written, and so may be the line at the mark, which belongs to a request before the mark.
    let begun = match from {
        0 => &*text,
        _ => text.find('\n').map_or("", |end| &text[end + 1..]),
    };
    let complete = begun.rfind('\n').map_or("", |end| &begun[..end]);
    complete
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("not a request: {line}")))
        .collect()
}

/// The requests of our services, except those whose number depends on the time and not on runs. These exceptions are watches,
/// requests for Leases, and one list for each watch that the API server has ended: the list across all namespaces with which
/// the cache starts again. All other lists count.
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

/// The number of requests for each verb and resource.
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
