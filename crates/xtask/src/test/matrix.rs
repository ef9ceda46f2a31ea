//! `cargo xtask test --matrix`: runs some topics on each combination of releases, one combination after the other, and prints a
//! table.

use anyhow::bail;
use testbed::Releases;

use super::side_by_side;
use super::topics::{self, BINARY, PACKAGE, TARGET};
use super::{build, place, selection};
use crate::args::TestArgs;
use crate::binaries;
use crate::workspace::Workspace;

/// The topics that run if the command line selects no tests. They test each mode, each kind of volume, and the parts of Tekton
/// and Kubernetes that are no stable API. On two idle cores, each combination takes at most about six minutes.
const TOPICS: [&str; 13] = [
    // Runs in every mode, with every kind of volume.
    "examples",
    // The nodes of pods, which Tekton's annotation decides, and the lifetime of placeholders.
    "modes",
    "pipelineruns",
    // Claims that Tekton creates and deletes, and their names.
    "volumes",
    // Tekton's own flag, which changes the names of claims.
    "tekton_flag",
    // The names of Tekton's own assistants and of their claims.
    "migration",
    // Pipelines in Pipelines, an alpha feature.
    "parents",
    // Annotations that Tekton copies from Pipelines, Tasks and runs, and the account that creates TaskRuns.
    "overrides",
    "forged",
    // The requests that Tekton, LimitRanges and the API server give a pod.
    "sizes",
    // Scheduling gates, and the resize of a pod.
    "reservation",
    // The reaction of Tekton and the StatefulSet controller to a pod that is gone.
    "evacuation",
    // The texts with which the API server and the scheduler refuse a pod.
    "refusals",
];

/// A combination, with the topics that failed on it.
struct Column {
    heading: [String; 2],
    failed: Vec<String>,
}

pub(super) async fn run(workspace: &Workspace, args: &TestArgs) -> anyhow::Result<()> {
    let args = selected(args);
    for test in &args.test {
        if !topics::is_topic(workspace, test) {
            bail!(
                "--matrix runs tests on the control plane only; {PACKAGE}/tests has no file {test}.rs"
            );
        }
    }
    for releases in Releases::all() {
        binaries::control_plane_of(releases).await?;
    }
    let common = TestArgs {
        test: vec![TARGET.to_owned()],
        ..TestArgs::default()
    };
    let built = build(selection(workspace, &common)).await?;
    let Some(binary) = built.into_iter().find(|binary| binary.name == BINARY) else {
        bail!("cargo did not build {BINARY}");
    };
    let bin_dir = workspace.target.join("debug");

    let mut names = Vec::new();
    let mut columns = Vec::new();
    for releases in Releases::all() {
        let [kubernetes, tekton] = releases.versions()?;
        let heading = [
            format!("Kubernetes {kubernetes}"),
            format!("Tekton {tekton}"),
        ];
        println!("\n== {} ==", heading.join(", "));
        let mut jobs = topics::jobs(&binary, &args, &bin_dir).await?;
        jobs.sort_by_key(|job| place(&job.name));
        for job in &mut jobs {
            job.command.envs(releases.variables());
        }
        names = jobs.iter().map(|job| job.name.clone()).collect();
        let failed = side_by_side::failed(jobs).await?;
        columns.push(Column { heading, failed });
    }
    println!("\n{}", table(&names, &columns));
    let failed = columns.iter().filter(|column| !column.failed.is_empty());
    let failed: Vec<_> = failed.map(|column| column.heading.join(", ")).collect();
    if !failed.is_empty() {
        bail!("tests failed on {}", failed.join("; "));
    }
    Ok(())
}

/// The command line, with [`TOPICS`] if it selects no tests.
fn selected(args: &TestArgs) -> TestArgs {
    let mut args = args.clone();
    if args.names.is_empty() && args.test.is_empty() {
        args.test = TOPICS.map(str::to_owned).into();
    }
    args
}

/// A table with a row for each job and a column for each combination.
fn table(names: &[String], columns: &[Column]) -> String {
    let name_width = names.iter().map(String::len).max().unwrap_or_default();
    let row = |name: &str, cells: Vec<&str>| {
        let cells = cells.into_iter().map(|cell| format!("  {cell:18}"));
        let row = format!("{name:name_width$}{}", cells.collect::<String>());
        row.trim_end().to_owned()
    };
    let headings = (0..2).map(|line| {
        let cells = columns.iter().map(|column| column.heading[line].as_str());
        row("", cells.collect())
    });
    let rows = names.iter().map(|name| {
        let verdict = |column: &Column| match column.failed.contains(name) {
            true => "FAILED",
            false => "passed",
        };
        row(name, columns.iter().map(verdict).collect())
    });
    headings.chain(rows).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_column_for_each_combination() {
        let column = |tekton: &str, failed: &[&str]| Column {
            heading: ["Kubernetes v1.35.4".to_owned(), format!("Tekton {tekton}")],
            failed: failed.iter().map(|&name| name.to_owned()).collect(),
        };
        let columns = [column("v1.12.0", &[]), column("v1.15.1", &["t modes"])];
        let names = ["t modes".to_owned(), "t sizes".to_owned()];
        let expected = "
         Kubernetes v1.35.4  Kubernetes v1.35.4
         Tekton v1.12.0      Tekton v1.15.1
t modes  passed              FAILED
t sizes  passed              passed";
        assert_eq!(table(&names, &columns), expected.trim_start_matches('\n'));
    }

    #[test]
    fn a_selection_replaces_the_chosen_topics() {
        assert_eq!(selected(&TestArgs::default()).test, TOPICS);
        let names = vec!["drain".to_owned()];
        let args = TestArgs {
            names,
            ..TestArgs::default()
        };
        assert!(selected(&args).test.is_empty());
    }
}
