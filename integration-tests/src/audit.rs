//! Who asked the API server for what: its audit log, read from a mark on. A request is in it as soon as it was answered,
//! watches excepted, which are there once they have ended.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::{Context as _, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;
use testbed::TestBed;
use testbed::services::Service;

use crate::Scene;

/// A place in the audit log: its length at some time; by default its beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark(u64);

/// A request that was answered.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub uri: String,
    /// When it was received.
    #[serde(rename = "requestReceivedTimestamp")]
    pub received: MicroTime,
    /// As whom it was asked.
    #[serde(default)]
    pub user: User,
    /// What the program that asked calls itself.
    #[serde(default)]
    pub user_agent: String,
    /// What it was about.
    #[serde(default, rename = "objectRef")]
    pub object: Object,
    /// How it was answered.
    #[serde(default, rename = "responseStatus")]
    pub answer: Answer,
}

/// As whom a request was made.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    /// `system:serviceaccount:<namespace>:<name>` for a service account.
    pub username: String,
}

/// What a request was about; empty where it does not say.
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

/// How a request was answered.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
}

impl Request {
    /// Whether a service of ours asked.
    pub fn is_by(&self, service: Service) -> bool {
        let (program, _) = self.user_agent.split_once('/').unwrap_or_default();
        program == service.name()
    }

    /// Whether it would change something.
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

    /// Every request that was entered into the audit log since `mark`. One that was answered a moment before may be among
    /// them; [`Request::received`] tells.
    ///
    /// # Errors
    ///
    /// Where the audit log cannot be read, or has started anew since.
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
/// Where the audit log cannot be read, or has started anew since.
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
