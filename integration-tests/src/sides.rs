//! The sides of a comparison: Tekton without our services, and Tekton with our services. Each side is measured on a test bed of
//! its own.

use anyhow::{Context as _, ensure};
use futures::future::OptionFuture;
use testbed::services::{Services, ServicesConfig};
use testbed::{Config, TestBed};

/// The program that coschedules the runs of a measurement.
#[derive(Clone, Debug)]
pub enum Side {
    /// Tekton alone, with this value of its own flag `coschedule`.
    Tekton(String),
    /// Our services, with these keys of their ConfigMap.
    Ours(Vec<(String, String)>),
}

impl Side {
    /// Boots a bed for this side, measures on it, and ends it.
    ///
    /// # Errors
    ///
    /// `measure` fails, or a part cannot be started or ended by itself.
    pub async fn measure<T>(
        &self,
        config: Config,
        measure: impl AsyncFnOnce(&TestBed, Option<&Services>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let config = match self {
            Self::Tekton(flag) => Config {
                tekton_coschedule: flag.clone(),
                ..config
            },
            Self::Ours(_) => config,
        };
        let bed = TestBed::start(config)
            .await
            .context("failed to boot the test bed")?;
        let services = match self {
            Self::Tekton(_) => None,
            Self::Ours(flags) => Some(serve(&bed, flags).await?),
        };
        let measured = Box::pin(measure(&bed, services.as_ref())).await;
        let checked = services.as_ref().map_or(Ok(()), Services::check);
        let stopped = OptionFuture::from(services.map(Services::stop)).await;
        let measured = measured?;
        checked?;
        stopped.transpose()?;
        bed.stop().await?;
        Ok(measured)
    }
}

async fn serve(bed: &TestBed, flags: &[(String, String)]) -> anyhow::Result<Services> {
    let mut config = ServicesConfig {
        flags: flags.iter().cloned().collect(),
        ..ServicesConfig::new(bed.kubeconfig())?
    };
    config.mode = config.flags.remove("coschedule");
    let services = Services::start(config)
        .await
        .context("failed to start the services")?;
    let warnings = services.warnings().await?;
    ensure!(warnings.is_empty(), "{}", warnings.join("; "));
    Ok(services)
}
