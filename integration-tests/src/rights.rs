//! The rights that the services' accounts have, from the RBAC objects in the cluster, and the rights that they use, from the
//! audit log.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use testbed::services::NAMESPACE;

use crate::audit::Request;

/// The smallest unit that RBAC can allow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The account, without its namespace.
    pub account: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, …
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, such as `pods` or `pods/status`.
    pub resource: String,
    /// The only object that the right applies to; `None` if it applies to all objects.
    pub name: Option<String>,
}

impl fmt::Display for Right {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            account,
            verb,
            group,
            resource,
            name,
        } = self;
        write!(formatter, "{account}: {verb} {resource}.{group}")?;
        match name {
            Some(name) => write!(formatter, " {name}"),
            None => Ok(()),
        }
    }
}

impl Right {
    /// True if this right, once granted, allows `used`.
    pub fn allows(&self, used: &Self) -> bool {
        let Self {
            account,
            verb,
            group,
            resource,
            name,
        } = self;
        (account, verb, group, resource) == (&used.account, &used.verb, &used.group, &used.resource)
            && (name.is_none() || *name == used.name)
    }
}

/// Every right that any role grants to accounts of our namespace.
///
/// # Errors
///
/// Roles or bindings cannot be listed.
pub async fn granted(client: &Client) -> anyhow::Result<BTreeSet<Right>> {
    let all = ListParams::default();
    let roles = Api::<Role>::all(client.clone()).list(&all).await?.items;
    let cluster_roles = Api::<ClusterRole>::all(client.clone())
        .list(&all)
        .await?
        .items;
    let rules = |namespace: Option<String>, reference: &RoleRef| -> Vec<PolicyRule> {
        let of_role = roles
            .iter()
            .filter(|role| reference.kind == "Role" && role.namespace() == namespace)
            .map(|role| (role.name_any(), role.rules.clone()));
        let of_cluster_role = cluster_roles
            .iter()
            .filter(|_| reference.kind == "ClusterRole")
            .map(|role| (role.name_any(), role.rules.clone()));
        of_role
            .chain(of_cluster_role)
            .filter(|(name, _)| *name == reference.name)
            .flat_map(|(_, rules)| rules.unwrap_or_default())
            .collect()
    };
    let mut rights = BTreeSet::new();
    for binding in Api::<RoleBinding>::all(client.clone()).list(&all).await? {
        let rules = rules(binding.namespace(), &binding.role_ref);
        rights.extend(expand(binding.subjects.iter().flatten(), &rules));
    }
    for binding in Api::<ClusterRoleBinding>::all(client.clone())
        .list(&all)
        .await?
    {
        let rules = rules(None, &binding.role_ref);
        rights.extend(expand(binding.subjects.iter().flatten(), &rules));
    }
    Ok(rights)
}

fn expand<'a>(subjects: impl Iterator<Item = &'a Subject>, rules: &[PolicyRule]) -> Vec<Right> {
    let mut rights = Vec::new();
    let ours = subjects.filter(|subject| {
        subject.kind == "ServiceAccount" && subject.namespace.as_deref() == Some(NAMESPACE)
    });
    for subject in ours {
        for rule in rules {
            let names: Vec<_> = match rule.resource_names.as_deref().unwrap_or_default() {
                [] => vec![None],
                names => names.iter().cloned().map(Some).collect(),
            };
            for verb in &rule.verbs {
                for group in rule.api_groups.iter().flatten() {
                    for resource in rule.resources.iter().flatten() {
                        rights.extend(names.iter().map(|name| Right {
                            account: subject.name.clone(),
                            verb: verb.clone(),
                            group: group.clone(),
                            resource: resource.clone(),
                            name: name.clone(),
                        }));
                    }
                }
            }
        }
    }
    rights
}

/// The right that a request of one of our accounts needed. `None` for requests of other accounts, and for requests without a
/// resource.
pub fn used(request: &Request) -> Option<Right> {
    let prefix = format!("system:serviceaccount:{NAMESPACE}:");
    let account = request.user.username.strip_prefix(&prefix)?;
    let object = &request.object;
    if object.resource.is_empty() {
        return None;
    }
    let resource = if object.subresource.is_empty() {
        object.resource.clone()
    } else {
        format!("{}/{}", object.resource, object.subresource)
    };
    Some(Right {
        account: account.to_owned(),
        verb: request.verb.clone(),
        group: object.api_group.clone(),
        resource,
        name: (!object.name.is_empty()).then(|| object.name.clone()),
    })
}
