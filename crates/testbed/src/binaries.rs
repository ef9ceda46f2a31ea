//! Builds the programs of the control plane with the ordinary Go toolchain, from the modules pinned in
//! `integration-tests/testbed`, and keeps beside them the manifests that the same modules bring.
//!
//! What is built lies in a folder named by a digest of the pinned modules and the build flags. Each file is moved into
//! place when it is whole, so an interrupted build goes on where it was, and a file that is there is never made again.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::bundled::{self, KWOK_STAGES, TEKTON_MANIFESTS};

/// One program: its name here, the Go module (a folder of `integration-tests/testbed`) and the package it is built from.
struct Program {
    name: &'static str,
    module: &'static str,
    package: &'static str,
}

const PROGRAMS: [Program; 8] = [
    program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
    program(
        "kube-apiserver",
        "kubernetes",
        "k8s.io/kubernetes/cmd/kube-apiserver",
    ),
    program(
        "kube-controller-manager",
        "kubernetes",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    program(
        "kube-scheduler",
        "kubernetes",
        "k8s.io/kubernetes/cmd/kube-scheduler",
    ),
    program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    program(
        "tekton-controller",
        "tekton",
        "github.com/tektoncd/pipeline/cmd/controller",
    ),
    program(
        "tekton-webhook",
        "tekton",
        "github.com/tektoncd/pipeline/cmd/webhook",
    ),
];

const fn program(name: &'static str, module: &'static str, package: &'static str) -> Program {
    Program {
        name,
        module,
        package,
    }
}

const MODULES: [&str; 3] = ["kubernetes", "kwok", "tekton"];

/// Where the build tells how far it is.
pub trait Progress {
    /// A build begins; `total` is the number of programs that are missing, at least one.
    fn begin(&self, total: usize);
    /// `program` is being built now; `done` programs have been built before it.
    fn building(&self, done: usize, program: &str);
    /// All programs are there.
    fn finish(&self);
}

/// Progress as plain lines on stderr.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lines;

#[allow(clippy::print_stderr)]
impl Progress for Lines {
    fn begin(&self, total: usize) {
        eprintln!("building the control plane: {total} programs, about nine minutes from scratch");
    }

    fn building(&self, _done: usize, program: &str) {
        eprintln!("building {program}");
    }

    fn finish(&self) {
        eprintln!("the control plane is built");
    }
}

/// The programs of the control plane and the manifests that belong to them, all there.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// The kubectl of the same release as the API server.
    pub fn kubectl(&self) -> PathBuf {
        self.program("kubectl")
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Tekton's manifests, all objects of them.
    pub(crate) fn tekton_manifests(&self) -> Result<Vec<Value>> {
        let path = self.folder.join("tekton.json");
        let text = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("failed to parse {}", path.display()))
    }

    /// The stages of KWOK's own that a bed uses as they are: YAML documents.
    pub(crate) fn kwok_stages(&self) -> Result<String> {
        let path = self.folder.join("kwok-stages.yaml");
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    }
}

/// `testbed` in Cargo's target folder of this workspace.
///
/// # Errors
/// When the workspace this was compiled from is gone.
pub fn default_folder() -> Result<PathBuf> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target),
        None => workspace()?.join("target"),
    };
    Ok(target.join("testbed"))
}

/// Builds whatever is missing in `folder`. One process builds at a time; others wait for it. When nothing is missing,
/// neither `go` nor the network is needed.
///
/// # Errors
/// When `go` is missing (the message says which version is wanted) or a build fails.
pub fn build(folder: &Path, progress: &dyn Progress) -> Result<Binaries> {
    // `go` runs elsewhere, and so do the programs.
    let folder = std::path::absolute(folder)
        .with_context(|| format!("failed to find folder {}", folder.display()))?;
    let sources = workspace()?.join("integration-tests").join("testbed");
    let stamp = version_stamp(&sources)?;
    let out = folder.join("bin").join(key(&sources, &stamp)?);
    let binaries = Binaries { folder: out };
    if is_complete(&binaries) {
        return Ok(binaries);
    }

    fs::create_dir_all(&binaries.folder)
        .with_context(|| format!("failed to create {}", binaries.folder.display()))?;
    let lock_path = folder.join("build.lock");
    let lock = File::create(&lock_path)
        .with_context(|| format!("failed to create {}", lock_path.display()))?;
    lock.lock()
        .with_context(|| format!("failed to lock {}", lock_path.display()))?;

    let missing: Vec<&Program> = PROGRAMS
        .iter()
        .filter(|program| !binaries.program(program.name).exists())
        .collect();
    if !missing.is_empty() {
        require_go(&sources)?;
        progress.begin(missing.len());
        for (done, program) in missing.iter().enumerate() {
            progress.building(done, program.name);
            build_one(&sources, &binaries, program, &stamp)?;
        }
    }
    bundled::collect_tekton_manifests(&sources, &binaries)?;
    bundled::collect_kwok_stages(&sources, &binaries)?;
    if !missing.is_empty() {
        progress.finish();
    }
    Ok(binaries)
}

