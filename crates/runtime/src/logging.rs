//! Logs to standard error, as JSON for collectors or as text for people. One subscriber is installed for the life of
//! the process; further layers belong here.

use std::io::IsTerminal;

use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{LogFormat, ProcessArgs};

/// Installs the process-wide subscriber.
///
/// # Errors
/// The filter does not parse, or a subscriber is installed already.
pub(crate) fn init(args: &ProcessArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&args.log_level)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match args.log_format {
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed(),
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colour).boxed()
        }
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()?;
    Ok(())
}
