//! The kubectl plugin: its answers are the facts of the cluster. The tests start the built binary.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_core::annotations::MODE_SOURCE;
use coscheduler_core::observed::PodPhase;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use futures::future::try_join_all;
use integration_tests::look::{self, node};
use integration_tests::plugin::{RBAC, ROLE, answer, grant, plugin, plugin_with, with_rights};
use integration_tests::runs::run;
use integration_tests::sets::without_sets;
use integration_tests::{Scene, alone_with, shared_with};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::{CONFIG_MAP, NAMESPACE, OPERATOR, Service, bin_dir};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

type Outcome = anyhow::Result<()>;

/// The overrides that the examples choose.
const OVERRIDES: &str = "workspaces, isolate-pipelinerun, disabled";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

#[test]
fn b5_plan_needs_no_cluster_and_less_than_50_milliseconds() -> Outcome {
    let file = examples().join("two-volumes.yaml");
    let file = file.to_str().unwrap();
    // The fastest try counts, because other programs may delay some tries.
    let mut fastest = Duration::MAX;
    for _ in 0..200 {
        let begin = Instant::now();
        let output = plugin(&["plan", "-f", file, "--mode", "pipelineruns"])?;
        fastest = fastest.min(begin.elapsed());
        ensure!(output.status.success());
        if fastest < Duration::from_millis(50) {
            return Ok(());
        }
    }
    anyhow::bail!("took {fastest:?}")
}

#[test]
fn b5_each_format_of_plan_has_the_same_facts() -> Outcome {
    let file = examples().join("two-volumes.yaml");
    let plan = [
        "plan",
        "--mode",
        "pipelineruns",
        "-f",
        file.to_str().unwrap(),
        "-o",
    ];
    let of = |format| plugin(&[&plan[..], &[format]].concat());
    let json: Value = serde_json::from_slice(&of("json")?.stdout)?;
    let yaml: Value = serde_saphyr::from_str(std::str::from_utf8(&of("yaml")?.stdout)?)?;
    assert_eq!(json, yaml);
    let set = json["runs"][0]["placeholders"][0]["name"].as_str().unwrap();
    let names = String::from_utf8(of("name")?.stdout)?;
    assert_eq!(names, format!("statefulset.apps/{set}\n"));
    let template = r#"jsonpath={range .runs[*]}{.placeholders[*].name}{"\n"}{.nothing}{end}"#;
    let path = String::from_utf8(of(template)?.stdout)?;
    assert_eq!(path, format!("{set}\n"));
    let wide = String::from_utf8(of("wide")?.stdout)?;
    for fact in [set, "mode: pipelineruns", "coscheduler.dev/group"] {
        assert!(wide.contains(fact), "{fact}: {wide}");
    }
    let piped = plugin_with(
        &["plan", "--mode", "pipelineruns", "-f", "-", "-o", "json"],
        &std::fs::read_to_string(&file)?,
    )?;
    assert_eq!(serde_json::from_slice::<Value>(&piped.stdout)?, json);
    let help = String::from_utf8(plugin(&["plan", "--help"])?.stdout)?;
    for flag in ["--filename <FILE>", "--server <HOST:PORT>", "yaml"] {
        assert!(help.contains(flag), "{flag}: {help}");
    }
    Ok(())
}

#[test]
fn b5_plan_names_the_place_of_the_mode() -> Outcome {
    let run = |metadata: Value| json!({"kind": "PipelineRun", "metadata": metadata, "spec": {}});
    let new = run(json!({"generateName": "r-"}));
    let stored = run(json!({"name": "r", "uid": "u"}));
    let other = || json!({"kind": "ConfigMap", "data": {"placement": "pack"}});
    let mut map = other();
    map["data"]["coschedule"] = "pipelineruns".into();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (with, without) = (folder.join("with.json"), folder.join("without.json"));
    std::fs::write(&with, map.to_string())?;
    std::fs::write(&without, other().to_string())?;
    let (with, without) = (with.to_str().unwrap(), without.to_str().unwrap());
    let default = "workspaces (default of key coschedule)";
    for (run, arguments, mode) in [
        (&new, &[][..], default),
        (&new, &["--config", without], default),
        (
            &new,
            &["--config", with],
            &format!("pipelineruns (key coschedule of {with})"),
        ),
        (
            &new,
            &["--config", with, "--mode", "disabled"],
            "disabled (flag --mode)",
        ),
        (
            &stored,
            &["--config", with],
            "disabled (the PipelineRun has no annotation coscheduler.dev/mode)",
        ),
    ] {
        let plan = plugin_with(
            &[&["plan", "-f", "-"], arguments].concat(),
            &run.to_string(),
        )?;
        let text = String::from_utf8(plan.stdout)?;
        let line = format!("─ mode: {mode}\n");
        assert!(text.contains(&line), "{arguments:?}: {text}");
    }
    Ok(())
}

#[test]
fn b5_failures_name_the_fault_and_have_their_exit_codes() -> Outcome {
    let example = examples().join("two-volumes.yaml");
    let example = example.to_str().unwrap();
    let config = r#"{"kind": "ConfigMap", "data": {"coschedule": "never"}}"#;
    let run = r#"{"kind": "PipelineRun", "metadata": {"name": "r"}, "spec": {"workspaces": 7}}"#;
    for (arguments, input, code, fault) in [
        (&["plan"][..], "", 2, "--filename <FILE>"),
        (
            &["plan", "-f", example, "--mode", "sometimes"],
            "",
            2,
            "sometimes",
        ),
        (
            &["plan", "-f", example, "-o", "text"],
            "",
            2,
            "wide, json, yaml, name",
        ),
        (
            &["plan", "-f", example, "-o", "jsonpath={.runs"],
            "",
            2,
            "'jsonpath={.runs' for '--output <FORMAT>': {.runs has no closing brace; allowed: ",
        ),
        (
            &["plan", "-f", "/nonexistent"],
            "",
            1,
            "failed to read /nonexistent",
        ),
        (
            &["explain", "taskrun/r"],
            "",
            2,
            "\"taskrun\" is not allowed before the name; allowed: pipelinerun",
        ),
        (&["explain", "pr/"], "", 2, "lower-case letters"),
        (&["explain", "a b"], "", 2, "lower-case letters"),
        (&["events", "r", "-n", "a/b"], "", 2, "lower-case letters"),
        (
            &["explain", "r", "--server", "http://localhost:1"],
            "",
            2,
            "expected HOST:PORT",
        ),
        (&["plan", "-f", "-"], config, 1, "has no PipelineRun"),
        (&["plan", "-f", "-"], run, 1, "spec.workspaces: "),
        (
            &["plan", "-f", example, "--config", "-"],
            config,
            1,
            "coschedule: \"never\"",
        ),
        (
            &["plan", "-f", example, "--server", "here"],
            "",
            2,
            "expected HOST:PORT",
        ),
        (
            &["plan", "-f", example, "--server", "127.0.0.1:1"],
            "",
            4,
            "error: the affinity-planner at 127.0.0.1:1 does not answer: Connection refused (os error 111)\n",
        ),
        (
            &["explain", "r", "-n", "ns", "--server", "127.0.0.1:1"],
            "",
            4,
            "error: the placeholder-manager at 127.0.0.1:1 does not answer: Connection refused (os error 111)\n",
        ),
        (
            &["explain", "r", "-n", "ns", "--server", "here"],
            "",
            2,
            "expected HOST:PORT",
        ),
        (
            &["explain", "r", "-n", "ns", "--certificates", "/"],
            "",
            2,
            "--server <HOST:PORT>",
        ),
        (
            &["explain", "r", "--server", "127.0.0.1:1"],
            "",
            1,
            "failed to read the kubeconfig",
        ),
    ] {
        let output = plugin_with(arguments, input)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(fault), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    Ok(())
}

/// Runs a test on the stack of this file.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let configure = |services: &mut testbed::services::ServicesConfig| {
        let flag = ("allowed-overrides".to_owned(), OVERRIDES.to_owned());
        services.flags.extend([flag]);
    };
    let config = Config {
        nodes: 8,
        ..Config::default()
    };
    shared_with(config, configure, test)
}

