//! `cargo xtask services`: runs the five services against a local cluster, until a signal arrives or `Services::failed`
//! returns.

use std::io::Write as _;

use anyhow::Context as _;
use testbed::services::{Service, Services, ServicesConfig};

use crate::args::ServicesArgs;
use crate::binaries;
use crate::interrupt::Interrupt;
use crate::progress::Step;
use crate::workspace::Workspace;

pub(crate) async fn run(
    workspace: &Workspace,
    args: ServicesArgs,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    let ServicesArgs {
        kubeconfig,
        ports,
        remove,
        log_level,
    } = args;
    if remove {
        for sentence in interrupt.or(Services::remove(&kubeconfig)).await? {
            println!("{sentence}");
        }
        return Ok(());
    }

    let bin_dir = interrupt.or(binaries::services(workspace)).await?;
    let config = ServicesConfig {
        port_base: Some(ports.port_base),
        bin_dir,
        log_level,
        ..ServicesConfig::new(kubeconfig)?
    };
    let services = start(config, interrupt).await?;
    for service in Service::ALL {
        eprintln!(
            "{service}: gRPC {}, HTTP {}",
            services.grpc_address(service),
            services.http_address(service)
        );
    }
    eprintln!("logs: {}", services.logs_dir().display());
    match services.warnings().await {
        Ok(warnings) => warnings
            .iter()
            .for_each(|warning| eprintln!("warning: {warning}")),
        Err(error) => eprintln!("warning: failed to check the cluster's configuration: {error:#}"),
    }
    println!("ready");
    std::io::stdout()
        .flush()
        .context("failed to write to stdout")?;

    let ended = tokio::select! {
        signal = interrupt.received() => {
            eprintln!("{signal}: deleting the webhook configurations and stopping the services");
            Ok(())
        }
        error = services.failed() => {
            eprintln!("{error:#}");
            eprintln!("deleting the webhook configurations and stopping the services");
            Err(anyhow::anyhow!("the services cannot go on"))
        }
    };
    let stopped = services.stop().await;
    // If `ended` is an error, its cause was printed already. An error of `stopped` is then ignored, because it mostly has the
    // same cause.
    ended.and(stopped)
}

/// Starts the services. If a signal interrupts the start, the services are ended and their webhook configurations deleted.
pub(crate) async fn start(
    config: ServicesConfig,
    interrupt: &mut Interrupt,
) -> anyhow::Result<Services> {
    let step = Step::begin("starting the services");
    // Before `register`, it is enough to drop the services. After `register` has begun, the webhook configurations may exist,
    // so they must be deleted with `stop`.
    let services = interrupt.or(Services::launch(config)).await?;
    if let Err(error) = interrupt.or(services.register()).await {
        let Err(also) = services.stop().await else {
            return Err(error);
        };
        return Err(error.context(format!("{also:#}")));
    }
    step.done();
    Ok(services)
}
