//! Whether a node that stands takes one more pod. Topology is asked elsewhere.

use super::equivalence_class::ClassId;
use super::intern::find;
use super::world::World;
use crate::host_ports;
use crate::resources::amount;
use crate::taints;

/// Why a node refuses.
#[derive(Clone, Debug)]
pub(crate) enum NodeRefusal {
    Taint(String),
    Volumes {
        driver: String,
        count: usize,
        limit: u32,
    },
    HostPort(String),
    Resources(Vec<String>),
    Label(String),
    VolumePlace,
}

impl World<'_> {
    pub fn node_takes(&mut self, node: usize, class: ClassId, variant: usize) -> Result<(), NodeRefusal> {
        let data = &self.nodes[node];
        let class_data = &self.classes[class];
        let variant_data = &class_data.variants[variant];
        // The likeliest reason first; the outcome does not depend on the order.
        if !data.fits(&class_data.requests) {
            let short = class_data
                .requests
                .iter()
                .enumerate()
                .filter(|(index, required)| {
                    **required > amount(&data.remaining, *index) || amount(&data.remaining, *index) < 0
                })
                .map(|(index, _)| self.resources.name(index).to_owned())
                .collect();
            return Err(NodeRefusal::Resources(short));
        }
        if let Some(taint) = taints::untolerated(&data.taints, &variant_data.tolerations) {
            return Err(NodeRefusal::Taint(taints::display(taint)));
        }
        for (driver, names) in &class_data.volumes {
            if let Some(limit) = data.volume_limits.get(driver) {
                let attached = data.volumes.get(driver);
                let fresh = names
                    .iter()
                    .filter(|name| !attached.is_some_and(|attached| attached.contains(*name)))
                    .count();
                let count = attached.map_or(0, std::collections::BTreeSet::len) + fresh;
                if count > *limit as usize {
                    return Err(NodeRefusal::Volumes {
                        driver: driver.clone(),
                        count,
                        limit: *limit,
                    });
                }
            }
        }
        if let Some((required, held)) = host_ports::conflict(&class_data.host_ports, &data.host_ports) {
            return Err(NodeRefusal::HostPort(format!("{required} conflicts with {held}")));
        }
        let hostname = self.interner.hostname;
        for &(key, required) in &variant_data.requirements {
            let agrees = if key == hostname {
                self.interner.get(required).has(&data.hostname)
            } else {
                match find(&data.labels, key) {
                    Some(label) => self.interner.agrees(label, required),
                    None => self.interner.allows_absence(required),
                }
            };
            if !agrees {
                return Err(NodeRefusal::Label(self.interner.get(required).to_string()));
            }
        }
        if !class_data.volume_places.is_empty() {
            let labels = data.labels.clone();
            let host = data.hostname.clone();
            let reachable = class_data.volume_places.clone().iter().any(|place| {
                let named =
                    find(place, hostname).is_none_or(|required| self.interner.get(required).has(&host));
                named && self.interner.compatible(&labels, place, false)
            });
            if !reachable {
                return Err(NodeRefusal::VolumePlace);
            }
        }
        Ok(())
    }

    /// Recounts a node's volumes from the pods that run on it.
    pub fn restore_volumes(&mut self, node: usize) {
        let mut volumes = crate::storage::Volumes::new();
        for bound in &self.nodes[node].pods {
            for (driver, names) in self.storage.volumes(self.bound[*bound].pod) {
                volumes.entry(driver).or_default().extend(names);
            }
        }
        self.nodes[node].volumes = volumes;
    }
}
