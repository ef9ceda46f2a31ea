//! Every test checks that no volume for one node is in use on two nodes. These tests show that a test that breaks this rule
//! fails the check, and that no other test does.
#![allow(clippy::unwrap_used, clippy::panic)]

use integration_tests::{Scene, alone, shared};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

async fn claim(scene: &Scene<'_>, name: &str, access_mode: &str) -> Outcome {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": [access_mode],
            "storageClassName": MOVABLE_STORAGE_CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))?;
    scene.api().create(&PostParams::default(), &claim).await?;
    Ok(())
}

/// Creates a pod that uses a claim. The pod has a node name, so the scheduler does not handle it.
async fn pod(scene: &Scene<'_>, name: &str, node: &str, claim: &str) -> Outcome {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "i/i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }))?;
    scene.api().create(&PostParams::default(), &pod).await?;
    Ok(())
}

#[test]
fn v1_a_volume_for_one_node_in_use_on_two_fails_a_test_whatever_the_namespace() -> Outcome {
    let refused = shared(async |scene| {
        let own = scene.stack.scene().await?;
        claim(&own, "one-node", "ReadWriteOnce").await?;
        pod(&own, "first", "node-1", "one-node").await?;
        pod(&own, "second", "node-2", "one-node").await?;
        let exempt = scene.stack.scene().await?;
        scene.stack.history.exempt(&exempt.namespace);
        claim(&exempt, "allowed", "ReadWriteOnce").await?;
        pod(&exempt, "third", "node-1", "allowed").await?;
        pod(&exempt, "fourth", "node-2", "allowed").await
    });
    let refused = refused.unwrap_err().to_string();
    for word in ["one-node", "first on node-1", "second on node-2"] {
        assert!(refused.contains(word), "{refused}");
    }
    assert!(!refused.contains("allowed"), "{refused}");
    Ok(())
}

#[test]
fn v1_v8_claims_for_many_nodes_and_pods_that_come_later_fail_none() -> Outcome {
    alone(Config::default(), async |scene| {
        claim(scene, "many-nodes", "ReadWriteMany").await?;
        pod(scene, "third", "node-1", "many-nodes").await?;
        pod(scene, "fourth", "node-2", "many-nodes").await?;
        // A pod that is gone no longer uses its claim.
        claim(scene, "one-node", "ReadWriteOnce").await?;
        pod(scene, "first", "node-1", "one-node").await?;
        let params = DeleteParams::default().grace_period(0);
        scene.api::<Pod>().delete("first", &params).await?;
        scene
            .until("first", "is gone", |pod: Option<&Pod>| pod.is_none())
            .await?;
        pod(scene, "second", "node-2", "one-node").await
    })
}
