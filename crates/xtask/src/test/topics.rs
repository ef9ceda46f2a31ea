//! The tests on the control plane are one binary, so that they are linked once. The binary runs once for each topic (a file of
//! `integration-tests/tests`), so that the test bed of a topic ends with its last test.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};

use super::side_by_side::Job;
use super::{TestBinary, command, job};
use crate::args::TestArgs;
use crate::workspace::Workspace;

pub(super) const PACKAGE: &str = "integration-tests";

/// The cargo target of the common binary.
pub(super) const TARGET: &str = "control_plane";

/// How many tests of a topic run at the same time. They mostly wait, and most topics have one control plane for all their tests.
/// A control plane that does little costs almost as much as a busy one: on a slow machine a quarter of a processor.
const TESTS_AT_ONCE: &str = "8";

/// The name of this binary in [`TestBinary`].
pub(super) const BINARY: &str = "integration-tests control_plane";

/// The cargo target for `cargo xtask test --test <test>`: the common binary if `test` is a topic, otherwise `test` itself.
pub(super) fn target<'a>(workspace: &Workspace, test: &'a str) -> &'a str {
    if is_topic(workspace, test) {
        TARGET
    } else {
        test
    }
}

pub(super) fn is_topic(workspace: &Workspace, test: &str) -> bool {
    let topic = Path::new(PACKAGE).join("tests").join(format!("{test}.rs"));
    workspace.root.join(topic).is_file()
}

/// One job for each topic with a selected test.
pub(super) async fn jobs(
    binary: &TestBinary,
    args: &TestArgs,
    bin_dir: &Path,
) -> anyhow::Result<Vec<Job>> {
    let mut list = command(binary, bin_dir);
    list.args(&args.names)
        .args(&args.arguments)
        .args(["--list", "--format", "terse"]);
    let listed = list.output().await.context("failed to list the tests")?;
    if !listed.status.success() {
        bail!(
            "failed to list the tests: {}",
            String::from_utf8_lossy(&listed.stderr).trim()
        );
    }
    let listed = String::from_utf8_lossy(&listed.stdout);
    let jobs = topics(&listed, &args.test)
        .into_iter()
        .map(|(topic, tests)| {
            let mut command = command(binary, bin_dir);
            command.args(tests).args(&args.arguments);
            command.env("RUST_TEST_THREADS", TESTS_AT_ONCE);
            if args.full_scale {
                command.env("COSCHEDULER_FULL_SCALE", "1");
            }
            if !args.arguments.iter().any(|argument| argument == "--exact") {
                command.arg("--exact");
            }
            job(format!("{PACKAGE} {topic}"), command)
        });
    Ok(jobs.collect())
}

/// Groups the listed tests by topic. If `wanted` is not empty, returns only the topics in it.
fn topics<'a>(list: &'a str, wanted: &[String]) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut topics: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let topic = test.split("::").next().unwrap_or(test);
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == topic) {
            topics.entry(topic).or_default().push(test);
        }
    }
    topics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_has_its_tests() {
        let list = "drain::one: test\ncrowd::all: test\ndrain::inner::two: test\n";
        let drain = ("drain", vec!["drain::one", "drain::inner::two"]);
        let all = [("crowd", vec!["crowd::all"]), drain.clone()];
        assert_eq!(topics(list, &[]), all.into());
        assert_eq!(topics(list, &["drain".to_owned()]), [drain].into());
    }
}