/// The first `length` hexadecimal digits of SHA-256 over `parts`.
pub(crate) fn hex_digest(parts: &[&[u8]], length: usize) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_be_bytes());
        hasher.update(part);
    }
    let digits: String = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    digits.chars().take(length).collect()
}

fn workspace() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    folder
        .canonicalize()
        .with_context(|| format!("failed to find the workspace at {}", folder.display()))
}

fn is_complete(binaries: &Binaries) -> bool {
    PROGRAMS
        .iter()
        .map(|program| program.name)
        .chain(["tekton.json", "kwok-stages.yaml"])
        .all(|name| binaries.folder.join(name).exists())
}

/// Digest of everything that decides what the build makes.
fn key(sources: &Path, stamp: &str) -> Result<String> {
    let mut parts = vec![stamp.as_bytes().to_vec()];
    for module in MODULES {
        for file in ["go.mod", "go.sum"] {
            parts.push(read(&sources.join(module).join(file))?.into_bytes());
        }
    }
    for name in TEKTON_MANIFESTS.iter().chain(KWOK_STAGES) {
        parts.push(name.as_bytes().to_vec());
    }
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(hex_digest(&parts, 12))
}

/// The linker flags. The Kubernetes programs have to be told their version, or Tekton refuses the server.
fn version_stamp(sources: &Path) -> Result<String> {
    let go_mod = read(&sources.join("kubernetes").join("go.mod"))?;
    let version = go_mod
        .split_whitespace()
        .skip_while(|word| *word != "k8s.io/kubernetes")
        .nth(1)
        .context("kubernetes/go.mod does not require k8s.io/kubernetes")?;
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let package = "k8s.io/component-base/version";
    Ok(format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    ))
}

fn require_go(sources: &Path) -> Result<()> {
    let mut wanted = (0, 0);
    for module in MODULES {
        let go_mod = read(&sources.join(module).join("go.mod"))?;
        let version = go_mod
            .lines()
            .find_map(|line| line.strip_prefix("go "))
            .unwrap_or_default();
        let mut numbers = version
            .split('.')
            .map(|number| number.parse::<u32>().unwrap_or(0));
        wanted = wanted.max((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)));
    }
    let (major, minor) = wanted;
    match Command::new("go").arg("version").output() {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "the test bed is built with Go {major}.{minor} or newer, and there is no `go` on PATH"
            )
        }
        Err(error) => Err(error).context("failed to run `go version`"),
    }
}

fn build_one(sources: &Path, binaries: &Binaries, program: &Program, stamp: &str) -> Result<()> {
    // A build that was killed may still be writing its part: each process has its own.
    let part = binaries
        .folder
        .join(format!(".{}.{}.part", program.name, std::process::id()));
    let mut command = go(sources, program.module);
    command
        .args([
            "build",
            "-mod=readonly",
            "-trimpath",
            "-ldflags",
            stamp,
            "-o",
        ])
        .arg(&part)
        .arg(program.package);
    run(command)
        .with_context(|| format!("failed to build {} from {}", program.name, program.package))?;
    fs::rename(&part, binaries.program(program.name))
        .with_context(|| format!("failed to move {} into place", program.name))
}

pub(crate) fn go(sources: &Path, module: &str) -> Command {
    let mut command = Command::new("go");
    command
        .current_dir(sources.join(module))
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .env_remove("GOFLAGS")
        .stdin(Stdio::null());
    command
}

pub(crate) fn run(mut command: Command) -> Result<Output> {
    let output = command.output().context("failed to run `go`")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("`go` failed ({}): {said}", output.status);
    }
    Ok(output)
}

pub(crate) fn put(binaries: &Binaries, name: &str, text: &str) -> Result<()> {
    let part = binaries.folder.join(format!(".{name}.part"));
    fs::write(&part, text).with_context(|| format!("failed to write {}", part.display()))?;
    fs::rename(&part, binaries.folder.join(name))
        .with_context(|| format!("failed to move {name} into place"))
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}
