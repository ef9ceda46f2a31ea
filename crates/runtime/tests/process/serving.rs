//! Tests of health, readiness, reflection and metrics, as a client sees them.

use std::collections::BTreeSet;

use coscheduler_runtime::{GrpcServices, ProcessArgs, Supervisor};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};

use super::{Running, SERVICE, http_get, within};
use crate::calling::Scripted;

fn check(service: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: service.to_owned(),
    }
}

#[tokio::test]
async fn health_goes_from_not_serving_to_serving_and_back_before_the_listener_stops() {
    let running = Running::start(GrpcServices::new().add_service(Scripted::default(), &[])).await;
    let synced = running.process.health().condition("PipelineRun cache");
    let mut client = HealthClient::new(running.channel());

    for service in ["", "test.Scripted"] {
        let mut statuses = within(client.watch(check(service)))
            .await
            .unwrap()
            .into_inner();
        // The first status may be from before the condition was added, or from after.
        synced.set(false);
        while within(statuses.message()).await.unwrap().unwrap().status()
            != ServingStatus::NotServing
        {}
        synced.set(true);
        assert_eq!(
            within(statuses.message()).await.unwrap().unwrap().status(),
            ServingStatus::Serving
        );
    }
    let unknown = within(client.check(check("test.Unheard")))
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);

    // A graceful task keeps the process between "stopping" and "stopped", so that the test can check this state.
    let (finish, finished) = oneshot::channel::<()>();
    running
        .process
        .spawn_graceful("finishing touch", |_| async {
            let _ = finished.await;
            Ok(())
        });
    let mut statuses = within(client.watch(check(""))).await.unwrap().into_inner();
    assert_eq!(
        within(statuses.message()).await.unwrap().unwrap().status(),
        ServingStatus::Serving
    );
    running.stop.cancel();
    assert_eq!(
        within(statuses.message()).await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    assert_eq!(
        within(statuses.message()).await.unwrap_err().code(),
        Code::Unavailable,
        "streams are ended"
    );
    assert_eq!(
        within(client.check(check(""))).await.unwrap_err().code(),
        Code::Unavailable,
        "nobody listens"
    );

    assert_eq!(
        running.get("/readyz").await,
        (503, "not ready: stopping\n".to_owned())
    );
    assert_eq!(running.get("/livez").await.0, 200);
    finish.send(()).unwrap();
    let http = running.process.http_address();
    running.stopped().await.unwrap();
    assert!(http_get(http, "/livez").await.is_err());
}

