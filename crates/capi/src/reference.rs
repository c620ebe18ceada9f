//! References without a version: which served version fulfils the contract, told by the labels of the
//! CustomResourceDefinition (`cluster.x-k8s.io/v1beta2: v1beta1_v1beta2`).

use std::{cmp::Ordering, collections::BTreeMap};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};

use crate::{
    Error,
    names::{self, label},
    view::ObjectReference,
};

/// The contracts we can work with, the best first.
pub const CONTRACTS: &[&str] = &["v1beta2", "v1beta1"];

/// A version of a kind that fulfils a contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractVersion {
    pub contract: &'static str,
    pub version: String,
}

/// The newest version under the best contract that a CustomResourceDefinition is labelled with.
pub fn contract_version(crd: &str, labels: &BTreeMap<String, String>) -> Result<ContractVersion, Error> {
    CONTRACTS
        .iter()
        .find_map(|contract| {
            let versions = labels.get(&format!("{}{contract}", label::CONTRACT_PREFIX))?;
            let newest = versions
                .split('_')
                .filter(|version| !version.is_empty())
                .max_by(|left, right| compare_versions(left, right))?;
            Some(ContractVersion {
                contract,
                version: newest.to_owned(),
            })
        })
        .ok_or_else(|| Error::NoContractVersion {
            crd: crd.to_owned(),
            contracts: CONTRACTS.join(" or "),
        })
}

/// Orders versions as Kubernetes does: general availability, then beta, then alpha, then anything else by name.
pub fn compare_versions(left: &str, right: &str) -> Ordering {
    match (parse_version(left), parse_version(right)) {
        (Some(left), Some(right)) => left.cmp(&right),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        // Names that are not versions sort backwards, so that the first of them is the newest.
        (None, None) => right.cmp(left),
    }
}

/// (stability, major, minor): `v1` is (2, 1, 0), `v2beta3` is (1, 2, 3).
fn parse_version(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(rest.len());
    let major = rest[..digits].parse().ok()?;
    match &rest[digits..] {
        "" => Some((2, major, 0)),
        suffix => {
            let (stability, minor) = match suffix.strip_prefix("beta") {
                Some(minor) => (1, minor),
                None => (0, suffix.strip_prefix("alpha")?),
            };
            Some((stability, major, minor.parse().ok()?))
        }
    }
}

/// The resource a reference points to, at the version of the contract.
pub async fn resolve(
    client: &Client,
    reference: &ObjectReference,
) -> Result<(ApiResource, ContractVersion), Error> {
    if reference.api_group.is_empty() || reference.kind.is_empty() || reference.name.is_empty() {
        return Err(Error::EmptyReference);
    }
    resolve_kind(client, &reference.api_group, &reference.kind).await
}

/// The resource of a kind, at the version of the contract. The answer changes only when a provider is upgraded.
pub async fn resolve_kind(
    client: &Client,
    group: &str,
    kind: &str,
) -> Result<(ApiResource, ContractVersion), Error> {
    let name = names::crd_name(group, kind);
    let metadata = Api::<CustomResourceDefinition>::all(client.clone())
        .get_metadata(&name)
        .await
        .map_err(Error::api(format!("reading CustomResourceDefinition {name}")))?;
    let version = contract_version(&name, &metadata.metadata.labels.unwrap_or_default())?;
    let gvk = GroupVersionKind::gvk(group, &version.version, kind);
    let plural = names::plural(&kind.to_lowercase());
    Ok((ApiResource::from_gvk_with_plural(&gvk, &plural), version))
}

/// The object a reference points to, at the version of the contract. `None` if it does not exist.
pub async fn get(
    client: &Client,
    namespace: &str,
    reference: &ObjectReference,
) -> Result<Option<DynamicObject>, Error> {
    let (resource, _) = resolve(client, reference).await?;
    Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource)
        .get_opt(&reference.name)
        .await
        .map_err(Error::api(format!(
            "reading {} {namespace}/{}",
            reference.kind, reference.name
        )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_newest_version_of_the_best_contract_is_used() {
        let found = contract_version(
            "x",
            &labels(&[
                ("cluster.x-k8s.io/v1beta1", "v1alpha4_v1beta1"),
                ("cluster.x-k8s.io/v1beta2", "v1beta1_v1beta2"),
            ]),
        )
        .unwrap();
        assert_eq!(
            found,
            ContractVersion {
                contract: "v1beta2",
                version: "v1beta2".into()
            }
        );

        let v1beta1 =
            contract_version("x", &labels(&[("cluster.x-k8s.io/v1beta1", "v1beta1_v1alpha4")])).unwrap();
        assert_eq!(
            v1beta1,
            ContractVersion {
                contract: "v1beta1",
                version: "v1beta1".into()
            }
        );

        let many = contract_version(
            "x",
            &labels(&[("cluster.x-k8s.io/v1beta2", "v1_v2beta1_v1beta10_v1beta9")]),
        );
        assert_eq!(many.unwrap().version, "v1");
    }

    #[test]
    fn a_crd_without_a_label_gets_a_message_that_says_what_to_do() {
        let error =
            contract_version("boats.example.dev", &labels(&[("cluster.x-k8s.io/v1beta2", "")])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "CustomResourceDefinition boats.example.dev serves no version of the contract v1beta2 or v1beta1: label \
             it cluster.x-k8s.io/<contract> with the versions that fulfil the contract, joined with \"_\""
        );
    }

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions = vec![
            "foo10",
            "v1",
            "v3beta1",
            "v11alpha2",
            "v10",
            "foo1",
            "v12alpha1",
            "v11beta2",
            "v2",
            "v10beta3",
        ];
        versions.sort_by(|left, right| compare_versions(right, left));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v11beta2",
                "v10beta3",
                "v3beta1",
                "v12alpha1",
                "v11alpha2",
                "foo1",
                "foo10"
            ]
        );
    }
}
