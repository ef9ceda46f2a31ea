//! Sends objects to the API server unchanged, and returns its answers with the warnings and refusals that kubectl shows.

use anyhow::ensure;
use kube::client::Body;
use serde_json::Value;

use crate::Scene;

/// An answer of the API server.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
    /// The warnings, in order.
    pub warnings: Vec<String>,
    /// The stored object, or the `Status` with the reason of a refusal.
    pub object: Value,
}

impl Answer {
    /// Returns the answer, unless it is a refusal.
    ///
    /// # Errors
    ///
    /// The answer is a refusal.
    pub fn accepted(self) -> anyhow::Result<Self> {
        ensure!(self.code < 300, "{}: {}", self.code, self.object);
        Ok(self)
    }

    /// The reason of a refusal, in the API server's words; `None` if the answer is no refusal.
    pub fn refusal(&self) -> Option<&str> {
        (self.code >= 400).then(|| self.object["message"].as_str().unwrap_or_default())
    }

    /// The fields that a refusal names one by one, as `kubectl edit` shows them.
    pub fn blamed(&self) -> Vec<&str> {
        let causes = self.object["details"]["causes"].as_array();
        let causes = causes.into_iter().flatten();
        causes.filter_map(|cause| cause["field"].as_str()).collect()
    }

    /// An annotation of the object.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.object["metadata"]["annotations"][key].as_str()
    }
}

impl Scene<'_> {
    /// Sends JSON about objects of the scene's namespace. `resource` has the form `tekton.dev/v1/pipelineruns`. The name of an
    /// existing object and a query may follow. A `PATCH` is a merge patch.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn send(
        &self,
        method: &str,
        resource: &str,
        object: &Value,
    ) -> anyhow::Result<Answer> {
        let mut parts = resource.splitn(3, '/');
        let mut part = || parts.next().unwrap_or_default();
        let (group, version, path) = (part(), part(), part());
        let uri = format!(
            "/apis/{group}/{version}/namespaces/{}/{path}",
            self.namespace
        );
        self.send_to(method, &uri, object).await
    }

    /// As [`Scene::send`], to a path of the API server.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn send_to(&self, method: &str, uri: &str, object: &Value) -> anyhow::Result<Answer> {
        let content_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = http::Request::builder()
            .method(method)
            .uri(uri)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(Body::from(serde_json::to_vec(object)?))?;
        let answer = self.client.send(request).await?;
        let code = answer.status().as_u16();
        let warnings = answer.headers().get_all(http::header::WARNING);
        let warnings = warnings
            .iter()
            .map(|warning| Ok(warning.to_str()?.replace("\\\"", "\"")))
            .collect::<anyhow::Result<_>>()?;
        let body = answer.into_body().collect_bytes().await?;
        Ok(Answer {
            code,
            warnings,
            object: serde_json::from_slice(&body)?,
        })
    }
}
