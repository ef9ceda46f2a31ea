//! Mutual TLS between the services: runs in every mode, who may call which RPC, certificates that are refused, and new
//! certificates without a restart.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use coscheduler_proto::FILE_DESCRIPTOR_SET;
use coscheduler_proto::config::Mode;
use http::uri::PathAndQuery;
use integration_tests::grpc::{connect, connect_to};
use integration_tests::installation::{define, kubectl};
use integration_tests::look::{LIMIT, node, until};
use integration_tests::metrics::get;
use integration_tests::plugin::plugin;
use integration_tests::struck::gated;
use integration_tests::{Scene, alone_with, on_bed, shared_with_overrides};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use serde_json::{Value, json};
use testbed::services::{
    NAMESPACE, OPERATOR, Service, Services, ServicesConfig, bin_dir, certificate_names,
};
use testbed::{Authority, Config, FreePorts, MOVABLE_STORAGE_CLASS, ProcessGroup};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;

type Outcome = anyhow::Result<()>;

/// Who may call which RPC.
const CALLERS: [(&str, &[&str]); 13] = [
    ("config.v1.ConfigService/CheckFlags", &[OPERATOR]),
    ("config.v1.ConfigService/GetConfig", &[OPERATOR]),
    (
        "config.v1.ConfigService/WatchConfig",
        &["affinity-planner", OPERATOR],
    ),
    (
        "planner.v1.PlannerService/AdmitPipelineRun",
        &["admission-webhook"],
    ),
    ("planner.v1.PlannerService/AdmitRun", &["admission-webhook"]),
    ("planner.v1.PlannerService/Plan", &[OPERATOR]),
    ("planner.v1.PlannerService/ReportPipelineRun", &["watcher"]),
    (
        "placeholder.v1.PlaceholderService/Ensure",
        &["affinity-planner"],
    ),
    ("placeholder.v1.PlaceholderService/Explain", &[OPERATOR]),
    (
        "placeholder.v1.PlaceholderService/GetPlaceholder",
        &[OPERATOR],
    ),
    (
        "placeholder.v1.PlaceholderService/ListPlaceholders",
        &[OPERATOR],
    ),
    (
        "placeholder.v1.PlaceholderService/Release",
        &["affinity-planner"],
    ),
    (
        "placeholder.v1.PlaceholderService/WatchPlaceholders",
        &[OPERATOR],
    ),
];

fn secured(services: &mut ServicesConfig) {
    services.mutual_tls = true;
}

fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    shared_with_overrides(Config::default(), secured, test)
}

/// Calls an RPC with an empty message, and returns its status: `OK` if an answer came.
async fn call(channel: &Channel, rpc: &str) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    let unready = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    grpc.ready().await.map_err(unready)?;
    let path = PathAndQuery::try_from(format!("/coscheduler.{rpc}")).unwrap();
    let codec = ProstCodec::<(), ()>::default();
    let stream = grpc.server_streaming(Request::new(()), path, codec).await?;
    stream.into_inner().message().await.map(drop)
}

/// The service of the process that serves this RPC.
fn server(rpc: &str) -> Service {
    match rpc.split('.').next() {
        Some("config") => Service::ConfigService,
        Some("planner") => Service::AffinityPlanner,
        _ => Service::PlaceholderManager,
    }
}

/// The status of a health check with the certificates in `folder`.
async fn health(services: &Services, service: Service, folder: &Path) -> anyhow::Result<()> {
    let channel = connect_to(&services.grpc_address(service), Some(folder)).await?;
    let mut health = HealthClient::new(channel);
    health.check(HealthCheckRequest::default()).await?;
    Ok(())
}

