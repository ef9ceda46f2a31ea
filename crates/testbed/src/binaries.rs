//! Builds the programs of test beds. The name of the programs' folder is a digest of the pinned modules, the build flags and
//! the names of the copied files. Each file gets its final name only when it is complete. So after an interruption, the next
//! build makes only the missing files. Few beds need Karpenter, so its program is in another folder.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::files::{create_folder, read, write};
use crate::go;
use crate::releases::{Releases, Sources, workspace};

mod parts;

use parts::{
    CONTROL_PLANE, KARPENTER, KARPENTER_KINDS, KUBECTL, KWOK_STAGES, Part, Program,
    TEKTON_MANIFESTS,
};

/// Flags of the compiler. The programs keep no debug information, so the compiler need not make it.
const COMPILER_FLAGS: &str = "all=-dwarf=false";

/// Receives the progress of a build.
pub trait Progress {
    /// A build begins; `total` is the number of programs that are missing, at least one.
    fn begin(&self, total: usize);
    /// `programs` are being built now; `done` programs have been built before them.
    fn building(&self, done: usize, programs: &str);
    /// All programs are built.
    fn finish(&self);
}

/// Progress as plain lines on stderr.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lines;

#[allow(clippy::print_stderr)]
impl Progress for Lines {
    fn begin(&self, total: usize) {
        eprintln!("building the test bed: {total} programs, several minutes");
    }

    fn building(&self, _done: usize, programs: &str) {
        eprintln!("building {programs}");
    }

    fn finish(&self) {
        eprintln!("the test bed is built");
    }
}

/// A folder with programs, and with the manifests that belong to them.
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

    /// All objects of Tekton's manifests.
    pub(crate) fn tekton_manifests(&self) -> Result<Vec<Value>> {
        self.objects(TEKTON_MANIFESTS)
    }

    /// Karpenter's CustomResourceDefinitions.
    pub(crate) fn karpenter_kinds(&self) -> Result<Vec<Value>> {
        self.objects(KARPENTER_KINDS)
    }

    fn objects(&self, name: &str) -> Result<Vec<Value>> {
        let path = self.folder.join(name);
        let text = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("failed to parse {}", path.display()))
    }

    /// KWOK's own stages, as YAML documents.
    pub(crate) fn kwok_stages(&self) -> Result<String> {
        read(&self.folder.join(KWOK_STAGES))
    }
}

/// The folder `testbed` in Cargo's target folder of this workspace.
///
/// # Errors
/// The workspace that this crate was compiled from is gone.
pub fn default_folder() -> Result<PathBuf> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => PathBuf::from(target),
        None => workspace()?.join("target"),
    };
    Ok(target.join("testbed"))
}

/// Builds the programs of the control plane that are missing in `folder`. Only one process builds at a time; others wait for
/// it. If no program and no copied file is missing, neither `go` nor the network is needed.
///
/// # Errors
/// `go` is missing (the message names the required version), a build fails, or an environment variable chooses an unknown
/// release.
pub fn build(folder: &Path, progress: &dyn Progress) -> Result<Binaries> {
    build_releases(folder, Releases::chosen()?, progress)
}

/// As [`build`], but for these releases.
///
/// # Errors
/// As [`build`].
pub fn build_releases(
    folder: &Path,
    releases: Releases,
    progress: &dyn Progress,
) -> Result<Binaries> {
    Build::new(folder, &CONTROL_PLANE, releases)?.run(progress)
}

/// As [`build`], but for Karpenter.
///
/// # Errors
/// As [`build`].
pub fn build_karpenter(folder: &Path, progress: &dyn Progress) -> Result<Binaries> {
    Build::new(folder, &KARPENTER, Releases::chosen()?)?.run(progress)
}

/// As [`build`], but only for kubectl, of the same release as the API server.
///
/// # Errors
/// As [`build`].
pub fn build_kubectl(folder: &Path, progress: &dyn Progress) -> Result<PathBuf> {
    let build = Build::new(folder, &CONTROL_PLANE, Releases::chosen()?)?;
    let kubectl = build.binaries.kubectl();
    if !kubectl.exists() {
        let _lock = build.lock()?;
        build.programs(&[KUBECTL], progress)?;
    }
    Ok(kubectl)
}

/// A build and its inputs.
struct Build {
    part: &'static Part,
    folder: PathBuf,
    sources: Sources,
    /// Linker flags.
    stamp: String,
    binaries: Binaries,
}

impl Build {
    fn new(folder: &Path, part: &'static Part, releases: Releases) -> Result<Self> {
        // `go` and the programs run in other folders, so the path must be absolute.
        let folder = std::path::absolute(folder)
            .with_context(|| format!("failed to find folder {}", folder.display()))?;
        let sources = Sources::of(releases)?;
        let stamp = version_stamp(&sources)?;
        let out = folder.join("bin").join(key(part, &sources, &stamp)?);
        Ok(Self {
            part,
            folder,
            sources,
            stamp,
            binaries: Binaries { folder: out },
        })
    }

