//! The flags of ConfigMap `coscheduler-config`: the effect of each combination on real runs, the refusal of invalid flags,
//! invalid flags that are written while the webhook is down, and the configuration in force. Each test has a stack of its own.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_proto::config::{CheckFlagsRequest, CheckFlagsResponse, Mode, WatchConfigRequest};
use integration_tests::configuration::{planned_in, planned_mode};
use integration_tests::metrics;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone, alone_with};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::{CONFIG_MAP, NAMESPACE, Service, ServicesConfig, bin_dir};
use testbed::{Balancer, Config, FreePorts, ProcessGroup};

type Outcome = anyhow::Result<()>;

const ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";
const LIMIT: Duration = Duration::from_secs(60);

/// The rows of TEP-0135's table: `disable-affinity-assistant`, `coschedule`, and the mode during and after the migration. `None`
/// means that the combination is invalid.
const TABLE: [(&str, &str, Option<Mode>, Mode); 8] = [
    ("false", "disabled", None, Mode::Disabled),
    (
        "false",
        "workspaces",
        Some(Mode::Workspaces),
        Mode::Workspaces,
    ),
    ("false", "pipelineruns", None, Mode::Pipelineruns),
    (
        "false",
        "isolate-pipelinerun",
        None,
        Mode::IsolatePipelinerun,
    ),
    ("true", "disabled", Some(Mode::Disabled), Mode::Disabled),
    ("true", "workspaces", Some(Mode::Disabled), Mode::Workspaces),
    (
        "true",
        "pipelineruns",
        Some(Mode::Pipelineruns),
        Mode::Pipelineruns,
    ),
    (
        "true",
        "isolate-pipelinerun",
        Some(Mode::IsolatePipelinerun),
        Mode::IsolatePipelinerun,
    ),
];

async fn check_flags(
    scene: &Scene<'_>,
    flags: &[(&str, &str)],
) -> anyhow::Result<CheckFlagsResponse> {
    let flags = flags
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let mut service = scene.config_service().await?;
    Ok(service
        .check_flags(CheckFlagsRequest { flags })
        .await?
        .into_inner())
}

fn two_claims(name: &str) -> Run {
    run(name)
        .template("source")
        .template("cache")
        .task("clone", &["source"], &[])
        .task("warm", &["cache"], &[])
        .task("bare", &[], &[])
        .held("clone")
}

/// Checks signs of the mode of a run in progress: the number of its StatefulSets, and whether they have a required anti-affinity.
async fn shows(scene: &Scene<'_>, name: &str, mode: Mode) -> Outcome {
    let expected = match mode {
        Mode::Disabled | Mode::Unspecified => 0,
        Mode::Pipelineruns | Mode::IsolatePipelinerun => 1,
        Mode::Workspaces => 2,
    };
    let of_run = |set: &StatefulSet| {
        set.labels()
            .get("tekton.dev/pipelineRun")
            .map(String::as_str)
            == Some(name)
    };
    let sets = scene
        .until_sets("are those of the mode", |sets| {
            sets.iter().filter(|set| of_run(set)).count() == expected
        })
        .await?;
    for set in sets.iter().filter(|set| of_run(set)) {
        let pod = set.spec.clone().unwrap().template.spec.unwrap();
        let apart = pod
            .affinity
            .and_then(|affinity| affinity.pod_anti_affinity)
            .and_then(|apart| apart.required_during_scheduling_ignored_during_execution)
            .unwrap_or_default();
        assert_eq!(
            !apart.is_empty(),
            mode == Mode::IsolatePipelinerun,
            "{name}: {apart:?}"
        );
    }
    Ok(())
}

async fn showed(scene: &Scene<'_>, name: &str, mode: Mode) -> Outcome {
    scene.end(name, "clone").await?;
    scene.succeeds(name).await?;
    let pods = scene.objects().await?.task_pods;
    let assistants: Vec<String> = ["clone", "warm", "bare"]
        .map(|task| {
            let pod = pods.iter().find(|pod| {
                pod.labels()["tekton.dev/pipelineRun"] == name
                    && pod.labels()["tekton.dev/pipelineTask"] == task
            });
            pod.unwrap()
                .annotations()
                .get(ASSISTANT)
                .cloned()
                .unwrap_or_default()
        })
        .into();
    let distinct: BTreeSet<&String> = assistants.iter().filter(|name| !name.is_empty()).collect();
    let (count, bare) = match mode {
        Mode::Disabled | Mode::Unspecified => (0, false),
        Mode::Pipelineruns | Mode::IsolatePipelinerun => (1, true),
        Mode::Workspaces => (2, false),
    };
    assert_eq!(distinct.len(), count, "{name}: {assistants:?}");
    assert_eq!(!assistants[2].is_empty(), bare, "{name}: {assistants:?}");
    Ok(())
}

