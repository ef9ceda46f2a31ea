//! The software bill of materials of a release, in CycloneDX's JSON. It lists the crates from which the services and the
//! kubectl plugin are built, with their versions and licences, as `cargo tree` resolves them from Cargo.lock. Crates that only
//! build scripts or tests use are left out.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value, json};
use testbed::services::Service;

use super::output;
use crate::workspace::Workspace;

/// The target triples of the images. A crate that only another system needs is in no image.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"];

/// The text of the file.
pub(super) async fn write(workspace: &Workspace, version: &str) -> anyhow::Result<String> {
    let mut crates = BTreeMap::new();
    let mut dependencies = BTreeMap::new();
    // Package `cli` is the kubectl plugin.
    let packages = Service::ALL.map(Service::name);
    for service in packages.into_iter().chain(["cli"]) {
        let mut cargo = workspace.cargo();
        cargo.args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
        cargo.args(["--format", "{p}|{l}", "--package", service]);
        cargo.args(TARGETS.iter().flat_map(|target| ["--target", target]));
        let tree = output(&mut cargo).await?;
        // cargo marks repeated lines.
        let lines = tree.lines().map(|line| line.trim_end_matches(" (*)"));
        let found = lines.filter(|line| !line.is_empty()).map(component);
        let found = found.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        dependencies.insert(service, found.keys().cloned().collect::<Vec<_>>());
        crates.extend(found);
    }
    let mut document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": "tekton-coscheduler", "name": "tekton-coscheduler", "version": version,
            "licenses": [{"expression": "Apache-2.0"}],
        }},
        "components": crates.into_values().collect::<Vec<_>>(),
    });
    // Each program depends on the crates in its binary. Which crate needs which is not listed.
    let on = dependencies.into_iter().map(|(service, mut crates)| {
        let own = reference(service, version);
        crates.retain(|it| *it != own);
        json!({"ref": own, "dependsOn": crates})
    });
    document["dependencies"] = on.collect();
    let mut text = serde_json::to_string_pretty(&document).context("failed to write the SBOM")?;
    text.push('\n');
    Ok(text)
}

/// The reference and the component of a line of `cargo tree`: `NAME vVERSION[ (proc-macro)][ (PATH)]|LICENCE`.
fn component(line: &str) -> anyhow::Result<(String, Value)> {
    let read = || {
        let (package, licence) = line.split_once('|')?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some((name, version, licence, words.any(|word| word.contains('/'))))
    };
    let (name, version, licence, is_own) =
        read().with_context(|| format!("`cargo tree` printed {line:?}"))?;
    let reference = reference(name, version);
    // Old crates separate alternatives by a slash, which SPDX does not know.
    let alternatives: Vec<_> = licence.split('/').map(str::trim).collect();
    let mut component = json!({
        "type": "library", "bom-ref": reference, "name": name, "version": version,
        "licenses": [{"expression": alternatives.join(" OR ")}],
    });
    // A crate of this workspace is not on crates.io.
    if !is_own {
        component["purl"] = json!(reference);
    }
    Ok((reference, component))
}

fn reference(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cargo_tree_is_a_component() {
        let (reference, found) = component("either v1.16.0|MIT / Apache-2.0").unwrap();
        assert_eq!(reference, "pkg:cargo/either@1.16.0");
        let expected = json!({
            "type": "library", "bom-ref": reference, "name": "either", "version": "1.16.0", "purl": reference,
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
        });
        let (_, derive) = component("serde_derive v1.0.229 (proc-macro)|MIT").unwrap();
        assert_eq!(derive["purl"], "pkg:cargo/serde_derive@1.0.229");
        assert_eq!(found, expected);
        let (_, own) = component("watcher v0.1.0 (crates/watcher)|Apache-2.0").unwrap();
        assert_eq!(own["purl"], Value::Null);
        for wrong in ["either", "either v1", "either 1.16.0|MIT"] {
            assert!(component(wrong).is_err(), "{wrong}");
        }
    }
}
