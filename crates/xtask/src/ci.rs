//! `cargo xtask ci`, which `.ci/run` calls. After a failed step, the next steps run too. If a tool cannot be installed, `deny` is
//! skipped, or `tidy` checks less, and the summary gives the reason. Each step has a heading and its duration. For a failed step,
//! the summary says how to repair or repeat it. The tests run last, so that their results are near the end of the output.

use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::process::Command;

use crate::progress::seconds;
use crate::tools::CARGO_DENY;
use crate::workspace::Workspace;
use crate::{binaries, foreground, test, tidy};

#[derive(Clone, Copy, Debug)]
enum Step {
    Fmt,
    Tidy,
    Clippy,
    Doc,
    Deny,
    Test,
}

impl Step {
    const ALL: [Self; 6] = [
        Self::Fmt,
        Self::Tidy,
        Self::Clippy,
        Self::Doc,
        Self::Deny,
        Self::Test,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Tidy => "tidy",
            Self::Doc => "doc",
            Self::Deny => "deny",
            Self::Test => "test",
        }
    }

    fn mend(self) -> &'static str {
        match self {
            Self::Fmt => "cargo fmt --all",
            Self::Clippy => {
                "cargo clippy --workspace --all-targets --locked --fix --allow-dirty, then edit what is left"
            }
            Self::Tidy => "each rule above says what mends it; `cargo xtask tidy` checks again",
            Self::Doc => {
                "edit the comments named above; `cargo doc --no-deps --workspace` shows them again"
            }
            Self::Deny => "see deny.toml; `cargo xtask ci` shows it again",
            Self::Test => "cargo xtask test <name of the failed test> runs it alone",
        }
    }
}

#[derive(Debug)]
enum Outcome {
    Passed,
    /// The step could not check everything, for this reason.
    Skipped(String),
    Failed(anyhow::Error),
}

pub(crate) async fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut results: Vec<(Step, Outcome, Duration)> = Vec::new();
    for step in Step::ALL {
        println!("\n== {} ==", step.name());
        if matches!(step, Step::Clippy) {
            // Builds the programs of test beds at the same time as the next steps, because much of Go's build keeps only one
            // processor busy. An error of this build is ignored: the tests build what is missing, and then report it. The build
            // starts after `tidy`, because `tidy` needs only one of these programs, and would wait for all.
            drop(tokio::spawn(binaries::all_beds()));
        }
        let began = Instant::now();
        let outcome = run_step(workspace, step)
            .await
            .unwrap_or_else(Outcome::Failed);
        let took = began.elapsed();
        match &outcome {
            Outcome::Passed => println!("-- {}: passed ({})", step.name(), seconds(took)),
            Outcome::Skipped(why) => println!("-- {}: SKIPPED: {why}", step.name()),
            Outcome::Failed(error) => {
                println!(
                    "-- {}: FAILED ({}): {error:#}\n   mend: {}",
                    step.name(),
                    seconds(took),
                    step.mend()
                );
            }
        }
        results.push((step, outcome, took));
    }

    println!("\n== summary ==");
    let mut failed = Vec::new();
    for (step, outcome, took) in &results {
        let verdict = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Skipped(why) => format!("SKIPPED: {why}"),
            Outcome::Failed(_) => {
                failed.push(step.name());
                format!("FAILED; mend: {}", step.mend())
            }
        };
        println!("{:8}{:>14}  {verdict}", step.name(), seconds(*took));
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("failed: {}", failed.join(", "))
    }
}

async fn run_step(workspace: &Workspace, step: Step) -> anyhow::Result<Outcome> {
    match step {
        Step::Fmt => cargo(workspace, &["fmt", "--all", "--check"]).await,
        Step::Clippy => {
            let arguments = [
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "--deny",
                "warnings",
            ];
            cargo(workspace, &arguments).await
        }
        Step::Tidy => match tidy::run(workspace).await?.as_slice() {
            [] => Ok(()),
            skipped => return Ok(Outcome::Skipped(skipped.join("; "))),
        },
        Step::Doc => cargo(workspace, &["doc", "--no-deps", "--workspace", "--locked"]).await,
        Step::Deny => {
            let deny = match CARGO_DENY.path(workspace).await {
                Ok(deny) => deny,
                Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
            };
            let mut deny = workspace.command(deny);
            deny.args(["--workspace", "--locked", "check"])
                .arg("--hide-inclusion-graph")
                // Not the check of advisories: its result changes without a change of this repository.
                .args(["bans", "licenses", "sources"]);
            succeed(&mut deny).await
        }
        Step::Test => test::run_in_ci(workspace).await,
    }?;
    Ok(Outcome::Passed)
}

async fn cargo(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    // Of these cargo commands, only `cargo doc` reads this variable.
    succeed(cargo.args(arguments).env("RUSTDOCFLAGS", "-D warnings")).await
}

async fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = foreground::run(command).await?;
    if !status.success() {
        bail!("{status}");
    }
    Ok(())
}
