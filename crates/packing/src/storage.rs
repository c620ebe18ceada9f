//! What a pod's volumes ask of its node: places they can be attached in, and slots of a driver's attach limit.

use std::collections::{BTreeMap, BTreeSet};

use crate::labels;
use crate::model::{Options, PersistentVolume, PersistentVolumeClaim, Pod, Snapshot, StorageClass, Volume};
use crate::requirement::{Operator, Requirement};
use crate::requirements::Requirements;

/// Set once the binding of a claim is done.
const BOUND: &str = "pv.kubernetes.io/bind-completed";

/// Volumes by driver; each is named by its claim.
pub(crate) type Volumes = BTreeMap<String, BTreeSet<String>>;

/// The storage objects of a snapshot, by name.
pub(crate) struct Storage<'a> {
    claims: BTreeMap<(&'a str, &'a str), &'a PersistentVolumeClaim>,
    volumes: BTreeMap<&'a str, &'a PersistentVolume>,
    classes: BTreeMap<&'a str, &'a StorageClass>,
    options: &'a Options,
}

impl<'a> Storage<'a> {
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Storage {
            claims: snapshot
                .persistent_volume_claims
                .iter()
                .map(|claim| {
                    (
                        (claim.metadata.namespace.as_str(), claim.metadata.name.as_str()),
                        claim,
                    )
                })
                .collect(),
            volumes: snapshot
                .persistent_volumes
                .iter()
                .map(|volume| (volume.metadata.name.as_str(), volume))
                .collect(),
            classes: snapshot
                .storage_classes
                .iter()
                .map(|class| (class.metadata.name.as_str(), class))
                .collect(),
            options: &snapshot.options,
        }
    }

    /// The claim behind a volume: none for volumes that need none, an error for one that is missing.
    fn claim(&self, pod: &Pod, volume: &Volume) -> Option<Result<&'a PersistentVolumeClaim, String>> {
        let name = if let Some(reference) = &volume.persistent_volume_claim {
            reference.claim_name.clone()
        } else {
            volume.ephemeral.as_ref()?;
            format!("{}-{}", pod.metadata.name, volume.name)
        };
        Some(
            self.claims
                .get(&(pod.metadata.namespace.as_str(), name.as_str()))
                .copied()
                .ok_or_else(|| {
                    format!(
                        "persistentvolumeclaim {:?} of volume {:?} is not found",
                        name, volume.name
                    )
                }),
        )
    }

    fn driver(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        if claim.spec.volume_name.is_empty() {
            let class = self
                .classes
                .get(claim.spec.storage_class_name.as_deref().unwrap_or(""))?;
            return Some(csi_name(&class.provisioner).to_owned());
        }
        let volume = self.volumes.get(claim.spec.volume_name.as_str())?;
        match &volume.spec.csi {
            Some(source) => Some(source.driver.clone()),
            None => volume
                .spec
                .aws_elastic_block_store
                .as_ref()
                .map(|_| "ebs.csi.aws.com".to_owned()),
        }
    }

    pub fn volumes(&self, pod: &Pod) -> Volumes {
        let mut volumes = Volumes::new();
        for volume in &pod.spec.volumes {
            // A claim that is gone takes no slot.
            if let Some(Ok(claim)) = self.claim(pod, volume)
                && let Some(driver) = self.driver(claim)
            {
                volumes
                    .entry(driver)
                    .or_default()
                    .insert(claim.metadata.reference());
            }
        }
        volumes
    }

    /// The places the volumes can be attached in: any one of the alternatives, none meaning anywhere.
    pub fn alternatives(&self, pod: &Pod) -> Vec<Requirements> {
        let mut alternatives: Vec<Requirements> = Vec::new();
        for volume in &pod.spec.volumes {
            let Some(Ok(claim)) = self.claim(pod, volume) else {
                continue;
            };
            let own = self.claim_alternatives(claim);
            if own.is_empty() {
                continue;
            }
            if alternatives.is_empty() {
                alternatives = own;
                continue;
            }
            let product = |only_compatible: bool| -> Vec<Requirements> {
                alternatives
                    .iter()
                    .flat_map(|left| own.iter().map(move |right| (left, right)))
                    .filter(|(left, right)| !only_compatible || left.intersects(right).is_ok())
                    .map(|(left, right)| {
                        let mut merged = left.clone();
                        merged.add_all(right);
                        merged
                    })
                    .collect()
            };
            let compatible = product(true);
            alternatives = if compatible.is_empty() {
                product(false)
            } else {
                compatible
            };
        }
        alternatives
    }

    fn claim_alternatives(&self, claim: &PersistentVolumeClaim) -> Vec<Requirements> {
        if !claim.spec.volume_name.is_empty() {
            return self
                .volumes
                .get(claim.spec.volume_name.as_str())
                .map_or_else(Vec::new, |volume| places(volume));
        }
        let Some(class) = claim
            .spec
            .storage_class_name
            .as_deref()
            .and_then(|name| self.classes.get(name))
        else {
            return Vec::new();
        };
        class
            .allowed_topologies
            .iter()
            .filter(|term| !term.match_label_expressions.is_empty())
            .map(|term| {
                term.match_label_expressions
                    .iter()
                    .map(|expression| {
                        Requirement::new(&expression.key, Operator::In, expression.values.iter(), None)
                    })
                    .collect()
            })
            .collect()
    }

    /// Why a pod can never be scheduled with the volumes it names, if so.
    pub fn problem(&self, pod: &Pod) -> Option<String> {
        pod.spec
            .volumes
            .iter()
            .find_map(|volume| match self.claim(pod, volume)? {
                Err(missing) => Some(missing),
                Ok(claim) => self.claim_problem(claim),
            })
    }

    fn claim_problem(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let name = claim.metadata.reference();
        if claim.metadata.deletion_timestamp.is_some() {
            return Some(format!("persistentvolumeclaim {name} is being deleted"));
        }
        if claim.status.phase == "Lost" {
            return Some(format!(
                "persistentvolumeclaim {name} is bound to a persistentvolume that does not exist"
            ));
        }
        if !claim.spec.volume_name.is_empty() {
            let Some(volume) = self.volumes.get(claim.spec.volume_name.as_str()) else {
                return Some(format!(
                    "persistentvolume {} of claim {name} is not found",
                    claim.spec.volume_name
                ));
            };
            if volume.metadata.deletion_timestamp.is_some() {
                return Some(format!(
                    "persistentvolume {} of claim {name} is being deleted",
                    claim.spec.volume_name
                ));
            }
            if !claim.metadata.annotations.contains_key(BOUND) {
                return Some(format!(
                    "claim {name} names a volume but is not bound: it lacks the annotation {BOUND}"
                ));
            }
            return self.driver_problem(claim);
        }
        let class_name = claim.spec.storage_class_name.as_deref().unwrap_or("");
        if class_name.is_empty() {
            return Some(format!("unbound claim {name} must define a storage class"));
        }
        let Some(class) = self.classes.get(class_name) else {
            return Some(format!("storage class {class_name} of claim {name} is not found"));
        };
        if class.volume_binding_mode.as_deref() == Some("Immediate") {
            return Some(format!(
                "claim {name} with immediate volume binding mode must be bound"
            ));
        }
        let mut keys = class
            .allowed_topologies
            .iter()
            .flat_map(|term| &term.match_label_expressions)
            .map(|expression| &expression.key);
        if let Some(key) = keys.find(|key| self.options.unsupported_topology_keys.contains(key)) {
            return Some(format!(
                "storage class {class_name} of claim {name} uses the topology key {key}, which is not supported"
            ));
        }
        self.driver_problem(claim)
    }

    fn driver_problem(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let driver = self.driver(claim)?;
        self.options.unsupported_provisioners.contains(&driver).then(|| {
            let name = claim.metadata.reference();
            format!("provisioner {driver} of claim {name} is not supported")
        })
    }
}

fn places(volume: &PersistentVolume) -> Vec<Requirements> {
    let Some(required) = volume
        .spec
        .node_affinity
        .as_ref()
        .and_then(|affinity| affinity.required.as_ref())
    else {
        return Vec::new();
    };
    // A local volume's host is where the pod leaves from, not where it could go.
    let local = volume.spec.local.is_some() || volume.spec.host_path.is_some();
    required
        .node_selector_terms
        .iter()
        .filter(|term| !term.match_expressions.is_empty())
        .map(|term| {
            let kept = term
                .match_expressions
                .iter()
                .filter(|spec| !(local && spec.key == labels::HOSTNAME));
            Requirements::from_specs(kept)
        })
        .collect()
}

/// In-tree plugins are served by CSI drivers, whose limits they share.
fn csi_name(provisioner: &str) -> &str {
    match provisioner {
        "kubernetes.io/aws-ebs" => "ebs.csi.aws.com",
        "kubernetes.io/azure-disk" => "disk.csi.azure.com",
        "kubernetes.io/azure-file" => "file.csi.azure.com",
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io",
        "kubernetes.io/cinder" => "cinder.csi.openstack.org",
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com",
        "kubernetes.io/portworx-volume" => "pxd.portworx.com",
        other => other,
    }
}
