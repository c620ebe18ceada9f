//! Which kubeconfig of an AKS cluster becomes the one that Cluster API reads, by what its manifest says.

use serde_json::Value;
use slipway_capi::secret::Purpose;

use crate::inline::{Credential, Destination, Export, Inline, Problem, Source, exports};

/// How Cluster API reaches the workload cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Access {
    /// With the kubeconfig as Azure gives it, exported to there; copied to the name that Cluster API knows where that is
    /// another one.
    AsGiven { credential: Credential, to: Destination },
    /// Local accounts are disabled: with the user's kubeconfig, exported to there, and a token in place of its plugin.
    WithToken { to: Destination },
}

/// How Cluster API reaches the AKS cluster that an inline resource stands for, after credentials were set. `body` is what
/// Azure shows of it: AKS disables local accounts by itself where a cluster is automatic.
pub fn access(inline: &Inline, body: Option<&Value>, cluster: &str) -> Result<Access, Problem> {
    let exports = exports(inline)?;
    let of = |credential| {
        let source = Source::Kubeconfig(credential);
        exports.iter().find(|export| export.source == source)
    };
    let (admin, user) = (of(Credential::Administrator), of(Credential::User));
    let written = inline.object.spec.get("disableLocalAccounts");
    let shown = body.and_then(|body| body.pointer("/properties/disableLocalAccounts"));
    let disabled = [written, shown].into_iter().flatten().any(|value| *value == true);
    let wrong = |member: &str, text: String| Problem::Access {
        path: format!("{}.spec.operatorSpec.secrets{member}", inline.path()),
        text,
    };
    let known = Purpose::Kubeconfig.secret_name(cluster);
    if !disabled {
        let as_given = |credential, export: &Export| Access::AsGiven {
            credential,
            to: export.to.clone(),
        };
        return match (admin, user) {
            (Some(export), _) => Ok(as_given(Credential::Administrator, export)),
            (None, Some(export)) => Ok(as_given(Credential::User, export)),
            (None, None) => Err(wrong(
                "",
                "Cluster API needs adminCredentials or userCredentials to reach the cluster: ask for one of them"
                    .to_owned(),
            )),
        };
    }
    match (admin, user) {
        (Some(_), _) => Err(wrong(
            ".adminCredentials",
            format!(
                "AKS gives no administrator's kubeconfig because local accounts are disabled: ask for userCredentials \
                 instead, under another name than {known}"
            ),
        )),
        (None, Some(export)) if export.to.name == known => Err(wrong(
            ".userCredentials",
            format!(
                "Secret {known} is where the kubeconfig with a token goes because local accounts are disabled: choose \
                 another name, e.g. {cluster}-user-kubeconfig"
            ),
        )),
        (None, Some(export)) => Ok(Access::WithToken {
            to: export.to.clone(),
        }),
        (None, None) => Err(wrong(
            "",
            format!("local accounts are disabled: ask for userCredentials, under another name than {known}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inline::Policy;

    fn of(disabled: bool, secrets: &Value) -> Result<String, String> {
        let manifest = json!({
            "apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedCluster",
            "metadata": {"name": "c"}, "spec": {
                "owner": {"name": "g"}, "disableLocalAccounts": disabled, "operatorSpec": {"secrets": secrets},
            },
        });
        let inline = Inline::parse(&manifest, 0, "ns", Policy::Manage).unwrap();
        match access(&inline, None, "c").map_err(|problem| problem.to_string())? {
            Access::AsGiven { credential, to } => Ok(format!("{} to {to}", credential.action())),
            Access::WithToken { to } => Ok(format!("token, from {to}")),
        }
    }

    #[test]
    fn the_administrators_kubeconfig_goes_first() {
        let (admin, user) = (json!({"name": "a", "key": "k"}), json!({"name": "u", "key": "k"}));
        assert_eq!(
            of(
                false,
                &json!({"adminCredentials": admin, "userCredentials": user})
            ),
            Ok("listClusterAdminCredential to key \"k\" of Secret \"a\"".to_owned())
        );
        assert_eq!(
            of(false, &json!({"userCredentials": user})),
            Ok("listClusterUserCredential to key \"k\" of Secret \"u\"".to_owned())
        );
        assert!(
            of(false, &json!({}))
                .unwrap_err()
                .ends_with("ask for one of them")
        );
    }

    #[test]
    fn without_local_accounts_the_users_kubeconfig_needs_a_name_of_its_own() {
        let named = |name: &str| json!({"name": name, "key": "value"});
        assert_eq!(
            of(true, &json!({"userCredentials": named("c-user-kubeconfig")})),
            Ok("token, from key \"value\" of Secret \"c-user-kubeconfig\"".to_owned())
        );
        assert_eq!(
            of(true, &json!({"userCredentials": named("c-kubeconfig")})).unwrap_err(),
            "spec.resources[0].spec.operatorSpec.secrets.userCredentials: Secret c-kubeconfig is where the kubeconfig with \
             a token goes because local accounts are disabled: choose another name, e.g. c-user-kubeconfig"
        );
        assert_eq!(
            of(true, &json!({"adminCredentials": named("c-kubeconfig")})).unwrap_err(),
            "spec.resources[0].spec.operatorSpec.secrets.adminCredentials: AKS gives no administrator's kubeconfig because \
             local accounts are disabled: ask for userCredentials instead, under another name than c-kubeconfig"
        );
        assert!(
            of(true, &json!({}))
                .unwrap_err()
                .contains("local accounts are disabled")
        );
        let automatic = json!({
            "apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedCluster",
            "metadata": {"name": "c"}, "spec": {"operatorSpec": {"secrets": {"userCredentials": named("u")}}},
        });
        let inline = Inline::parse(&automatic, 0, "ns", Policy::Manage).unwrap();
        let body = json!({"properties": {"disableLocalAccounts": true}});
        assert!(matches!(
            access(&inline, Some(&body), "c"),
            Ok(Access::WithToken { .. })
        ));
    }
}
