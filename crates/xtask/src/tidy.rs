//! `cargo xtask tidy`: the rules about this repository that no compiler checks. Each check is a pure function over what
//! was read; what it finds carries the command or edit that mends it.

mod dependencies;
mod layout;
mod links;
mod machine_paths;
mod outside;
mod tests_table;

use anyhow::bail;

use crate::workspace::Workspace;

pub(crate) use layout::tracked_files;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// What is wrong, and where.
    what: String,
    /// The command or edit that mends it.
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

/// What a check has to say.
#[derive(Debug, Default)]
struct Report {
    findings: Vec<Finding>,
    /// What could not be checked on this machine, and why.
    notices: Vec<String>,
}

impl From<Vec<Finding>> for Report {
    fn from(findings: Vec<Finding>) -> Self {
        Self {
            findings,
            notices: Vec::new(),
        }
    }
}

pub(crate) async fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let tracked = layout::tracked_files(workspace).await?;
    let reports = [
        ("dependency table", dependencies::check(workspace).await?),
        ("layout", layout::check_required(workspace, &tracked).into()),
        (
            "file sizes",
            layout::check_sizes(workspace, &tracked)?.into(),
        ),
        (
            "machine paths",
            machine_paths::check(workspace, &tracked)?.into(),
        ),
        ("links", links::check(workspace, &tracked)?.into()),
        (
            "test table",
            tests_table::check(workspace, &tracked)?.into(),
        ),
        ("proto style", outside::buf_lint(workspace).await?),
        ("shell style", outside::shellcheck(workspace).await?),
        ("image style", outside::hadolint(workspace).await?),
        ("installation", outside::kustomize(workspace).await?),
    ];

    let mut broken = 0;
    for (name, Report { findings, notices }) in reports {
        let verdict = match (findings.len(), notices.is_empty()) {
            (0, true) => "ok".to_owned(),
            (0, false) => "not checked".to_owned(),
            (count, _) => format!("{count} broken"),
        };
        eprintln!("tidy: {name}: {verdict}");
        for notice in notices {
            eprintln!("  notice: {notice}");
        }
        for Finding { what, mend } in &findings {
            eprintln!("  {what}\n    mend: {mend}");
        }
        broken += findings.len();
    }
    if broken > 0 {
        bail!(
            "tidy found {broken} broken rule{}",
            if broken == 1 { "" } else { "s" }
        );
    }
    Ok(())
}
