//! Lets a test play Tekton's resolver: if a run names resolver `test`, the test answers the request for the run's Pipeline.

use std::time::Duration;

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::Scene;

const REQUESTS: &str = "resolution.tekton.dev/v1beta1/resolutionrequests";

impl Scene<'_> {
    /// Waits until Tekton asks for the Pipeline of a run, and answers with `pipeline`. Requests that were answered before do
    /// not count.
    ///
    /// # Errors
    ///
    /// Tekton does not ask within a minute, or the answer is refused.
    pub async fn resolve(&self, pipeline: &Value) -> anyhow::Result<()> {
        let asked = async {
            loop {
                let list = self.send("GET", REQUESTS, &Value::Null).await?.accepted()?;
                let requests = list.object["items"].as_array().cloned();
                // Tekton's first write of conditions would overwrite an answer, so the test waits for this write.
                let open = |request: &&Value| {
                    let status = &request["status"];
                    let answered = status["data"].as_str().is_some_and(|data| !data.is_empty());
                    !status["conditions"].is_null() && !answered
                };
                let open = requests.iter().flatten().find(open);
                if let Some(name) = open.and_then(|it| it["metadata"]["name"].as_str()) {
                    return anyhow::Ok(name.to_owned());
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let asked = tokio::time::timeout(Duration::from_secs(60), asked).await??;
        let source = json!({"uri": "test", "digest": {"sha1": "0"}, "entryPoint": ""});
        let status = json!({"status": {
            "data": ByteString(pipeline.to_string().into_bytes()),
            "source": source,
            "refSource": source,
            "conditions": [{
                "type": "Succeeded", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }});
        self.send("PATCH", &format!("{REQUESTS}/{asked}/status"), &status)
            .await?
            .accepted()?;
        Ok(())
    }
}