/// The arguments of `status` with the rights of this kubeconfig.
fn status<'a>(kubeconfig: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    with_rights("status", kubeconfig, more)
}

#[test]
fn b5_status_shows_where_runs_are_and_why_they_wait() -> Outcome {
    shared(async |scene| {
        let running = run("runs").template("source");
        let running = running.task("one", &["source"], &[]).held("one");
        scene.submit(running).await?;
        let (_, placeholder) = scene.placeholder().await?;
        scene
            .until_all::<Pod>("are running", |pods| {
                let running = |pod: &&Arc<Pod>| pods::phase(pod) == PodPhase::Running;
                pods.iter().filter(running).count() == 2
            })
            .await?;
        // No node has the label of this run's pool.
        let waits = run("waits").in_pool_of(&scene).template("source");
        scene.submit(waits.task("one", &["source"], &[])).await?;
        scene
            .until("waits", "is blocked", |run: Option<&PipelineRun>| {
                run.is_some_and(|run| run.annotations().contains_key("coscheduler.dev/blocked"))
            })
            .await?;
        scene
            .until_all::<Pod>("are two of each run", |pods| pods.len() == 4)
            .await?;

        let admin = scene.stack.bed.kubeconfig().to_owned();
        let namespace = scene.namespace.as_str();
        let json = answer(&status(&admin, &["-n", namespace, "-o", "json"]))?;
        let [runs, waits] = &json["runs"].as_array().unwrap()[..] else {
            panic!("{json}");
        };
        let on = node(&placeholder).unwrap();
        assert_eq!(
            (&runs["name"], &runs["state"]),
            (&json!("runs"), &json!("Running"))
        );
        assert_eq!(runs["placeholders"][0]["pod"], placeholder.name_any());
        for pod in [&runs["placeholders"][0], &runs["tasks"][0]] {
            assert_eq!(pod["node"], on, "{json}");
        }
        assert_eq!(runs["tasks"][0]["phase"], "Running", "{json}");
        assert_eq!(
            (&waits["name"], &waits["state"]),
            (&json!("waits"), &json!("Waiting"))
        );
        assert_eq!(waits["blocked"]["reason"], "PlaceholderUnschedulable");

        let text = |arguments: &[&str]| -> anyhow::Result<String> {
            let output = plugin(&status(&admin, arguments))?;
            ensure!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            Ok(String::from_utf8(output.stdout)?)
        };
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let table = text(&["-n", namespace])?;
        let lines: Vec<_> = table.lines().map(words).collect();
        assert_eq!(
            lines[0],
            ["NAME", "MODE", "STATE", "NODE", "RUNNING", "AGE", "REASON"]
        );
        assert_eq!(
            lines[1][..5],
            ["runs", "pipelineruns", "Running", on, "1/1"],
            "{table}"
        );
        assert_eq!(
            lines[2][..5],
            ["waits", "pipelineruns", "Waiting", "<none>", "0/1"],
            "{table}"
        );
        assert_eq!(lines[2][6], "PlaceholderUnschedulable", "{table}");
        let wide = text(&["-n", namespace, "-o", "wide", "--no-headers"])?;
        assert!(
            wide.starts_with("runs") && wide.contains(&placeholder.name_any()),
            "{wide}"
        );
        assert!(
            wide.contains(waits["blocked"]["message"].as_str().unwrap()),
            "{wide}"
        );
        let everywhere = text(&["-A"])?;
        assert!(everywhere.starts_with("NAMESPACE"), "{everywhere}");
        let mut lines = everywhere.lines().map(words);
        assert!(
            lines.any(|line| line[..2] == [namespace, "runs"]),
            "{everywhere}"
        );
        let completed = |words: &[&str]| -> anyhow::Result<String> {
            let cluster = ["--kubeconfig", admin.to_str().unwrap(), "-n", namespace];
            let line = [&["__complete", "explain"][..], &cluster, words].concat();
            Ok(String::from_utf8(plugin(&line)?.stdout)?)
        };
        assert_eq!(completed(&["wa"])?, "waits\n:4\n");
        assert_eq!(completed(&["--out"])?, "--output\n:4\n");
        let names = text(&["-n", namespace, "-o", "name"])?;
        assert_eq!(
            names,
            "pipelinerun.tekton.dev/runs\npipelinerun.tekton.dev/waits\n"
        );
        let yaml: Value = serde_saphyr::from_str(&text(&["-n", namespace, "-o", "yaml"])?)?;
        assert_eq!(yaml, json);

        scene.end("runs", "one").await?;
        scene.succeeds("runs").await?;
        assert_eq!(
            text(&["-n", namespace, "-o", "name"])?,
            "pipelinerun.tekton.dev/waits\n"
        );
        let ended = answer(&status(&admin, &["runs", "-n", namespace, "-o", "json"]))?;
        assert_eq!(ended["runs"][0]["state"], "Succeeded", "{ended}");
        Ok(())
    })
}