    fn run(self, progress: &dyn Progress) -> Result<Binaries> {
        if !self.is_complete() {
            let _lock = self.lock()?;
            self.programs(self.part.programs, progress)?;
            for file in self.part.files {
                self.put(file.name, &(file.text)(&self.sources)?)?;
            }
        }
        Ok(self.binaries)
    }

    fn is_complete(&self) -> bool {
        let programs = self.part.programs.iter().map(|program| program.name);
        programs
            .chain(self.part.files.iter().map(|file| file.name))
            .all(|name| self.binaries.folder.join(name).exists())
    }

    /// Waits until no other process builds. Other processes then wait until the returned file is dropped.
    fn lock(&self) -> Result<File> {
        let out = &self.binaries.folder;
        create_folder(out)?;
        let path = self.folder.join("build.lock");
        let lock =
            File::create(&path).with_context(|| format!("failed to create {}", path.display()))?;
        lock.lock()
            .with_context(|| format!("failed to lock {}", path.display()))?;
        Ok(lock)
    }

    /// Builds the programs in `programs` that are missing.
    fn programs(&self, programs: &[Program], progress: &dyn Progress) -> Result<()> {
        let is_missing = |program: &&Program| !self.binaries.program(program.name).exists();
        let missing: Vec<&Program> = programs.iter().filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        require_go(self.part, &self.sources)?;
        progress.begin(missing.len());
        let mut done = 0;
        for programs in missing.chunk_by(|one, next| one.module == next.module) {
            let names: Vec<_> = programs.iter().map(|program| program.name).collect();
            progress.building(done, &names.join(", "));
            self.of_module(programs[0].module, programs)?;
            done += programs.len();
        }
        progress.finish();
        Ok(())
    }

    /// Builds programs of one module together, because the linker keeps only one processor busy. So `go` compiles the packages
    /// of one program while it links another.
    fn of_module(&self, module: &str, programs: &[&Program]) -> Result<()> {
        // The folder has the process id in its name, because the compiler of a killed build may still write into the folder of
        // that build.
        let folder = format!(".{module}.{}.part", std::process::id());
        let folder = self.binaries.folder.join(folder);
        create_folder(&folder)?;
        let mut command = go::command(&self.sources, module);
        command
            .args(["build", "-mod=readonly", "-trimpath"])
            .args(["-gcflags", COMPILER_FLAGS, "-ldflags", &self.stamp, "-o"])
            .arg(&folder)
            .args(programs.iter().map(|program| program.package));
        go::run(command).with_context(|| format!("failed to build the programs of {module}"))?;
        for program in programs {
            self.put_in_place(&folder.join(built_name(program.package)), program.name)?;
        }
        fs::remove_dir(&folder).with_context(|| format!("failed to delete {}", folder.display()))
    }

    fn put(&self, name: &str, text: &str) -> Result<()> {
        let part = self.binaries.folder.join(format!(".{name}.part"));
        write(&part, text)?;
        self.put_in_place(&part, name)
    }

    fn put_in_place(&self, part: &Path, name: &str) -> Result<()> {
        fs::rename(part, self.binaries.folder.join(name))
            .with_context(|| format!("failed to move {name} into place"))
    }
}

/// The name that `go build` gives the program of a package: the last element of the package's path that is not a major version.
fn built_name(package: &str) -> &str {
    let is_version = |name: &&str| {
        let number = name.strip_prefix('v');
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let mut names = package.rsplit('/').skip_while(is_version);
    names.next().unwrap_or(package)
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

/// A digest of the pinned modules, the flags of the build, and the names of the copied files.
fn key(part: &Part, sources: &Sources, stamp: &str) -> Result<String> {
    let mut parts = vec![
        COMPILER_FLAGS.as_bytes().to_vec(),
        stamp.as_bytes().to_vec(),
    ];
    for module in part.modules {
        for file in ["go.mod", "go.sum"] {
            parts.push(read(&sources.module(module).join(file))?.into_bytes());
        }
    }
    let bundled = (part.bundled)();
    parts.extend(bundled.into_iter().map(|name| name.as_bytes().to_vec()));
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(hex_digest(&parts, 12))
}

/// The linker flags. They set the version of the Kubernetes programs, because Tekton refuses an API server without a version.
fn version_stamp(sources: &Sources) -> Result<String> {
    let version = sources.version("kubernetes", "k8s.io/kubernetes")?;
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

fn require_go(part: &Part, sources: &Sources) -> Result<()> {
    let mut wanted = (0, 0);
    for module in part.modules {
        let go_mod = read(&sources.module(module).join("go.mod"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_names_a_program_after_the_last_element_of_its_package_that_is_no_version() {
        assert_eq!(built_name("go.etcd.io/etcd/server/v3"), "server");
        assert_eq!(built_name("sigs.k8s.io/kwok/cmd/kwok"), "kwok");
        assert_eq!(built_name("example.com/cmd/vault"), "vault");
    }
}
