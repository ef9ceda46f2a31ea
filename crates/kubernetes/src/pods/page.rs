//! One page of a list of pods. It keeps only phases, names and claims, because one pod can have many kilobytes.

use coscheduler_core::observed::PodPhase;
use coscheduler_core::reconcile::claims_to_delete::PodUse;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// A page of a list of pods.
#[derive(Clone, Debug, Deserialize)]
pub struct Page {
    metadata: ListMeta,
    items: Option<Vec<Slim>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Slim {
    metadata: SlimMetadata,
    #[serde(default)]
    spec: SlimSpec,
    #[serde(default)]
    status: SlimStatus,
}

#[derive(Clone, Debug, Deserialize)]
struct SlimMetadata {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct SlimSpec {
    #[serde(default)]
    volumes: Vec<SlimVolume>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimVolume {
    name: String,
    persistent_volume_claim: Option<SlimClaim>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimClaim {
    claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct SlimStatus {
    phase: Option<String>,
}

impl Page {
    /// The token of the next page. `None` if this is the last page.
    pub fn next(&self) -> Option<&str> {
        let token = self.metadata.continue_.as_deref();
        token.filter(|token| !token.is_empty())
    }

    /// The phase and the claims of each pod.
    pub fn claim_uses(self) -> impl Iterator<Item = PodUse> {
        self.items.into_iter().flatten().map(Slim::claim_use)
    }
}

impl Slim {
    fn claim_use(self) -> PodUse {
        let Self {
            metadata,
            spec,
            status,
        } = self;
        // A generic ephemeral volume uses claim `<pod>-<volume>`.
        let claim = |volume: SlimVolume| match (volume.persistent_volume_claim, volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name),
            (None, Some(_)) => Some(format!("{}-{}", metadata.name, volume.name)),
            (None, None) => None,
        };
        PodUse {
            phase: PodPhase::read(status.phase.as_deref()),
            claims: spec.volumes.into_iter().filter_map(claim).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_are_named_by_volumes_and_ephemeral_volumes() {
        let page: Page = serde_json::from_value(json!({
            "kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": "more"},
            "items": [
                {
                    "metadata": {"name": "p"},
                    "spec": {"containers": [], "volumes": [
                        {"name": "a", "persistentVolumeClaim": {"claimName": "one"}},
                        {"name": "b", "ephemeral": {}},
                        {"name": "c", "emptyDir": {}},
                    ]},
                    "status": {"phase": "Running"},
                },
                {"metadata": {"name": "bare"}, "spec": {"containers": []}},
            ],
        }))
        .unwrap();
        assert_eq!(page.next(), Some("more"));
        let uses: Vec<_> = page.claim_uses().collect();
        assert_eq!(uses[0].claims, ["one", "p-b"]);
        assert_eq!(uses[0].phase, PodPhase::Running);
        assert_eq!(uses[1].claims, Vec::<String>::new());
        assert_eq!(uses[1].phase, PodPhase::Unknown);
    }
}
