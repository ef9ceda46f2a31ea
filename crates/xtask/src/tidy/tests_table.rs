//! Checks that `docs/tests.md` matches the names of the tests, and that each implemented requirement has a test on the control
//! plane.

use super::Finding;
use crate::test_table::{PATH, REQUIREMENTS, Table};
use crate::workspace::Files;

pub(super) fn check(files: &Files) -> anyhow::Result<Vec<Finding>> {
    let table = Table::read(files)?;
    let no_requirements = (!files.contains_key(REQUIREMENTS)).then(|| {
        Finding::new(
            format!("{REQUIREMENTS} is missing, so no requirement is asked for"),
            format!("write {REQUIREMENTS}: a table with an id in the first column of each row"),
        )
    });
    let missing = table.missing().into_iter().map(|id| {
        Finding::new(
            format!("no test on the control plane shows {id}"),
            format!(
                "write one in integration-tests/tests; its name begins with {}_",
                id.to_lowercase()
            ),
        )
    });
    let early = table.early().into_iter().map(|id| {
        Finding::new(
            format!("a test shows {id}, which counts as not built yet"),
            format!("remove {id} from NOT_YET in crates/xtask/src/test_table.rs"),
        )
    });
    let stale = (files.get(PATH) != Some(&table.to_text())).then(|| {
        Finding::new(
            format!("{PATH} differs from the names of the tests"),
            "cargo xtask test-table",
        )
    });
    let findings = no_requirements.into_iter().chain(missing).chain(early);
    Ok(findings.chain(stale).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files = files
            .iter()
            .map(|&(file, text)| (file.to_owned(), text.to_owned()));
        let findings = check(&files.collect()).unwrap();
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn a_row_without_a_test_a_stale_table_and_no_requirements_are_found() {
        let up_to_date = Table::default().to_text();
        assert_eq!(
            found(&[(PATH, &up_to_date), (REQUIREMENTS, "# None\n")]),
            Vec::<String>::new()
        );
        assert_eq!(
            found(&[(PATH, &up_to_date)]),
            ["docs/requirements.md is missing, so no requirement is asked for"]
        );
        assert_eq!(
            found(&[
                (PATH, "# Tests\n"),
                (REQUIREMENTS, "| M1 | modes |\n"),
                ("integration-tests/tests/a.rs", "#[test] fn b4_x() {}"),
            ]),
            [
                "no test on the control plane shows M1",
                "a test shows B4, which counts as not built yet",
                "docs/tests.md differs from the names of the tests"
            ]
        );
    }
}
