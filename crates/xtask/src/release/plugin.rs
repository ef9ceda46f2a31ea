//! The kubectl plugin in a release: an archive with a static binary for each architecture, and the manifest with which krew
//! installs it. Only the archive for this machine can be built here. The manifest names the archives for other machines only if
//! they are in the folder already.

use std::path::Path;

use anyhow::{Context as _, ensure};

use super::{hex_digest, image, output};
use crate::binaries::PLUGIN;
use crate::workspace::Workspace;

pub(super) const MANIFEST: &str = "coschedule.yaml";

/// The architectures of a release, as Rust and Kubernetes name them.
const ARCHITECTURES: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// An archive with the plugin.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) name: String,
    pub(super) digest: String,
    arch: &'static str,
}

fn name(version: &str, arch: &str) -> String {
    format!("{PLUGIN}-v{version}-linux-{arch}.tar.gz")
}

/// Builds the archive for this machine. Returns its name.
pub(super) async fn build(workspace: &Workspace, folder: &Path) -> anyhow::Result<String> {
    let own = std::env::consts::ARCH;
    let mut known = ARCHITECTURES.iter();
    let (_, arch) = known
        .find(|(rust, _)| *rust == own)
        .with_context(|| format!("there is no release for {own}"))?;
    let name = name(workspace.version()?, arch);
    let binary = image::build_static(workspace, &["--bin", PLUGIN], PLUGIN).await?;
    let binaries = binary.parent().context("the binary is in no folder")?;
    let mut tar = workspace.command("tar");
    // The same files give the same archive.
    tar.args(["--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--create", "--gzip", "--file"]);
    tar.arg(std::path::absolute(folder)?.join(&name));
    tar.arg("LICENSE")
        .arg("--directory")
        .arg(binaries)
        .arg(PLUGIN);
    output(&mut tar).await?;
    Ok(name)
}

/// The archives in the folder.
pub(super) fn archives(folder: &Path, version: &str) -> anyhow::Result<Vec<Archive>> {
    let mut found = Vec::new();
    for (_, arch) in ARCHITECTURES {
        let name = name(version, arch);
        let path = folder.join(&name);
        if path.exists() {
            let bytes = std::fs::read(&path);
            let bytes = bytes.with_context(|| format!("failed to read {}", path.display()))?;
            let digest = hex_digest(&bytes);
            found.push(Archive { name, digest, arch });
        }
    }
    ensure!(!found.is_empty(), "{} has no archive", folder.display());
    Ok(found)
}

/// The manifest for krew.
pub(super) fn manifest(version: &str, archives: &[Archive]) -> String {
    let home = "https://github.com/tekton-coscheduler/tekton-coscheduler";
    let platforms = archives.iter().map(|Archive { name, digest, arch }| {
        format!(
            "  - selector: {{matchLabels: {{os: linux, arch: {arch}}}}}
    uri: {home}/releases/download/v{version}/{name}
    sha256: {digest}
    bin: {PLUGIN}
"
        )
    });
    let platforms: String = platforms.collect();
    format!(
        "apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata: {{name: coschedule}}
spec:
  version: v{version}
  homepage: {home}
  shortDescription: Shows where PipelineRuns run, and why they wait
  description: |
    Shows the decisions of tekton-coscheduler, which runs pods of a Tekton PipelineRun together on one node. It changes no object.
  platforms:
{platforms}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn krews_manifest_names_the_archives_in_the_folder_with_their_sums() {
        let folder = tempfile::tempdir().unwrap();
        assert!(archives(folder.path(), "0.2.0").is_err());
        for (name, bytes) in [("v0.2.0-linux-amd64", "abc"), ("v0.1.0-linux-arm64", "old")] {
            let name = format!("kubectl-coschedule-{name}.tar.gz");
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let platforms = |arch: &str, digest: &str| {
            let uri = format!(
                "https://github.com/tekton-coscheduler/tekton-coscheduler/releases/download/v0.2.0/\
                 kubectl-coschedule-v0.2.0-linux-{arch}.tar.gz"
            );
            json!({
                "selector": {"matchLabels": {"os": "linux", "arch": arch}},
                "uri": uri, "sha256": digest, "bin": "kubectl-coschedule",
            })
        };
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let read = || -> Value {
            let found = archives(folder.path(), "0.2.0").unwrap();
            serde_saphyr::from_str(&manifest("0.2.0", &found)).unwrap()
        };
        assert_eq!(
            read()["spec"]["platforms"],
            json!([platforms("amd64", abc)])
        );
        let arm64 = "kubectl-coschedule-v0.2.0-linux-arm64.tar.gz";
        std::fs::write(folder.path().join(arm64), "").unwrap();
        let both = [platforms("amd64", abc), platforms("arm64", empty)];
        let manifest = read();
        assert_eq!(manifest["spec"]["platforms"], json!(both));
        assert_eq!(manifest["metadata"]["name"], "coschedule");
        assert_eq!(manifest["spec"]["version"], "v0.2.0");
    }
}
