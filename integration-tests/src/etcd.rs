//! Writes objects directly into the etcd of a bed, with etcd's JSON gateway. The API server can read objects that are stored as
//! JSON.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

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

/// The number of objects that are stored at the same time.
const PARALLEL: usize = 8;

/// The etcd of a bed.
#[derive(Debug)]
pub struct Etcd {
    address: String,
    client: Client<HttpConnector, Body>,
}

impl Etcd {
    /// The etcd of this bed.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn of(bed: &TestBed) -> anyhow::Result<Self> {
        let pid = bed.processes().pid("etcd")?;
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
        let mut arguments = arguments.split('\0');
        let address = arguments.find_map(|it| it.strip_prefix("--listen-client-urls="));
        Ok(Self {
            address: address.context("etcd has no address")?.to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        })
    }

    /// Stores objects, each under its key and in a transaction of its own. Objects of one transaction would have the same
    /// resourceVersion, and a watch that starts again at this version would not show all of them.
    ///
    /// # Errors
    ///
    /// etcd does not store them.
    pub async fn put(&self, objects: impl Iterator<Item = (String, Value)>) -> anyhow::Result<()> {
        stream::iter(objects)
            .map(async |(key, object)| self.send(key, &object).await)
            .buffer_unordered(PARALLEL)
            .try_for_each(async |()| Ok(()))
            .await
    }

    async fn send(&self, key: String, object: &Value) -> anyhow::Result<()> {
        let value = ByteString(object.to_string().into_bytes());
        let put = json!({"key": ByteString(key.into_bytes()), "value": value});
        let request = http::Request::post(format!("{}/v3/kv/put", self.address))
            .body(Body::from(put.to_string().into_bytes()))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        let said = String::from_utf8_lossy(&body);
        ensure!(status.is_success(), "etcd: {status} {said}");
        Ok(())
    }
}

/// A copy of an object that the API server has returned, with this name and the [`uid`] of this name.
pub fn copy(of: &Value, name: &str) -> Value {
    let mut copy = of.clone();
    copy["metadata"]["name"] = json!(name);
    copy["metadata"]["uid"] = json!(uid(name));
    if let Some(metadata) = copy["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    copy
}

/// A uid that depends on the name alone.
pub fn uid(name: &str) -> String {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, name).hash(&mut hasher);
        hasher.finish()
    };
    let (high, low) = (hash(0), hash(1) >> 16);
    format!("{:08x}-0000-4000-8000-{low:012x}", high >> 32)
}
