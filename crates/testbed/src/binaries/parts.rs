//! The programs of a test bed, and the files in the same folder. There are two parts: the control plane, which every bed needs,
//! and Karpenter.

use anyhow::Result;

use crate::bundled;
use crate::releases::Sources;

/// The file with Tekton's manifests.
pub(super) const TEKTON_MANIFESTS: &str = "tekton.json";
/// The file with KWOK's stages.
pub(super) const KWOK_STAGES: &str = "kwok-stages.yaml";
/// The file with Karpenter's CustomResourceDefinitions.
pub(super) const KARPENTER_KINDS: &str = "karpenter.json";

/// Programs and files that are built together.
pub(super) struct Part {
    pub(super) modules: &'static [&'static str],
    pub(super) programs: &'static [Program],
    pub(super) files: &'static [File],
    /// The names of the files and folders that `files` are made from. They are among the inputs of the digest that names the
    /// programs' folder.
    pub(super) bundled: fn() -> Vec<&'static str>,
}

/// One program: its name, its Go module (a name for [`Sources::module`]) and its package.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) module: &'static str,
    pub(super) package: &'static str,
}

/// One file, and the function that makes its text from the sources in the Go modules.
pub(super) struct File {
    pub(super) name: &'static str,
    pub(super) text: fn(&Sources) -> Result<String>,
}

pub(super) const KUBECTL: Program =
    program("kubectl", "kubernetes", "k8s.io/kubernetes/cmd/kubectl");

pub(super) const CONTROL_PLANE: Part = Part {
    modules: &["kubernetes", "kwok", "tekton"],
    programs: &[
        program("etcd", "kubernetes", "go.etcd.io/etcd/server/v3"),
        program(
            "kube-apiserver",
            "kubernetes",
            "k8s.io/kubernetes/cmd/kube-apiserver",
        ),
        program(
            "kube-controller-manager",
            "kubernetes",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
        ),
        program(
            "kube-scheduler",
            "kubernetes",
            "k8s.io/kubernetes/cmd/kube-scheduler",
        ),
        KUBECTL,
        program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        program(
            "tekton-controller",
            "tekton",
            "github.com/tektoncd/pipeline/cmd/controller",
        ),
        program(
            "tekton-webhook",
            "tekton",
            "github.com/tektoncd/pipeline/cmd/webhook",
        ),
    ],
    files: &[
        File {
            name: TEKTON_MANIFESTS,
            text: bundled::tekton_manifests,
        },
        File {
            name: KWOK_STAGES,
            text: bundled::kwok_stages,
        },
    ],
    bundled: bundled::names,
};

pub(super) const KARPENTER: Part = Part {
    modules: &["karpenter"],
    programs: &[program(
        "karpenter",
        "karpenter",
        "sigs.k8s.io/karpenter/kwok",
    )],
    files: &[File {
        name: KARPENTER_KINDS,
        text: bundled::karpenter_kinds,
    }],
    bundled: bundled::karpenter_names,
};

const fn program(name: &'static str, module: &'static str, package: &'static str) -> Program {
    Program {
        name,
        module,
        package,
    }
}
