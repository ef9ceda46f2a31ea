//! The built binary of the kubectl plugin.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use testbed::services::bin_dir;

use crate::Scene;

/// The API of roles.
pub const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// The role of [`grant`].
pub const ROLE: &str = "reader";

/// Runs `kubectl coschedule` without a kubeconfig.
///
/// # Errors
///
/// The binary cannot be started.
pub fn plugin(arguments: &[&str]) -> anyhow::Result<Output> {
    plugin_with(arguments, "")
}

/// Runs `kubectl coschedule` with this text as its standard input.
///
/// # Errors
///
/// The binary cannot be started.
pub fn plugin_with(arguments: &[&str], input: &str) -> anyhow::Result<Output> {
    let program = bin_dir()?.join("kubectl-coschedule");
    let mut command = Command::new(&program);
    command.args(arguments).env("KUBECONFIG", "/nonexistent");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let started = command.stderr(Stdio::piped()).spawn();
    let mut started = started.with_context(|| format!("failed to start {}", program.display()))?;
    // An error of this write is ignored: it only means that the program closed its standard input without reading it.
    drop(
        started
            .stdin
            .take()
            .map(|mut pipe| pipe.write_all(input.as_bytes())),
    );
    Ok(started.wait_with_output()?)
}

/// The JSON that the plugin writes.
///
/// # Errors
///
/// The binary cannot be started, fails, or writes no JSON.
pub fn answer(arguments: &[&str]) -> anyhow::Result<Value> {
    parsed(&plugin(arguments)?).with_context(|| format!("{arguments:?}"))
}

fn parsed(output: &Output) -> anyhow::Result<Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs `explain` about a run of the scene, with further arguments. Uses another thread, so that the calling task can look at
/// other runs at the same time.
///
/// # Errors
///
/// The binary cannot be started.
pub async fn explain(scene: &Scene<'_>, run: &str, more: &[&str]) -> anyhow::Result<Output> {
    let arguments = [&[run, "-n", scene.namespace.as_str()], more].concat();
    let arguments = with_rights("explain", scene.stack.bed.kubeconfig(), &arguments);
    let arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
    let run = move || plugin(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await?
}

/// The JSON that `explain` writes about a run of the scene.
///
/// # Errors
///
/// As [`answer`].
pub async fn explanation(scene: &Scene<'_>, run: &str) -> anyhow::Result<Value> {
    parsed(&explain(scene, run, &["-o", "json"]).await?)
}

/// The causes that `explain` may name for a moment while a run makes progress. A placeholder may have no pod yet, or the
/// scheduler has perhaps not tried a pod again since its placeholder was bound.
pub const PASSING: [&str; 2] = ["PlaceholderMissing", "WaitsForScheduler"];

/// The arguments of a subcommand with the rights of this kubeconfig.
pub fn with_rights<'a>(
    subcommand: &'a str,
    kubeconfig: &'a Path,
    more: &[&'a str],
) -> Vec<&'a str> {
    let kubeconfig = kubeconfig.to_str().unwrap_or_default();
    let mut arguments = vec![subcommand, "--kubeconfig", kubeconfig];
    arguments.extend(more);
    arguments
}

/// Grants rights in the namespace of the scene to its default service account, by role [`ROLE`].
///
/// # Errors
///
/// The API server does not answer, or refuses the role.
pub async fn grant(scene: &Scene<'_>, rules: &Value) -> anyhow::Result<()> {
    let role =
        json!({"apiVersion": RBAC, "kind": "Role", "metadata": {"name": ROLE}, "rules": rules});
    let account =
        json!({"kind": "ServiceAccount", "name": "default", "namespace": scene.namespace});
    let of = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE});
    let binding = json!({
        "apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": ROLE}, "roleRef": of,
        "subjects": [account],
    });
    for (resource, object) in [("roles", role), ("rolebindings", binding)] {
        let resource = format!("{RBAC}/{resource}");
        scene.send("POST", &resource, &object).await?.accepted()?;
    }
    Ok(())
}
