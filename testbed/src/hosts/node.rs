//! What a host brings into its workload cluster: a Node, and for a kubeadm control plane what kubeadm leaves there.
//! Pure: data in, objects out.

use serde_json::{Value, json};

use super::backend::Booting;

/// The namespace of a control plane's pods and settings.
pub const SYSTEM: &str = "kube-system";

/// The Node, as a kubelet would register it; kwok makes it ready.
pub fn node(host: &Booting) -> Value {
    let mut labels = json!({
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": host.name,
        "kubernetes.io/os": "linux",
    });
    for (name, value) in &host.labels {
        labels[name] = json!(value);
    }
    let mut spec = json!({"providerID": host.provider_id});
    if host.is_control_plane {
        labels["node-role.kubernetes.io/control-plane"] = json!("");
        spec["taints"] = json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]);
    }
    let mut status = json!({
        "addresses": [
            {"type": "InternalIP", "address": host.address},
            {"type": "Hostname", "address": host.name},
        ],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": "testhost://1",
            "kernelVersion": "testhost",
            "kubeProxyVersion": host.version,
            "kubeletVersion": host.version,
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "testhost",
            "systemUUID": "",
        },
    });
    if !host.capacity.is_empty() {
        status["capacity"] = json!(host.capacity);
        status["allocatable"] = json!(host.capacity);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": host.name,
            "labels": labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": spec,
        "status": status,
    })
}

/// The names of the pods that kubeadm runs on a control plane node.
pub fn control_plane_pod_names(node: &str) -> [String; 3] {
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
        .map(|component| format!("{component}-{node}"))
}

/// The pods that kubeadm runs on a control plane node.
pub fn control_plane_pods(host: &Booting) -> Vec<Value> {
    control_plane_pod_names(&host.name)
        .into_iter()
        .map(|name| {
            let component = name.trim_end_matches(host.name.as_str()).trim_end_matches('-');
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": SYSTEM,
                    "labels": {"component": component, "tier": "control-plane"},
                },
                "spec": {
                    "nodeName": host.name,
                    "hostNetwork": true,
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": component, "image": format!("{component}:{}", host.version)}],
                },
            })
        })
        .collect()
}

/// The settings that `kubeadm init` leaves: by them Cluster API sees that the control plane is initialized.
pub fn kubeadm_config(host: &Booting) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kubeadm-config", "namespace": SYSTEM},
        "data": {
            "ClusterConfiguration": format!(
                "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: {}\n",
                host.version
            ),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_plane_node_carries_its_role_and_its_pods() {
        let host = Booting {
            name: "cp-1".into(),
            provider_id: "testhost://ns/cp-1".into(),
            version: "v1.36.3".into(),
            is_control_plane: true,
            capacity: [("cpu".to_owned(), "4".to_owned())].into(),
            address: "10.1.0.1".into(),
            ..Booting::default()
        };
        let node = node(&host);
        assert_eq!(node["spec"]["providerID"], "testhost://ns/cp-1");
        assert_eq!(
            node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"],
            ""
        );
        assert_eq!(node["status"]["allocatable"]["cpu"], "4");
        assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.36.3");
        let pods = control_plane_pods(&host);
        assert_eq!(pods[0]["metadata"]["name"], "kube-apiserver-cp-1");
        assert_eq!(pods[0]["spec"]["containers"][0]["name"], "kube-apiserver");
    }
}
