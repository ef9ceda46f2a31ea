//! The releases of Kubernetes and Tekton that a test bed can run. Each release is a Go module in `integration-tests/testbed`. Two
//! environment variables choose the releases of every bed that a process starts.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::files::read;

/// One release. The first release in a list is the default.
#[derive(Debug, PartialEq, Eq)]
struct Release {
    name: &'static str,
    /// The folder of its Go module.
    folder: &'static str,
}

/// A program with several releases.
struct Origin {
    variable: &'static str,
    /// The Go module whose version is the version of the program.
    module: &'static str,
    releases: [Release; 2],
}

static KUBERNETES: Origin = Origin {
    variable: "TESTBED_KUBERNETES",
    module: "k8s.io/kubernetes",
    releases: [
        release("1.35", "kubernetes"),
        release("1.36", "kubernetes-1.36"),
    ],
};

static TEKTON: Origin = Origin {
    variable: "TESTBED_TEKTON",
    module: "github.com/tektoncd/pipeline",
    releases: [release("1.12", "tekton"), release("1.15", "tekton-1.15")],
};

/// A combination of a release of Kubernetes and a release of Tekton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Releases {
    kubernetes: &'static Release,
    tekton: &'static Release,
}

impl Releases {
    /// All combinations; the first one is the default.
    pub fn all() -> impl Iterator<Item = Self> {
        let tekton = |kubernetes| {
            let tekton = TEKTON.releases.iter();
            tekton.map(move |tekton| Self { kubernetes, tekton })
        };
        KUBERNETES.releases.iter().flat_map(tekton)
    }

    /// The combination that the environment variables `TESTBED_KUBERNETES` and `TESTBED_TEKTON` choose.
    ///
    /// # Errors
    /// A variable has a value that is not the name of a release.
    pub fn chosen() -> Result<Self> {
        Ok(Self {
            kubernetes: KUBERNETES.chosen()?,
            tekton: TEKTON.chosen()?,
        })
    }

    /// The environment variables that choose this combination, with their values.
    pub fn variables(&self) -> [(&'static str, &'static str); 2] {
        [
            (KUBERNETES.variable, self.kubernetes.name),
            (TEKTON.variable, self.tekton.name),
        ]
    }

    /// The exact versions of Kubernetes and Tekton, for example `v1.35.4` and `v1.12.0`.
    ///
    /// # Errors
    /// The file `go.mod` of a release cannot be read, or does not name the version.
    pub fn versions(&self) -> Result<[String; 2]> {
        let sources = Sources::of(*self)?;
        Ok([
            sources.version("kubernetes", KUBERNETES.module)?,
            sources.version("tekton", TEKTON.module)?,
        ])
    }
}

impl Origin {
    fn chosen(&'static self) -> Result<&'static Release> {
        let value = std::env::var_os(self.variable);
        self.choose(
            value
                .as_ref()
                .map(|value| value.to_string_lossy())
                .as_deref(),
        )
    }

    fn choose(&'static self, value: Option<&str>) -> Result<&'static Release> {
        let [default, ..] = &self.releases;
        let Some(value) = value else {
            return Ok(default);
        };
        let mut releases = self.releases.iter();
        let Some(release) = releases.find(|release| release.name == value) else {
            let allowed = self.releases.each_ref().map(|release| release.name);
            bail!(
                "environment variable {} is {value:?}, but must be one of {}",
                self.variable,
                allowed.join(", ")
            );
        };
        Ok(release)
    }
}

/// The Go modules of one combination.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    folder: PathBuf,
    releases: Releases,
}

impl Sources {
    pub(crate) fn of(releases: Releases) -> Result<Self> {
        Ok(Self {
            folder: workspace()?.join("integration-tests").join("testbed"),
            releases,
        })
    }

    /// The folder of a Go module. `kubernetes` and `tekton` mean the module of the chosen release.
    pub(crate) fn module(&self, name: &str) -> PathBuf {
        self.folder.join(match name {
            "kubernetes" => self.releases.kubernetes.folder,
            "tekton" => self.releases.tekton.folder,
            other => other,
        })
    }

