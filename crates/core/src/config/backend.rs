//! The Kubernetes objects that make up a placeholder.

use serde::{Deserialize, Serialize};

use crate::words::words;

words! {
    /// The Kubernetes objects that make up a placeholder.
    #[derive(Default, Serialize, Deserialize)]
    pub enum Backend: "a value of placeholder-backend" {
        /// An object whose controller creates the pod and the claims (TEP-0135).
        #[default]
        #[serde(rename = "statefulset")]
        Controlled = "statefulset",
        /// Only a pod. The manager creates the pod and the claims. When the manager first replaces the pod, for example to move
        /// the placeholder, the placeholder becomes [`Controlled`](Self::Controlled).
        #[serde(rename = "pod")]
        Pod = "pod",
    }
}