#[test]
fn b5_status_works_with_few_rights_and_names_those_that_lack() -> Outcome {
    shared(async |scene| {
        scene
            .submit(run("runs").task("one", &[], &[]).held("one"))
            .await?;
        let namespace = scene.namespace.as_str();
        let user = scene.stack.bed.kubeconfig_for(namespace, "default").await?;
        let arguments = status(&user, &["-n", namespace, "-o", "json"]);
        let output = plugin(&arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("failed to list PipelineRuns"), "{errors}");
        assert!(errors.contains("cannot list resource"), "{errors}");

        let runs = json!({"apiGroups": ["tekton.dev"], "resources": ["pipelineruns"], "verbs": ["get", "list"]});
        grant(&scene, &json!([runs])).await?;
        // The API server's own cache of rights shows the change a moment later.
        look::until("the user may list PipelineRuns", async || {
            Ok(plugin(&arguments)?.status.success())
        })
        .await?;
        let output = plugin(&arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            errors.contains("warning: pods and their nodes are not shown"),
            "{errors}"
        );
        let json: Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(json["runs"][0]["name"], "runs");
        assert_eq!(json["runs"][0].get("placeholders"), None, "{json}");
        let table = plugin(&status(&user, &["-n", namespace]))?;
        assert!(String::from_utf8(table.stdout)?.contains("<unknown>"));

        let watched = || -> anyhow::Result<_> {
            let watched = plugin(&status(&user, &["-n", namespace, "-w"]))?;
            assert_eq!(watched.status.code(), Some(1));
            Ok(String::from_utf8(watched.stderr)?)
        };
        let errors = watched()?;
        assert!(errors.contains("failed to list pods"), "{errors}");
        let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]});
        let path = format!("{RBAC}/roles/{ROLE}");
        let rules = json!({"rules": [runs, pods]});
        scene.send("PATCH", &path, &rules).await?.accepted()?;
        look::until("the user may list pods", async || {
            Ok(!watched()?.contains("failed to list pods"))
        })
        .await?;
        let errors = watched()?;
        assert!(errors.contains("failed to watch"), "{errors}");

        let admin = scene.stack.bed.kubeconfig().to_owned();
        let missing = plugin(&status(&admin, &["missing", "-n", namespace]))?;
        let errors = String::from_utf8_lossy(&missing.stderr);
        assert_eq!(missing.status.code(), Some(3), "{errors}");
        assert!(errors.contains("\"missing\" not found"), "{errors}");
        Ok(())
    })
}

/// The subcommands that read a cluster, each with arguments and a field of its answer. Run `runs` exists.
const READERS: [(&str, &[&str], &str); 6] = [
    ("status", &[], "runs[0].mode"),
    ("status", &["runs"], "runs[0].mode"),
    ("explain", &["runs"], "mode"),
    ("events", &["pipelinerun/runs"], "events[0].reason"),
    ("nodes", &[], "nodes[0].name"),
    ("check", &[], "checks[0].check"),
];

#[test]
fn b5_each_subcommand_has_each_format() -> Outcome {
    shared(async |scene| {
        let held = run("runs").template("source");
        let held = held.task("one", &["source"], &[]).held("one");
        scene.submit(held).await?;
        let running = |pod: &Pod| pods::phase(pod) == PodPhase::Running;
        scene
            .until_all::<Pod>("are running", |pods| {
                pods.iter().filter(|pod| running(pod)).count() == 2
            })
            .await?;
        let bed = &scene.stack.bed;
        for (subcommand, arguments, field) in READERS {
            let of_namespace = match subcommand {
                "nodes" | "check" => Vec::new(),
                _ => vec!["-n", scene.namespace.as_str()],
            };
            let in_format = |format: &str| -> anyhow::Result<String> {
                let arguments = [arguments, &of_namespace, &["-o", format][..]].concat();
                let output = plugin(&with_rights(subcommand, bed.kubeconfig(), &arguments))?;
                let errors = String::from_utf8_lossy(&output.stderr);
                ensure!(
                    output.status.success(),
                    "{subcommand} -o {format}: {errors}"
                );
                Ok(String::from_utf8(output.stdout)?)
            };
            let keys = |value: &Value| -> Vec<String> {
                value.as_object().unwrap().keys().cloned().collect()
            };
            let json: Value = serde_json::from_str(&in_format("json")?)?;
            let yaml: Value = serde_saphyr::from_str(&in_format("yaml")?)?;
            assert_eq!(keys(&json), keys(&yaml), "{subcommand}");
            let first = in_format(&format!("jsonpath={{.{field}}}"))?;
            let pointer = format!("/{}", field.replace(['[', '.'], "/").replace(']', ""));
            assert_eq!(json.pointer(&pointer), Some(&json!(first)), "{subcommand}");
            let table = plugin(&with_rights(
                subcommand,
                bed.kubeconfig(),
                &[arguments, &of_namespace, &["--context", "testbed"]].concat(),
            ))?;
            let table = String::from_utf8(table.stdout)?;
            ensure!(table.contains(&first), "{subcommand}: {table}");
            ensure!(!table.contains('\u{1b}'), "colours in a pipe: {table}");
            for format in ["name", "wide"] {
                let text = in_format(format)?;
                ensure!(!text.is_empty(), "{subcommand} -o {format}");
                let named = text.lines().all(|line| line.contains('/'));
                ensure!(named || format == "wide" || subcommand == "check", "{text}");
            }
        }
        Ok(())
    })
}

#[test]
fn b5_each_subcommand_has_each_exit_code() -> Outcome {
    shared(async |scene| {
        let nobody = nobody("nobody-of-all")?;
        let bed = scene.stack.bed.kubeconfig();
        for (subcommand, arguments, _) in READERS {
            let failure = |kubeconfig: &Path, arguments: &[&str]| -> anyhow::Result<_> {
                let output = plugin(&with_rights(subcommand, kubeconfig, arguments))?;
                let errors = String::from_utf8(output.stderr)?;
                ensure!(!errors.is_empty(), "{subcommand} {arguments:?}");
                Ok((output.status.code(), errors))
            };
            let wrong = [arguments, &["-o", "text"]].concat();
            assert_eq!(failure(bed, &wrong)?.0, Some(2), "{subcommand}");
            let (code, errors) = failure(&nobody, arguments)?;
            assert_eq!(code, Some(4), "{subcommand}");
            let fault = "error: the API server at http://127.0.0.1:1/ does not answer: Connection refused (os error 111)\n";
            assert_eq!(errors, fault, "{subcommand}");
            if !arguments.is_empty() {
                let missing = ["missing", "-n", scene.namespace.as_str()];
                assert_eq!(failure(bed, &missing)?.0, Some(3), "{subcommand}");
            }
        }
        for (kubeconfig, more, code) in [(bed, "--port=none", 2), (&nobody, "-A", 4)] {
            let output = plugin(&with_rights("ui", kubeconfig, &[more]))?;
            assert_eq!(output.status.code(), Some(code), "{output:?}");
        }
        Ok(())
    })
}