    /// The version of the Go module `path` that `module` requires.
    pub(crate) fn version(&self, module: &str, path: &str) -> Result<String> {
        let file = self.module(module).join("go.mod");
        let go_mod = read(&file)?;
        let mut words = go_mod.split_whitespace().skip_while(|word| *word != path);
        let version = words.nth(1);
        let version =
            version.with_context(|| format!("{} does not require {path}", file.display()))?;
        Ok(version.to_owned())
    }
}

/// The root of this repository.
pub(crate) fn workspace() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    folder
        .canonicalize()
        .with_context(|| format!("failed to find the workspace at {}", folder.display()))
}

const fn release(name: &'static str, folder: &'static str) -> Release {
    Release { name, folder }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_variable_chooses_a_release_or_the_error_names_the_releases() {
        let folder = |value| KUBERNETES.choose(value).map(|release| release.folder);
        assert_eq!(folder(None).unwrap(), "kubernetes");
        assert_eq!(folder(Some("1.36")).unwrap(), "kubernetes-1.36");
        assert_eq!(
            folder(Some("1.34")).unwrap_err().to_string(),
            "environment variable TESTBED_KUBERNETES is \"1.34\", but must be one of 1.35, 1.36"
        );
    }

    #[test]
    fn the_variables_of_a_combination_choose_it() {
        assert_eq!(Releases::all().count(), 4);
        for releases in Releases::all() {
            let [kubernetes, tekton] = releases.variables().map(|(_, value)| Some(value));
            assert_eq!(KUBERNETES.choose(kubernetes).unwrap(), releases.kubernetes);
            assert_eq!(TEKTON.choose(tekton).unwrap(), releases.tekton);
        }
    }

    /// The beginnings of the paths of Go modules that cannot have the same version everywhere: Tekton needs a newer CEL, and KWOK
    /// needs a newer OpenTelemetry and a newer client of the container runtime.
    const APART: [&str; 4] = [
        "github.com/antlr4-go/antlr/",
        "github.com/google/cel-go",
        "go.opentelemetry.io/",
        "k8s.io/cri-",
    ];

    /// The versions of the Go modules that a `go.mod` requires, after replacement.
    fn required(module: &str) -> BTreeMap<String, String> {
        let sources = Sources::of(Releases::all().next().unwrap()).unwrap();
        let go_mod = read(&sources.module(module).join("go.mod")).unwrap();
        let words = |line: &str| -> Vec<String> {
            let words = line.split_whitespace().map(str::to_owned);
            words.filter(|word| word != "replace").collect()
        };
        let mut versions = BTreeMap::new();
        for line in go_mod.lines() {
            match &words(line)[..] {
                [path, arrow, _, version] if arrow == "=>" => {
                    versions.insert(path.clone(), version.clone());
                }
                [path, version, ..] if version.starts_with('v') => {
                    versions.entry(path.clone()).or_insert(version.clone());
                }
                _ => {}
            }
        }
        versions
    }

    #[test]
    fn modules_that_several_programs_share_have_one_version_so_go_compiles_them_once() {
        let modules = ["kubernetes", "kwok", "tekton"];
        let mut seen: BTreeMap<String, BTreeMap<String, &str>> = BTreeMap::new();
        for module in modules {
            let versions = required(module);
            assert!(versions.len() > 100, "{module}: {versions:?}");
            for (path, version) in versions {
                seen.entry(path).or_default().insert(version, module);
            }
        }
        let is_apart = |path: &str| APART.iter().any(|apart| path.starts_with(apart));
        seen.retain(|path, versions| versions.len() > 1 && !is_apart(path));
        assert!(seen.is_empty(), "{seen:?}");
    }

    #[test]
    fn the_readme_lists_the_versions_of_each_combination() {
        let readme = read(&workspace().unwrap().join("README.md")).unwrap();
        for releases in Releases::all() {
            let versions = releases.versions().unwrap();
            let [kubernetes, tekton] = versions.each_ref().map(|it| it.trim_start_matches('v'));
            for (version, release) in [
                (kubernetes, releases.kubernetes.name),
                (tekton, releases.tekton.name),
            ] {
                assert!(version.starts_with(&format!("{release}.")), "{version}");
            }
            let row = format!("| {kubernetes} | {tekton} |");
            assert!(readme.contains(&row), "README.md has no row {row}");
        }
    }
}
