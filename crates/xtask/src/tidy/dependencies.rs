//! Checks that each crate depends only on the crates of the workspace that the dependency table allows. Also checks that the
//! dependencies of core and of the planner contain no forbidden packages: core is pure, and the planner never calls Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;

use super::{Finding, Report};
use crate::workspace::{Package, Workspace};

/// For each package of the workspace, the packages of the workspace that its code, build script or tests depend on.
type Inside = BTreeMap<String, BTreeSet<String>>;

const CORE: &str = "coscheduler-core";
const PROTO: &str = "coscheduler-proto";
const KUBERNETES: &str = "coscheduler-kubernetes";
const RUNTIME: &str = "coscheduler-runtime";

/// The packages that each package may depend on. No list contains a service: a service uses another service only through
/// gRPC, and tests and tools start the services' binaries.
const TABLE: [(&str, &[&str]); 14] = [
    (CORE, &[]),
    (RUNTIME, &[]),
    (PROTO, &[CORE]),
    (KUBERNETES, &[CORE]),
    ("affinity-planner", &[CORE, PROTO, RUNTIME]),
    ("config-service", &[CORE, PROTO, KUBERNETES, RUNTIME]),
    ("placeholder-manager", &[CORE, PROTO, KUBERNETES, RUNTIME]),
    ("watcher", &[CORE, PROTO, KUBERNETES, RUNTIME]),
    ("admission-webhook", &[CORE, PROTO, KUBERNETES, RUNTIME]),
    ("cli", &[CORE, PROTO, KUBERNETES]),
    ("testbed", &[CORE, PROTO, KUBERNETES]),
    ("run-table", &[]),
    ("xtask", &["run-table", "testbed"]),
    (
        "integration-tests",
        &["testbed", CORE, PROTO, KUBERNETES, RUNTIME],
    ),
];

/// A package, and the packages that must not be among its direct and indirect dependencies (without build and test
/// dependencies).
struct Absence {
    package: &'static str,
    why: &'static str,
    /// Names of packages. A final `*` stands for any further characters.
    forbidden: &'static [&'static str],
}

const ABSENCES: [Absence; 2] = [
    Absence {
        package: CORE,
        why: "core decides without async, clock, network or Kubernetes client",
        forbidden: &[
            "tokio", "kube*", "k8s-*", "tonic*", "prost*", "hyper*", "axum*", "reqwest", "async-*",
            "futures*",
        ],
    },
    Absence {
        package: "affinity-planner",
        why: "the planner never calls Kubernetes",
        forbidden: &["kube*", "k8s-*", KUBERNETES],
    },
];

pub(super) async fn check(workspace: &Workspace) -> anyhow::Result<Report> {
    let mut findings = check_table(&inside(&workspace.packages));
    for absence in &ABSENCES {
        match tree(workspace, absence.package).await? {
            Ok(tree) => findings.extend(check_absence(absence, &tree)),
            Err(finding) => findings.push(finding),
        }
    }
    Ok(findings.into())
}

fn inside(packages: &[Package]) -> Inside {
    let members: BTreeSet<&str> = packages
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    packages
        .iter()
        .map(|package| {
            let names = package
                .dependencies
                .iter()
                .map(|dependency| dependency.name.as_str());
            let within = names
                .filter(|name| members.contains(name))
                .map(str::to_owned)
                .collect();
            (package.name.clone(), within)
        })
        .collect()
}

