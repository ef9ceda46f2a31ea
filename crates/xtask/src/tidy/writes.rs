//! Checks that `docs/who-may-write.md` has a row for each right to write that the manifests in `deploy/` grant, and no other
//! row.

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde_json::Value;

use super::Finding;
use crate::workspace::Files;

const PAGE: &str = "docs/who-may-write.md";
const MANIFESTS: &str = "deploy/";
/// The verbs that change nothing.
const READS: [&str; 3] = ["get", "list", "watch"];
/// The number of columns that identify the right of a row. The next column gives the reason.
const COLUMNS: usize = 4;

pub(super) fn check(files: &Files) -> anyhow::Result<Vec<Finding>> {
    let granted = granted(&manifests(files)?);
    let page = files.get(PAGE).map_or("", String::as_str);
    let rows: BTreeSet<_> = page.lines().filter_map(row).collect();
    let missing = granted.difference(&rows).map(|right| {
        Finding::new(
            format!("{PAGE} lacks this right of the manifests: {right}"),
            format!("add a row to {PAGE} that begins with it, and say why the service needs it"),
        )
    });
    let stale = rows.difference(&granted).map(|right| {
        Finding::new(
            format!("{PAGE} has a right that no manifest grants: {right}"),
            format!("remove its row from {PAGE}"),
        )
    });
    Ok(missing.chain(stale).collect())
}

/// The right that a row of the table describes. `None` for a line that is no row, and for the head of the table.
fn row(line: &str) -> Option<String> {
    let cells: Vec<_> = line.strip_prefix("| `")?.split(" | ").collect();
    Some(format!("`{}", cells.get(..COLUMNS)?.join(" | ")))
}

fn manifests(files: &Files) -> anyhow::Result<Vec<Value>> {
    let is_manifest = |file: &str| file.starts_with(MANIFESTS) && file.ends_with(".yaml");
    let mut manifests = Vec::new();
    for (file, text) in files.iter().filter(|(file, _)| is_manifest(file)) {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(text).with_context(|| format!("failed to parse {file}"))?;
        manifests.extend(documents);
    }
    Ok(manifests)
}

/// The rights to write that bindings grant to accounts, each in the form of the first columns of a row.
fn granted(manifests: &[Value]) -> BTreeSet<String> {
    let mut rights = BTreeSet::new();
    for binding in manifests {
        let reference = &binding["roleRef"];
        let namespace = &binding["metadata"]["namespace"];
        let roles = manifests.iter().filter(|role| {
            role["kind"] == reference["kind"]
                && role["metadata"]["name"] == reference["name"]
                && (role["kind"] == "ClusterRole" || role["metadata"]["namespace"] == *namespace)
        });
        let place = namespace.as_str().unwrap_or("cluster");
        for role in roles {
            for rule in items(&role["rules"]) {
                for what in written(rule) {
                    let accounts = strings(items(&binding["subjects"]).map(|it| &it["name"]));
                    rights.extend(accounts.map(|name| format!("`{name}` | {what} | `{place}`")));
                }
            }
        }
    }
    rights
}

/// The verbs of a rule that can change objects, each with its resource.
fn written(rule: &Value) -> Vec<String> {
    let mut written = Vec::new();
    for verb in strings(items(&rule["verbs"])).filter(|verb| !READS.contains(verb)) {
        for group in strings(items(&rule["apiGroups"])) {
            let group = match group {
                "" => String::new(),
                group => format!(".{group}"),
            };
            for resource in strings(items(&rule["resources"])) {
                let any = format!("{verb} | `{resource}{group}`");
                match rule.get("resourceNames") {
                    None => written.push(any),
                    Some(names) => {
                        let names = strings(items(names));
                        written.extend(names.map(|name| format!("{any} named `{name}`")));
                    }
                }
            }
        }
    }
    written
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn strings<'a>(values: impl Iterator<Item = &'a Value>) -> impl Iterator<Item = &'a str> {
    values.filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RBAC: &str = "
kind: ClusterRole
metadata: {name: placer}
rules:
  - {apiGroups: [''], resources: [pods], verbs: [list, VERBS]}
---
kind: ClusterRoleBinding
metadata: {name: placer}
roleRef: {kind: ClusterRole, name: placer}
subjects: [{kind: ServiceAccount, name: manager, namespace: ours}]
---
kind: Role
metadata: {name: leader, namespace: ours}
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [lead], verbs: [watch, update]}
---
kind: RoleBinding
metadata: {name: leader, namespace: ours}
roleRef: {kind: Role, name: leader}
subjects: [{kind: ServiceAccount, name: manager, namespace: ours}]
";
    const ROWS: &str = "
| service | verb | resource | where | why |
|---|---|---|---|---|
| `manager` | delete | `pods` | `cluster` | bad nodes |
| `manager` | update | `leases.coordination.k8s.io` named `lead` | `ours` | to lead |
";

    #[track_caller]
    fn check_verbs(verbs: &str, expected: &[&str]) {
        let files = Files::from([
            (
                "deploy/base/rbac.yaml".to_owned(),
                RBAC.replace("VERBS", verbs),
            ),
            (PAGE.to_owned(), ROWS.to_owned()),
        ]);
        let findings = check(&files).unwrap();
        let found: Vec<_> = findings.into_iter().map(|finding| finding.what).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_right_to_write_without_a_row_and_a_row_without_a_right_are_found() {
        check_verbs("delete", &[]);
        check_verbs(
            "delete, create",
            &[
                "docs/who-may-write.md lacks this right of the manifests: `manager` | create | `pods` | `cluster`",
            ],
        );
        check_verbs(
            "watch",
            &[
                "docs/who-may-write.md has a right that no manifest grants: `manager` | delete | `pods` | `cluster`",
            ],
        );
    }
}
