//! The contracts as a person with grpcurl meets them: health, reflection, dry-run plans, and errors that say all that is
//! wrong at once.
#![allow(clippy::unwrap_used, clippy::panic)]

use coscheduler_core::violation::Violation;
use coscheduler_proto::config::CheckFlagsRequest;
use coscheduler_proto::config::config_service_client::ConfigServiceClient;
use coscheduler_proto::error::{reason, violations};
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::{
    EnsureOutcome, EnsureRequest, GetPlaceholderRequest, ListPlaceholdersRequest, PipelineRunRef,
    PlaceholderPhase, PlaceholderSpec, ReleaseRequest, Separation, WatchPlaceholdersRequest,
};
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::{
    Action, AdmitPipelineRunRequest, AdmitRunRequest, PlanRequest, PlanResponse,
};
use integration_tests::look::node;
use integration_tests::runs::run;
use integration_tests::{Scene, shared};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::services::Service;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

fn address(scene: &Scene<'_>, service: Service) -> String {
    scene.stack.services.grpc_address(service)
}

async fn channel(scene: &Scene<'_>, service: Service) -> anyhow::Result<tonic::transport::Channel> {
    Ok(
        tonic::transport::Endpoint::from_shared(address(scene, service))?
            .connect()
            .await?,
    )
}

/// The RPC service that each process serves beside health and reflection.
fn own(service: Service) -> Option<&'static str> {
    match service {
        Service::ConfigService => Some("coscheduler.config.v1.ConfigService"),
        Service::AffinityPlanner => Some("coscheduler.planner.v1.PlannerService"),
        Service::PlaceholderManager => Some("coscheduler.placeholder.v1.PlaceholderService"),
        Service::Watcher | Service::AdmissionWebhook => None,
    }
}

#[test]
fn every_service_answers_health_and_reflection() -> anyhow::Result<()> {
    shared(async |scene| {
        for service in Service::ALL {
            let mut health = HealthClient::new(channel(&scene, service).await?);
            for name in own(service).into_iter().chain([""]) {
                let answer = health
                    .check(HealthCheckRequest {
                        service: name.to_owned(),
                    })
                    .await?;
                assert_eq!(
                    answer.into_inner().status(),
                    ServingStatus::Serving,
                    "{service} {name:?}"
                );
            }
            let mut reflection = ServerReflectionClient::new(channel(&scene, service).await?);
            let question = ServerReflectionRequest {
                host: String::new(),
                message_request: Some(MessageRequest::ListServices(String::new())),
            };
            let mut answers = reflection
                .server_reflection_info(tokio_stream::iter([question]))
                .await?
                .into_inner();
            let Some(MessageResponse::ListServicesResponse(list)) =
                answers.message().await?.unwrap().message_response
            else {
                panic!("{service} did not list its services");
            };
            let names: Vec<_> = list
                .service
                .into_iter()
                .map(|service| service.name)
                .collect();
            for name in own(service).into_iter().chain([
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            ]) {
                assert!(
                    names.iter().any(|listed| listed == name),
                    "{service} lacks {name}: {names:?}"
                );
            }
        }
        Ok(())
    })
}

async fn plan(scene: &Scene<'_>, object: &Value) -> Result<PlanResponse, Status> {
    let mut planner = PlannerServiceClient::connect(address(scene, Service::AffinityPlanner))
        .await
        .unwrap();
    let request = PlanRequest {
        pipeline_run: Some(coscheduler_proto::json::object_to_struct(object)),
        request_uid: "a".to_owned(),
        ..PlanRequest::default()
    };
    planner.plan(request).await.map(tonic::Response::into_inner)
}

fn fields(status: &Status) -> Vec<String> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    violations(status)
        .into_iter()
        .map(|Violation { field, .. }| field)
        .collect()
}

#[test]
fn plan_says_what_admission_would_write_and_changes_nothing() -> anyhow::Result<()> {
    shared(async |scene| {
        let object = run("dry")
            .template("source")
            .task("one", &["source"], &[])
            .into_json();
        let plan = plan(&scene, &object).await?.plan.unwrap();
        assert_eq!(plan.action(), Action::Ensure);
        assert_eq!(plan.placeholders.len(), 1);
        assert_eq!(plan.bindings[0].workspace, "source");
        assert!(
            plan.bindings[0]
                .claim_name
                .ends_with(&format!("-{}-0", plan.placeholders[0].name))
        );
        assert_eq!(plan.annotations["coscheduler.dev/mode"], "pipelineruns");
        assert!(scene.objects().await?.stateful_sets.is_empty());
        Ok(())
    })
}

