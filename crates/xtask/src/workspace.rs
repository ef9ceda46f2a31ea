//! Where the workspace is, what its packages depend on, and how cargo is called in it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// The workspace the task runner was called in.
#[derive(Clone, Debug)]
pub(crate) struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder.
    pub(crate) target: PathBuf,
    /// Its members.
    pub(crate) packages: Vec<Package>,
}

/// A member of the workspace.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// What its manifest asks for, of any kind.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A line of a manifest.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Dependency {
    /// Name of the package, not the name it may be given in the manifest.
    pub(crate) name: String,
}

/// What is read of the output of `cargo metadata`. The crate `cargo_metadata` is not used, because it switches on a
/// feature of serde_json and with it makes cargo compile half of all dependencies twice.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
    workspace_root: PathBuf,
}

impl Workspace {
    /// Asks cargo.
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

    /// Where this task runner installs the tools it needs.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("tools").join("bin")
    }

    /// A program that runs at the root of the workspace and ends when its handle is dropped.
    pub(crate) fn command(&self, program: impl Into<OsString>) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(program.into());
        command.current_dir(&self.root).kill_on_drop(true);
        command
    }

    /// Cargo, the one that started this program. What that one has set about this program's own package is taken out:
    /// build scripts watch some of it, and would run again each time.
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
