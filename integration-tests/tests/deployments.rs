//! Checks the Deployments of `deploy/base` without a cluster: each service accepts the arguments of its Deployment. The launcher
//! of the other tests uses other arguments.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use k8s_openapi::api::apps::v1::Deployment;
use testbed::services::{Service, ServicesConfig};

/// The exit code after a usage error.
const USAGE: i32 = 2;

fn arguments(service: Service) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../deploy/base/{service}/deployment.yaml"));
    let text = std::fs::read_to_string(path).unwrap();
    let deployment: Deployment = serde_saphyr::from_str(&text).unwrap();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    pod.containers[0].args.clone().unwrap()
}

/// Replaces an address of the Deployment by a free port on loopback.
fn here(argument: &str) -> String {
    match argument.split_once("=0.0.0.0:") {
        Some((flag, _)) => format!("{flag}=127.0.0.1:0"),
        None => argument.to_owned(),
    }
}

#[test]
fn every_service_takes_the_arguments_of_its_deployment() {
    let binaries = ServicesConfig::new("unused").unwrap().bin_dir;
    for service in Service::ALL {
        let mut command = Command::new(binaries.join(service.name()));
        command.args(arguments(service).iter().map(|argument| here(argument)));
        // Without a cluster, a service ends with exit code 1 after it has read its arguments. Only the affinity-planner starts,
        // because it needs no cluster.
        let mut running = command
            .env("KUBECONFIG", "/there-is-no-such-file")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(running.stderr.take().unwrap()).lines();
        let started = lines
            .map_while(Result::ok)
            .any(|line| line.contains("started"));
        drop(running.kill());
        let code = running.wait().unwrap().code();
        assert!(started || code == Some(1), "{service} ended with {code:?}");
        assert_ne!(code, Some(USAGE), "{service}");
    }
}
