//! The Cargo workspace of this repository: its packages, its files, and the commands that run in it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// The text of each file of the repository, by its path from the root. The text is empty if the file is not text.
pub(crate) type Files = BTreeMap<String, String>;

/// The workspace in which the task runner was called.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
    /// The members.
    pub(crate) packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// All dependencies in its Cargo.toml, also those for tests and build scripts.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency in a manifest.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dependency {
    /// The real name of the package. Cargo.toml may rename it.
    pub(crate) name: String,
}

/// The part of the output of `cargo metadata` that is used here. The crate `cargo_metadata` is not used, because it enables a
/// feature of serde_json, and cargo would then compile many dependencies twice.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
    workspace_root: PathBuf,
}

impl Workspace {
    /// Finds the workspace with `cargo metadata`.
    pub(crate) fn locate() -> anyhow::Result<Self> {
        let output = Command::new(cargo_path())
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .output()
            .context("failed to start `cargo metadata`")?;
        if !output.status.success() {
            bail!(
                "`cargo metadata` failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let Metadata {
            packages,
            target_directory,
            workspace_root,
        } = serde_json::from_slice(&output.stdout)
            .context("failed to read the output of `cargo metadata`")?;
        Ok(Self {
            root: workspace_root,
            target: target_directory,
            packages,
        })
    }

    /// The version of all services.
    pub(crate) fn version(&self) -> anyhow::Result<&str> {
        let own = self.packages.iter().find(|it| it.name == "watcher");
        own.map(|it| it.version.as_str())
            .context("`cargo metadata` lists no package watcher")
    }

    /// All files that git tracks, and the files that `git add` would add.
    pub(crate) async fn files(&self) -> anyhow::Result<Files> {
        let output = self
            .command("git")
            .args(["ls-files", "--cached", "--others", "-z"])
            .arg("--exclude-standard")
            .output()
            .await
            .context("failed to start `git ls-files`")?;
        if !output.status.success() {
            bail!(
                "`git ls-files` failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let names = String::from_utf8(output.stdout).context("git names a file in no UTF-8")?;
        let names = names.split_terminator('\0');
        // A deleted file is tracked until the deletion is staged.
        let present = names.filter(|name| self.root.join(name).is_file());
        present
            .map(|name| {
                let bytes = std::fs::read(self.root.join(name))
                    .with_context(|| format!("failed to read {name}"))?;
                let text = String::from_utf8(bytes).unwrap_or_default();
                Ok((name.to_owned(), text))
            })
            .collect()
    }

    /// A command that runs at the root of the workspace. The program is killed when its handle is dropped.
    pub(crate) fn command(&self, program: impl Into<OsString>) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(program.into());
        command.current_dir(&self.root).kill_on_drop(true);
        command
    }

    /// A command of the same cargo that started this program. It does not get the environment variables that cargo set about
    /// this program's own package: build scripts watch some of these variables, and would run again each time.
    pub(crate) fn cargo(&self) -> tokio::process::Command {
        let mut cargo = self.command(cargo_path());
        for (name, _) in std::env::vars_os() {
            let about_this_package = name.to_str().is_some_and(|name| {
                name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
            });
            if about_this_package {
                cargo.env_remove(name);
            }
        }
        cargo
    }
}

fn cargo_path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
