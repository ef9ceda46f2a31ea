//! Builds the observation of a run and its objects from the cache.

use std::collections::BTreeSet;
use std::sync::Arc;

use coscheduler_core::config::Backend;
use coscheduler_core::observed::Observed;
use coscheduler_core::observed::RunPresence;
use coscheduler_core::pipeline_run::RunState;
use coscheduler_kubernetes::complaints::About;

use super::store::Object as _;
use super::{Cache, RunKey};

impl Cache {
    /// A run and its objects, as the cache contains them now. The reconciler adds the fields that do not come from the cache.
    pub(crate) fn observe(&self, key: &RunKey) -> Observed {
        let index = self.read();
        let known = index
            .names
            .get(&key.uid)
            .and_then(|name| index.runs.get(name));
        let known = known.filter(|known| known.run.namespace == key.namespace);
        let mut observed = Observed {
            presence: match known {
                Some(known) if known.run.deletion => RunPresence::Gone,
                Some(known) if known.run.state == RunState::Done => RunPresence::Done,
                Some(_) => RunPresence::Active,
                None => RunPresence::Gone,
            },
            run: known.map(|known| (known.run.clone(), known.planned.clone())),
            nodes: index.nodes.clone(),
            has_rivals: !index.refused.is_empty(),
            has_quota: {
                let first = (key.namespace.clone(), String::new());
                let mut quotas = index.quotas.range(first..);
                quotas
                    .next()
                    .is_some_and(|(namespace, _)| *namespace == key.namespace)
            },
            ..Observed::default()
        };
        for own in index.placeholders.of(key) {
            let name = own.object.name.clone();
            let refused = index
                .complaints
                .about(About::Placeholder, &own.key(), &own.object.uid);
            observed
                .refused
                .extend(refused.map(|reason| (name.clone(), reason)));
            let mut planned = observed.planned().iter();
            let own = match own.backend {
                Backend::Controlled => own.clone(),
                Backend::Pod => planned
                    .find(|spec| spec.name.as_str() == name)
                    .map_or_else(|| own.clone(), |spec| Arc::new(own.as_planned(spec))),
            };
            observed.placeholders.insert(name, own);
        }
        for run in index.children.of(key).iter().chain([key]) {
            let pods = index.pods.of(run);
            let pods = pods.map(|pod| (pod.object.name.clone(), pod.clone()));
            observed.pods.extend(pods);
            let ended = index.ended.get(run).into_iter().flatten();
            observed.ended.extend(ended.cloned());
        }
        observed.claims = index.claims_of(key).into_iter().cloned().collect();
        let planned = observed.planned().iter().flat_map(|spec| spec.claims());
        let used = observed.pods.values().flat_map(|pod| pod.claims.clone());
        let names: BTreeSet<String> = planned.chain(used).collect();
        for name in names {
            let claim = (key.namespace.clone(), name);
            let Some(seen) = index.seen(&claim) else {
                continue;
            };
            let uid = index.claims.get(&claim).map(|it| it.object.uid.as_str());
            let reason = index
                .complaints
                .about(About::Claim, &claim, uid.unwrap_or_default());
            let pods = index.pods_by_claim.get(&claim).into_iter().flatten();
            let pods = pods.filter_map(|pod| index.pods.get(pod));
            let others = pods.filter(|pod| !observed.pods.contains_key(&pod.object.name));
            observed.sharing.extend(others.cloned());
            observed
                .not_provisioned
                .extend(reason.map(|reason| (claim.1.clone(), reason)));
            observed.volumes.insert(claim.1, seen);
        }
        observed
    }
}