#[tokio::test]
async fn readyz_lists_what_is_missing() {
    let running = Running::start(GrpcServices::new()).await;
    within(running.process.health().ready()).await;
    assert_eq!(running.get("/readyz").await, (200, "ok\n".to_owned()));

    let runs = running.process.health().condition("PipelineRun cache");
    running.process.health().condition("configuration");
    assert_eq!(
        running.get("/readyz").await,
        (
            503,
            "not ready: PipelineRun cache\nnot ready: configuration\n".to_owned()
        )
    );
    runs.set(true);
    assert_eq!(
        running.get("/readyz").await,
        (503, "not ready: configuration\n".to_owned())
    );
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn a_process_is_not_ready_before_it_is_started() {
    let supervisor = Supervisor::bind(SERVICE, &ProcessArgs::loopback())
        .await
        .unwrap();
    let process = supervisor.process();
    let (start, may_start) = oneshot::channel::<()>();
    let (stop, may_stop) = oneshot::channel::<()>();
    let run = tokio::spawn(supervisor.run(
        async {
            let _ = may_stop.await;
        },
        async { Ok(may_start.await?) },
    ));
    assert_eq!(
        http_get(process.http_address(), "/readyz").await.unwrap(),
        (503, "not ready: start-up\n".to_owned())
    );
    start.send(()).unwrap();
    within(process.health().ready()).await;
    stop.send(()).unwrap();
    within(run).await.unwrap().unwrap();
}

#[tokio::test]
async fn reflection_lists_what_is_served_and_describes_it() {
    let running = Running::start(GrpcServices::new().add_service(Scripted::default(), &[])).await;
    let served: BTreeSet<_> = [
        "test.Scripted",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    .map(str::to_owned)
    .into();

    {
        use v1::server_reflection_client::ServerReflectionClient;
        use v1::server_reflection_request::MessageRequest;
        use v1::server_reflection_response::MessageResponse;
        let ask = |request| {
            let request = v1::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(request),
            };
            let mut client = ServerReflectionClient::new(running.channel());
            async move {
                let answers = client
                    .server_reflection_info(futures::stream::iter([request]))
                    .await
                    .unwrap();
                answers
                    .into_inner()
                    .message()
                    .await
                    .unwrap()
                    .unwrap()
                    .message_response
            }
        };
        let Some(MessageResponse::ListServicesResponse(list)) =
            within(ask(MessageRequest::ListServices(String::new()))).await
        else {
            panic!("not a list of services");
        };
        assert_eq!(
            list.service
                .into_iter()
                .map(|service| service.name)
                .collect::<BTreeSet<_>>(),
            served
        );
        let symbol = MessageRequest::FileContainingSymbol("grpc.health.v1.Health".to_owned());
        assert!(matches!(
            within(ask(symbol)).await,
            Some(MessageResponse::FileDescriptorResponse(_))
        ));
    }
    {
        use v1alpha::server_reflection_client::ServerReflectionClient;
        use v1alpha::server_reflection_request::MessageRequest;
        use v1alpha::server_reflection_response::MessageResponse;
        let request = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut client = ServerReflectionClient::new(running.channel());
        let answers = within(client.server_reflection_info(futures::stream::iter([request])))
            .await
            .unwrap();
        let answer = within(answers.into_inner().message())
            .await
            .unwrap()
            .unwrap();
        let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
            panic!("not a list of services");
        };
        assert_eq!(
            list.service
                .into_iter()
                .map(|service| service.name)
                .collect::<BTreeSet<_>>(),
            served
        );
    }
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn metrics_tell_calls_apart_by_method_and_code() {
    let running = Running::start(GrpcServices::new()).await;
    let mut client = HealthClient::new(running.channel());
    within(client.check(check(""))).await.unwrap();
    within(client.check(check(""))).await.unwrap();
    within(client.check(check("test.Unheard")))
        .await
        .unwrap_err();

    let (code, metrics) = running.get("/metrics").await;
    assert_eq!(code, 200);
    let labels = r#"grpc_service="grpc.health.v1.Health",grpc_method="Check""#;
    let expected = [
        r#"coscheduler_build_info{service="example",version="1.2.3"} 1"#.to_owned(),
        format!(r#"grpc_server_handled_total{{{labels},grpc_code="OK"}} 2"#),
        format!(r#"grpc_server_handled_total{{{labels},grpc_code="NotFound"}} 1"#),
        format!("grpc_server_handling_seconds_count{{{labels}}} 3"),
    ];
    for line in expected {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line} is not in\n{metrics}"
        );
    }
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();

    let args = ProcessArgs {
        http_address: address,
        ..ProcessArgs::loopback()
    };
    let error = Supervisor::bind(SERVICE, &args).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("failed to bind HTTP address {address}")
    );

    let args = ProcessArgs {
        grpc_address: address,
        ..ProcessArgs::loopback()
    };
    let supervisor = Supervisor::bind(SERVICE, &args).await.unwrap();
    let process = supervisor.process();
    let start = async { process.serve_grpc(GrpcServices::new()).await.map(drop) };
    let error = within(supervisor.run(std::future::pending(), start))
        .await
        .unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        format!(
            "failed to start example: failed to bind gRPC address {address}: Address already in use (os error 98)"
        )
    );
}

#[tokio::test]
async fn a_malformed_descriptor_set_is_an_error() {
    let supervisor = Supervisor::bind(SERVICE, &ProcessArgs::loopback())
        .await
        .unwrap();
    let services = GrpcServices::new().descriptors(b"no descriptor");
    let error = supervisor.process().serve_grpc(services).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to read the file descriptor sets for gRPC reflection"
    );
}
