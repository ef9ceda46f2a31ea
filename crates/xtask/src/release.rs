//! `cargo xtask release` writes the files of a release: `release.yaml` (deploy/base with the images by digest), `sbom.cdx.json`
//! (CycloneDX), an archive of the kubectl plugin for this machine, the plugin's manifest for krew, and `SHA256SUMS`. It builds
//! no images and pushes nothing: `.github/workflows/release.yaml` builds and pushes the images before it calls this command,
//! and signs them later. With `--check`, this command writes none of these files. Instead, it runs a service as its image does;
//! see module `image`.

mod image;
mod plugin;
mod sbom;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};
use testbed::services::Service;
use tokio::process::Command;

use crate::args::ReleaseArgs;
use crate::binaries;
use crate::workspace::Workspace;

const MANIFESTS: &str = "release.yaml";
const SBOM: &str = "sbom.cdx.json";
const CHECKSUMS: &str = "SHA256SUMS";

pub(crate) async fn run(workspace: &Workspace, args: ReleaseArgs) -> anyhow::Result<()> {
    if let Some(service) = &args.check {
        return image::check(workspace, service).await;
    }
    let folder = &args.output;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("failed to create the folder {}", folder.display()))?;
    if args.plugin {
        let name = plugin::build(workspace, folder).await?;
        println!("wrote {name} to {}", folder.display());
        return Ok(());
    }
    let version = workspace.version()?;
    if let Some(tag) = &args.tag {
        let expected = format!("v{version}");
        ensure!(
            *tag == expected,
            "--tag is {tag:?}; allowed: {expected}, as the version in Cargo.toml is {version}"
        );
    }
    let images = images(&args.images)?;
    plugin::build(workspace, folder).await?;
    let archives = plugin::archives(folder, version)?;
    let files = [
        (MANIFESTS, manifests(workspace, &images, version).await?),
        (SBOM, sbom::write(workspace, version).await?),
        (plugin::MANIFEST, plugin::manifest(version, &archives)),
    ];
    let mut checksums = String::new();
    for (name, text) in &files {
        let digest = hex_digest(text.as_bytes());
        checksums.push_str(&format!("{digest}  {name}\n"));
        write(folder, name, text)?;
    }
    for archive in &archives {
        checksums.push_str(&format!("{}  {}\n", archive.digest, archive.name));
    }
    write(folder, CHECKSUMS, &checksums)?;
    println!(
        "wrote these files and {CHECKSUMS} to {}:\n{checksums}",
        folder.display()
    );
    Ok(())
}

fn hex_digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))
}

/// The image of each service.
///
/// # Errors
/// An argument does not name the image of a service with a digest, a service has no image, or a service has more than one
/// image. The error names all faults.
fn images(arguments: &[String]) -> anyhow::Result<BTreeMap<&'static str, String>> {
    let names = Service::ALL.map(Service::name);
    let mut images = BTreeMap::new();
    let mut faults = Vec::new();
    for argument in arguments {
        let Some(service) = service(argument) else {
            faults.push(format!(
                "is {argument:?}; allowed: REGISTRY/SERVICE@sha256:DIGEST, with 64 lower-case hex digits, and SERVICE one of {}",
                names.join(", ")
            ));
            continue;
        };
        if images.insert(service, argument.clone()).is_some() {
            faults.push(format!("{argument:?} is a second image of {service}"));
        }
    }
    let missing = names.iter().filter(|name| !images.contains_key(*name));
    faults.extend(missing.map(|name| format!("there is no image of {name}")));
    ensure!(faults.is_empty(), "IMAGE: {}", faults.join("; "));
    Ok(images)
}

/// The service to which this image belongs. `None` if the image has no digest or belongs to no service.
fn service(image: &str) -> Option<&'static str> {
    let (repository, digest) = image.split_once("@sha256:")?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let (registry, name) = repository.rsplit_once('/')?;
    let is_digest = digest.len() == 64 && digest.bytes().all(is_hex);
    let plain = |character: char| character.is_ascii_alphanumeric() || "./_:-".contains(character);
    let named = !registry.is_empty() && registry.chars().all(plain);
    let mut names = Service::ALL.into_iter().map(Service::name);
    names.find(|it| *it == name && is_digest && named)
}