#[test]
fn a_malformed_request_is_answered_with_every_violation_at_once() -> anyhow::Result<()> {
    shared(async |scene| {
        let object = json!({
            "apiVersion": "tekton.dev/v1beta1",
            "kind": "PipelineRun",
            "metadata": {"name": 7},
            "spec": {"workspaces": [{"name": "a", "volumeClaimTemplate": []}, {"name": "a"}]},
        });
        let status = plan(&scene, &object).await.unwrap_err();
        assert_eq!(
            fields(&status),
            [
                "pipeline_run.apiVersion",
                "pipeline_run.metadata.name",
                "pipeline_run.spec.workspaces[0].volumeClaimTemplate",
                "pipeline_run.spec.workspaces[1].name",
            ]
        );

        let mut planner =
            PlannerServiceClient::connect(address(&scene, Service::AffinityPlanner)).await?;
        let status = planner.plan(PlanRequest::default()).await.unwrap_err();
        assert_eq!(fields(&status), ["pipeline_run"]);
        let status = planner
            .admit_pipeline_run(AdmitPipelineRunRequest::default())
            .await
            .unwrap_err();
        assert_eq!(fields(&status), ["pipeline_run", "request_uid"]);
        let status = planner
            .admit_run(AdmitRunRequest::default())
            .await
            .unwrap_err();
        assert_eq!(fields(&status), ["username", "kind"]);

        let mut manager =
            PlaceholderServiceClient::connect(address(&scene, Service::PlaceholderManager)).await?;
        let status = manager.ensure(EnsureRequest::default()).await.unwrap_err();
        assert_eq!(fields(&status).len(), 5, "{status:?}");
        let status = manager
            .release(ReleaseRequest::default())
            .await
            .unwrap_err();
        assert_eq!(fields(&status).len(), 4, "{status:?}");
        let of_no_version = PipelineRunRef {
            namespace: scene.namespace.clone(),
            name: "run".to_owned(),
            uid: "0".to_owned(),
            resource_version: "newest".to_owned(),
        };
        let status = manager
            .release(ReleaseRequest {
                pipeline_run: Some(of_no_version),
            })
            .await
            .unwrap_err();
        assert_eq!(fields(&status), ["pipeline_run.resource_version"]);
        let status = manager
            .list_placeholders(ListPlaceholdersRequest {
                page_size: -1,
                page_token: "x".to_owned(),
                ..Default::default()
            })
            .await
            .unwrap_err();
        assert_eq!(fields(&status), ["page_size", "page_token"]);
        let status = manager
            .get_placeholder(GetPlaceholderRequest::default())
            .await
            .unwrap_err();
        assert_eq!(fields(&status), ["namespace", "name"]);
        Ok(())
    })
}

#[test]
fn placeholders_can_be_listed_shown_and_watched() -> anyhow::Result<()> {
    shared(async |scene| {
        let mut manager =
            PlaceholderServiceClient::connect(address(&scene, Service::PlaceholderManager)).await?;
        let namespace = scene.namespace.clone();
        let mut watch = manager
            .watch_placeholders(WatchPlaceholdersRequest {
                namespace: namespace.clone(),
            })
            .await?
            .into_inner();
        for name in ["one", "two"] {
            scene
                .submit(
                    run(name)
                        .template("source")
                        .task("t", &["source"], &[])
                        .held("t"),
                )
                .await?;
        }
        let mut bound = std::collections::BTreeSet::new();
        while bound.len() < 2 {
            let item = tokio::time::timeout(std::time::Duration::from_secs(60), watch.message())
                .await??
                .unwrap();
            let placeholder = item.placeholder.unwrap();
            assert_eq!(placeholder.namespace, namespace);
            if placeholder.phase() == PlaceholderPhase::Bound {
                bound.insert(placeholder.name);
            }
        }
        let mut page = ListPlaceholdersRequest {
            namespace: namespace.clone(),
            page_size: 1,
            page_token: String::new(),
        };
        let first = manager.list_placeholders(page.clone()).await?.into_inner();
        page.page_token = first.next_page_token;
        let second = manager.list_placeholders(page).await?.into_inner();
        assert!(second.next_page_token.is_empty());
        let listed: Vec<_> = first
            .placeholders
            .into_iter()
            .chain(second.placeholders)
            .collect();
        assert_eq!(
            listed
                .iter()
                .map(|item| item.name.clone())
                .collect::<std::collections::BTreeSet<_>>(),
            bound
        );
        let objects = scene.objects().await?;
        for item in listed {
            let shown = manager
                .get_placeholder(GetPlaceholderRequest {
                    namespace: namespace.clone(),
                    name: item.name.clone(),
                })
                .await?;
            assert_eq!(shown.into_inner().placeholder.unwrap(), item);
            let pod = objects
                .placeholders
                .iter()
                .find(|pod| pod.name_any() == format!("{}-0", item.name))
                .unwrap();
            assert_eq!(node(pod), Some(item.node.as_str()));
            assert_eq!(item.claim_names.len(), 1);
        }
        let status = manager
            .get_placeholder(GetPlaceholderRequest {
                namespace,
                name: "absent".to_owned(),
            })
            .await
            .unwrap_err();
        assert_eq!(
            (status.code(), reason(&status).as_deref()),
            (Code::NotFound, Some("PLACEHOLDER_NOT_FOUND"))
        );
        for name in ["one", "two"] {
            scene.end(name, "t").await?;
            scene.succeeds(name).await?;
        }
        scene.nothing_left_but(&[]).await?;
        let mut deleted = std::collections::BTreeSet::new();
        while deleted != bound {
            let item = tokio::time::timeout(std::time::Duration::from_secs(60), watch.message())
                .await??
                .unwrap();
            if item.deleted {
                deleted.insert(item.placeholder.unwrap().name);
            }
        }
        Ok(())
    })
}

