//! `check`: checks that the cluster has what tekton-coscheduler needs. It reads objects with the user's own rights, and changes
//! none.

mod judge;

use std::fmt::Debug;

use coscheduler_core::pod_template::PLACEHOLDER_CLASS;
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::CheckArgs;
use crate::cluster::{Cluster, failed, list};
use crate::failure::Failure;
use crate::output;

use judge::{Finding, Verdict};

/// The name of the webhook configuration in `deploy/base`.
const WEBHOOKS: &str = "coscheduler.dev";

/// The findings, in a fixed order.
#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Finding>,
}

/// Makes the checks, and writes the findings. Fails if a check fails.
pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let report = crate::runtime()?.block_on(check(args))?;
    output::write(&report, args.output.output.as_ref())?;
    let failed = report
        .checks
        .iter()
        .filter(|it| it.verdict == Verdict::Failed);
    match failed.count() {
        0 => Ok(()),
        number => Err(Failure::Failed(anyhow::anyhow!(
            "{number} of {} checks failed",
            report.checks.len()
        ))),
    }
}

async fn check(args: &CheckArgs) -> Result<Report, Failure> {
    let client = Cluster::of(&args.kubeconfig).await?.client;
    let map = async |namespace: &str, name: &str| {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        Ok(maps
            .get_opt(name)
            .await?
            .map(|map| map.data.unwrap_or_default()))
    };
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &args.namespace);
    let of_us = ListParams::default().labels("app.kubernetes.io/part-of=tekton-coscheduler");
    let mut checks = Vec::new();
    let mut add = |check, found: Readable<(Verdict, String)>| {
        let (verdict, message) = found.unwrap_or_else(|lack| (Verdict::Unknown, lack));
        checks.push(Finding {
            check,
            verdict,
            message,
        });
    };
    let flags = readable(map(&args.tekton_namespace, "feature-flags").await)?;
    add(
        "tekton-flag",
        flags.map(|it| judge::tekton_flag(it.as_ref())),
    );
    let config = readable(map(&args.namespace, "coscheduler-config").await)?;
    let named = config
        .clone()
        .and_then(|it| judge::named_class(it.as_ref()));
    add(
        "configuration",
        config.map(|it| judge::configuration(it.as_ref())),
    );
    let classes: Api<PriorityClass> = Api::all(client.clone());
    let class = match named {
        Ok(Some(name)) => {
            let needed = judge::needed_classes(&name);
            let found = try_join_all(needed.iter().map(|name| classes.get_opt(name))).await;
            readable(found)?.map(|found| judge::priority_classes(&needed, &found))
        }
        Ok(None) => {
            let found = readable(classes.get_opt(PLACEHOLDER_CLASS).await)?;
            found.map(|it| judge::no_priority_class(it.as_ref()))
        }
        Err(invalid) => Err(invalid),
    };
    add("priority-class", class);
    if !args.pre {
        let found = readable(webhooks.get_opt(WEBHOOKS).await)?;
        let judged = found.clone().map(|it| judge::webhooks(it.as_ref()));
        add("webhooks", judged);
        let now = Timestamp::now();
        let judged = found
            .clone()
            .map(|it| judge::certificates(it.as_ref(), now));
        add("certificates", judged);
        let services = readable(list(&deployments, of_us).await)?;
        let webhooks = found.ok().flatten();
        let judged = services.map(|it| judge::services(&args.namespace, &it, webhooks.as_ref()));
        add("services", judged);
    }
    let nodes = readable(every::<Node>(&client).await)?;
    add("nodes", nodes.map(|it| judge::nodes(&it)));
    let classes = readable(every::<StorageClass>(&client).await)?;
    add(
        "storage-classes",
        classes.map(|it| judge::storage_classes(&it)),
    );
    let core = readable(client.list_core_api_resources("v1").await)?;
    add("pods-resize", core.map(|it| judge::pods_resize(&it)));
    let lacking = readable(lacking(&client).await)?;
    add("rights", lacking.map(|it| judge::rights(&it)));
    let groups = readable(client.list_api_groups().await)?;
    add("autoscaler", groups.map(|it| judge::autoscaler(&it)));
    Ok(Report { checks })
}

/// Facts, or the reason why they are not known, for example the API server's sentence about the right that the user lacks.
type Readable<T> = Result<T, String>;

fn readable<T>(found: kube::Result<T>) -> Result<Readable<T>, Failure> {
    match found {
        Ok(facts) => Ok(Ok(facts)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Err(status.message.clone())),
        Err(error) => Err(failed("read the cluster", error)),
    }
}

/// The verbs and resources of [`judge::RIGHTS`] that the user is not allowed to use in all namespaces.
async fn lacking(client: &Client) -> kube::Result<Vec<(&'static str, &'static str)>> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answers = judge::RIGHTS.map(async |(verb, group, resource)| {
        let mut review = SelfSubjectAccessReview::default();
        review.spec.resource_attributes = Some(ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            ..ResourceAttributes::default()
        });
        let answer = reviews.create(&PostParams::default(), &review).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        kube::Result::<_>::Ok((!allowed).then_some((verb, resource)))
    });
    let answers = try_join_all(answers).await?;
    Ok(answers.into_iter().flatten().collect())
}

/// All objects of a cluster-scoped kind.
async fn every<K>(client: &Client) -> kube::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    list(&Api::<K>::all(client.clone()), ListParams::default()).await
}

impl output::Answer for Report {
    fn text(&self, _wide: bool) -> String {
        let rows = self.checks.iter().map(|it| {
            let verdict = it.verdict.as_str().to_owned();
            vec![verdict, it.check.to_owned(), it.message.clone()]
        });
        output::table(Some(vec!["RESULT", "CHECK", "MESSAGE"]), rows)
    }

    fn names(&self) -> Vec<String> {
        self.checks.iter().map(|it| it.check.to_owned()).collect()
    }
}