#[test]
fn with_mutual_tls_runs_of_every_mode_are_placed_moved_and_cleaned_up() -> Outcome {
    shared(async |scene| {
        for mode in ["workspaces", "pipelineruns", "isolate-pipelinerun"] {
            let scene = scene.stack.scene().await?;
            scene.pool(2).await?;
            let submitted = gated(&scene, mode, MOVABLE_STORAGE_CLASS);
            let name = submitted.name().to_owned();
            scene.submit(submitted).await?;
            scene.at_gate(&name).await?;
            let (_, before) = scene.placeholder().await?;
            let old = node(&before).context("no node")?.to_owned();
            scene.cordon(&old, true).await?;
            let after = scene.moved_from(&old).await?;
            scene.open_gate(&name).await?;
            scene.succeeds(&name).await?;
            scene.nothing_left_but(&[]).await?;
            for pod in scene.objects().await?.task_pods {
                let task =
                    pod.metadata.labels.as_ref().unwrap()["tekton.dev/pipelineTask"].as_str();
                let expected = if task == "one" {
                    Some(&*old)
                } else {
                    node(&after)
                };
                assert_eq!(node(&pod), expected, "{mode} {task}");
            }
        }
        Ok(())
    })
}

/// The table has every RPC of the contracts, so an RPC that is added later cannot be forgotten.
#[test]
fn each_rpc_refuses_all_but_its_callers() -> Outcome {
    let contracts = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut rpcs = BTreeSet::new();
    for file in contracts.file {
        for service in &file.service {
            for method in &service.method {
                let (package, service) = (file.package(), service.name());
                rpcs.insert(format!("{package}.{service}/{}", method.name()));
            }
        }
    }
    let listed = CALLERS.map(|(rpc, _)| format!("coscheduler.{rpc}"));
    assert_eq!(rpcs, BTreeSet::from(listed));

    shared(async |scene| {
        let services = &scene.stack.services;
        let address = services.grpc_address(Service::PlaceholderManager);
        let address = address.trim_start_matches("http://");
        let asked = ["explain", "missing", "-n", "ns", "--server", address];
        let output = plugin(&asked)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{errors}");
        assert!(errors.contains("set --certificates"), "{errors}");
        let folder = services.certificates(OPERATOR).unwrap();
        let certificates = ["--certificates", folder.to_str().unwrap()];
        let output = plugin(&[&asked[..], &certificates].concat())?;
        assert_eq!(output.status.code(), Some(3), "{output:?}");

        let mut refused = 0;
        for caller in certificate_names() {
            for (rpc, allowed) in CALLERS {
                let channel = connect(services, server(rpc), caller).await?;
                let status = call(&channel, rpc).await.err();
                let code = status.as_ref().map(Status::code);
                if allowed.contains(&caller) {
                    assert!(
                        code.is_none() || code == Some(Code::InvalidArgument),
                        "{caller} {rpc}: {status:?}"
                    );
                    continue;
                }
                refused += 1;
                assert_eq!(code, Some(Code::PermissionDenied), "{caller} {rpc}");
                let only = format!(
                    "{caller} is not allowed to call coscheduler.{rpc}: only {} may",
                    allowed.join(", ")
                );
                assert_eq!(status.unwrap().message(), only);
            }
            // Health and reflection are open to each of them.
            for service in Service::ALL {
                health(services, service, &services.certificates(caller).unwrap()).await?;
            }
        }
        assert_eq!(refused, 6 * 13 - 14);
        Ok(())
    })
}

/// Waits until the log of `service` says that it has refused a connection, and why.
async fn refusal(services: &Services, service: Service, why: &str) -> Outcome {
    until(why, async || {
        let log = fs::read_to_string(services.log(service))?;
        let mut refused = log
            .lines()
            .filter(|line| line.contains("a connection was refused"));
        Ok(refused.any(|line| line.contains(why)))
    })
    .await
}

