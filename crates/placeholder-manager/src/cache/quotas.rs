//! The ResourceQuotas that count CPU or memory. In their namespaces, a placeholder reserves no room until it has left a node
//! that had no room for a pod of the run. Otherwise, the quota would count the reservation in addition to the run's pods.

use coscheduler_runtime::kubernetes::watch::ObjectKey;
use k8s_openapi::api::core::v1::ResourceQuota;

use super::{Cache, RunKey};

/// True if the quota counts CPU (key `cpu`, `requests.cpu` or `limits.cpu` of `spec.hard`) or memory (the same keys with
/// `memory`). Source: Kubernetes, "Resource Quotas".
fn counts(quota: &ResourceQuota) -> bool {
    let hard = quota.spec.iter().flat_map(|spec| &spec.hard);
    hard.flat_map(|hard| hard.keys()).any(|key| {
        let resource = key.trim_start_matches("requests.");
        ["cpu", "memory"].contains(&resource.trim_start_matches("limits."))
    })
}

impl Cache {
    pub(crate) fn apply_quota(&self, key: ObjectKey, quota: &ResourceQuota) -> Vec<RunKey> {
        let mut index = self.write();
        index.quotas.remove(&key);
        if counts(quota) {
            index.quotas.insert(key);
        }
        Vec::new()
    }

    pub(crate) fn retain_quotas(&self, keep: impl Fn(&ObjectKey) -> bool) -> Vec<RunKey> {
        self.write().quotas.retain(keep);
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn b3_a_run_hears_of_quotas_of_its_namespace_that_count_cpu_or_memory() {
        let cache = Cache::default();
        let key = |name: &str| ("ci".to_owned(), name.to_owned());
        let apply = |name: &str, hard: &str| {
            let quota = json!({"spec": {"hard": {hard: "1"}}});
            cache.apply_quota(key(name), &serde_json::from_value(quota).unwrap());
        };
        let seen = |namespace: &str| cache.observe(&RunKey::new(namespace, "u")).has_quota;
        apply("a", "pods");
        assert!(!seen("ci"));
        apply("a", "requests.cpu");
        assert!(seen("ci") && !seen("other"));
        apply("a", "pods");
        assert!(!seen("ci"));
        apply("a", "memory");
        assert!(seen("ci"));
        apply("a", "pods");
        apply("b", "limits.memory");
        assert!(seen("ci"));
        cache.retain_quotas(|it| *it == key("a"));
        assert!(!seen("ci"));
    }
}
