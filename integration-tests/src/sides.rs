//! The sides of a comparison: Tekton without our services, and Tekton with our services. Each side is measured on a test bed of
//! its own.

use std::collections::BTreeMap;

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

/// The CPU time that all processes of a side have used, in seconds, by name.
///
/// # Errors
///
/// The state of a process cannot be read.
pub fn cpu_seconds(
    bed: &TestBed,
    services: Option<&Services>,
) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut used = bed.processes().cpu_seconds()?;
    used.extend(services.map_or(Ok(BTreeMap::new()), Services::cpu_seconds)?);
    Ok(used)
}

/// The CPU time that each process has used since `before`, divided by the number of runs (`runs`), in milliseconds.
///
/// # Errors
///
/// As [`cpu_seconds`].
pub fn cpu_of_a_run(
    bed: &TestBed,
    services: Option<&Services>,
    before: &BTreeMap<String, f64>,
    runs: usize,
) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut cpu = cpu_seconds(bed, services)?;
    for (process, used) in &mut cpu {
        *used = (*used - before.get(process).unwrap_or(&0.0)) * 1000.0 / runs as f64;
    }
    Ok(cpu)
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
