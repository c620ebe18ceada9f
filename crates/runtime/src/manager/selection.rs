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

/// The packages that run: without names, those that nobody has to ask for.
pub fn select_to_run<'provider>(
    providers: &'provider [Provider],
    names: &[String],
) -> Result<Vec<&'provider Package>, ManagerError> {
    let mut packages = select(providers, names)?;
    if names.is_empty() {
        packages.retain(|package| !package.on_request);
    }
    Ok(packages)
}

/// The lease: a single package has its own (that of the provider it replaces, where it is a drop-in), several share Slipway's.
pub fn lease_name(packages: &[&Package]) -> String {
    let own = |package: &&Package| match package.names {
        Some(names) => names.lease.to_owned(),
        None => format!("controller-leader-election-{}", package.prefix()),
    };
    let mut leases: Vec<String> = packages.iter().map(own).collect();
    leases.sort();
    leases.dedup();
    match leases.as_slice() {
        [one] => one.clone(),
        _ => "controller-leader-election-slipway".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Names, PackageKind, provider::NamedPort};

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
        let mut three = Provider::new("autoscaler");
        let mut asked_for = Package::new(PackageKind::HelmOnly, "autoscaler");
        asked_for.on_request = true;
        asked_for.names = Some(Names {
            namespace: "sail",
            workload: "sail",
            container: "sail",
            lease: "sail-leader-election",
            labels: &[],
            metrics: NamedPort {
                name: "metrics",
                number: 8080,
            },
            health: NamedPort {
                name: "http",
                number: 8081,
            },
        });
        three.packages = vec![asked_for];
        vec![one, two, three]
    }

    fn selected(names: &[&str]) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        select_to_run(&providers(), &names)
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
            selected(&["autoscaler"]).unwrap(),
            ["autoscaler"],
            "only who is named, where it has to be asked for"
        );
        assert_eq!(
            selected(&["k3"]).unwrap_err(),
            "--providers: there is no provider or package \"k3\"; known: aks, autoscaler, bootstrap-k3s, \
             control-plane-k3s, infrastructure-azure, k3s"
        );
    }

    #[test]
    fn a_drop_in_campaigns_for_its_peers_lease() {
        let providers = providers();
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            lease_name(&select_to_run(&providers, &names).unwrap())
        };
        assert_eq!(of(&["aks"]), "controller-leader-election-capz");
        assert_eq!(of(&["autoscaler"]), "sail-leader-election");
        assert_eq!(of(&["autoscaler", "aks"]), "controller-leader-election-slipway");
        assert_eq!(of(&[]), "controller-leader-election-slipway");
    }
}
