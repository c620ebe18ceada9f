//! Which packages run: `--providers` takes names of providers and identities of packages.

use super::ManagerError;
use crate::{Package, Provider};

/// The packages that `names` selects, in registration order; all if there are none.
pub fn select<'provider>(
    providers: &'provider [Provider],
    names: &[String],
) -> Result<Vec<&'provider Package>, ManagerError> {
    let all = || {
        providers
            .iter()
            .flat_map(|provider| provider.packages.iter().map(move |package| (provider, package)))
    };
    for name in names {
        let known = providers.iter().any(|provider| provider.name == name)
            || all().any(|(_, package)| package.identity() == *name);
        if !known {
            let mut known: Vec<String> = providers
                .iter()
                .map(|provider| provider.name.to_owned())
                .collect();
            known.extend(all().map(|(_, package)| package.identity()));
            known.sort();
            known.dedup();
            return Err(ManagerError::Flag(format!(
                "--providers: there is no provider or package {name:?}; {}",
                if known.is_empty() {
                    "this binary has none".to_owned()
                } else {
                    format!("known: {}", known.join(", "))
                }
            )));
        }
    }
    Ok(all()
        .filter(|(provider, package)| {
            names.is_empty()
                || names
                    .iter()
                    .any(|name| provider.name == name || package.identity() == *name)
        })
        .map(|(_, package)| package)
        .collect())
}

/// The lease: a single package has its own (that of the provider it replaces, where it is a drop-in), several share Slipway's.
pub fn lease_name(packages: &[&Package]) -> String {
    let mut prefixes: Vec<String> = packages.iter().map(|package| package.prefix()).collect();
    prefixes.sort();
    prefixes.dedup();
    match prefixes.as_slice() {
        [one] => format!("controller-leader-election-{one}"),
        _ => "controller-leader-election-slipway".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PackageKind;

    fn providers() -> Vec<Provider> {
        let mut one = Provider::new("k3s");
        one.packages = vec![
            Package::new(PackageKind::Bootstrap, "k3s"),
            Package::new(PackageKind::ControlPlane, "k3s"),
        ];
        let mut two = Provider::new("aks");
        let mut azure = Package::new(PackageKind::Infrastructure, "azure");
        azure.name_prefix = Some("capz");
        two.packages = vec![azure];
        vec![one, two]
    }

    fn selected(names: &[&str]) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        select(&providers(), &names)
            .map(|packages| packages.iter().map(|package| package.identity()).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn providers_and_packages_are_selected_by_name() {
        assert_eq!(
            selected(&[]).unwrap(),
            ["bootstrap-k3s", "control-plane-k3s", "infrastructure-azure"]
        );
        assert_eq!(
            selected(&["k3s"]).unwrap(),
            ["bootstrap-k3s", "control-plane-k3s"]
        );
        assert_eq!(
            selected(&["infrastructure-azure", "bootstrap-k3s"]).unwrap(),
            ["bootstrap-k3s", "infrastructure-azure"]
        );
        assert_eq!(
            selected(&["k3"]).unwrap_err(),
            "--providers: there is no provider or package \"k3\"; known: aks, bootstrap-k3s, control-plane-k3s, \
             infrastructure-azure, k3s"
        );
    }

    #[test]
    fn a_drop_in_campaigns_for_its_peers_lease() {
        let providers = providers();
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            lease_name(&select(&providers, &names).unwrap())
        };
        assert_eq!(of(&["aks"]), "controller-leader-election-capz");
        assert_eq!(of(&[]), "controller-leader-election-slipway");
    }
}
