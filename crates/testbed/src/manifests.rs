//! Reads YAML manifests, and applies (server-side apply) or deletes their objects. The objects may be of any kind that the API
//! server serves.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use anyhow::{Context as _, Result};
use backon::{ExponentialBuilder, Retryable as _};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{
    DeleteParams, DynamicObject, ObjectMeta, PartialObjectMeta, Patch, PatchParams, Preconditions,
};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::discovery::{ApiCapabilities, Scope};
use kube::{Api, Client};
use serde_json::Value;

/// The field manager of all objects that a test bed applies.
pub(crate) const FIELD_MANAGER: &str = "testbed";

/// The number of objects that are applied at the same time.
const PARALLELISM: usize = 16;

/// The documents of a YAML text, without empty ones.
pub(crate) fn parse(yaml: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(yaml).context("failed to parse YAML")?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

/// Applies `objects` with the field manager `manager`: first namespaces and CustomResourceDefinitions, then all others.
pub(crate) async fn apply(client: &Client, objects: &[Value], manager: &str) -> Result<()> {
    let (first, then): (Vec<&Value>, Vec<&Value>) = objects.iter().partition(|object| {
        let kind = object["kind"].as_str().unwrap_or_default();
        kind == "Namespace" || kind == "CustomResourceDefinition"
    });
    for lot in [first, then] {
        let kinds = kinds_of(client, &lot).await?;
        let kinds = &kinds;
        stream::iter(lot.into_iter().map(|object| async move {
            let (api, name) = api(client, kinds, object)?;
            let params = PatchParams::apply(manager).force();
            let patch = Patch::Apply(object);
            (async || api.patch(name, &params, &patch).await)
                .retry(ExponentialBuilder::default())
                .when(is_lost)
                .await
                .with_context(|| format!("failed to apply {}", what(object)))?;
            anyhow::Ok(())
        }))
        .buffer_unordered(PARALLELISM)
        .try_collect::<()>()
        .await?;
    }
    Ok(())
}

/// True if a request got no answer: a busy API server may close a connection. The request may have had its effect.
fn is_lost(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(_) | kube::Error::HyperError(_))
}

/// The objects among `objects` that exist in the cluster, with their metadata.
pub(crate) async fn existing<'a>(
    client: &Client,
    objects: &'a [Value],
) -> Result<Vec<(&'a Value, PartialObjectMeta<DynamicObject>)>> {
    let kinds = kinds_of(client, &objects.iter().collect::<Vec<_>>()).await?;
    let kinds = &kinds;
    let found: Vec<_> = stream::iter(objects.iter().map(|object| async move {
        let (api, name) = api(client, kinds, object)?;
        let found = api
            .get_metadata_opt(name)
            .await
            .with_context(|| format!("failed to read {}", what(object)))?;
        anyhow::Ok(found.map(|found| (object, found)))
    }))
    .buffered(PARALLELISM)
    .try_collect()
    .await?;
    Ok(found.into_iter().flatten().collect())
}

/// Deletes the objects among `objects` that exist and for whose current metadata `mine` returns true. Returns the deleted
/// objects.
pub(crate) async fn delete<'a>(
    client: &Client,
    objects: &'a [Value],
    mine: impl Fn(&ObjectMeta) -> bool,
) -> Result<Vec<&'a Value>> {
    let kinds = kinds_of(client, &objects.iter().collect::<Vec<_>>()).await?;
    let mut deleted = Vec::new();
    for (object, found) in existing(client, objects).await? {
        let (api, name) = api(client, &kinds, object)?;
        let mut found = Some(found.metadata);
        while let Some(this_one) = found.filter(|metadata| mine(metadata)) {
            let unchanged = DeleteParams::background().preconditions(Preconditions {
                uid: this_one.uid,
                resource_version: this_one.resource_version,
            });
            found = match api.delete(name, &unchanged).await {
                Ok(_) => {
                    deleted.push(object);
                    None
                }
                Err(kube::Error::Api(status)) if status.is_not_found() => None,
                // The object has changed since it was read, and may have another owner now.
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    let now = api.get_metadata_opt(name).await;
                    let now = now.with_context(|| format!("failed to read {}", what(object)))?;
                    now.map(|now| now.metadata)
                }
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("failed to delete {}", what(object)));
                }
            };
        }
    }
    Ok(deleted)
}

/// The kind and the name of an object, for messages.
pub(crate) fn what(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{name}"),
        None => format!("{kind} {name}"),
    }
}

type Kinds = BTreeMap<(String, String), (ApiResource, ApiCapabilities)>;

/// The kinds of `objects`, from the API server's discovery.
async fn kinds_of(client: &Client, objects: &[&Value]) -> Result<Kinds> {
    let mut kinds = Kinds::new();
    for object in objects {
        if let Entry::Vacant(entry) = kinds.entry(kind_of(object)) {
            let (api_version, kind) = entry.key().clone();
            let what = format!("kind {api_version} {kind}");
            let types = TypeMeta { api_version, kind };
            let gvk = GroupVersionKind::try_from(&types)
                .with_context(|| format!("failed to read {what}"))?;
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

/// The API of an object, and its name.
fn api<'a>(
    client: &Client,
    kinds: &Kinds,
    object: &'a Value,
) -> Result<(Api<DynamicObject>, &'a str)> {
    let key = kind_of(object);
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let (resource, capabilities) = kinds
        .get(&key)
        .with_context(|| format!("{} {name} has no known kind", key.1))?;
    let api = match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), resource),
        Scope::Namespaced => {
            let namespace = object["metadata"]["namespace"]
                .as_str()
                .unwrap_or("default");
            Api::namespaced_with(client.clone(), namespace, resource)
        }
    };
    Ok((api, name))
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
