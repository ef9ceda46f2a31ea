//! The contracts, as a person with grpcurl uses them: health, reflection, dry-run plans, placeholders, and errors that list all
//! violations at once.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_core::violation::Violation;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_proto::config::config_service_client::ConfigServiceClient;
use coscheduler_proto::config::{CheckFlagsRequest, Mode};
use coscheduler_proto::error::{reason, violations};
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::watch_placeholders_response::Event;
use coscheduler_proto::placeholder::{
    EnsureRequest, ExplainRequest, GetPlaceholderRequest, ListPlaceholdersRequest, PipelineRunRef,
    Placeholder, PlaceholderPhase, ReleaseRequest, SnapshotComplete, WatchPlaceholdersRequest,
    WatchPlaceholdersResponse,
};
use coscheduler_proto::planner::binding::Source;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_proto::planner::{
    Action, AdmitPipelineRunRequest, AdmitRunRequest, PlanRequest, PlanResponse,
};
use integration_tests::look::node;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, grpc, shared};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::services::{OPERATOR, Service};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

async fn channel(scene: &Scene<'_>, service: Service) -> anyhow::Result<Channel> {
    grpc::connect(&scene.stack.services, service, OPERATOR).await
}

/// The gRPC service that a process serves in addition to health and reflection.
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
    let channel = channel(scene, Service::AffinityPlanner).await.unwrap();
    let mut planner = PlannerServiceClient::new(channel);
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
        let Some(Source::ClaimName(claim_name)) = &plan.bindings[0].source else {
            panic!("{:?}", plan.bindings);
        };
        assert!(claim_name.ends_with(&format!("-{}-0", plan.placeholders[0].name)));
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
            PlannerServiceClient::new(channel(&scene, Service::AffinityPlanner).await?);
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

        let mut manager = manager(&scene).await?;
        let status = manager.ensure(EnsureRequest::default()).await.unwrap_err();
        assert_eq!(fields(&status).len(), 4, "{status:?}");
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
        let mut asked = ExplainRequest::default();
        let status = manager.explain(asked.clone()).await.unwrap_err();
        assert_eq!(fields(&status), ["namespace", "name"]);
        (asked.namespace, asked.name) = (scene.namespace.clone(), "missing".to_owned());
        let status = manager.explain(asked).await.unwrap_err();
        assert_eq!(
            (status.code(), reason(&status).as_deref()),
            (Code::NotFound, Some("PIPELINE_RUN_NOT_FOUND"))
        );
        Ok(())
    })
}

async fn manager(scene: &Scene<'_>) -> anyhow::Result<PlaceholderServiceClient<Channel>> {
    let channel = channel(scene, Service::PlaceholderManager).await?;
    Ok(PlaceholderServiceClient::new(channel))
}

/// The next event of a watch.
async fn next(watch: &mut Streaming<WatchPlaceholdersResponse>) -> anyhow::Result<Event> {
    let message = tokio::time::timeout(Duration::from_secs(60), watch.message()).await??;
    message
        .and_then(|message| message.event)
        .context("the watch has ended")
}

fn held(name: &str) -> Run {
    run(name)
        .template("source")
        .task("t", &["source"], &[])
        .held("t")
}

#[test]
fn placeholders_can_be_listed_shown_and_watched() -> anyhow::Result<()> {
    shared(async |scene| {
        let mut manager = manager(&scene).await?;
        let namespace = scene.namespace.clone();
        let everything = WatchPlaceholdersRequest {
            namespace: namespace.clone(),
            ..Default::default()
        };
        let mut watch = manager.watch_placeholders(everything).await?.into_inner();
        let empty = Event::SnapshotComplete(SnapshotComplete {});
        assert_eq!(next(&mut watch).await?, empty);
        for name in ["one", "two"] {
            scene.submit(held(name)).await?;
        }
        let mut bound = BTreeMap::new();
        while bound.len() < 2 {
            match next(&mut watch).await? {
                Event::Changed(mut placeholder) => {
                    assert_eq!(placeholder.namespace, namespace);
                    // On a busy machine, the scheduler may first find no node for the placeholder.
                    placeholder.waiting = None;
                    if placeholder.phase() == PlaceholderPhase::Bound {
                        bound.insert(placeholder.name.clone(), placeholder);
                    }
                }
                event => panic!("{event:?}"),
            }
        }
        let mut page = ListPlaceholdersRequest {
            namespace: namespace.clone(),
            page_size: 1,
            ..Default::default()
        };
        let first = manager.list_placeholders(page.clone()).await?.into_inner();
        page.page_token = first.next_page_token;
        let second = manager.list_placeholders(page).await?.into_inner();
        assert!(second.next_page_token.is_empty());
        let listed = first.placeholders.into_iter().chain(second.placeholders);
        let mut listed: Vec<_> = listed.collect();
        for item in &mut listed {
            item.waiting = None;
        }
        assert_eq!(listed, bound.into_values().collect::<Vec<_>>());
        let objects = scene.objects().await?;
        for item in &listed {
            // A bound placeholder waits for nothing, but the manager may see this a moment later.
            let shown = async {
                loop {
                    let request = GetPlaceholderRequest {
                        namespace: namespace.clone(),
                        name: item.name.clone(),
                    };
                    let shown = manager.get_placeholder(request).await?.into_inner();
                    let shown = shown.placeholder.context("no placeholder was answered")?;
                    if shown.waiting.is_none() {
                        return anyhow::Ok(shown);
                    }
                }
            };
            let shown = tokio::time::timeout(Duration::from_secs(60), shown).await??;
            assert_eq!(shown, *item);
            let pod = objects
                .placeholders
                .iter()
                .find(|pod| pod.name_any() == format!("{}-0", item.name))
                .unwrap();
            assert_eq!(node(pod), Some(item.node.as_str()));
            assert_eq!(item.claim_names.len(), 1);
            assert_eq!(item.mode(), Mode::Pipelineruns);
            let set = scene.set(&item.name).await?;
            let created = set.creation_timestamp().unwrap().0.as_second();
            assert_eq!(item.create_time.as_ref().unwrap().seconds, created);
        }
        of_one_run(&mut manager, &listed, "two").await?;
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
        let mut deleted = BTreeSet::new();
        while deleted.len() < listed.len() {
            if let Event::Deleted(placeholder) = next(&mut watch).await? {
                deleted.insert(placeholder.name);
            }
        }
        let names = listed.into_iter().map(|placeholder| placeholder.name);
        assert_eq!(deleted, names.collect());
        Ok(())
    })
}

