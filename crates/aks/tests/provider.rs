//! The registration, and what it renders to.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use slipway_aks::provider::provider;
use slipway_render::{Bundle, Release};

use crate::drop_in::capz;

#[test]
fn the_provider_brings_its_kinds_and_a_webhook_for_each() {
    let provider = provider();
    assert_eq!(provider.name, "aks");
    let [package] = provider.packages.as_slice() else {
        panic!("{provider:?}")
    };
    assert_eq!(
        (package.identity().as_str(), package.prefix().as_str()),
        ("infrastructure-azure", "capz")
    );
    assert_eq!(package.crds.len(), 8);
    // Nobody writes machines but the controllers, and the schema guards their one field.
    let written = package
        .crds
        .iter()
        .filter(|crd| crd.spec.names.kind != "AzureManagedMachine");
    for crd in written {
        let plural = &crd.spec.names.plural;
        assert!(
            package.admission.iter().any(|webhook| webhook.plural == *plural),
            "{plural} has no webhook"
        );
    }
    let names: Vec<&str> = package.controllers.iter().map(|one| one.name).collect();
    assert_eq!(
        names,
        [
            "azuremanagedcluster",
            "azuremanagedcontrolplane",
            "azuremanagedmachinepool",
            "azuremanagedmachine"
        ]
    );
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

/// What is installed of one kind, by name.
fn rendered(kind: &str) -> BTreeMap<String, Value> {
    let release = Release {
        version: "v0.1.0".to_owned(),
        image: "none".to_owned(),
    };
    let bundles = Bundle::join(&provider().packages).expect("a registration that renders");
    let objects = bundles.iter().flat_map(|bundle| bundle.objects(&release));
    objects
        .filter(|object| object["kind"] == kind)
        .map(|object| (name_of(&object).to_owned(), object))
        .collect()
}

/// clusterctl leaves a package's cluster roles behind. A role that is applied over one that collects its rules from others
/// goes on collecting, and a binding that is applied over another cannot change whose role it binds.
#[test]
fn no_cluster_role_is_called_as_one_that_capz_leaves_behind() {
    let folder = capz().join("config/rbac");
    let read = |file: &str| -> Value {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    };
    let name = |object: &Value| format!("capz-{}", name_of(object));
    let (role, binding) = (read("aggregation_role.yaml"), read("role_binding.yaml"));
    assert!(role["aggregationRule"].is_object(), "{role}");
    let (roles, bindings) = (rendered("ClusterRole"), rendered("ClusterRoleBinding"));
    assert!(!roles.contains_key(&name(&role)), "{}", name(&role));
    assert!(!bindings.contains_key(&name(&binding)), "{}", name(&binding));
    let ours = &bindings["capz-slipway-rolebinding"];
    assert_eq!(
        ours["subjects"],
        json!([{"kind": "ServiceAccount", "name": "capz-manager", "namespace": "capz-system"}])
    );
    assert!(roles.contains_key(ours["roleRef"]["name"].as_str().unwrap()));
}

#[test]
fn kubeadms_bootstrap_provider_may_ask_a_control_plane_for_its_version() {
    let (role, binding) = (
        "capz-kubeadm-bootstrap-role",
        "capz-kubeadm-bootstrap-rolebinding",
    );
    assert_eq!(
        rendered("ClusterRole")[role]["rules"],
        json!([{"apiGroups": ["infrastructure.cluster.x-k8s.io"], "resources": ["azuremanagedcontrolplanes"],
            "verbs": ["get", "list", "watch"]}])
    );
    let binding = &rendered("ClusterRoleBinding")[binding];
    assert_eq!(binding["roleRef"]["name"], role);
    assert_eq!(
        binding["subjects"],
        json!([{"kind": "Group", "name": "system:serviceaccounts:capi-kubeadm-bootstrap-system",
            "apiGroup": "rbac.authorization.k8s.io"}])
    );
}

/// `crates/azure` signs in as a workload identity with the token at this path.
#[test]
fn the_manager_has_the_token_that_workload_identity_reads() {
    let deployment = &rendered("Deployment")["capz-controller-manager"];
    let template = &deployment["spec"]["template"];
    assert_eq!(
        template["metadata"]["labels"]["azure.workload.identity/use"],
        "true"
    );
    // What is selected by does not change: an upgrade could not.
    assert_eq!(
        deployment["spec"]["selector"]["matchLabels"]["azure.workload.identity/use"],
        Value::Null
    );
    let volumes = template["spec"]["volumes"].as_array().expect("volumes");
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == "azure-identity-token")
        .expect("a volume for the token");
    let token = &volume["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token["audience"], "api://AzureADTokenExchange");
    let mounts = template["spec"]["containers"][0]["volumeMounts"]
        .as_array()
        .expect("mounts");
    let mount = mounts
        .iter()
        .find(|mount| mount["name"] == volume["name"])
        .expect("it is mounted");
    assert_eq!(
        format!(
            "{}/{}",
            mount["mountPath"].as_str().unwrap_or_default(),
            token["path"].as_str().unwrap_or_default()
        ),
        "/var/run/secrets/azure/tokens/azure-identity-token"
    );
}
