//! Writes objects straight into the etcd of a bed, by its JSON gateway. The API server reads JSON there too.

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::ByteString;
use kube::client::Body;
use serde_json::{Value, json};
use testbed::TestBed;

/// Objects of one transaction: etcd takes at most 128 operations, and 1.5 MiB.
const AT_ONCE: usize = 50;
/// Transactions at a time.
const PARALLEL: usize = 4;

/// The etcd of a bed.
pub(crate) struct Etcd {
    address: String,
    client: Client<HttpConnector, Body>,
}

impl Etcd {
    pub(crate) fn of(bed: &TestBed) -> anyhow::Result<Self> {
        let pid = bed.processes().pid("etcd")?;
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
        let mut arguments = arguments.split('\0');
        let address = arguments.find_map(|it| it.strip_prefix("--listen-client-urls="));
        Ok(Self {
            address: address.context("etcd has no address")?.to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        })
    }

    /// Stores objects, each under its key.
    pub(crate) async fn put(
        &self,
        objects: impl Iterator<Item = (String, Value)>,
    ) -> anyhow::Result<()> {
        let mut objects = objects.peekable();
        let transactions = std::iter::from_fn(|| {
            objects.peek()?;
            Some(objects.by_ref().take(AT_ONCE).collect())
        });
        stream::iter(transactions)
            .map(async |transaction| self.send(transaction).await)
            .buffer_unordered(PARALLEL)
            .try_for_each(async |()| Ok(()))
            .await
    }

    async fn send(&self, objects: Vec<(String, Value)>) -> anyhow::Result<()> {
        let puts: Vec<_> = objects
            .into_iter()
            .map(|(key, object)| {
                let value = ByteString(object.to_string().into_bytes());
                json!({"requestPut": {"key": ByteString(key.into_bytes()), "value": value}})
            })
            .collect();
        let request = http::Request::post(format!("{}/v3/kv/txn", self.address)).body(
            Body::from(json!({"success": puts}).to_string().into_bytes()),
        )?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        let said = String::from_utf8_lossy(&body);
        ensure!(
            status.is_success() && said.contains("\"succeeded\":true"),
            "etcd: {status} {said}"
        );
        Ok(())
    }
}