#[test]
fn b5_explain_asks_the_placeholder_manager_without_rights_in_the_cluster() -> Outcome {
    shared(async |scene| {
        let held = run("runs").template("source");
        let held = held.task("one", &["source"], &[]).held("one");
        scene.submit(held).await?;
        let (set, placeholder) = scene.placeholder().await?;
        // No node has the label of this run's pool.
        let waits = run("waits").in_pool_of(&scene).template("source");
        scene.submit(waits.task("one", &["source"], &[])).await?;
        let namespace = scene.namespace.as_str();
        let ask = |service, name: &str, more: &[&str]| {
            let server = server(&scene, service);
            let server: Vec<_> = server.iter().map(String::as_str).collect();
            plugin(&[&["explain", name][..], &server, more].concat())
        };
        let in_format = |name: &str, format: &str| -> anyhow::Result<String> {
            let more = ["-n", namespace, "-o", format];
            let output = ask(Service::PlaceholderManager, name, &more)?;
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{name} -o {format}: {errors}");
            Ok(String::from_utf8(output.stdout)?)
        };
        let mut waits = Value::Null;
        look::until("the manager knows why the run waits", async || {
            // At first, the manager has perhaps not seen the run.
            let Ok(answer) = in_format("waits", "json") else {
                return Ok(false);
            };
            waits = serde_json::from_str(&answer)?;
            Ok(waits["cause"]["code"] == "PlaceholderUnschedulable"
                && !waits["pods"][0]["schedulerMessage"].is_null())
        })
        .await
        .with_context(|| format!("the last answer: {waits}"))?;
        let first = &waits["placeholders"][0];
        assert_eq!(
            (&first["phase"], &first["node"]),
            (&json!("Pending"), &json!(null))
        );
        let text = in_format("waits", "wide")?;
        let line = format!("PipelineRun {namespace}/waits\n├─ waits: PlaceholderUnschedulable\n");
        assert!(text.starts_with(&line), "{text}");
        for fact in [
            &waits["cause"]["message"],
            &waits["pods"][0]["schedulerMessage"],
        ] {
            assert!(text.contains(fact.as_str().unwrap()), "{fact}: {text}");
        }

        let mut runs = Value::Null;
        let on = node(&placeholder).unwrap();
        look::until("the manager knows the node of the run's pod", async || {
            runs = serde_json::from_str(&in_format("runs", "json")?)?;
            Ok(runs["pods"][0]["node"] == on)
        })
        .await
        .with_context(|| format!("the last answer: {runs}"))?;
        let set = set.name_any();
        let mut first = runs["placeholders"][0].clone();
        let created = first["createTime"].take();
        assert!(created.as_str().unwrap().ends_with('Z'), "{created}");
        let [claim] = &pods::claims(&placeholder)[..] else {
            panic!("{placeholder:?}");
        };
        assert_eq!(
            first,
            json!({
                "name": set, "phase": "Bound", "node": on, "mode": "pipelineruns", "claimNames": [claim],
                "createTime": null, "waiting": null,
            })
        );
        assert_eq!(runs["pipelineRun"]["namespace"], namespace);
        assert_eq!(runs["pods"][0]["placeholders"], json!([set]));
        assert_eq!(runs["cause"], json!(null));
        let text = in_format("runs", "wide")?;
        for fact in [
            "no cause for waiting found\n",
            "mode: pipelineruns, from key coschedule of ConfigMap coscheduler-config, resourceVersion ",
            &format!("placeholder {set}: Bound, on {on}\n│  └─ claim {claim}\n"),
        ] {
            assert!(text.contains(fact), "{fact}: {text}");
        }
        let yaml: Value = serde_saphyr::from_str(&in_format("runs", "yaml")?)?;
        assert_eq!(yaml, runs);
        assert_eq!(in_format("runs", "name")?, "pipelinerun.tekton.dev/runs\n");
        assert_eq!(in_format("runs", "jsonpath={.pipelineRun.name}")?, "runs");

        // The kubeconfig's context has no namespace.
        let admin = scene.stack.bed.kubeconfig().to_str().unwrap();
        for (service, more, code, fault) in [
            (Service::PlaceholderManager, ["-n", namespace], 3, namespace),
            (
                Service::PlaceholderManager,
                ["--kubeconfig", admin],
                3,
                "default",
            ),
            (
                Service::AffinityPlanner,
                ["-n", namespace],
                1,
                "not implemented",
            ),
        ] {
            let output = ask(service, "missing", &more)?;
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{more:?}: {errors}");
            assert!(errors.contains(fault), "{more:?}: {errors}");
            assert!(output.stdout.is_empty(), "{more:?}");
        }
        scene.end("runs", "one").await?;
        look::until("the manager knows the end of the run", async || {
            Ok(in_format("runs", "wide")?.contains("the run is done"))
        })
        .await?;
        Ok(())
    })
}

/// A kubeconfig of this name, of a cluster that does not answer.
fn nobody(name: &str) -> anyhow::Result<PathBuf> {
    let nobody = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "nobody",
        "clusters": [{"name": "nobody", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "nobody", "context": {"cluster": "nobody", "user": "nobody"}}],
    });
    std::fs::write(&nobody, kubeconfig.to_string())?;
    Ok(nobody)
}

