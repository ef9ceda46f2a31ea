//! Which PipelineRuns are known, by uid and by version, in whatever namespace: what a call says about a run is held
//! against this, so that a known uid under another name or namespace is told from a run that is not known yet.

use std::collections::HashMap;
use std::sync::Arc;

use coscheduler_core::pipeline_run::PipelineRun;

/// The known runs, by uid, and whose version each `resourceVersion` is.
#[derive(Debug, Default)]
pub(super) struct Identities {
    by_uid: HashMap<String, Arc<PipelineRun>>,
    uid_by_version: HashMap<String, String>,
}

impl Identities {
    /// Takes in that a run is now `new` where it was `old`; `None` where it is not known.
    pub(super) fn replace(&mut self, old: Option<Arc<PipelineRun>>, new: Option<Arc<PipelineRun>>) {
        if let Some(old) = old {
            self.by_uid.remove(&old.uid);
            self.uid_by_version.remove(&old.resource_version);
        }
        if let Some(new) = new {
            self.uid_by_version
                .insert(new.resource_version.clone(), new.uid.clone());
            self.by_uid.insert(new.uid.clone(), new);
        }
    }

    /// The run with this uid.
    pub(super) fn by_uid(&self, uid: &str) -> Option<&Arc<PipelineRun>> {
        self.by_uid.get(uid)
    }

    /// The run whose newest known version this is. The API server gives no two versions of PipelineRuns one number.
    pub(super) fn by_version(&self, resource_version: &str) -> Option<&Arc<PipelineRun>> {
        self.by_uid(self.uid_by_version.get(resource_version)?)
    }
}
