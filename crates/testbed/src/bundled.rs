//! Files, other than programs, from the Go modules of the test bed: Tekton's manifests, KWOK's stages and Karpenter's
//! CustomResourceDefinitions. The build copies them from the module cache, so that a boot needs neither `go` nor the module
//! cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::files::read;
use crate::releases::Sources;
use crate::{go, manifests};

/// Tekton's manifests that a bed needs, as files or folders of the module's `config` folder.
const TEKTON_MANIFESTS: &[&str] = &[
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

/// KWOK's own stages that a bed uses, as files of the module's `kustomize/stage` folder.
const KWOK_STAGES: &[&str] = &[
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
];

/// The CustomResourceDefinitions of Karpenter and its KWOK provider, as folders of the module.
const KARPENTER_KINDS: &[&str] = &["kwok/charts/crds", "kwok/apis/crds"];

/// The names of the files and folders that are copied from Tekton and KWOK.
pub(crate) fn names() -> Vec<&'static str> {
    TEKTON_MANIFESTS
        .iter()
        .chain(KWOK_STAGES)
        .copied()
        .collect()
}

/// The names of the folders that are copied from Karpenter.
pub(crate) fn karpenter_names() -> Vec<&'static str> {
    KARPENTER_KINDS.to_vec()
}

/// Tekton's manifests, as a JSON list. Each boot reads these several megabytes, and JSON is parsed faster than YAML.
pub(crate) fn tekton_manifests(sources: &Sources) -> Result<String> {
    let module = go::module_folder(sources, "tekton", "github.com/tektoncd/pipeline")?;
    objects(&module.join("config"), TEKTON_MANIFESTS)
}

/// Karpenter's CustomResourceDefinitions, as a JSON list.
pub(crate) fn karpenter_kinds(sources: &Sources) -> Result<String> {
    let module = go::module_folder(sources, "karpenter", "sigs.k8s.io/karpenter")?;
    objects(&module, KARPENTER_KINDS)
}

/// The objects of files and folders, as a JSON list.
fn objects(folder: &Path, names: &[&str]) -> Result<String> {
    let mut objects = Vec::new();
    for name in names {
        for file in files(folder.join(name))? {
            let found = manifests::parse(&read(&file)?)
                .with_context(|| format!("failed to parse {}", file.display()))?;
            objects.extend(found);
        }
    }
    Ok(Value::Array(objects).to_string())
}

/// The files of folder `path`, in order. If `path` is a file, only this file.
fn files(path: PathBuf) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path]);
    }
    let act = || format!("failed to read {}", path.display());
    let entries = fs::read_dir(&path).with_context(act)?;
    let files: Result<Vec<_>, _> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect();
    let mut files = files.with_context(act)?;
    files.sort();
    Ok(files)
}

/// KWOK's stages, as YAML documents.
pub(crate) fn kwok_stages(sources: &Sources) -> Result<String> {
    let module = go::module_folder(sources, "kwok", "sigs.k8s.io/kwok")?;
    let mut text = String::new();
    for name in KWOK_STAGES {
        text.push_str("---\n");
        text.push_str(&read(&module.join("kustomize/stage").join(name))?);
    }
    Ok(text)
}