/// The names of all direct and indirect dependencies of `package`, without build and test dependencies. Only `package` is
/// resolved, and not the whole workspace. Otherwise, cargo would add features, and so dependencies, that only other packages
/// need.
async fn tree(
    workspace: &Workspace,
    package: &str,
) -> anyhow::Result<Result<BTreeSet<String>, Finding>> {
    let output = workspace
        .cargo()
        .args([
            "tree",
            "--locked",
            "--package",
            package,
            "--edges",
            "normal",
        ])
        .args(["--prefix", "none", "--format", "{p}"])
        .output()
        .await
        .context("failed to start `cargo tree`")?;
    if !output.status.success() {
        // Most likely, Cargo.lock is older than a Cargo.toml.
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason = stderr.lines().next().unwrap_or_default();
        return Ok(Err(Finding::new(
            format!("failed to list the dependencies of {package}: {reason}"),
            format!("cargo check --package {package}, which brings Cargo.lock up to date"),
        )));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    Ok(Ok(names.map(str::to_owned).collect()))
}

fn check_table(inside: &Inside) -> Vec<Finding> {
    let table: BTreeMap<&str, &[&str]> = TABLE.into_iter().collect();
    let mut findings = Vec::new();
    for (package, dependencies) in inside {
        let Some(allowed) = table.get(package.as_str()) else {
            findings.push(Finding::new(
                format!("package {package} is not in the dependency table"),
                "add it to the tables in ARCHITECTURE.md and crates/xtask/src/tidy/dependencies.rs",
            ));
            continue;
        };
        for dependency in dependencies
            .iter()
            .filter(|name| !allowed.contains(&name.as_str()))
        {
            let allowed = if allowed.is_empty() {
                "nothing".to_owned()
            } else {
                allowed.join(", ")
            };
            findings.push(Finding::new(
                format!("{package} depends on {dependency}; inside the workspace it may depend on: {allowed}"),
                format!("cargo remove --package {package} {dependency}"),
            ));
        }
    }
    findings
}

fn check_absence(absence: &Absence, tree: &BTreeSet<String>) -> Vec<Finding> {
    let Absence {
        package,
        why,
        forbidden,
    } = absence;
    let hit = |name: &str| {
        forbidden
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == *pattern,
            })
    };
    tree.iter()
        .filter(|name| hit(name))
        .map(|name| {
            Finding::new(
                format!("{name} is among the dependencies of {package}, but {why}"),
                format!("find its dependents with `cargo tree --package {package} --edges normal --invert {name}`, and remove them"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depends(package: &str, on: &[&str]) -> Inside {
        Inside::from([(package.to_owned(), names(on))])
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[track_caller]
    fn refused(package: &str, on: &[&str], expected: &str) {
        let findings = check_table(&depends(package, on));
        assert_eq!(
            findings
                .iter()
                .map(|finding| finding.what.as_str())
                .collect::<Vec<_>>(),
            [expected]
        );
    }

    #[test]
    fn the_table_itself_is_allowed() {
        for (package, allowed) in TABLE {
            assert_eq!(check_table(&depends(package, allowed)), []);
        }
    }

    #[test]
    fn no_service_is_in_any_list() {
        let services = testbed::services::Service::ALL.map(testbed::services::Service::name);
        for (_, allowed) in TABLE {
            assert!(allowed.iter().all(|name| !services.contains(name)));
        }
    }

    #[test]
    fn a_service_that_depends_on_another_is_refused() {
        refused(
            "watcher",
            &[CORE, "affinity-planner"],
            "watcher depends on affinity-planner; inside the workspace it may depend on: coscheduler-core, \
             coscheduler-proto, coscheduler-kubernetes, coscheduler-runtime",
        );
    }

    #[test]
    fn tools_and_tests_start_services_and_do_not_link_them() {
        refused(
            "xtask",
            &["testbed", "watcher"],
            "xtask depends on watcher; inside the workspace it may depend on: run-table, testbed",
        );
    }

    #[test]
    fn core_depends_on_nothing_inside() {
        refused(
            CORE,
            &[RUNTIME],
            "coscheduler-core depends on coscheduler-runtime; inside the workspace it may depend on: nothing",
        );
    }

    #[test]
    fn a_package_outside_the_table_is_named() {
        refused(
            "newcomer",
            &[],
            "package newcomer is not in the dependency table",
        );
    }

    #[test]
    fn the_planner_without_kubernetes_is_clean_and_with_it_is_not() {
        let [_, planner] = &ABSENCES;
        assert_eq!(
            check_absence(
                planner,
                &names(&["affinity-planner", "tokio", "tonic", CORE])
            ),
            []
        );
        let findings = check_absence(planner, &names(&["kube-client", "k8s-openapi", "tokio"]));
        assert_eq!(
            findings[1],
            Finding::new(
                "kube-client is among the dependencies of affinity-planner, but the planner never calls Kubernetes",
                "find its dependents with `cargo tree --package affinity-planner --edges normal --invert kube-client`, and remove them",
            )
        );
        assert_eq!(findings.len(), 2);
    }
}