#[test]
fn b5_status_without_a_cluster_fails_with_an_exit_code_for_each_cause() -> Outcome {
    let nobody = nobody("nobody-of-status")?;
    let missing = nobody.with_file_name("missing");
    for (arguments, code, fault) in [
        (
            status(&nobody, &["-w"]),
            4,
            "the API server at http://127.0.0.1:1/ does not answer: ",
        ),
        (status(&nobody, &["--context", "other"]), 1, "other"),
        (status(&missing, &[]), 1, "missing"),
        (status(&nobody, &["-A", "-n", "ns"]), 2, "--namespace"),
        (status(&nobody, &["a", "-A"]), 2, "--all-namespaces"),
    ] {
        let output = plugin(&arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(fault), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    Ok(())
}

#[test]
fn b5_status_writes_the_row_of_a_run_again_when_it_changes() -> Outcome {
    shared(async |scene| {
        let admin = scene.stack.bed.kubeconfig().to_owned();
        let namespace = scene.namespace.as_str();
        let watch = Watch::start(&status(&admin, &["-n", namespace, "-w", "-o", "wide"]))?;
        let held = run("held").task("one", &[], &[]).held("one");
        scene.submit(held).await?;
        watch.shows(&["held", "pipelineruns", "Running"]).await?;
        for (more, cells) in [
            (&["-n", namespace][..], &["held", "pipelineruns"][..]),
            (&["held", "-n", namespace], &["held", "pipelineruns"]),
            (&["-A"], &[namespace, "held", "pipelineruns"]),
            (
                &["-n", namespace, "-o", "name"],
                &["pipelinerun.tekton.dev/held"],
            ),
            (
                &["-n", namespace, "-o", "jsonpath={.runs[0].name}{\"\\n\"}"],
                &["held"],
            ),
            (
                &["-n", namespace, "-o", "json"],
                &["\"name\":", "\"held\","],
            ),
            (&["-n", namespace, "-o", "yaml"], &["name:", "held"]),
        ] {
            let watch = Watch::start(&status(&admin, &[&["-w"], more].concat()))?;
            watch
                .shows(cells)
                .await
                .with_context(|| format!("{more:?}"))?;
        }
        let (_, placeholder) = scene.placeholder().await?;
        let on = node(&placeholder).unwrap();
        watch
            .shows(&["held", "pipelineruns", "Running", on, "1/1"])
            .await?;
        scene.end("held", "one").await?;
        watch.shows(&["held", "pipelineruns", "Succeeded"]).await?;
        let rows = watch.rows();
        ensure!(rows[0].starts_with("NAME"), "{rows:?}");
        let cells = |row: &String| {
            let cells = row.split_whitespace().map(str::to_owned);
            cells
                .enumerate()
                .filter(|(column, _)| *column != 5)
                .collect::<Vec<_>>()
        };
        let differ = |rows: &[String]| cells(&rows[0]) != cells(&rows[1]);
        ensure!(rows.windows(2).all(differ), "{rows:?}");
        // Each cell is below its header, also after a column became wider.
        let mut headers = "";
        for row in &rows {
            if row.starts_with("NAME") {
                headers = row;
            }
            for header in headers.split_whitespace() {
                let (before, cell) = row.split_at(headers.find(header).unwrap());
                let begins = before.is_empty() || before.ends_with("  ");
                ensure!(begins && !cell.starts_with(' '), "{header}: {rows:#?}");
            }
        }
        Ok(())
    })
}

/// A running `kubectl coschedule` that writes rows. It ends when this value is dropped.
struct Watch {
    process: Child,
    rows: Arc<Mutex<Vec<String>>>,
}

impl Watch {
    fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut process = Command::new(bin_dir()?.join("kubectl-coschedule"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().context("no standard output")?;
        let rows = Arc::new(Mutex::new(Vec::new()));
        let written = rows.clone();
        std::thread::spawn(move || {
            for row in BufReader::new(output).lines().map_while(Result::ok) {
                written.lock().unwrap().push(row);
            }
        });
        Ok(Self { process, rows })
    }

    fn rows(&self) -> Vec<String> {
        self.rows.lock().unwrap().clone()
    }

    /// Waits for a row that begins with these cells.
    async fn shows(&self, cells: &[&str]) -> Outcome {
        let what = format!("a row begins with {cells:?}");
        let shown = look::until(&what, async || {
            let begins = |row: &String| {
                let row: Vec<_> = row.split_whitespace().take(cells.len()).collect();
                row == cells
            };
            Ok(self.rows().iter().any(begins))
        });
        shown.await.with_context(|| format!("{:?}", self.rows()))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn b5_nodes_shows_the_runs_and_the_room_of_each_node() -> Outcome {
    shared(async |scene| {
        scene.pool_of(&[("8", 110)]).await?;
        let name = scene.pool_node(1);
        let admin = scene.stack.bed.kubeconfig().to_owned();
        let of_node = || -> anyhow::Result<Value> {
            let all = answer(&with_rights("nodes", &admin, &["-o", "json"]))?;
            let mut nodes = all["nodes"].as_array().context("no nodes")?.iter();
            let found = nodes.find(|node| node["name"] == name);
            Ok(found.context("no such node")?.clone())
        };
        let held = run("held").in_pool_of(&scene).template("source");
        let held = held.task("one", &["source"], &[]).asking("3").held("one");
        scene.submit(held).await?;
        let namespace = scene.namespace.as_str();
        let (_, placeholder) = scene.placeholder().await?;
        let placeholder = json!(format!("{namespace}/{}", placeholder.name_any()));
        let run = json!(format!("{namespace}/held"));
        let number = |of: &Value| of.as_i64().unwrap_or_default();
        // Other tests of this file may have pods on the node too.
        look::until("the placeholder has given up the task's room", async || {
            let node = of_node()?;
            let has = |field: &str, item: &Value| {
                let items = node[field].as_array();
                items.is_some_and(|items| items.contains(item))
            };
            let placeholders = node["placeholders"].as_array().map_or(0, Vec::len);
            let pods = node["pods"].as_array().into_iter().flatten();
            let task = pods.filter(|pod| pod["run"] == run && pod["milliCpu"] == 3000);
            Ok(has("runs", &run)
                && task.count() == 1
                && node["allocatableMilliCpu"] == 8000
                && has("placeholders", &placeholder)
                && number(&node["heldMilliCpu"]) == 50 * i64::try_from(placeholders)?
                && (1..=8000 - 3000 - 50).contains(&number(&node["freeMilliCpu"])))
        })
        .await?;
        let table = plugin(&with_rights("nodes", &admin, &["-o", "wide"]))?;
        let table = String::from_utf8(table.stdout)?;
        assert!(table.starts_with("NODE"), "{table}");
        let row = table.lines().find(|line| line.starts_with(&name)).unwrap();
        assert!(row.contains(run.as_str().unwrap()), "{row}");
        assert!(row.contains("   cpu 8, memory "), "{row}");
        let task = table.lines().find(|line| line.contains(": cpu 3, memory "));
        assert!(task.is_some_and(|line| line.contains(namespace)), "{table}");

        let user = scene.stack.bed.kubeconfig_for(namespace, "default").await?;
        let refused = plugin(&with_rights("nodes", &user, &[]))?;
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{errors}");
        assert!(errors.contains("failed to list nodes"), "{errors}");
        Ok(())
    })
}

#[test]
fn b5_check_finds_what_an_installation_lacks() -> Outcome {
    shared(async |scene| {
        let admin = scene.stack.bed.kubeconfig().to_owned();
        let check = |kubeconfig: &Path, more: &[&str]| -> anyhow::Result<_> {
            let more = [&["-o", "json"][..], more].concat();
            let output = plugin(&with_rights("check", kubeconfig, &more))?;
            let json: Value = serde_json::from_slice(&output.stdout)?;
            let verdicts = json["checks"].as_array().unwrap().iter().map(|it| {
                let text = |field: &str| it[field].as_str().unwrap_or_default().to_owned();
                (text("check"), text("verdict"))
            });
            Ok((output, verdicts.collect::<BTreeMap<_, _>>()))
        };
        // On the test bed, the services are processes and not Deployments, as with `cargo xtask services`.
        let (output, verdicts) = check(&admin, &[])?;
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("expected with `cargo xtask services`"),
            "{text}"
        );
        for (check, expect) in [
            ("tekton-flag", "ok"),
            ("configuration", "ok"),
            ("priority-class", "ok"),
            ("webhooks", "ok"),
            ("certificates", "ok"),
            ("rights", "ok"),
            ("services", "warning"),
            ("nodes", "ok"),
            ("pods-resize", "ok"),
            ("autoscaler", "ok"),
        ] {
            assert_eq!(verdicts[check], expect, "{check}: {verdicts:?}");
        }
        let (output, before) = check(&admin, &["--pre", "-n", "nowhere"])?;
        assert_eq!(output.status.code(), Some(0), "{before:?}");
        let installed = ["webhooks", "certificates", "services"];
        assert!(before.len() == verdicts.len() - 3, "{before:?}");
        assert!(installed.iter().all(|it| !before.contains_key(*it)));
        let (output, verdicts) = check(
            &admin,
            &["--tekton-namespace", "elsewhere", "-n", "nowhere"],
        )?;
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("1 of 11 checks failed"), "{errors}");
        assert_eq!(verdicts["tekton-flag"], "failed");
        assert_eq!(verdicts["configuration"], "warning");

        let bed = &scene.stack.bed;
        let user = bed.kubeconfig_for(&scene.namespace, "default").await?;
        let (output, verdicts) = check(&user, &[])?;
        assert_eq!(
            output.status.code(),
            Some(0),
            "nothing that was read is wrong"
        );
        for unread in ["nodes", "webhooks", "certificates"] {
            assert_eq!(verdicts[unread], "unknown", "{verdicts:?}");
        }
        assert_eq!(verdicts["rights"], "warning", "{verdicts:?}");
        assert_eq!(verdicts["pods-resize"], "ok", "everybody may read this");
        Ok(())
    })
}

#[test]
fn b5_plan_prints_for_every_example_what_the_cluster_then_gets() -> Outcome {
    if without_sets() {
        return Ok(());
    }
    shared(async |scene| {
        let map_file = stored_config(&scene).await?;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(examples())? {
            files.push(entry?.path());
        }
        ensure!(files.len() >= 13, "{files:?}");
        let checks = files.iter().map(|file| async {
            let checked = check_example(&scene, file, &map_file).await;
            checked.with_context(|| format!("{}", file.display()))
        });
        try_join_all(checks).await?;
        Ok(())
    })
}

#[test]
fn b5_v2a_plan_of_a_copied_run_is_what_the_cluster_then_gets() -> Outcome {
    shared(async |scene| {
        let first = run("first").template("source");
        let first = first.task("one", &["source"], &[]);
        scene.submit(first).await?;
        scene.succeeds("first").await?;
        let stored = scene.api::<PipelineRun>().get("first").await?;
        let mut copy = json!(stored);
        copy["metadata"]["generateName"] = "copy-".into();
        for field in ["name", "resourceVersion"] {
            copy["metadata"].as_object_mut().unwrap().remove(field);
        }
        let namespace = scene.namespace.as_str();
        let plan = ["plan", "-f", "-", "--mode", "pipelineruns", "-o", "json"];
        let plan = plugin_with(&plan, &copy.to_string())?;
        let errors = String::from_utf8_lossy(&plan.stderr);
        ensure!(plan.status.success(), "{errors}");
        let plan: Value = serde_json::from_slice(&plan.stdout)?;
        let plan = &plan["runs"][0];
        assert_eq!(
            (&plan["mode"], &plan["modeFrom"]),
            (&json!("pipelineruns"), &json!("flag --mode"))
        );
        assert_eq!(plan["placeholders"].as_array().unwrap().len(), 1, "{plan}");
        let created = create(&scene, namespace, &copy, false).await?;
        let bound = &created.data["spec"]["workspaces"][0]["persistentVolumeClaim"]["claimName"];
        let planned = &plan["bindings"][0]["claimName"];
        assert_eq!(renamed(bound, &[]), renamed(planned, &[]));
        let before = &stored.spec["workspaces"][0]["persistentVolumeClaim"]["claimName"];
        assert!(bound != before && planned != before, "{before}");
        let file = scene.stack.bed.dir().join("copy.json");
        std::fs::write(&file, copy.to_string())?;
        let asked = ask_server(&scene, file.to_str().unwrap())?;
        assert_eq!(asked["runs"][0]["bindings"], plan["bindings"], "{asked}");
        scene.succeeds(&created.name_any()).await?;
        Ok(())
    })
}

#[test]
fn v8_b5_plan_of_a_run_with_shared_claims_is_what_the_cluster_then_gets() -> Outcome {
    if without_sets() {
        return Ok(());
    }
    let configure = |services: &mut testbed::services::ServicesConfig| {
        services.mode = Some("workspaces".to_owned());
        services.flags.extend([
            ("allowed-overrides".to_owned(), OVERRIDES.to_owned()),
            ("coschedule-claims".to_owned(), "node-bound".to_owned()),
        ]);
    };
    alone_with(Config::default(), configure, async |scene| {
        let folder = scene.stack.bed.dir();
        let map = stored_config(scene).await?;
        // The example's only claim is shared, so the run has no placeholder.
        let example = examples().join("read-write-many.yaml");
        check_example(scene, &example, &map).await?;
        // The run of this file has one placeholder: its task uses the example's claim, and a claim for one node.
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&std::fs::read_to_string(&example)?)?;
        let both = run("both")
            .template("source")
            .workspace(
                "datasets",
                json!({"persistentVolumeClaim": {"claimName": "datasets"}}),
            )
            .task("both", &["source", "datasets"], &[])
            .into_json();
        let file = folder.join("shared-claims.yaml");
        std::fs::write(&file, format!("{}\n---\n{both}\n", documents[0]))?;
        check_example(scene, &file, &map).await
    })
}

#[test]
fn b5_plan_of_a_run_with_placeholder_pods_is_what_the_cluster_then_gets() -> Outcome {
    let configure = |services: &mut testbed::services::ServicesConfig| {
        let pods = ("placeholder-backend".to_owned(), "pod".to_owned());
        services.flags.extend([pods]);
    };
    alone_with(Config::default(), configure, async |scene| {
        let (example, map) = (
            examples().join("two-volumes.yaml"),
            stored_config(scene).await?,
        );
        let (file, map) = (example.to_str().unwrap(), map.to_str().unwrap());
        let namespace = scene.namespace.as_str();
        let planned = answer(&[
            "plan", "-f", file, "--config", map, "-n", namespace, "-o", "json",
        ])?;
        let planned = &planned["runs"][0];
        let document: Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
        let run = create(scene, namespace, &document, false).await?;
        let pods = scene
            .until_all::<Pod>("contain a placeholder", |pods| {
                pods.iter().any(|pod| look::is_placeholder(pod))
            })
            .await?;
        let claims = scene
            .until_all::<PersistentVolumeClaim>("are two", |claims| claims.len() == 2)
            .await?;
        // Without what the API server and the scheduler add, and without requests, which the manager changes.
        let facts = |object: &Value| {
            let (metadata, spec) = (&object["metadata"], &object["spec"]);
            json!({
                "name": metadata["name"], "labels": metadata["labels"], "ownerReferences": metadata["ownerReferences"],
                "volumes": spec["volumes"], "affinity": spec["affinity"], "accessModes": spec["accessModes"],
                "storage": spec["resources"]["requests"]["storage"],
            })
        };
        let pods = pods.iter().filter(|pod| look::is_placeholder(pod));
        let mut cluster: Vec<_> = pods.map(|pod| facts(&json!(**pod))).collect();
        cluster.extend(claims.iter().map(|claim| facts(&json!(**claim))));
        let placeholders = planned["placeholders"].as_array().unwrap().iter();
        let objects = placeholders.flat_map(|own| own["objects"].as_array().unwrap());
        let mut plan: Vec<_> = objects.map(facts).collect();
        // Names differ only in what derives from the uid.
        for objects in [&mut cluster, &mut plan] {
            objects
                .sort_by_key(|object| (object["volumes"].is_null(), object["labels"].to_string()));
        }
        let no_uid = "00000000-0000-0000-0000-000000000000";
        let uid = run.uid().unwrap_or_default();
        let cluster = renamed(&json!(cluster), &[(&uid, "UID"), (&run.name_any(), "RUN")]);
        let planned_name = planned["name"].as_str().unwrap();
        let plan = renamed(&json!(plan), &[(no_uid, "UID"), (planned_name, "RUN")]);
        ensure!(
            cluster == plan,
            "the cluster has\n{cluster}\nand the plan is\n{plan}"
        );
        scene.succeeds(&run.name_any()).await?;
        Ok(())
    })
}

/// A file with ConfigMap `coscheduler-config` as the cluster has it.
async fn stored_config(scene: &Scene<'_>) -> anyhow::Result<PathBuf> {
    let maps: Api<ConfigMap> = Api::namespaced(scene.client.clone(), NAMESPACE);
    let map = serde_json::to_string(&maps.get(CONFIG_MAP).await?)?;
    let file = scene.stack.bed.dir().join("plugin-config.json");
    std::fs::write(&file, map)?;
    Ok(file)
}

/// Plans an example, creates it in a namespace of its own, and compares.
async fn check_example(scene: &Scene<'_>, file: &Path, map: &Path) -> Outcome {
    let scene = scene.stack.scene().await?;
    let (name, map) = (file.to_str().unwrap(), map.to_str().unwrap());
    let namespace = scene.namespace.as_str();
    let planned = answer(&[
        "plan", "-f", name, "--config", map, "-n", namespace, "-o", "json",
    ])?;
    let asked = ask_server(&scene, name)?;
    ensure!(
        asked == without_admission(&planned),
        "the planner says\n{asked}\ninstead of\n{planned}"
    );
    let planned = &planned["runs"][0];
    let mut created = Vec::new();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(file)?)?;
    for document in &documents {
        created.push(create(&scene, namespace, document, false).await?);
    }
    let (run, document) = (created.pop().unwrap(), documents.last().unwrap());
    let placeholders = planned["placeholders"].as_array().unwrap();
    if placeholders.is_empty() {
        // Not every example can finish here.
        scene
            .until_all::<Pod>("have ended", |pods| {
                let mut phases = pods
                    .iter()
                    .filter_map(|pod| pod.status.as_ref()?.phase.as_deref());
                phases.any(|phase| phase == "Succeeded")
            })
            .await?;
        let stays = scene.stack.history.stays(namespace).await?;
        ensure!(!stays.iter().any(|stay| stay.placeholder), "{stays:?}");
    }
    let sets = scene
        .until_sets("are the planned ones", |sets| {
            sets.len() == placeholders.len()
        })
        .await?;
    let mut objects: Vec<Value> = sets.iter().map(|set| json!(**set)).collect();
    let made_claims = |claims: &[Arc<PersistentVolumeClaim>]| -> Vec<Value> {
        let by_us = claims.iter().filter(|claim| {
            let single = claim
                .spec
                .as_ref()
                .and_then(|spec| spec.access_modes.clone());
            single.is_some_and(|modes| modes == ["ReadWriteOncePod"])
        });
        by_us.map(|claim| json!(**claim)).collect()
    };
    let mut expected: Vec<&Value> = placeholders
        .iter()
        .flat_map(|placeholder| placeholder["objects"].as_array().unwrap())
        .collect();
    let single = expected.len() - placeholders.len();
    let claims = scene
        .until_all::<PersistentVolumeClaim>("are the planned ones", |claims| {
            made_claims(claims).len() == single
        })
        .await?;
    objects.extend(made_claims(&claims));
    // The names are random, so placeholders of several architectures have no order of their own.
    let selector = |object: &Value| object["spec"]["template"]["spec"]["nodeSelector"].to_string();
    objects.sort_by_key(selector);
    expected.sort_by_key(|object| selector(object));

    // The API server sets the defaults of the planned objects.
    let elsewhere = scene.stack.scene().await?.namespace;
    let mut printed = Vec::new();
    for object in expected {
        let created = create(&scene, &elsewhere, object, true).await?;
        printed.push(compared(&json!(created)));
    }
    let own = document["metadata"]["annotations"].clone();
    let mut annotations = json!(run.annotations());
    annotations
        .as_object_mut()
        .unwrap()
        .retain(|key, _| own[key].is_null());
    forget_version(&mut annotations);
    let bindings: BTreeMap<_, _> = run.data["spec"]["workspaces"]
        .as_array()
        .into_iter()
        .flatten()
        .zip(
            document["spec"]["workspaces"]
                .as_array()
                .unwrap_or(&Vec::new()),
        )
        .filter(|(stored, written)| {
            let claim = "persistentVolumeClaim";
            stored[claim] != written[claim]
        })
        .map(|(stored, _)| {
            (
                stored["name"].to_string(),
                &stored["persistentVolumeClaim"]["claimName"],
            )
        })
        .collect();
    let planned_bindings: BTreeMap<_, _> = planned["bindings"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|binding| (binding["workspace"].to_string(), &binding["claimName"]))
        .collect();
    let cluster = json!({
        "annotations": annotations, "bindings": bindings,
        "objects": objects.iter().map(compared).collect::<Vec<_>>(),
    });
    let plan = json!({
        "annotations": planned["annotations"], "bindings": planned_bindings, "objects": printed,
    });
    let uid = run.uid().unwrap_or_default();
    let cluster = renamed(&cluster, &[(&uid, "UID"), (&run.name_any(), "RUN")]);
    let planned_name = planned["name"].as_str().unwrap();
    let no_uid = "00000000-0000-0000-0000-000000000000";
    let plan = renamed(&plan, &[(no_uid, "UID"), (planned_name, "RUN")]);
    ensure!(
        cluster == plan,
        "the cluster has\n{cluster}\nand the plan is\n{plan}"
    );
    Ok(())
}

/// The plan that the affinity-planner makes, without the facts that its answer does not have.
fn ask_server(scene: &Scene<'_>, file: &str) -> anyhow::Result<Value> {
    let server = server(scene, Service::AffinityPlanner);
    let mut arguments = vec!["plan", "-f", file, "-n", &scene.namespace, "-o", "json"];
    arguments.extend(server.iter().map(String::as_str));
    Ok(without_admission(&answer(&arguments)?))
}

/// The flags that name a service, with the operator's certificate if the services use mutual TLS.
fn server(scene: &Scene<'_>, service: Service) -> Vec<String> {
    let services = &scene.stack.services;
    let address = services.grpc_address(service);
    let address = address.trim_start_matches("http://").to_owned();
    let mut flags = vec!["--server".to_owned(), address];
    if let Some(folder) = services.certificates(OPERATOR) {
        flags.extend(["--certificates".to_owned(), folder.display().to_string()]);
    }
    flags
}

/// Only the affinity-planner knows the version of the ConfigMap.
fn forget_version(annotations: &mut Value) {
    if let Some(source) = annotations.get_mut(MODE_SOURCE) {
        let text = source.as_str().unwrap();
        *source = json!(text.split(", resourceVersion").next());
    }
}

fn without_admission(plan: &Value) -> Value {
    let mut plan = plan.clone();
    for run in plan["runs"].as_array_mut().unwrap() {
        run["warnings"] = json!([]);
        forget_version(&mut run["annotations"]);
        // This names the file with the ConfigMap, or the ConfigMap itself.
        run["modeFrom"].take();
    }
    plan
}

async fn create(
    scene: &Scene<'_>,
    namespace: &str,
    document: &Value,
    dry_run: bool,
) -> anyhow::Result<DynamicObject> {
    let mut document = document.clone();
    document["metadata"]["namespace"] = namespace.into();
    let object: DynamicObject = serde_json::from_value(document)?;
    let types = object
        .types
        .clone()
        .context("neither apiVersion nor kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
    let api: Api<DynamicObject> = Api::namespaced_with(scene.client.clone(), namespace, &resource);
    let parameters = PostParams {
        dry_run,
        ..PostParams::default()
    };
    let created = api.create(&parameters, &object).await;
    created.with_context(|| format!("failed to create the {}", types.kind))
}

/// The parts of an object that its creator decides.
fn compared(object: &Value) -> Value {
    let mut spec = object["spec"].clone();
    // The volume controller sets this field when it binds a claim.
    spec.as_object_mut().unwrap().remove("volumeName");
    let metadata = &object["metadata"];
    json!({
        "kind": object["kind"], "name": metadata["name"], "labels": metadata["labels"],
        "ownerReferences": metadata["ownerReferences"], "spec": spec,
    })
}

/// The text of a JSON value with these names replaced. Each text of ten hex digits, which derives from a uid, is replaced by a
/// number. Equal texts get the same number.
fn renamed(value: &Value, names: &[(&str, &str)]) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap();
    for (name, replacement) in names {
        text = text.replace(name, replacement);
    }
    let mut seen: Vec<String> = Vec::new();
    let mut result = String::new();
    for word in text.split_inclusive(|character: char| !character.is_ascii_alphanumeric()) {
        let (body, end) = match word.char_indices().next_back() {
            Some((at, last)) if !last.is_ascii_alphanumeric() => word.split_at(at),
            Some(_) | None => (word, ""),
        };
        let derived =
            body.len() == 10 && body.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
        if derived {
            let number = seen
                .iter()
                .position(|known| known == body)
                .unwrap_or_else(|| {
                    seen.push(body.to_owned());
                    seen.len() - 1
                });
            result.push_str(&format!("<{number}>"));
        } else {
            result.push_str(body);
        }
        result.push_str(end);
    }
    result
}

/// The whole answer of the server at `address`, or its beginning up to a text that `is_enough`.
async fn http(
    address: &str,
    path: &str,
    host: &str,
    is_enough: impl Fn(&str) -> bool,
) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let read = async {
        while stream.read_buf(&mut answer).await? > 0 {
            if is_enough(&String::from_utf8_lossy(&answer)) {
                break;
            }
        }
        anyhow::Ok(())
    };
    let read = tokio::time::timeout(Duration::from_secs(60), read).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    read.with_context(|| format!("{path}: {answer}"))??;
    Ok(answer)
}

