//! The ResourceQuotas that count CPU or memory: in their namespaces, a reservation would take what the run's pods need.

use std::collections::HashSet;

use coscheduler_runtime::kubernetes::watch::ObjectKey;
use k8s_openapi::api::core::v1::ResourceQuota;

use super::{Cache, RunKey};

/// The keys of `spec.hard` that count CPU or memory (Kubernetes, "Resource Quotas").
const COUNTED: [&str; 6] = [
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];

/// True if the quota counts CPU or memory.
fn counts(quota: &ResourceQuota) -> bool {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    hard.is_some_and(|hard| hard.keys().any(|key| COUNTED.contains(&key.as_str())))
}

impl Cache {
    pub(crate) fn apply_quota(&self, key: ObjectKey, quota: &ResourceQuota) -> Vec<RunKey> {
        let mut index = self.write();
        if counts(quota) {
            index.quotas.insert(key);
        } else {
            index.quotas.remove(&key);
        }
        Vec::new()
    }

    pub(crate) fn delete_quota(&self, key: &ObjectKey) -> Vec<RunKey> {
        self.write().quotas.remove(key);
        Vec::new()
    }

    pub(crate) fn retain_quotas(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        self.write().quotas.retain(|key| listed.contains(key));
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::observed::Observed;
    use serde_json::json;

    use crate::cache::RunKey;

    #[test]
    fn b3_a_run_hears_of_quotas_of_its_namespace_that_count_cpu_or_memory() {
        let cache = Cache::default();
        let quota = |hard: &str| serde_json::from_value(json!({"spec": {"hard": {hard: "1"}}}));
        let key = |name: &str| ("ci".to_owned(), name.to_owned());
        let seen = |namespace: &str| -> bool {
            let observed: Observed = cache.observe(&RunKey::new(namespace, "u"));
            observed.has_quota
        };
        cache.apply_quota(key("pods"), &quota("pods").unwrap());
        assert!(!seen("ci"));
        cache.apply_quota(key("cpu"), &quota("requests.cpu").unwrap());
        assert!(seen("ci") && !seen("other"));
        cache.apply_quota(key("cpu"), &quota("pods").unwrap());
        assert!(!seen("ci"));
        cache.apply_quota(key("memory"), &quota("limits.memory").unwrap());
        cache.retain_quotas(&[key("pods")].into());
        assert!(!seen("ci"));
        cache.apply_quota(key("memory"), &quota("memory").unwrap());
        assert!(seen("ci"));
        cache.delete_quota(&key("memory"));
        assert!(!seen("ci"));
    }
}
