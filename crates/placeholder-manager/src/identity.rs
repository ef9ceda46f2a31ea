//! Who a call is about, held against the manager's own view: a call whose namespace, name or version is that of another
//! run than the one with its uid is refused, whoever sends it. Nothing is looked up: what the cache does not know is not
//! judged here.

use std::sync::Arc;

use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_proto::convert::Identity;

use crate::cache::{Cache, RunKey};
use crate::error::Error;

/// The run that a call is about, `None` where no run with its uid is known.
///
/// # Errors
///
/// Where a field names another run than the one with the call's uid.
pub(crate) fn known(cache: &Cache, identity: &Identity) -> Result<Option<Arc<PipelineRun>>, Error> {
    if let Some(other) = cache.pipeline_run_at(&identity.resource_version)
        && other.uid != identity.uid
    {
        return Err(Error::Mismatch {
            field: "pipeline_run.resource_version".to_owned(),
            run: display(&identity.namespace, &identity.name),
            detail: "it is a version of another run".to_owned(),
        });
    }
    let Some(run) = cache.pipeline_run(&identity.uid) else {
        return Ok(None);
    };
    let expected = [
        ("namespace", &identity.namespace, &run.namespace),
        ("name", &identity.name, &run.name),
    ];
    match expected.iter().find(|(_, asked, is)| asked != is) {
        None => Ok(Some(run)),
        Some((field, asked, is)) => Err(mismatch(
            &run,
            &format!("pipeline_run.{field}"),
            format!("{asked} asked for, the run with this uid has {is}"),
        )),
    }
}

/// As [`known`], for a run that may be gone: what it left over still says what its name was.
///
/// # Errors
///
/// Where a field names another run than the one with the call's uid.
pub(crate) fn known_or_gone(cache: &Cache, identity: &Identity) -> Result<RunKey, Error> {
    let key = RunKey {
        namespace: identity.namespace.clone(),
        uid: identity.uid.clone(),
    };
    if known(cache, identity)?.is_some() {
        return Ok(key);
    }
    let left = cache.get(&key).unwrap_or_default();
    let mut names = left.owners(&key.uid).map(|owner| &owner.name);
    if let Some(name) = names.find(|name| **name != identity.name) {
        return Err(Error::Mismatch {
            field: "pipeline_run.name".to_owned(),
            run: display(&identity.namespace, name),
            detail: format!("{} asked for", identity.name),
        });
    }
    drop(names);
    Ok(key)
}

/// A call that disagrees with `run` about a field.
pub(crate) fn mismatch(run: &PipelineRun, field: &str, detail: String) -> Error {
    Error::Mismatch {
        field: field.to_owned(),
        run: display(&run.namespace, &run.name),
        detail,
    }
}

fn display(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::StatefulSet;
    use serde_json::json;

    fn run(namespace: &str, name: &str, uid: &str, resource_version: &str) -> PipelineRun {
        PipelineRun {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            resource_version: resource_version.to_owned(),
            ..PipelineRun::default()
        }
    }

    /// Two runs of one namespace, one of another.
    fn cache() -> Cache {
        let cache = Cache::default();
        cache.apply(run("ci", "mine", "u-mine", "10"));
        cache.apply(run("ci", "other", "u-other", "20"));
        cache.apply(run("prod", "theirs", "u-theirs", "30"));
        cache
    }

    fn mine() -> Identity {
        Identity {
            namespace: "ci".to_owned(),
            name: "mine".to_owned(),
            uid: "u-mine".to_owned(),
            resource_version: "10".to_owned(),
        }
    }

    /// `None`: the call is about a run that is known. Otherwise the field that is refused.
    #[track_caller]
    fn check(cache: &Cache, change: impl FnOnce(&mut Identity), expect: Option<&str>) {
        let mut identity = mine();
        change(&mut identity);
        let field = |error| match error {
            Error::Mismatch { field, .. } => field,
            other => panic!("{other}"),
        };
        let answer = known(cache, &identity).map(|run| run.is_some());
        assert_eq!(
            answer.map_err(field),
            expect.map_or(Ok(true), |field| Err(format!("pipeline_run.{field}")))
        );
        let released = known_or_gone(cache, &identity).map(|key| key.uid);
        assert_eq!(
            released.err().map(field),
            expect.map(|field| format!("pipeline_run.{field}"))
        );
    }

    #[test]
    fn each_field_that_names_another_run_is_refused() {
        let cache = cache();
        check(&cache, |_| (), None);
        // Any version that is nobody's may be one that was, or that will be seen.
        check(&cache, |call| call.resource_version = "9".to_owned(), None);
        check(&cache, |call| call.resource_version = "99".to_owned(), None);
        check(
            &cache,
            |call| call.namespace = "prod".to_owned(),
            Some("namespace"),
        );
        check(
            &cache,
            |call| call.namespace = "absent".to_owned(),
            Some("namespace"),
        );
        check(&cache, |call| call.name = "other".to_owned(), Some("name"));
        check(&cache, |call| call.name = "absent".to_owned(), Some("name"));
        for version in ["20", "30"] {
            let other = |call: &mut Identity| call.resource_version = version.to_owned();
            check(&cache, other, Some("resource_version"));
        }
        // The uid of another run, all else as it is: the version betrays it, or else the name or the namespace does.
        check(
            &cache,
            |call| call.uid = "u-other".to_owned(),
            Some("resource_version"),
        );
        let late = |uid: &str| {
            let uid = uid.to_owned();
            move |call: &mut Identity| {
                call.resource_version = "9".to_owned();
                call.uid = uid;
            }
        };
        check(&cache, late("u-other"), Some("name"));
        check(&cache, late("u-theirs"), Some("namespace"));
    }

    #[test]
    fn a_uid_that_is_not_known_is_not_judged() {
        let cache = cache();
        let unknown = Identity {
            uid: "u-new".to_owned(),
            resource_version: "40".to_owned(),
            ..mine()
        };
        assert!(known(&cache, &unknown).unwrap().is_none());
        assert_eq!(known_or_gone(&cache, &unknown).unwrap().uid, "u-new");
    }

    #[test]
    fn what_a_gone_run_left_over_says_its_name() {
        let cache = cache();
        cache.delete(&run("ci", "mine", "u-mine", "10"));
        let set: StatefulSet = serde_json::from_value(json!({"metadata": {
            "namespace": "ci", "name": "affinity-assistant-0123456789",
            "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "mine", "uid": "u-mine"}],
        }}))
        .unwrap();
        cache.apply(set);
        assert!(known_or_gone(&cache, &mine()).is_ok());
        let other = Identity {
            name: "other".to_owned(),
            ..mine()
        };
        assert!(matches!(
            known_or_gone(&cache, &other),
            Err(Error::Mismatch { field, .. }) if field == "pipeline_run.name"
        ));
    }
}
