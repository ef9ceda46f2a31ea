//! Tests of the Kubernetes client: the source of its configuration, and its user agent.

use std::path::PathBuf;

use coscheduler_runtime::KubernetesArgs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{caller, within};

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_read_is_named() {
    let args = KubernetesArgs {
        kubeconfig: Some(PathBuf::from("no/such/kubeconfig")),
    };
    let error = args.client(&caller().await).await.map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"failed to use kubeconfig "no/such/kubeconfig""#
    );
}

#[tokio::test]
async fn the_api_server_is_told_who_calls() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cluster, context) = (
        folder.path().join("cluster.yaml"),
        folder.path().join("context.yaml"),
    );
    let address = server.local_addr().unwrap();
    let clusters = format!(
        "clusters: [{{name: here, cluster: {{server: 'http://{address}'}}}}]\nusers: [{{name: me, user: {{}}}}]\n"
    );
    std::fs::write(&cluster, clusters).unwrap();
    std::fs::write(
        &context,
        "current-context: now\ncontexts: [{name: now, context: {cluster: here, user: me}}]\n",
    )
    .unwrap();
    let kubeconfig = Some(PathBuf::from(
        std::env::join_paths([&cluster, &context]).unwrap(),
    ));
    let client = KubernetesArgs { kubeconfig };
    let client = client.client(&caller().await).await.unwrap();

    let asking = tokio::spawn(async move { client.apiserver_version().await });
    let (mut connection, _) = within(server.accept()).await.unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(within(connection.read_u8()).await.unwrap());
    }
    let request = String::from_utf8(request).unwrap().to_lowercase();
    assert!(
        request.contains("\r\nuser-agent: example/1.2.3\r\n"),
        "{request}"
    );
    connection
        .write_all(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    within(asking).await.unwrap().unwrap_err();
}
