//! `docs/tests.md` is what the names of the tests say, and no requirement is without a test on the control plane.

use std::collections::BTreeSet;

use anyhow::Context as _;

use super::Finding;
use crate::test_table::{PATH, Table};
use crate::workspace::Workspace;

pub(super) fn check(
    workspace: &Workspace,
    tracked: &BTreeSet<String>,
) -> anyhow::Result<Vec<Finding>> {
    let written = std::fs::read_to_string(workspace.root.join(PATH))
        .with_context(|| format!("failed to read {PATH}"))?;
    let table = Table::read(workspace, tracked)?;
    Ok(compare(&table, &written))
}

fn compare(table: &Table, written: &str) -> Vec<Finding> {
    let missing = table.missing().into_iter().map(|id| {
        Finding::new(
            format!("no test on the control plane shows {id}"),
            format!(
                "write one in integration-tests/tests; its name begins with {}_",
                id.to_lowercase()
            ),
        )
    });
    let stale = (table.to_text() != written).then(|| {
        Finding::new(
            format!("{PATH} is not what the names of the tests say"),
            "cargo xtask test-table",
        )
    });
    missing.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_table::REQUIRED;

    #[test]
    fn what_is_missing_or_stale_is_found() {
        let empty = Table::default();
        assert_eq!(compare(&empty, &empty.to_text()).len(), REQUIRED.len());
        let findings = compare(&empty, "# Tests\n");
        assert_eq!(findings.len(), REQUIRED.len() + 1);
        assert_eq!(
            findings[0].mend,
            "write one in integration-tests/tests; its name begins with m1_"
        );
        assert_eq!(findings[REQUIRED.len()].mend, "cargo xtask test-table");
    }
}