/// deploy/base as kubectl renders it, with the images by digest.
async fn manifests(
    workspace: &Workspace,
    images: &BTreeMap<&str, String>,
    version: &str,
) -> anyhow::Result<String> {
    let mut kubectl = workspace.command(binaries::kubectl().await?);
    let rendered = output(kubectl.args(["kustomize", "deploy/base"])).await?;
    by_digest(&rendered, images, version)
}

/// Replaces the tag of each image by its digest.
///
/// # Errors
/// An image with the version as its tag is missing from the manifests or is there more than once, or the manifests name any
/// other image.
fn by_digest(
    manifests: &str,
    images: &BTreeMap<&str, String>,
    version: &str,
) -> anyhow::Result<String> {
    let mut manifests = manifests.to_owned();
    for (service, image) in images {
        let tagged = format!("image: ghcr.io/tekton-coscheduler/{service}:{version}\n");
        let found = manifests.matches(&tagged).count();
        ensure!(
            found == 1,
            "deploy/base has {found} times {:?}; allowed: once. Its tags are in deploy/base/kustomization.yaml",
            tagged.trim_end()
        );
        manifests = manifests.replace(&tagged, &format!("image: {image}\n"));
    }
    let all = manifests.matches(" image: ").count();
    ensure!(
        all == images.len(),
        "deploy/base has {all} images; allowed: one for each service"
    );
    Ok(manifests)
}

/// The standard output of a program.
///
/// # Errors
/// The program cannot be started or fails. The error contains the program's stderr.
async fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.as_std().get_program().display().to_string();
    let output = command.output().await;
    let output = output.with_context(|| format!("failed to start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} failed ({}): {}",
        output.status,
        said.trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no UTF-8"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn reference(service: &str) -> String {
        format!(
            "registry.example/mirror/{service}@sha256:{}",
            "0a".repeat(32)
        )
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Vec<String>), expected: &str) {
        let mut arguments = Service::ALL.map(|it| reference(it.name())).to_vec();
        change(&mut arguments);
        let error = images(&arguments).unwrap_err().to_string();
        assert_eq!(error, format!("IMAGE: {expected}"));
    }

    #[test]
    fn each_service_has_one_image_by_digest() {
        let all = Service::ALL.map(|it| reference(it.name()));
        let found = images(&all).unwrap();
        assert_eq!(
            found.into_values().collect::<BTreeSet<_>>(),
            BTreeSet::from(all)
        );
        let allowed = "allowed: REGISTRY/SERVICE@sha256:DIGEST, with 64 lower-case hex digits, and SERVICE one of \
                       config-service, affinity-planner, placeholder-manager, watcher, admission-webhook";
        for wrong in [
            "registry.example/watcher:0.1.0",
            "registry.example/watcher@sha256:0a",
            "registry.example/watcher@sha512:0a",
            &reference("watcher").to_uppercase(),
            &reference("watchers"),
            &reference("watcher")["registry.example/mirror/".len()..],
            "",
        ] {
            let expected = format!("is {wrong:?}; {allowed}; there is no image of watcher");
            refused(|all| all[3] = wrong.to_owned(), &expected);
        }
        refused(
            |all| all.push(reference("watcher")),
            &format!("{:?} is a second image of watcher", reference("watcher")),
        );
        refused(
            |all| all.truncate(3),
            "there is no image of watcher; there is no image of admission-webhook",
        );
    }

    #[test]
    fn manifests_name_each_image_once_with_the_version() {
        let manifests =
            "      - image: ghcr.io/tekton-coscheduler/watcher:0.1.0\n        name: watcher\n";
        let images = BTreeMap::from([("watcher", reference("watcher"))]);
        let replaced = by_digest(manifests, &images, "0.1.0").unwrap();
        let expected = format!(
            "      - image: {}\n        name: watcher\n",
            reference("watcher")
        );
        assert_eq!(replaced, expected);
        let other = format!("{manifests}      - image: registry.example/another:1\n");
        for (manifests, version, expected) in [
            (manifests, "0.2.0", "deploy/base has 0 times"),
            (&manifests.repeat(2), "0.1.0", "deploy/base has 2 times"),
            (&other, "0.1.0", "deploy/base has 2 images"),
        ] {
            let error = by_digest(manifests, &images, version).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}