#[test]
fn m6_the_eight_rows_in_both_columns_by_question_and_by_what_runs_do() -> Outcome {
    let config = Config {
        nodes: 10,
        ..Config::default()
    };
    alone(config, async |scene| {
        checked(scene).await?;
        let mut runs = Vec::new();
        for (row, (disable, coschedule, during, after)) in TABLE.into_iter().enumerate() {
            for (phase, in_force) in [("during", during), ("after", Some(after))] {
                let flags = [
                    ("disable-affinity-assistant", disable),
                    ("coschedule", coschedule),
                    ("migration-phase", phase),
                ];
                let answer = check_flags(scene, &flags).await?;
                assert_eq!(
                    answer.mode_during_migration(),
                    during.unwrap_or_default(),
                    "{flags:?}"
                );
                assert_eq!(answer.mode_after_migration(), after, "{flags:?}");
                let configured = answer
                    .configuration
                    .as_ref()
                    .map(|configuration| configuration.mode());
                assert_eq!(configured, in_force, "{flags:?}");
                let Some(mode) = in_force else {
                    let [violation] = answer.violations.as_slice() else {
                        panic!("{flags:?}: {:?}", answer.violations)
                    };
                    assert_eq!(violation.key, "coschedule");
                    let refused = scene.set_flags(&flags).await.unwrap_err();
                    assert!(
                        format!("{refused:#}").contains(&violation.description),
                        "{refused:#}"
                    );
                    continue;
                };
                assert_eq!(answer.violations, [], "{flags:?}");
                scene.set_flags(&flags).await?;
                scene.planned_in(mode).await?;
                let name = format!("row-{row}-{phase}");
                scene.submit(two_claims(&name)).await?;
                shows(scene, &name, mode).await?;
                runs.push((name, mode));
            }
        }
        // Without keys, each key has its default.
        let answer = check_flags(scene, &[]).await?;
        assert_eq!(answer.mode_during_migration(), Mode::Workspaces);
        assert_eq!(answer.mode_after_migration(), Mode::Workspaces);
        for (name, flags) in [
            ("defaults-after", &[][..]),
            ("defaults-during", &[("migration-phase", "during")][..]),
        ] {
            scene.set_flags(flags).await?;
            scene.planned_in(Mode::Workspaces).await?;
            scene.submit(two_claims(name)).await?;
            shows(scene, name, Mode::Workspaces).await?;
            runs.push((name.to_owned(), Mode::Workspaces));
        }
        assert_eq!(runs.len(), 15);
        for (name, mode) in runs {
            showed(scene, &name, mode).await?;
        }
        scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        Ok(())
    })
}

fn config_map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}, "data": data})
}

/// The path for a dry run with ConfigMaps of a namespace. `name` is empty, or a slash and the name of a ConfigMap.
fn tried(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps{name}?dryRun=All")
}

/// Waits until the API server calls the webhook that checks the ConfigMap. This starts a moment after the webhooks for runs.
async fn checked(scene: &Scene<'_>) -> Outcome {
    let bad = json!({"data": {"coschedule": "sideways"}});
    let uri = tried(NAMESPACE, &format!("/{CONFIG_MAP}"));
    let refused = async {
        while scene
            .send_to("PATCH", &uri, &bad)
            .await?
            .refusal()
            .is_none()
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, refused).await?
}

