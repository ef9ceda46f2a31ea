//! Reads YAML manifests and applies them: server-side apply through the API server's own discovery, so any kind will
//! do. Knows nothing of what is applied.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::discovery::{ApiCapabilities, Scope};
use kube::{Api, Client};
use serde_json::Value;

/// The field manager of everything a test bed applies.
const FIELD_MANAGER: &str = "testbed";

/// How many objects are applied at a time.
const PARALLELISM: usize = 16;

/// All documents of a YAML text that are not empty.
pub(crate) fn parse(yaml: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(yaml).context("failed to parse YAML")?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

/// Applies `objects`: namespaces and kinds first, then the rest, each lot at once.
pub(crate) async fn apply(client: &Client, objects: &[Value]) -> Result<()> {
    let (first, then): (Vec<&Value>, Vec<&Value>) = objects.iter().partition(|object| {
        let kind = object["kind"].as_str().unwrap_or_default();
        kind == "Namespace" || kind == "CustomResourceDefinition"
    });
    for lot in [first, then] {
        let kinds = kinds_of(client, &lot).await?;
        stream::iter(
            lot.into_iter()
                .map(|object| apply_one(client, &kinds, object)),
        )
        .buffer_unordered(PARALLELISM)
        .try_collect::<()>()
        .await?;
    }
    Ok(())
}

type Kinds = BTreeMap<(String, String), (ApiResource, ApiCapabilities)>;

/// What the API server knows about the kinds of `objects`.
async fn kinds_of(client: &Client, objects: &[&Value]) -> Result<Kinds> {
    let mut kinds = Kinds::new();
    for object in objects {
        if let Entry::Vacant(entry) = kinds.entry(kind_of(object)) {
            let (api_version, kind) = entry.key().clone();
            let what = format!("kind {api_version} {kind}");
            let types = TypeMeta { api_version, kind };
            let gvk = GroupVersionKind::try_from(&types)
                .with_context(|| format!("failed to understand {what}"))?;
            let found = kube::discovery::pinned_kind(client, &gvk)
                .await
                .with_context(|| format!("failed to find {what} on the API server"))?;
            entry.insert(found);
        }
    }
    Ok(kinds)
}

fn kind_of(object: &Value) -> (String, String) {
    let field = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
    (field("apiVersion"), field("kind"))
}

async fn apply_one(client: &Client, kinds: &Kinds, object: &Value) -> Result<()> {
    let key = kind_of(object);
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let (resource, capabilities) = kinds
        .get(&key)
        .with_context(|| format!("{} {name} has no known kind", key.1))?;
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), resource),
        Scope::Namespaced => {
            let namespace = object["metadata"]["namespace"]
                .as_str()
                .unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, resource)
        }
    };
    api.patch(
        name,
        &PatchParams::apply(FIELD_MANAGER).force(),
        &Patch::Apply(object),
    )
    .await
    .with_context(|| format!("failed to apply {} {name}", key.1))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_that_are_empty_or_only_comments_are_left_out() {
        let yaml = "# a licence\n---\nkind: A\n---\n# nothing\n---\nkind: B\nlist: [1, \"2\"]\n";
        let kinds: Vec<String> = parse(yaml)
            .unwrap()
            .iter()
            .map(|object| kind_of(object).1)
            .collect();
        assert_eq!(kinds, ["A", "B"]);
    }
}