/// Checks that the list and a new watch of one run contain its placeholder and no other one, and that the watch marks the end of
/// its snapshot.
async fn of_one_run(
    manager: &mut PlaceholderServiceClient<Channel>,
    all: &[Placeholder],
    name: &str,
) -> anyhow::Result<()> {
    let of_run = |item: &&Placeholder| item.pipeline_run.as_ref().unwrap().name == name;
    let expected = all.iter().find(of_run).unwrap();
    let namespace = expected.namespace.clone();
    let list = ListPlaceholdersRequest {
        namespace: namespace.clone(),
        pipeline_run: name.to_owned(),
        ..Default::default()
    };
    let answer = manager.list_placeholders(list).await?.into_inner();
    assert_eq!(answer.placeholders, std::slice::from_ref(expected));
    let watch = WatchPlaceholdersRequest {
        namespace,
        pipeline_run: name.to_owned(),
    };
    let mut watch = manager.watch_placeholders(watch).await?.into_inner();
    let snapshot = Event::Changed(expected.clone());
    assert_eq!(next(&mut watch).await?, snapshot);
    let complete = Event::SnapshotComplete(SnapshotComplete {});
    assert_eq!(next(&mut watch).await?, complete);
    Ok(())
}

#[test]
fn n3_a_placeholder_that_waits_says_why() -> anyhow::Result<()> {
    shared(async |scene| {
        let mut manager = manager(&scene).await?;
        let nowhere = json!({"podTemplate": {"nodeSelector": {"example.dev/none": "here"}}});
        scene
            .submit(held("waits").spec("taskRunTemplate", nowhere))
            .await?;
        let watch = WatchPlaceholdersRequest {
            namespace: scene.namespace.clone(),
            pipeline_run: "waits".to_owned(),
        };
        let mut watch = manager.watch_placeholders(watch).await?.into_inner();
        let waiting = loop {
            if let Event::Changed(placeholder) = next(&mut watch).await?
                && let Some(waiting) = placeholder.waiting
            {
                break waiting;
            }
        };
        assert_eq!(waiting.code, "PlaceholderUnschedulable");
        assert!(!waiting.message.is_empty());
        Ok(())
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
        // The rest of the message takes less than 100 bytes.
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

#[test]
fn flags_can_be_checked_without_being_set() -> anyhow::Result<()> {
    shared(async |scene| {
        let mut config = ConfigServiceClient::new(channel(&scene, Service::ConfigService).await?);
        let mut check = async |flags: &[(&str, &str)]| {
            let flags = flags
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            anyhow::Ok(
                config
                    .check_flags(CheckFlagsRequest { flags })
                    .await?
                    .into_inner(),
            )
        };
        let good = check(&[("coschedule", "disabled"), ("unheard-of", "x")]).await?;
        assert_eq!(good.configuration.unwrap().mode(), Mode::Disabled);
        assert_eq!(good.warnings.len(), 1);
        let bad = check(&[("coschedule", "sideways"), ("placeholder-cpu", "many")]).await?;
        assert!(bad.configuration.is_none());
        let keys: Vec<_> = bad
            .violations
            .iter()
            .map(|violation| violation.key.as_str())
            .collect();
        assert_eq!(keys, ["coschedule", "placeholder-cpu"]);
        let runs = scene.api::<PipelineRun>().list(&Default::default()).await?;
        assert!(runs.items.is_empty());
        Ok(())
    })
}