#[test]
fn m7_bad_flags_are_refused_when_they_are_written() -> Outcome {
    alone(Config::default(), async |scene| {
        checked(scene).await?;
        let uri = tried(NAMESPACE, &format!("/{CONFIG_MAP}"));
        for (key, value, allowed) in [
            (
                "coschedule",
                "sideways",
                "allowed: workspaces, pipelineruns, isolate-pipelinerun, disabled",
            ),
            ("migration-phase", "later", "allowed: during, after"),
            ("adopt-runs-in", "Team_A", "is not the name of a namespace"),
            ("adopt-runs-in", "Team_A", "is not the name of a namespace"),
            ("isolation-scope", "zone", "allowed: cluster, namespace"),
            ("coschedule-claims", "some", "allowed: all, node-bound"),
            ("allowed-overrides", "all", "allowed: workspaces"),
            (
                "default-affinity-assistant-pod-template",
                "7",
                "allowed: an object",
            ),
            ("placement", "near", "allowed: spread, pack, none"),
            (
                "placeholder-reserves",
                "half",
                "allowed: nothing, placement, peak",
            ),
            ("placeholder-cpu", "50 m", "allowed: a decimal number"),
            ("placeholder-memory", "0", "allowed: more than 0"),
            ("placeholder-image", "", "allowed: [registry/]path"),
        ] {
            let answer = scene
                .send_to("PATCH", &uri, &json!({"data": {key: value}}))
                .await?;
            let message = answer.refusal().unwrap_or_default();
            assert_eq!(answer.code, 422, "{key}: {answer:?}");
            for part in [&format!("{key}: "), value, allowed] {
                assert!(message.contains(part), "{key}: {message}");
            }
            assert_eq!(answer.blamed(), [key]);
        }
        // An error deep in the pod template is refused too.
        let template = r#"{"tolerations": [{"key": "ci", "operator": "Is"}]}"#;
        let deep = json!({"data": {"default-affinity-assistant-pod-template": template}});
        let answer = scene.send_to("PATCH", &uri, &deep).await?;
        assert_eq!(
            answer.blamed(),
            ["default-affinity-assistant-pod-template"],
            "{answer:?}"
        );
        let message = answer.refusal().unwrap_or_default();
        assert!(
            message.contains("tolerations[0].operator: is \"Is\"; allowed: Equal, Exists"),
            "{message}"
        );
        // The refusal of an invalid combination names the keys and values that do not go together.
        let combination = json!({"data": {"migration-phase": "during"}});
        let answer = scene.send_to("PATCH", &uri, &combination).await?;
        let message = answer.refusal().unwrap_or_default();
        for part in [
            "\"pipelineruns\" cannot be combined with",
            "disable-affinity-assistant",
            "\"during\"",
        ] {
            assert!(message.contains(part), "{message}");
        }

        // Deprecated and unknown keys are accepted with a warning.
        let doubtful =
            json!({"data": {"disable-affinity-assistant": "true", "placeholder_cpu": "1"}});
        let answer = scene.send_to("PATCH", &uri, &doubtful).await?;
        assert_eq!(answer.refusal(), None);
        let [deprecated, unknown] = answer.warnings.as_slice() else {
            panic!("{:?}", answer.warnings)
        };
        assert!(deprecated.contains("deprecated") && unknown.contains("placeholder_cpu"));

        // Other ConfigMaps are not checked.
        let bad = config_map(&json!({"coschedule": "sideways"}));
        let elsewhere = scene
            .send_to("POST", &tried(&scene.namespace, ""), &bad)
            .await?;
        assert_eq!((elsewhere.refusal(), elsewhere.code), (None, 201));
        let mut other = bad.clone();
        other["metadata"]["name"] = json!("other");
        let other = scene.send_to("POST", &tried(NAMESPACE, ""), &other).await?;
        assert_eq!((other.refusal(), other.code), (None, 201));

        // The ConfigMap can be deleted. After that, it cannot be created with an invalid value.
        let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), NAMESPACE);
        maps.delete(CONFIG_MAP, &DeleteParams::default()).await?;
        let created = scene.send_to("POST", &tried(NAMESPACE, ""), &bad).await?;
        assert_eq!(created.code, 422, "{created:?}");
        Ok(())
    })
}

/// Writes flags while both replicas of the webhook are down.
async fn slip_past(scene: &Scene<'_>, flags: &[(&str, &str)]) -> Outcome {
    let services = &scene.stack.services;
    for number in [1, 2] {
        services.kill(Service::AdmissionWebhook.replica(number))?;
    }
    scene.set_flags(flags).await?;
    for number in [1, 2] {
        services.start_service(Service::AdmissionWebhook.replica(number))?;
    }
    services.wait_ready().await
}

