//! What the Go modules of the test bed bring beside programs: Tekton's manifests and KWOK's stages. They are copied out of
//! the module cache when the programs are built, so that a boot needs neither `go` nor the module cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::binaries::{Binaries, go, put, read, run};
use crate::manifests;

/// Tekton's manifests that a bed needs, as files or folders of the module's `config` folder.
pub(crate) const TEKTON_MANIFESTS: &[&str] = &[
    "100-namespace",
    "200-clusterrole.yaml",
    "200-role.yaml",
    "200-serviceaccount.yaml",
    "201-clusterrolebinding.yaml",
    "201-rolebinding.yaml",
    "300-crds",
    "500-webhooks.yaml",
    "clusterrole-aggregate-edit.yaml",
    "clusterrole-aggregate-view.yaml",
    "config-defaults.yaml",
    "config-events.yaml",
    "config-feature-flags.yaml",
    "config-info.yaml",
    "config-leader-election-controller.yaml",
    "config-leader-election-webhook.yaml",
    "config-logging.yaml",
    "config-observability.yaml",
    "config-registry-cert.yaml",
    "config-spire.yaml",
    "config-tracing.yaml",
    "config-wait-exponential-backoff.yaml",
];

/// KWOK's stages that a bed uses as they are, as files of the module's `kustomize/stage` folder.
pub(crate) const KWOK_STAGES: &[&str] = &[
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
];

/// Puts Tekton's manifests beside the programs.
pub(crate) fn collect_tekton_manifests(sources: &Path, binaries: &Binaries) -> Result<()> {
    let config = module_folder(sources, "tekton", "github.com/tektoncd/pipeline")?.join("config");
    let mut objects = Vec::new();
    for name in TEKTON_MANIFESTS {
        let path = config.join(name);
        let mut files = Vec::new();
        if path.is_dir() {
            for entry in
                fs::read_dir(&path).with_context(|| format!("failed to read {}", path.display()))?
            {
                files.push(
                    entry
                        .with_context(|| format!("failed to read {}", path.display()))?
                        .path(),
                );
            }
            files.sort();
        } else {
            files.push(path);
        }
        for file in files {
            let found = manifests::parse(&read(&file)?)
                .with_context(|| format!("failed to understand {}", file.display()))?;
            objects.extend(found);
        }
    }
    // As JSON, because these are megabytes and each boot reads them.
    put(binaries, "tekton.json", &Value::Array(objects).to_string())
}

/// Puts KWOK's stages beside the programs.
pub(crate) fn collect_kwok_stages(sources: &Path, binaries: &Binaries) -> Result<()> {
    let stages = module_folder(sources, "kwok", "sigs.k8s.io/kwok")?.join("kustomize/stage");
    let mut text = String::new();
    for name in KWOK_STAGES {
        text.push_str("---\n");
        text.push_str(&read(&stages.join(name))?);
    }
    put(binaries, "kwok-stages.yaml", &text)
}

fn module_folder(sources: &Path, module: &str, path: &str) -> Result<PathBuf> {
    let mut command = go(sources, module);
    command.args(["list", "-m", "-f", "{{.Dir}}", path]);
    let output = run(command).with_context(|| format!("failed to find Go module {path}"))?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if folder.is_empty() {
        bail!("Go module {path} is not downloaded");
    }
    Ok(PathBuf::from(folder))
}