#[test]
fn certificates_of_strangers_expired_ones_and_those_of_other_names_are_refused() -> Outcome {
    shared(async |scene| {
        let services = &scene.stack.services;
        let authority = services.authority().unwrap();
        let folder = |name: &str| services.logs_dir().join(name);
        let watcher = "watcher.coscheduler-system.svc";

        // There is no connection: the caller's certificate has another authority, or has expired.
        let stranger = folder("stranger");
        Authority::new()?.issue(&stranger, &[watcher])?;
        fs::write(stranger.join("ca.crt"), authority.pem())?;
        let expired = folder("expired");
        authority.issue_expired(&expired, &[watcher])?;
        // There is a connection, but the certificate does not name the caller.
        let elsewhere = folder("elsewhere");
        authority.issue(&elsewhere, &["watcher.elsewhere.svc"])?;
        let below = folder("below");
        authority.issue(&below, &["watcher.a.coscheduler-system.svc"])?;
        let nameless = folder("nameless");
        authority.issue(&nameless, &["127.0.0.1"])?;

        let operator = services.certificates(OPERATOR).unwrap();
        for service in Service::ALL {
            health(services, service, &operator).await?;
            for (refused, why) in [(&stranger, "BadSignature"), (&expired, "expired")] {
                let answer = health(services, service, refused).await;
                assert!(answer.is_err(), "{service} {why}");
                refusal(services, service, why).await?;
            }
            let no_certificate = async {
                let authority = Certificate::from_pem(authority.pem());
                let tls = ClientTlsConfig::new().ca_certificate(authority);
                let address = services
                    .grpc_address(service)
                    .replacen("http:", "https:", 1);
                let endpoint = Endpoint::from_shared(address)?.tls_config(tls)?;
                let mut health = HealthClient::new(endpoint.connect().await?);
                anyhow::Ok(health.check(HealthCheckRequest::default()).await?)
            };
            assert!(no_certificate.await.is_err(), "{service}");
            refusal(services, service, "peer sent no certificates").await?;
            // A client connects and sends nothing.
            let port = services.ports().grpc(service);
            let mut silent = TcpStream::connect(("127.0.0.1", port)).await?;
            let closed = tokio::time::timeout(LIMIT, silent.read_u8()).await?;
            assert!(closed.is_err(), "{service}");
            refusal(services, service, "took too long").await?;
            let plaintext = async {
                let channel = connect_to(&services.grpc_address(service), None).await?;
                let mut health = HealthClient::new(channel);
                anyhow::Ok(health.check(HealthCheckRequest::default()).await?)
            };
            assert!(plaintext.await.is_err(), "{service}");
        }
        for named in [&elsewhere, &below, &nameless] {
            for (rpc, _) in CALLERS {
                let address = services.grpc_address(server(rpc));
                let channel = connect_to(&address, Some(named)).await?;
                let status = call(&channel, rpc).await.unwrap_err();
                assert_eq!(status.code(), Code::Unauthenticated, "{rpc}: {status:?}");
            }
        }
        Ok(())
    })
}

/// Starts a planner with these ports and certificates, which asks the config-service at `asks`.
fn planner(
    processes: &ProcessGroup,
    name: &str,
    [grpc, http]: [u16; 2],
    certificates: &Path,
    asks: &str,
) -> Outcome {
    let mut planner = Command::new(bin_dir()?.join("affinity-planner"));
    planner
        .args(["--grpc-address", &format!("127.0.0.1:{grpc}")])
        .args(["--http-address", &format!("127.0.0.1:{http}")])
        .args(["--config-service-address", asks])
        .arg("--tls-dir")
        .arg(certificates);
    processes.spawn(name, planner)
}

/// The certificates of the services are valid for 127.0.0.1 and not for `localhost`.
#[test]
fn a_service_calls_no_server_with_the_certificate_of_a_stranger_an_expired_one_or_another_name()
-> Outcome {
    shared(async |scene| {
        let services = &scene.stack.services;
        let folder = scene.stack.bed.dir().join("planners");
        fs::create_dir(&folder)?;
        let good = services.certificates("affinity-planner").unwrap();
        let names = ["config-service.coscheduler-system.svc", "127.0.0.1"];
        let (stranger, expired) = (folder.join("a-stranger"), folder.join("an-expired"));
        Authority::new()?.issue(&stranger, &names)?;
        let authority = services.authority().unwrap();
        authority.issue_expired(&expired, &names)?;

        let processes = ProcessGroup::start(&folder)?;
        let config_service = services.ports().grpc(Service::ConfigService);
        let local = |port: u16| format!("127.0.0.1:{port}");
        let (first, second) = (FreePorts::<6>::find()?, FreePorts::<6>::find()?);
        let free = [first.ports, second.ports].concat();
        let ports = |number: usize| [free[number], free[number + 1]];
        // Two servers that must not be called. (They are planners, but any service would do.)
        planner(&processes, "stranger", ports(0), &stranger, "127.0.0.1:1")?;
        planner(&processes, "expired", ports(2), &expired, "127.0.0.1:1")?;
        planner(
            &processes,
            "asks-well",
            ports(4),
            &good,
            &local(config_service),
        )?;
        let cases = [
            (
                "asks-localhost",
                format!("localhost:{config_service}"),
                "not valid for name",
            ),
            ("asks-stranger", local(ports(0)[0]), "BadSignature"),
            ("asks-expired", local(ports(2)[0]), "expired"),
        ];
        let ready = |number| format!("http://{}/readyz", local(ports(number)[1]));
        for (number, (name, asks, _)) in (6..).step_by(2).zip(&cases) {
            planner(&processes, name, ports(number), &good, asks)?;
        }
        until("the planner has a configuration", async || {
            Ok(get(&ready(4)).await.is_ok())
        })
        .await?;
        for (number, (name, _, complaint)) in (6..).step_by(2).zip(cases) {
            let log = processes.log(name);
            until(complaint, async || {
                Ok(fs::read_to_string(&log)?.contains(complaint))
            })
            .await?;
            assert!(get(&ready(number)).await.is_err(), "{name}");
        }
        processes.stop().await
    })
}