/// The Events about our ConfigMap, as soon as there are at least this many.
async fn events(scene: &Scene<'_>, count: usize) -> anyhow::Result<Vec<Event>> {
    let events: Api<Event> = Api::namespaced(scene.client.clone(), NAMESPACE);
    let list = async {
        loop {
            let mut found = events.list(&ListParams::default()).await?.items;
            found.retain(|event| {
                event
                    .regarding
                    .as_ref()
                    .is_some_and(|object| object.kind.as_deref() == Some("ConfigMap"))
            });
            if found.len() >= count {
                return anyhow::Ok(found);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LIMIT, list).await?
}

async fn gauge(scene: &Scene<'_>, name: &str) -> anyhow::Result<Vec<f64>> {
    let mut values = Vec::new();
    for number in [1, 2] {
        let replica = Service::ConfigService.replica(number);
        let text = metrics::scrape(&scene.stack.services.http_address(replica)).await?;
        values.push(metrics::sum(&text, name, &[]));
    }
    Ok(values)
}

/// Creates a run, and returns its warnings and its mode. Tries again if the API server cannot reach the webhook.
async fn told(scene: &Scene<'_>, name: &str) -> anyhow::Result<(Vec<String>, String)> {
    let submit = async {
        loop {
            match scene.submit_told(run(name).task("one", &[], &[])).await {
                Err(error) if error.to_string().contains("failed calling webhook") => {}
                answer => return answer,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let answer = tokio::time::timeout(LIMIT, submit).await??;
    let mode = &answer.object["metadata"]["annotations"]["coscheduler.dev/mode"];
    Ok((
        answer.warnings,
        mode.as_str().unwrap_or_default().to_owned(),
    ))
}

#[test]
fn m7_what_is_bad_and_slips_past_changes_nothing_and_is_said_everywhere() -> Outcome {
    let two_replicas_without_a_config_map = |services: &mut ServicesConfig| {
        services.replicas = 2;
        services.mode = None;
    };
    alone_with(
        Config::default(),
        two_replicas_without_a_config_map,
        async |scene| {
            let services = &scene.stack.services;
            // There was never a valid configuration: coscheduling is off, and runs are admitted.
            let status = scene.config().await?;
            assert_eq!((status.configuration, status.generation), (None, 0));
            let (warnings, mode) = told(scene, "never").await?;
            assert_eq!(mode, "");
            assert!(
                warnings
                    .iter()
                    .any(|warning| warning.contains("Coscheduling is off")),
                "{warnings:?}"
            );
            scene.succeeds("never").await?;
            assert_eq!(gauge(scene, "coscheduler_config_valid").await?, [0.0, 0.0]);

            let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), NAMESPACE);
            let good = serde_json::from_value(config_map(&json!({"coschedule": "pipelineruns"})))?;
            maps.create(&PostParams::default(), &good).await?;
            let good = scene
                .config_until("valid", |status| status.configuration.is_some())
                .await?;
            scene.planned_in(Mode::Pipelineruns).await?;

            slip_past(scene, &[("coschedule", "sideways")]).await?;
            let bad = scene
                .config_until("bad", |status| !status.violations.is_empty())
                .await?;
            assert_eq!(
                (bad.generation, &bad.configuration),
                (good.generation, &good.configuration)
            );
            assert_eq!(bad.violations[0].key, "coschedule");
            assert!(
                bad.violations[0].description.contains("sideways"),
                "{:?}",
                bad.violations
            );
            assert_eq!(
                told(scene, "still").await?,
                (Vec::new(), "pipelineruns".to_owned())
            );
            // Both replicas have seen the invalid value, and one Event reports it.
            let seen = async {
                while gauge(scene, "coscheduler_config_valid").await? != [0.0, 0.0] {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                anyhow::Ok(())
            };
            tokio::time::timeout(LIMIT, seen).await??;
            let generation = f64::from(i32::try_from(good.generation)?);
            assert_eq!(
                gauge(scene, "coscheduler_config_generation").await?,
                [generation; 2]
            );
            let log = std::fs::read_to_string(services.log(Service::ConfigService.replica(2)))?;
            assert!(
                log.contains("is not valid. The last valid configuration stays in force")
                    && log.contains("sideways")
            );
            let [event] = events(scene, 1).await?.try_into().unwrap();
            let version = maps.get(CONFIG_MAP).await?.resource_version().unwrap();
            assert_eq!(event.name_any(), format!("{CONFIG_MAP}.{version}"));
            assert_eq!(
                event.reporting_controller.as_deref(),
                Some("coscheduler.dev/config-service")
            );
            assert_eq!(
                (event.type_.as_deref(), event.reason.as_deref()),
                (Some("Warning"), Some("ConfigurationInvalid"))
            );
            let note = event.note.unwrap();
            assert!(
                note.contains("stays in force") && note.contains("coschedule: \"sideways\""),
                "{note}"
            );

            // A config-service that restarts now has seen no valid configuration, and writes no second Event. Services that have
            // seen the valid configuration keep it. Planners that restart too have seen none, so they do not coschedule.
            for number in [1, 2] {
                let replica = Service::ConfigService.replica(number);
                services.kill(replica)?;
                services.start_service(replica)?;
            }
            services.wait_ready().await?;
            let status = scene
                .config_until("forgotten", |status| status.configuration.is_none())
                .await?;
            assert_eq!(status.violations, bad.violations);
            assert_eq!(told(scene, "remembered").await?.1, "pipelineruns");
            for number in [1, 2] {
                let replica = Service::AffinityPlanner.replica(number);
                services.kill(replica)?;
                services.start_service(replica)?;
            }
            services.wait_ready().await?;
            let (warnings, mode) = told(scene, "forgotten").await?;
            assert_eq!(mode, "");
            assert!(
                warnings
                    .iter()
                    .any(|warning| warning.contains("Coscheduling is off")
                        && warning.contains("sideways"))
            );

            // Another invalid version leads to another Event. Then the ConfigMap is corrected.
            slip_past(scene, &[("placeholder-cpu", "many")]).await?;
            assert_eq!(events(scene, 2).await?.len(), 2);
            scene.set_flags(&[("coschedule", "disabled")]).await?;
            let mended = scene
                .config_until("mended", |status| status.violations.is_empty())
                .await?;
            assert!(mended.generation > good.generation);
            for run in ["still", "remembered", "forgotten"] {
                scene.succeeds(run).await?;
            }
            assert_eq!(events(scene, 2).await?.len(), 2);
            Ok(())
        },
    )
}

/// In this test, one replica is behind: a config-service that reads an old copy of the ConfigMap.
#[test]
fn m8_a_planner_never_goes_back_to_what_a_replica_that_is_behind_sends() -> Outcome {
    alone(Config::default(), async |scene| {
        let behind: Api<ConfigMap> = scene.api();
        let before = serde_json::from_value(config_map(&json!({"coschedule": "workspaces"})))?;
        behind.create(&PostParams::default(), &before).await?;
        scene.set_flags(&[("coschedule", "disabled")]).await?;
        let now = scene
            .config_until("disabled", |status| {
                status
                    .configuration
                    .as_ref()
                    .is_some_and(|configuration| configuration.mode() == Mode::Disabled)
            })
            .await?;

        let services = &scene.stack.services;
        let local = |port: u16| format!("127.0.0.1:{port}");
        let replicas = Balancer::start(local(0).parse()?).await?;
        replicas.set_endpoints(vec![
            local(services.ports().grpc(Service::ConfigService)).parse()?,
        ]);
        let folder = scene.stack.bed.dir().join("replicas");
        std::fs::create_dir(&folder)?;
        let processes = ProcessGroup::start(&folder)?;
        let free = FreePorts::find()?;
        let [grpc, http, planner_grpc, planner_http] = free.ports;
        let mut planner = Command::new(bin_dir()?.join("affinity-planner"));
        planner
            .args(["--grpc-address", &local(planner_grpc)])
            .args(["--http-address", &local(planner_http)])
            .args(["--config-service-address", &replicas.address().to_string()])
            .args([
                "--placeholder-manager-address",
                &local(services.ports().grpc(Service::PlaceholderManager)),
            ]);
        processes.spawn("planner", planner)?;
        let planner = format!("http://{}", local(planner_grpc));
        let planner = tonic::transport::Endpoint::from_shared(planner)?.connect_lazy();
        planned_in(planner.clone(), Mode::Disabled).await?;

        // From now on, the planner asks the replica that is behind.
        let mut late = Command::new(bin_dir()?.join("config-service"));
        late.args(["--grpc-address", &local(grpc)])
            .args(["--http-address", &local(http)])
            .args(["--namespace", &scene.namespace])
            .arg("--kubeconfig")
            .arg(scene.stack.bed.kubeconfig());
        processes.spawn("behind", late)?;
        replicas.set_endpoints(vec![local(grpc).parse()?]);
        services.kill(Service::ConfigService)?;
        let ignored = async {
            while !std::fs::read_to_string(processes.log("planner"))?
                .contains("older configuration")
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(LIMIT, ignored)
            .await
            .context("the planner was not sent anything older")??;
        assert_eq!(planned_mode(planner.clone()).await?, Mode::Disabled);

        // When the replica has caught up, the planner uses its answers.
        let patch = Patch::Merge(json!({"data": {"coschedule": "pipelineruns"}}));
        let patched = behind
            .patch(CONFIG_MAP, &PatchParams::default(), &patch)
            .await?;
        assert!(patched.resource_version().unwrap().parse::<i64>()? > now.generation);
        planned_in(planner, Mode::Pipelineruns).await?;
        processes.stop().await?;
        services.start_service(Service::ConfigService)?;
        services.wait_ready().await
    })
}

/// A run keeps the configuration of its creation, even if the configuration changes before the run starts.
#[test]
fn m8_a_pending_run_starts_with_what_was_in_force_when_it_was_created() -> Outcome {
    alone(Config::default(), async |scene| {
        let mut watch = scene
            .config_service()
            .await?
            .watch_config(WatchConfigRequest {})
            .await?
            .into_inner();
        assert!(
            watch.message().await?.is_some(),
            "the current one comes at once"
        );
        let pending = |name: &str| {
            run(name)
                .template("source")
                .task("one", &["source"], &[])
                .held("one")
                .spec("status", json!("PipelineRunPending"))
        };
        scene
            .set_flags(&[
                ("coschedule", "isolate-pipelinerun"),
                ("isolation-scope", "namespace"),
                ("placeholder-cpu", "75m"),
            ])
            .await?;
        scene.planned_in(Mode::IsolatePipelinerun).await?;
        scene.submit(pending("first")).await?;
        scene
            .set_flags(&[
                ("coschedule", "isolate-pipelinerun"),
                ("isolation-scope", "cluster"),
                ("placeholder-memory", "80Mi"),
            ])
            .await?;
        let told = async {
            loop {
                let status = watch
                    .message()
                    .await?
                    .context("the stream ended")?
                    .status
                    .context("no status")?;
                let configuration = status.configuration.context("no configuration")?;
                if configuration
                    .placeholder
                    .is_some_and(|placeholder| placeholder.memory == "80Mi")
                {
                    return anyhow::Ok(());
                }
            }
        };
        tokio::time::timeout(LIMIT, told).await??;
        // The planner's own stream may be a moment behind this test's.
        let pinned = async {
            for index in 0.. {
                let created = scene.submit(pending(&format!("second-{index}"))).await?;
                if created
                    .annotations()
                    .values()
                    .any(|value| value.contains("80Mi"))
                {
                    return anyhow::Ok(created.name_any());
                }
                scene
                    .api::<PipelineRun>()
                    .delete(&created.name_any(), &DeleteParams::default())
                    .await?;
            }
            unreachable!()
        };
        let second = tokio::time::timeout(LIMIT, pinned).await??;
        scene.set_flags(&[("coschedule", "disabled")]).await?;
        scene.planned_in(Mode::Disabled).await?;

        for (name, scope, cpu, memory) in [
            ("first", "namespace", "75m", "100Mi"),
            (second.as_str(), "cluster", "50m", "80Mi"),
        ] {
            let start = Patch::Merge(json!({"spec": {"status": null}}));
            scene
                .api::<PipelineRun>()
                .patch(name, &PatchParams::default(), &start)
                .await?;
            let (set, pod) = scene.placeholder().await?;
            assert_eq!(set.labels()["tekton.dev/pipelineRun"], name);
            let pod = pod.spec.unwrap();
            let requests = pod.containers[0]
                .resources
                .clone()
                .unwrap()
                .requests
                .unwrap();
            assert_eq!(
                (requests["cpu"].0.as_str(), requests["memory"].0.as_str()),
                (cpu, memory),
                "{name}"
            );
            let apart = pod.affinity.unwrap().pod_anti_affinity.unwrap();
            let terms = apart
                .required_during_scheduling_ignored_during_execution
                .unwrap();
            let everywhere = terms.iter().any(|term| term.namespace_selector.is_some());
            assert_eq!(everywhere, scope == "cluster", "{name}: {terms:?}");
            scene.end(name, "one").await?;
            scene.succeeds(name).await?;
            scene.nothing_left_but(&[]).await?;
        }
        Ok(())
    })
}
