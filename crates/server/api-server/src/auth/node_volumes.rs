//! What do the volumes of a node's pods name, and who mounts them?
//!
//! A pod names a claim, the claim its volume, and the volume Secrets and a driver.

use crate::keys::local;
use crate::server::Server;
use pointsman_rules::Kind;
use pointsman_rules::value::{list_at, str_at};
use serde_json::Value;

/// Secrets that kubelets mount and stage volumes with; those for controllers are not among them.
const SECRETS: [&str; 4] = [
    "secretRef",
    "nodePublishSecretRef",
    "nodeStageSecretRef",
    "nodeExpandSecretRef",
];

impl Server {
    fn known(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = Kind::by_resource(group, "v1", plural)?;
        Some(self.cache.of(kind).get(&local(namespace, name))?.value())
    }

    /// The volume that a claim is bound to.
    fn volume_of(&self, namespace: &str, claim: &str) -> Option<Value> {
        let claim = self.known("", "persistentvolumeclaims", namespace, claim)?;
        let volume = self.known(
            "",
            "persistentvolumes",
            "",
            str_at(&claim, &["spec", "volumeName"]),
        )?;
        let bound = str_at(&volume, &["spec", "claimRef", "uid"]);
        // The volume says so too: anybody may write its name into a claim.
        (!bound.is_empty() && bound == str_at(&claim, &["metadata", "uid"])).then_some(volume)
    }

    /// Whether a volume that a pod of `node` claims is mounted with the Secret.
    pub fn mounts_with(&self, node: &str, namespace: &str, secret: &str) -> bool {
        let claims = self.graph.claims(node).into_iter();
        let mut volumes = claims.filter_map(|(namespace, claim)| self.volume_of(&namespace, &claim));
        volumes.any(|volume| names_secret(&volume, namespace, secret))
    }

    /// The CSI drivers of a pod's volumes.
    pub fn drivers_of(&self, pod: &Value) -> Vec<Value> {
        let (namespace, name) = (
            str_at(pod, &["metadata", "namespace"]),
            str_at(pod, &["metadata", "name"]),
        );
        let driver = |volume: &Value| {
            let claim = match volume.get("ephemeral") {
                Some(_) => format!("{name}-{}", str_at(volume, &["name"])),
                None => str_at(volume, &["persistentVolumeClaim", "claimName"]).to_owned(),
            };
            let bound = self.volume_of(namespace, &claim);
            let driver = bound
                .as_ref()
                .map(|bound| str_at(bound, &["spec", "csi", "driver"]));
            let driver = driver.unwrap_or_else(|| str_at(volume, &["csi", "driver"]));
            self.known("storage.k8s.io", "csidrivers", "", driver)
        };
        list_at(pod, &["spec", "volumes"])
            .iter()
            .filter_map(driver)
            .collect()
    }
}

/// Whether a PersistentVolume names the Secret, in the namespace of its claim unless it says another one.
fn names_secret(volume: &Value, namespace: &str, secret: &str) -> bool {
    let claims = str_at(volume, &["spec", "claimRef", "namespace"]);
    let meant = |found: &str, of: &str| {
        let of = if of.is_empty() { claims } else { of };
        found == secret && of == namespace
    };
    let spec = volume["spec"].as_object();
    let mut makers = spec.into_iter().flat_map(|spec| spec.values());
    makers.any(|maker| {
        let own = meant(
            str_at(maker, &["secretName"]),
            str_at(maker, &["secretNamespace"]),
        );
        let refer = |field: &&str| {
            meant(
                str_at(maker, &[field, "name"]),
                str_at(maker, &[field, "namespace"]),
            )
        };
        own || SECRETS.iter().any(refer)
    })
}