#[test]
fn a_service_without_usable_certificates_ends_and_names_the_file() -> Outcome {
    shared(async |scene| {
        let services = &scene.stack.services;
        let folder = |name: &str| services.logs_dir().join(name);
        let good = services.certificates("watcher").unwrap();
        let copy = |name: &str, file: &str, text: &str| -> anyhow::Result<PathBuf> {
            let folder = folder(name);
            fs::create_dir(&folder)?;
            for file in ["ca.crt", "tls.crt", "tls.key"] {
                fs::copy(good.join(file), folder.join(file))?;
            }
            fs::write(folder.join(file), text)?;
            Ok(folder)
        };
        let other = fs::read_to_string(services.certificates(OPERATOR).unwrap().join("tls.key"))?;
        let dotless = folder("dotless");
        services
            .authority()
            .unwrap()
            .issue(&dotless, &["watcher"])?;
        let cases = [
            (folder("absent"), "ca.crt"),
            (copy("no-ca", "ca.crt", "")?, "ca.crt: no certificate"),
            (
                copy("no-certificate", "tls.crt", "x")?,
                "tls.crt: no certificate",
            ),
            (copy("no-key", "tls.key", "x")?, "tls.key"),
            (copy("other-key", "tls.key", &other)?, "KeyMismatch"),
            (dotless, "the first DNS name of tls.crt is Some"),
        ];
        for (folder, expected) in cases {
            let output = Command::new(bin_dir()?.join("affinity-planner"))
                .args([
                    "--grpc-address",
                    "127.0.0.1:0",
                    "--http-address",
                    "127.0.0.1:0",
                ])
                .args(["--log-format", "text", "--tls-dir"])
                .arg(&folder)
                .stdin(Stdio::null())
                .output()?;
            assert_eq!(output.status.code(), Some(1));
            let error = String::from_utf8(output.stderr)?;
            assert!(error.contains(expected), "{expected}: {error}");
            assert!(error.contains(&folder.display().to_string()), "{error}");
            assert!(!error.contains("PRIVATE"), "{error}");
        }
        Ok(())
    })
}

