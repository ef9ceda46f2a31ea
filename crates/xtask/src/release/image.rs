//! `cargo xtask release --check`: does what the Dockerfile does, without a container engine. It builds the static binary of a
//! service, and copies it as `/service` into an empty folder. Then it runs the binary as the image's user, with this folder as
//! the root of the file system. The image in which the Dockerfile builds the binary is not checked.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::output;
use crate::foreground;
use crate::workspace::Workspace;

/// The lines of the Dockerfile's last stage that this check repeats.
const LAST_STAGE: [&str; 4] = [
    "FROM scratch",
    "COPY --from=build /service /service",
    "USER 65532:65532",
    "ENTRYPOINT [\"/service\"]",
];
/// The instructions that change neither the files of an image nor how its program starts.
const NO_EFFECT: [&str; 2] = ["ARG ", "LABEL "];

/// Checks that the binary of `service` runs alone in an empty root, as in its image.
///
/// # Errors
/// The lines of the Dockerfile's last stage differ from [`LAST_STAGE`], the build fails, or the program does not print its
/// version.
pub(super) async fn check(workspace: &Workspace, service: &str) -> anyhow::Result<()> {
    let dockerfile = workspace.root.join("Dockerfile");
    let dockerfile = std::fs::read_to_string(dockerfile).context("failed to read Dockerfile")?;
    ensure!(
        last_stage(&dockerfile) == LAST_STAGE,
        "the last stage of Dockerfile is {:?}; this check repeats {LAST_STAGE:?}: change crates/xtask/src/release/image.rs too",
        last_stage(&dockerfile)
    );
    let flags = ["--package", service, "--bin", service];
    let binary = build_static(workspace, &flags, service).await?;
    let said = run(workspace, &binary).await?;
    let expected = format!("{service} {}\n", workspace.version()?);
    ensure!(
        said == expected,
        "{service} --version printed {said:?}; expected {expected:?}"
    );
    println!("{service}: runs alone in an empty root, as user 65532");
    Ok(())
}

/// Builds a static binary for this machine, and returns its path.
pub(super) async fn build_static(
    workspace: &Workspace,
    flags: &[&str],
    binary: &str,
) -> anyhow::Result<PathBuf> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let mut build = workspace.cargo();
    build.args(["build", "--release", "--locked", "--target", &target]);
    build.args(flags);
    // Crate ring needs a C compiler, but no C library.
    build.env(format!("CC_{}", target.replace('-', "_")), "cc");
    let built = foreground::run(&mut build).await?;
    ensure!(
        built.success(),
        "the build for {target} failed ({built}); `rustup target add {target}` installs the target"
    );
    Ok(workspace.target.join(&target).join("release").join(binary))
}

/// The output of `--version` of a program that is alone in its file system. A dynamic program would not find its loader there.
async fn run(workspace: &Workspace, binary: &Path) -> anyhow::Result<String> {
    let root = tempfile::tempdir_in(&workspace.target)
        .context("failed to create a folder under target")?;
    std::fs::copy(binary, root.path().join("service"))
        .with_context(|| format!("failed to copy {}", binary.display()))?;
    let mut unshare = workspace.command("unshare");
    unshare.args(["--user", "--map-user=65532", "--map-group=65532", "--root"]);
    output(unshare.arg(root.path()).args(["/service", "--version"])).await
}

/// The instructions of the last stage, without comments and those of [`NO_EFFECT`].
fn last_stage(dockerfile: &str) -> Vec<&str> {
    let start = dockerfile.rfind("\nFROM ").unwrap_or_default();
    let lines = dockerfile[start..].lines();
    let is_instruction = |line: &&str| {
        let other = NO_EFFECT.iter().any(|it| line.starts_with(it));
        line.starts_with(|first: char| first.is_ascii_uppercase()) && !other
    };
    lines.filter(is_instruction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dockerfile_does_what_the_check_repeats() {
        let dockerfile = include_str!("../../../../Dockerfile");
        assert_eq!(last_stage(dockerfile), LAST_STAGE);
        let more = dockerfile.replace("USER ", "COPY --from=build /etc /etc\nUSER ");
        assert_eq!(last_stage(&more).len(), LAST_STAGE.len() + 1);
    }
}
