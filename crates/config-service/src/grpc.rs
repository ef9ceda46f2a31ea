//! The gRPC side of the config-service.

use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use coscheduler_core::config;
use coscheduler_proto::config::config_service_server::ConfigService;
use coscheduler_proto::config::{
    CheckFlagsRequest, CheckFlagsResponse, ConfigStatus, GetConfigRequest, GetConfigResponse,
    WatchConfigRequest, WatchConfigResponse,
};
use coscheduler_proto::convert;
use coscheduler_proto::error::with_reason;
use coscheduler_proto::reason::ErrorReason;

use crate::state::State;

/// Serves the latest state as `coscheduler.config.v1.ConfigService`.
pub(crate) struct Config {
    pub(crate) states: watch::Receiver<State>,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ConfigService for Config {
    async fn get_config(&self, _: Request<GetConfigRequest>) -> Answer<GetConfigResponse> {
        let status = to_wire(&self.states.borrow()).ok_or_else(not_read)?;
        Ok(Response::new(GetConfigResponse {
            status: Some(status),
        }))
    }

    type WatchConfigStream =
        Pin<Box<dyn Stream<Item = Result<WatchConfigResponse, Status>> + Send>>;

    async fn watch_config(
        &self,
        _: Request<WatchConfigRequest>,
    ) -> Answer<Self::WatchConfigStream> {
        if self.states.borrow().read().is_none() {
            return Err(not_read());
        }
        let states = WatchStream::new(self.states.clone()).filter_map(async |state| {
            let status = Some(to_wire(&state)?);
            Some(Ok(WatchConfigResponse { status }))
        });
        Ok(Response::new(Box::pin(states)))
    }

    async fn check_flags(&self, request: Request<CheckFlagsRequest>) -> Answer<CheckFlagsResponse> {
        let answer = convert::answer_to_wire(config::answer(&request.into_inner().flags));
        Ok(Response::new(answer))
    }
}

fn not_read() -> Status {
    with_reason(
        ErrorReason::ConfigNotRead,
        "the ConfigMaps were not read yet",
    )
}

/// The state as a message. `None` until both ConfigMaps were read.
fn to_wire(state: &State) -> Option<ConfigStatus> {
    let (ours, tekton) = state.read()?;
    Some(ConfigStatus {
        generation: state.generation(),
        configuration: ours
            .configuration
            .as_ref()
            .map(convert::configuration_to_wire),
        resource_version: ours.resource_version.clone(),
        violations: convert::violations_to_wire(&ours.violations),
        warnings: state.warnings(),
        tekton_coschedule: tekton.coschedule.clone().unwrap_or_default(),
        tekton_resource_version: tekton.resource_version.clone(),
    })
}