/// Each service mounts the Secret of its own certificate, whose first name is the one that the other services expect.
#[test]
fn the_overlay_mounts_a_certificate_with_the_right_name_into_every_service() -> Outcome {
    on_bed(Config::default(), async |bed| {
        for (kind, plural) in [("Issuer", "issuers"), ("Certificate", "certificates")] {
            define(&bed, "cert-manager.io", kind, plural).await?;
        }
        kubectl(&bed, &["apply", "-k", "deploy/overlays/mtls"]).await?;
        let stored = async |kind: &str| -> anyhow::Result<BTreeMap<String, Value>> {
            let arguments = ["get", kind, "--namespace", NAMESPACE, "--output", "json"];
            let list: Value = serde_json::from_str(&kubectl(&bed, &arguments).await?)?;
            let items = list["items"].as_array().context("no list")?;
            let named = |item: &Value| {
                Some((
                    item["metadata"]["name"].as_str()?.to_owned(),
                    item["spec"].clone(),
                ))
            };
            items
                .iter()
                .map(|item| named(item).context("no name"))
                .collect()
        };
        let (issuers, certificates) = (stored("issuers").await?, stored("certificates").await?);
        let deployments = stored("deployments").await?;
        for certificate in certificates.values() {
            let issuer = certificate["issuerRef"]["name"].as_str().unwrap();
            assert!(issuers.contains_key(issuer), "{issuer}");
        }
        let authority = &certificates["coscheduler-ca"];
        assert_eq!(authority["isCA"], true);
        assert_eq!(
            issuers["coscheduler-ca"]["ca"]["secretName"],
            authority["secretName"]
        );
        for process in certificate_names() {
            let certificate = &certificates[&format!("{process}-tls")];
            let names = &certificate["dnsNames"];
            assert_eq!(*names, json!([format!("{process}.{NAMESPACE}.svc")]));
            assert_eq!(certificate["usages"], json!(["server auth", "client auth"]));
            let Some(deployment) = deployments.get(process) else {
                assert_eq!(process, OPERATOR);
                continue;
            };
            let pod = &deployment["template"]["spec"];
            let volumes = pod["volumes"].as_array().unwrap();
            let mounted = volumes
                .iter()
                .find(|volume| volume["name"] == "tls")
                .unwrap();
            assert_eq!(mounted["secret"]["secretName"], certificate["secretName"]);
            let container = &pod["containers"][0];
            let mounts = container["volumeMounts"].as_array().unwrap();
            let mount = mounts.iter().find(|mount| mount["name"] == "tls").unwrap();
            let variables = container["env"].as_array().unwrap();
            if process == Service::AdmissionWebhook.name() {
                let mut secret = variables.iter();
                let secret = secret.find(|it| it["name"] == "CERTIFICATE_SECRET");
                assert_eq!(secret.unwrap()["value"], certificate["secretName"]);
            }
            let variable = variables.iter().find(|it| it["name"] == "TLS_DIR").unwrap();
            assert_eq!(variable["value"], mount["mountPath"]);
        }
        Ok(())
    })
}

/// Rotates the certificate authority as an operator does: first, all trust both authorities; then all get certificates of the new
/// one; then all trust only the new one.
#[test]
fn services_use_new_certificates_without_a_restart() -> Outcome {
    alone_with(Config::default(), secured, async |scene| {
        let services = &scene.stack.services;
        let folder = |process| services.certificates(process).unwrap();
        let pids = async || -> anyhow::Result<BTreeMap<_, _>> {
            let pid = |service| Ok((service, services.pid(service)?));
            Service::ALL.into_iter().map(pid).collect()
        };
        let before = pids().await?;
        let old = services.logs_dir().join("old");
        let first = services.authority().unwrap();
        first.issue_service(&old, NAMESPACE, OPERATOR)?;
        let second = Authority::new()?;
        let trust = |text: &str| {
            let mut all = certificate_names();
            all.try_for_each(|process| fs::write(folder(process).join("ca.crt"), text))
        };
        let both = first.pem() + &second.pem();
        trust(&both)?;
        for process in certificate_names() {
            second.issue_service(&folder(process), NAMESPACE, process)?;
        }
        trust(&both)?;
        fs::write(old.join("ca.crt"), &both)?;
        for service in Service::ALL {
            health(services, service, &old).await?;
        }
        trust(&second.pem())?;

        for service in Service::ALL {
            health(services, service, &folder(OPERATOR)).await?;
            assert!(health(services, service, &old).await.is_err(), "{service}");
        }
        assert_eq!(pids().await?, before);
        // The planner must connect again, with its new certificate.
        for service in [Service::ConfigService, Service::PlaceholderManager] {
            services.restart(service).await?;
        }
        services.wait_ready().await?;
        scene
            .set_flags(&[("coschedule", "isolate-pipelinerun")])
            .await?;
        scene.planned_in(Mode::IsolatePipelinerun).await?;
        // Now the watcher and the webhook.
        services.restart(Service::AffinityPlanner).await?;
        services.wait_ready().await?;
        let two = integration_tests::runs::run("two")
            .template("source")
            .task("one", &["source"], &[])
            .task("two", &["source"], &["one"]);
        scene.submit(two).await?;
        scene.placeholder().await?;
        scene.succeeds("two").await?;
        scene.nothing_left_but(&[]).await
    })
}
