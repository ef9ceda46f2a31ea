//! Ends the services and deletes their objects in the cluster. The webhook configurations are deleted first, so that the API
//! server does not call a webhook that has ended. The rights are deleted last, so that each service has them until it has
//! ended.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::future::join_all;

use super::{CONFIGURATION_NAME, Services, kube_client, registration};

/// How long the API server may take to delete the webhook configurations.
const UNREGISTER_TIMEOUT: Duration = Duration::from_secs(20);

impl Services {
    /// Deletes the webhook configurations, then ends the services and removes their folder, then deletes their accounts,
    /// rights, Leases and the webhook's Secret. Namespace and ConfigMap stay, because they belong to the operator. Objects that
    /// another launcher has taken over stay too. The services are ended even if the webhook configurations could not be
    /// deleted; in this case, the other objects stay.
    ///
    /// # Errors
    /// An object could not be deleted, a service had ended by itself before, or a service did not end with exit code 0 in time.
    pub async fn stop(self) -> anyhow::Result<()> {
        let unregistered = self.unregister().await;
        let checked = self.group.check();
        let (client, launcher) = (self.client.clone(), self.launcher.clone());
        let running = self.with_running(std::mem::take);
        let ended = join_all(running.iter().map(|replica| self.terminate(*replica))).await;
        let stopped = if checked.is_ok() {
            self.group.stop().await
        } else {
            // This error is ignored, because it reports the end of the same service again.
            let _ = self.group.stop().await;
            Ok(())
        };
        let ended = if checked.is_ok() { ended } else { Vec::new() };
        let removed = match (&unregistered, launcher) {
            (Ok(()), Some(launcher)) => registration::remove_own_rights(&client, &launcher).await,
            (Ok(()) | Err(_), _) => Ok(()),
        };
        let failures: Vec<String> = [unregistered, checked]
            .into_iter()
            .chain(ended)
            .chain([stopped, removed])
            .filter_map(Result::err)
            .map(|error| format!("{error:#}"))
            .collect();
        if failures.is_empty() {
            Ok(())
        } else {
            bail!("{}", failures.join("\n"))
        }
    }

    /// Deletes the webhook configurations if they belong to this launcher.
    async fn unregister(&self) -> anyhow::Result<()> {
        let Some(launcher) = &self.launcher else {
            return Ok(());
        };
        let remove = registration::remove_own_webhooks(&self.client, launcher);
        tokio::time::timeout(UNREGISTER_TIMEOUT, remove)
            .await
            .unwrap_or_else(|_| {
                bail!("no answer from the API server within {UNREGISTER_TIMEOUT:?}")
            })
            .with_context(|| {
                format!(
                    "failed to remove MutatingWebhookConfiguration {CONFIGURATION_NAME}: the cluster refuses PipelineRuns \
                     until `cargo xtask services --remove` has done it"
                )
            })
    }

    /// Deletes the objects that launchers left behind, for example after a SIGKILL, and no others. Returns sentences for
    /// people. They name the deleted objects, and a webhook configuration that stays. If there is neither, one sentence says
    /// that nothing was there.
    ///
    /// # Errors
    /// The API server does not answer, or refuses a request.
    pub async fn remove(kubeconfig: &Path) -> anyhow::Result<Vec<String>> {
        registration::remove_all(&kube_client(kubeconfig).await?).await
    }
}
