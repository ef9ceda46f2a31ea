//! The fields of a pod's `securityContext` that a placeholder may have. A placeholder keeps a field only if Pod Security
//! `restricted` allows its value (Kubernetes, "Pod Security Standards"). `restricted` includes the rules of `baseline`. All
//! fields that are not listed here are dropped, because a placeholder does not need them.

use serde_json::Value;

use super::{Dropped, Reduced};

/// The sysctls that cannot disturb another pod (Pod Security Standards, "Sysctls").
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

const SELINUX_TYPES: [&str; 5] = [
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
];

/// Reduces a `securityContext` to the allowed fields. If the value is not an object, everything is dropped.
pub(super) fn reduce(context: &Value) -> Reduced {
    let mut reduced = Reduced::default();
    let Some(fields) = context.as_object() else {
        reduced.drop("", context);
        return reduced;
    };
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let allowed = match key.as_str() {
            "runAsNonRoot" => value == &Value::Bool(true),
            "runAsUser" => value.as_i64().is_some_and(|user| user > 0),
            "runAsGroup" | "fsGroup" => value.as_i64().is_some_and(|group| group >= 0),
            "supplementalGroups" => value.is_array(),
            "fsGroupChangePolicy" | "seLinuxChangePolicy" | "supplementalGroupsPolicy" => {
                value.is_string()
            }
            "seccompProfile" | "appArmorProfile" => {
                matches!(text(value, "type"), Some("RuntimeDefault" | "Localhost"))
            }
            "seLinuxOptions" => {
                text(value, "type").is_none_or(|kind| SELINUX_TYPES.contains(&kind))
                    && text(value, "user").is_none_or(str::is_empty)
                    && text(value, "role").is_none_or(str::is_empty)
                    && value.is_object()
            }
            "sysctls" => {
                reduced.sysctls(value);
                continue;
            }
            _ => false,
        };
        if allowed {
            reduced.allowed.insert(key.clone(), value.clone());
        } else {
            reduced.drop(key, value);
        }
    }
    reduced
}

impl Reduced {
    fn sysctls(&mut self, value: &Value) {
        let mut safe = Vec::new();
        let Some(items) = value.as_array() else {
            return self.drop("sysctls", value);
        };
        for item in items {
            match text(item, "name") {
                Some(name) if SAFE_SYSCTLS.contains(&name) => safe.push(item.clone()),
                Some(name) => self.drop(&format!("sysctls[{name}]"), item),
                None => self.drop("sysctls", item),
            }
        }
        if !safe.is_empty() {
            self.allowed
                .insert("sysctls".to_owned(), Value::Array(safe));
        }
    }

    fn drop(&mut self, field: &str, value: &Value) {
        self.dropped.push(Dropped {
            field: field.to_owned(),
            value: value.to_string(),
        });
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[track_caller]
    fn check(context: Value, allowed: Value, dropped: &[&str]) {
        let reduced = reduce(&context);
        assert_eq!(Value::Object(reduced.allowed), allowed);
        let fields: Vec<_> = reduced
            .dropped
            .iter()
            .map(|dropped| dropped.field.as_str())
            .collect();
        assert_eq!(fields, dropped);
    }

    #[test]
    fn p3_what_restricted_allows_stays() {
        let context = json!({
            "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 0, "fsGroup": 2000,
            "fsGroupChangePolicy": "OnRootMismatch", "supplementalGroups": [1, 2],
            "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"},
            "appArmorProfile": {"type": "RuntimeDefault"},
            "seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"},
            "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}],
        });
        check(context.clone(), context, &[]);
    }

    #[test]
    fn p3_what_restricted_forbids_goes() {
        for (context, dropped) in [
            (json!({"runAsNonRoot": false}), "runAsNonRoot"),
            (json!({"runAsUser": 0}), "runAsUser"),
            (json!({"runAsUser": "1000"}), "runAsUser"),
            (
                json!({"seccompProfile": {"type": "Unconfined"}}),
                "seccompProfile",
            ),
            (json!({"seccompProfile": {}}), "seccompProfile"),
            (
                json!({"appArmorProfile": {"type": "Unconfined"}}),
                "appArmorProfile",
            ),
            (
                json!({"seLinuxOptions": {"type": "spc_t"}}),
                "seLinuxOptions",
            ),
            (
                json!({"seLinuxOptions": {"user": "root"}}),
                "seLinuxOptions",
            ),
            (
                json!({"seLinuxOptions": {"role": "sysadm_r"}}),
                "seLinuxOptions",
            ),
            (
                json!({"windowsOptions": {"hostProcess": true}}),
                "windowsOptions",
            ),
            (
                json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
                "sysctls[kernel.msgmax]",
            ),
            (
                json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
                "capabilities",
            ),
        ] {
            check(context, json!({}), &[dropped]);
        }
        check(json!("x"), json!({}), &[""]);
    }

    #[test]
    fn p3_each_sysctl_is_judged_by_itself() {
        check(
            json!({"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.ping_group_range"}]}),
            json!({"sysctls": [{"name": "net.ipv4.ping_group_range"}]}),
            &["sysctls[kernel.msgmax]"],
        );
    }

    proptest! {
        /// Reducing the result again changes nothing, and no field is both allowed and dropped.
        #[test]
        fn p3_reducing_twice_changes_nothing(
            user in -1_i64..3, nonroot in any::<bool>(), profile in "RuntimeDefault|Localhost|Unconfined|", kind in "container_t|spc_t|",
        ) {
            let context = json!({
                "runAsUser": user, "runAsNonRoot": nonroot, "seccompProfile": {"type": profile}, "seLinuxOptions": {"type": kind},
            });
            let once = reduce(&context);
            let again = reduce(&Value::Object(once.allowed.clone()));
            prop_assert!(again.dropped.is_empty());
            prop_assert_eq!(&again.allowed, &once.allowed);
            prop_assert_eq!(once.allowed.len() + once.dropped.len(), 4);
            prop_assert!(once.allowed.get("runAsUser").is_none_or(|user| user != 0));
        }
    }
}