/// The address of the page that this process serves, as `host:port`.
async fn address(page: &Watch) -> anyhow::Result<String> {
    look::until("the page has an address", async || {
        Ok(!page.rows().is_empty())
    })
    .await?;
    let row = page.rows().remove(0);
    let address = row
        .split(' ')
        .next()
        .and_then(|it| it.strip_prefix("http://"));
    Ok(address.context(row.clone())?.to_owned())
}

#[test]
fn b5_ui_serves_a_page_with_nodes_and_runs_that_changes_with_them() -> Outcome {
    shared(async |scene| {
        let held = run("held").task("one", &[], &[]).held("one");
        scene.submit(held).await?;
        let (_, placeholder) = scene.placeholder().await?;
        let on = node(&placeholder).unwrap();
        let admin = scene.stack.bed.kubeconfig().to_owned();
        let namespace = scene.namespace.as_str();
        let ui = with_rights("ui", &admin, &["-n", namespace, "--port", "0"]);
        let page = Watch::start(&ui)?;
        let address = address(&page).await?;
        ensure!(address.starts_with("127.0.0.1:"), "{address}");
        let name = format!("{namespace}/held");
        // The first event of the stream is the page of this moment.
        let is_running = |text: &str| text.contains("one: Running");
        let running = http(&address, "/changes", "localhost", is_running).await?;
        ensure!(running.contains(&name) && running.contains(on), "{running}");
        let whole = http(&address, "/", &address, |_| false).await?;
        ensure!(whole.contains(&name) && whole.contains(on), "{whole}");
        ensure!(
            whole.contains("content-security-policy: default-src 'none'"),
            "{whole}"
        );
        for (file, part) in [("/page.js", "EventSource"), ("/page.css", "color-scheme")] {
            ensure!(whole.contains(&file[1..]), "{whole}");
            let file = http(&address, file, "localhost", |_| false).await?;
            ensure!(file.contains("200 OK") && file.contains(part), "{file}");
        }
        let refused = http(&address, "/", "example.com", |_| false).await?;
        ensure!(refused.contains("403 Forbidden"), "{refused}");
        ensure!(!refused.contains(&name), "{refused}");

        // No node has the label of this run's pool.
        let waits = run("waits").in_pool_of(&scene).task("one", &[], &[]);
        let has_cause = |text: &str| text.contains("PlaceholderUnschedulable");
        let told = http(&address, "/changes", "localhost", has_cause);
        let (told, submitted) = futures::join!(told, scene.submit(waits));
        submitted?;
        ensure!(told?.contains(&format!("explain waits -n {namespace}")));

        let port = address.rsplit(':').next().unwrap();
        let taken = plugin(&with_rights("ui", &admin, &["--port", port]))?;
        let errors = String::from_utf8_lossy(&taken.stderr);
        assert_eq!(taken.status.code(), Some(1), "{errors}");
        ensure!(errors.contains("--port chooses another one"), "{errors}");
        Ok(())
    })
}

