//! The registration.

use slipway_aks::provider::provider;

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
    assert_eq!(package.crds.len(), 7);
    for crd in &package.crds {
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
            "azuremanagedmachinepool"
        ]
    );
}