#[test]
fn p7_a_call_that_disagrees_with_the_run_is_refused_and_writes_nothing() -> anyhow::Result<()> {
    shared(async |scene| {
        let created = scene
            .submit(
                run("forged")
                    .template("source")
                    .task("t", &["source"], &[])
                    .held("t"),
            )
            .await?;
        let (set, _) = scene.placeholder().await?;
        let runs = scene.api::<coscheduler_kubernetes::pipeline_run::PipelineRun>();
        let mut manager =
            PlaceholderServiceClient::connect(address(&scene, Service::PlaceholderManager)).await?;
        let reference = PipelineRunRef {
            namespace: scene.namespace.clone(),
            name: "forged".to_owned(),
            uid: created.uid().unwrap(),
            resource_version: String::new(),
        };
        let other_name = PipelineRunRef {
            name: "other".to_owned(),
            ..reference.clone()
        };
        let other_uid = PipelineRunRef {
            uid: "0".to_owned(),
            ..reference.clone()
        };
        let spec = PlaceholderSpec {
            name: "affinity-assistant-ffffffffff".to_owned(),
            cpu: "1".to_owned(),
            memory: "1Gi".to_owned(),
            image: "evil".to_owned(),
            separation: Separation::Spread.into(),
            ..PlaceholderSpec::default()
        };
        for (pipeline_run, code, expect) in [
            (reference, Code::FailedPrecondition, "PIPELINE_RUN_MISMATCH"),
            (
                other_name.clone(),
                Code::FailedPrecondition,
                "PIPELINE_RUN_MISMATCH",
            ),
            // The version is that of the run with the true uid.
            (other_uid, Code::FailedPrecondition, "PIPELINE_RUN_MISMATCH"),
        ] {
            // A call about a version that is no longer the newest is late, not forged: ask about the newest.
            let status = loop {
                let newest = runs.get("forged").await?.resource_version().unwrap();
                let pipeline_run = PipelineRunRef {
                    resource_version: newest,
                    ..pipeline_run.clone()
                };
                let request = EnsureRequest {
                    pipeline_run: Some(pipeline_run),
                    placeholders: vec![spec.clone()],
                };
                match manager.ensure(request).await {
                    Ok(answer) => {
                        assert_eq!(answer.into_inner().outcome(), EnsureOutcome::Superseded)
                    }
                    // The watch of the manager is behind this client.
                    Err(status) if status.code() == Code::Unavailable => {}
                    Err(status) => break status,
                }
            };
            assert_eq!(
                (status.code(), reason(&status).as_deref()),
                (code, Some(expect)),
                "{status:?}"
            );
        }
        let request = ReleaseRequest {
            pipeline_run: Some(PipelineRunRef {
                resource_version: "1".to_owned(),
                ..other_name
            }),
        };
        let status = manager.release(request).await.unwrap_err();
        assert_eq!(
            (status.code(), reason(&status).as_deref()),
            (Code::FailedPrecondition, Some("PIPELINE_RUN_MISMATCH"))
        );
        let objects = scene.objects().await?;
        assert_eq!(
            objects
                .stateful_sets
                .iter()
                .map(|set| set.name_any())
                .collect::<Vec<_>>(),
            [set.name_any()]
        );
        scene.end("forged", "t").await?;
        scene.succeeds("forged").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn a_message_over_four_mebibytes_is_refused_and_one_below_is_read() -> anyhow::Result<()> {
    shared(async |scene| {
        let mut config = ConfigServiceClient::new(channel(&scene, Service::ConfigService).await?);
        let mut planner =
            PlannerServiceClient::new(channel(&scene, Service::AffinityPlanner).await?);
        let mut manager =
            PlaceholderServiceClient::new(channel(&scene, Service::PlaceholderManager).await?);
        // What the message takes beside its one text is less than this.
        for (size, too_large) in [((4 << 20) - 100, false), ((4 << 20) + 1, true)] {
            let text = "x".repeat(size);
            let flags = CheckFlagsRequest {
                flags: [("coschedule".to_owned(), text.clone())].into(),
            };
            let plan = PlanRequest {
                request_uid: text.clone(),
                ..PlanRequest::default()
            };
            let get = GetPlaceholderRequest {
                namespace: "ci".to_owned(),
                name: text,
            };
            let answers = [
                config.check_flags(flags).await.map(drop),
                planner.plan(plan).await.map(drop),
                manager.get_placeholder(get).await.map(drop),
            ];
            for answer in answers {
                let code = answer.err().map(|status| status.code());
                assert_eq!(code == Some(Code::OutOfRange), too_large, "{code:?}");
            }
        }
        Ok(())
    })
}
