//! `cargo xtask tidy`: the rules about this repository that no compiler checks. Each finding names the command or edit that
//! repairs it.

mod dependencies;
mod layout;
mod links;
mod machine_paths;
mod outside;
mod placeholder_kind;
mod tests_table;
mod writes;

use anyhow::bail;

use crate::workspace::Workspace;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// The problem and its place.
    what: String,
    /// The command or edit that repairs it.
    mend: String,
}

impl Finding {
    fn new(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            mend: mend.into(),
        }
    }
}

/// The outcome of a check.
#[derive(Debug)]
enum Report {
    Checked(Vec<Finding>),
    /// The check could not run, for this reason.
    Skipped(anyhow::Error),
}

impl Default for Report {
    fn default() -> Self {
        Self::Checked(Vec::new())
    }
}

impl From<Vec<Finding>> for Report {
    fn from(findings: Vec<Finding>) -> Self {
        Self::Checked(findings)
    }
}

/// Runs every check. Returns the skipped checks, each with the reason.
///
/// # Errors
/// A rule is broken, or a check itself fails.
pub(crate) async fn run(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let files = &workspace.files().await?;
    let reports = [
        ("dependency table", dependencies::check(workspace).await?),
        (
            "unused dependencies",
            outside::unused_dependencies(workspace).await?,
        ),
        ("layout", layout::required(workspace, files).into()),
        ("file sizes", layout::sizes(files).into()),
        ("placeholder's kind", placeholder_kind::check(files)?.into()),
        ("machine paths", machine_paths::check(files).into()),
        ("links", links::check(files).into()),
        ("test table", tests_table::check(files)?.into()),
        ("rights to write", writes::check(files)?.into()),
        ("proto style", outside::proto_style(workspace).await?),
        (
            "proto changes",
            outside::proto_changes(workspace, files).await?,
        ),
        ("shell style", outside::shell_style(workspace, files).await?),
        ("image style", outside::image_style(workspace).await?),
        ("installation", outside::installation(workspace).await?),
    ];

    let mut broken = 0;
    let mut skipped = Vec::new();
    for (name, report) in reports {
        match report {
            Report::Checked(findings) => {
                match findings.len() {
                    0 => eprintln!("tidy: {name}: ok"),
                    count => eprintln!("tidy: {name}: {count} broken"),
                }
                for alike in findings.chunk_by(|one, next| one.mend == next.mend) {
                    alike
                        .iter()
                        .for_each(|finding| eprintln!("  {}", finding.what));
                    eprintln!("    mend: {}", alike[0].mend);
                }
                broken += findings.len();
            }
            Report::Skipped(error) => {
                eprintln!("tidy: {name}: SKIPPED: {error:#}");
                skipped.push(format!("{name}: {error:#}"));
            }
        }
    }
    match broken {
        0 => Ok(skipped),
        1 => bail!("tidy found 1 broken rule"),
        _ => bail!("tidy found {broken} broken rules"),
    }
}