#[test]
fn b5_ui_works_without_the_right_to_read_nodes_and_fails_without_the_others() -> Outcome {
    shared(async |scene| {
        let held = run("held").task("one", &[], &[]).held("one");
        scene.submit(held).await?;
        let namespace = scene.namespace.as_str();
        let user = scene.stack.bed.kubeconfig_for(namespace, "default").await?;
        let ui = with_rights("ui", &user, &["-n", namespace, "--port", "0"]);
        let refused = plugin(&ui)?;
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{errors}");
        ensure!(errors.contains("warning: nodes are not shown"), "{errors}");
        ensure!(errors.contains("failed to watch"), "{errors}");
        let verbs = ["list", "watch"];
        let rules = json!([
            {"apiGroups": ["tekton.dev"], "resources": ["pipelineruns"], "verbs": verbs},
            {"apiGroups": [""], "resources": ["pods"], "verbs": verbs},
        ]);
        grant(&scene, &rules).await?;
        // The API server's own cache of rights shows the change a moment later.
        let mut page = Watch::start(&ui)?;
        look::until("the page is served", async || {
            if page.process.try_wait()?.is_some() {
                page = Watch::start(&ui)?;
            }
            Ok(!page.rows().is_empty())
        })
        .await?;
        let address = address(&page).await?;
        let is_running = |text: &str| text.contains("one: Running");
        let running = http(&address, "/changes", "localhost", is_running).await?;
        ensure!(
            running.contains("You are not allowed to read nodes"),
            "{running}"
        );
        Ok(())
    })
}
