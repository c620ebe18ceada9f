//! Reads an AKS cluster in Azure with all that belongs to it: group, pools, networks, extensions, membership in a fleet, maintenance
//! windows, federated credentials. Asks for nothing but reads.

use std::{collections::BTreeSet, sync::Arc};

use futures::FutureExt;
use serde_json::{Value, json};
use slipway_azure::{
    Answer as ArmAnswer, Client, Priority, ResourceId,
    ownership::mark_of,
    resource::{Mapping, Table, from_arm, import::spec_of},
};
use slipway_runtime::{Context, ObjectKey, answers::Answerer, controller::Registration};

use super::{Answer, Found, FoundCluster, QUESTION, Question};
use crate::{
    access::Access,
    mutators::{AGENT_POOL, CONTAINER_SERVICE, MANAGED_CLUSTER},
};

const RESOURCES: &str = "resources.azure.com";
const NETWORK: &str = "network.azure.com";
const IDENTITY: &str = "managedidentity.azure.com";
const EXTENSIONS: &str = "kubernetesconfiguration.azure.com";

/// A controller beside which the manager answers questions about adoption.
pub fn answering(access: Access, inner: Registration) -> Registration {
    Registration {
        name: inner.name,
        run: Arc::new(move |context: Context| {
            context
                .answers
                .register(QUESTION, answerer(access.clone(), context.reading()));
            (inner.run)(context)
        }),
    }
}

fn answerer(access: Access, context: Context) -> Answerer {
    Arc::new(move |question| {
        let (access, context) = (access.clone(), context.clone());
        async move {
            let question: Question = serde_json::from_value(question)
                .map_err(|error| format!("the question cannot be read: {error}"))?;
            let answer = answer(&question, &access, &context).await?;
            Ok(json!(answer))
        }
        .boxed()
    })
}

async fn answer(question: &Question, access: &Access, context: &Context) -> Result<Answer, String> {
    let mut answer = Answer::default();
    for text in &question.ids {
        let id = cluster_id(text)?;
        let user = ObjectKey::namespaced(&question.namespace, &format!("adopt/{}", id.key()));
        let found = read(&id, question, access, &user, context).await;
        access.forget(&user);
        answer.clusters.push(found?);
    }
    Ok(answer)
}

/// The id of an AKS cluster, as a user wrote it.
pub fn cluster_id(text: &str) -> Result<ResourceId, String> {
    let id = ResourceId::parse(text).map_err(|error| format!("{text:?} is no ARM id: {error}"))?;
    if !id
        .resource_type()
        .eq_ignore_ascii_case("Microsoft.ContainerService/managedClusters")
    {
        return Err(format!(
            "{text} is no AKS cluster: its id is /subscriptions/…/resourceGroups/…/providers/Microsoft.ContainerService/managedClusters/NAME"
        ));
    }
    Ok(id)
}

async fn read(
    id: &ResourceId,
    question: &Question,
    access: &Access,
    user: &ObjectKey,
    context: &Context,
) -> Result<FoundCluster, String> {
    let sign_in = |error: &dyn std::fmt::Display| format!("cannot sign in to read {id}: {error}");
    let chosen = access
        .choose(question.credential.as_deref(), user, context)
        .await
        .map_err(|error| sign_in(&error))?;
    let session = access
        .open(&chosen.secret, user, id.name(), context)
        .await
        .map_err(|error| sign_in(&error))?;
    let mut reader = Reader {
        client: session.arm.client(),
        found: FoundCluster::default(),
    };
    reader.cluster(id).await?;
    for also in &question.also {
        reader.also(also).await?;
    }
    Ok(reader.found)
}

struct Reader<'a> {
    client: &'a Client,
    found: FoundCluster,
}

/// Everything that is read is in the table.
fn mapping(group: &str, kind: &str) -> Result<Mapping, String> {
    let found = Table::get().newest(group, kind);
    found.ok_or_else(|| format!("{kind} of {group} is not known"))
}

impl Reader<'_> {
    async fn cluster(&mut self, id: &ResourceId) -> Result<(), String> {
        let found = self.get(CONTAINER_SERVICE, MANAGED_CLUSTER, id).await?;
        let body = found.ok_or_else(|| {
            format!("Azure shows no AKS cluster {id}: check its id, and that whoever signs in may read it")
        })?;
        let issuer = body
            .pointer("/properties/oidcIssuerProfile/issuerURL")
            .and_then(Value::as_str)
            .map(str::to_owned);
        let identities = identities(&body);
        if let Some(group) = parent_group(id) {
            self.get(RESOURCES, "ResourceGroup", &group).await?;
        }
        let pools = self
            .list(
                CONTAINER_SERVICE,
                AGENT_POOL,
                id,
                &format!("{id}/agentPools"),
                |_| true,
            )
            .await?;
        self.networks(&pools).await?;
        let windows = format!("{id}/maintenanceConfigurations");
        self.beside(
            CONTAINER_SERVICE,
            "MaintenanceConfiguration",
            id,
            &windows,
            |_| true,
        )
        .await;
        let bindings = format!("{id}/trustedAccessRoleBindings");
        self.beside(
            CONTAINER_SERVICE,
            "TrustedAccessRoleBinding",
            id,
            &bindings,
            |_| true,
        )
        .await;
        for (kind, folder) in [
            ("Extension", "extensions"),
            ("FluxConfiguration", "fluxConfigurations"),
        ] {
            let path = format!("{id}/providers/Microsoft.KubernetesConfiguration/{folder}");
            self.beside(EXTENSIONS, kind, id, &path, |_| true).await;
        }
        self.memberships(id).await;
        self.federated(id, issuer.as_deref(), identities).await;
        Ok(())
    }

    /// Reads a resource, and keeps what it is.
    async fn get(&mut self, group: &str, kind: &str, id: &ResourceId) -> Result<Option<Value>, String> {
        let mapping = mapping(group, kind)?;
        let answer = self.client.get(id, &mapping.api_version, Priority::Change).await;
        match answer {
            Ok(ArmAnswer::Done(body) | ArmAnswer::Accepted { body, .. }) => {
                self.keep(&mapping, &body);
                Ok(Some(body))
            }
            Ok(ArmAnswer::NotFound) => Ok(None),
            Ok(ArmAnswer::Busy { message, .. }) => Err(format!("{id} cannot be read now: {message}")),
            Ok(ArmAnswer::Throttled(after)) => Err(format!(
                "{id} cannot be read now: Azure asks for a wait of {after:?}"
            )),
            Err(error) => Err(format!("reading {id}: {error}")),
        }
    }

    /// Reads something by its id alone, if there is a kind for it and it is there.
    async fn also(&mut self, id: &str) -> Result<(), String> {
        let Ok(id) = ResourceId::parse(id) else {
            return Ok(());
        };
        if self
            .found
            .resources
            .iter()
            .any(|known| known.id.eq_ignore_ascii_case(id.as_str()))
        {
            return Ok(());
        }
        let of_type = |arm_type: &str| {
            let group = arm_type == "Microsoft.Resources/resourceGroups" && id.parent().is_none();
            group || arm_type.eq_ignore_ascii_case(&id.resource_type())
        };
        let found = Table::get().kinds().find(|(_, _, arm_type)| of_type(arm_type));
        let Some((group, kind, _)) = found else {
            self.found.notes.push(format!(
                "{id} is of no kind that is known, and stays as it is in Azure"
            ));
            return Ok(());
        };
        self.get(group, kind, &id).await.map(|_| ())
    }

    /// Reads a list, and keeps of it what is asked for.
    async fn list(
        &mut self,
        group: &str,
        kind: &str,
        scope: &ResourceId,
        path: &str,
        keep: impl Fn(&Value) -> bool,
    ) -> Result<Vec<Value>, String> {
        let mapping = mapping(group, kind)?;
        let listed = self
            .client
            .list(scope, path, &mapping.api_version, Priority::Change)
            .await;
        let mut items = listed.map_err(|error| format!("listing {path}: {error}"))?;
        items.retain(keep);
        for item in &items {
            self.keep(&mapping, item);
        }
        Ok(items)
    }

    /// The same for what a cluster can be adopted without: what cannot be read is noted.
    async fn beside(
        &mut self,
        group: &str,
        kind: &str,
        scope: &ResourceId,
        path: &str,
        keep: impl Fn(&Value) -> bool,
    ) -> Vec<Value> {
        match self.list(group, kind, scope, path, keep).await {
            Ok(items) => items,
            Err(error) => {
                let note = format!("{kind}s are not adopted, because they cannot be read: {error}");
                self.found.notes.push(note);
                Vec::new()
            }
        }
    }

    fn keep(&mut self, mapping: &Mapping, body: &Value) {
        let Some(id) = body["id"].as_str() else { return };
        if self
            .found
            .resources
            .iter()
            .any(|known| known.id.eq_ignore_ascii_case(id))
        {
            return;
        }
        if mapping.kind == MANAGED_CLUSTER {
            self.found.mark = mark_of(&tags(body)).map(str::to_owned);
        }
        self.found.resources.push(Found {
            id: id.to_owned(),
            group: mapping.group.clone(),
            version: mapping.version.clone(),
            kind: mapping.kind.clone(),
            spec: spec_of(mapping, body),
            status: from_arm(mapping, body),
        });
    }

    /// The networks and subnets that pools stand in.
    async fn networks(&mut self, pools: &[Value]) -> Result<(), String> {
        let subnets: BTreeSet<&str> = pools
            .iter()
            .flat_map(|pool| ["vnetSubnetID", "podSubnetID"].map(|key| pool["properties"][key].as_str()))
            .flatten()
            .collect();
        for subnet in subnets {
            let Ok(subnet) = ResourceId::parse(subnet) else {
                continue;
            };
            if let Some(network) = subnet.parent() {
                self.get(NETWORK, "VirtualNetwork", &network).await?;
            }
            self.get(NETWORK, "VirtualNetworksSubnet", &subnet).await?;
        }
        Ok(())
    }

    /// Fleets that the cluster is a member of.
    async fn memberships(&mut self, id: &ResourceId) {
        let Some(subscription) = id.subscription() else {
            return;
        };
        let path = format!("/subscriptions/{subscription}/providers/Microsoft.ContainerService/fleets");
        let Ok(fleet) = mapping(CONTAINER_SERVICE, "Fleet") else {
            return;
        };
        let listed = self
            .client
            .list(id, &path, &fleet.api_version, Priority::Change)
            .await;
        let fleets = match listed {
            Ok(fleets) => fleets,
            Err(error) => {
                let note =
                    format!("membership in fleets is not adopted, because they cannot be listed: {error}");
                self.found.notes.push(note);
                return;
            }
        };
        let is_member = |member: &Value| {
            let of = member["properties"]["clusterResourceId"].as_str();
            of.is_some_and(|of| of.eq_ignore_ascii_case(id.as_str()))
        };
        for fleet in fleets.iter().filter_map(|fleet| fleet["id"].as_str()) {
            let Ok(fleet) = ResourceId::parse(fleet) else {
                continue;
            };
            let path = format!("{fleet}/members");
            self.beside(CONTAINER_SERVICE, "FleetsMember", &fleet, &path, is_member)
                .await;
        }
    }

    /// The credentials by which workloads of the cluster sign in to Azure: those that trust its issuer, of the cluster's identities
    /// and of those in its group.
    async fn federated(&mut self, id: &ResourceId, issuer: Option<&str>, mut identities: BTreeSet<String>) {
        let Some(issuer) = issuer else { return };
        let (Some(group), Ok(identity)) = (parent_group(id), mapping(IDENTITY, "UserAssignedIdentity"))
        else {
            return;
        };
        let path = format!("{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities");
        match self
            .client
            .list(&group, &path, &identity.api_version, Priority::Change)
            .await
        {
            Ok(listed) => {
                identities.extend(
                    listed
                        .iter()
                        .filter_map(|one| one["id"].as_str())
                        .map(str::to_lowercase),
                );
            }
            Err(error) => self
                .found
                .notes
                .push(format!("identities of {group} cannot be listed: {error}")),
        }
        let trusts = |credential: &Value| {
            let of = credential["properties"]["issuer"].as_str();
            of.is_some_and(|of| of.trim_end_matches('/') == issuer.trim_end_matches('/'))
        };
        for identity in identities {
            let Ok(identity) = ResourceId::parse(&identity) else {
                continue;
            };
            let path = format!("{identity}/federatedIdentityCredentials");
            let kind = "FederatedIdentityCredential";
            let trusting = self.beside(IDENTITY, kind, &identity, &path, trusts).await;
            if !trusting.is_empty()
                && let Err(error) = self.get(IDENTITY, "UserAssignedIdentity", &identity).await
            {
                self.found.notes.push(error);
            }
        }
    }
}

fn tags(body: &Value) -> std::collections::BTreeMap<String, String> {
    let tags = body["tags"].as_object().into_iter().flatten();
    tags.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// The identities that a cluster has, in lower case.
fn identities(body: &Value) -> BTreeSet<String> {
    let own = body["identity"]["userAssignedIdentities"].as_object();
    let kubelet = body
        .pointer("/properties/identityProfile")
        .and_then(Value::as_object);
    // Those that AKS made stand among the nodes, and are its own.
    let nodes = body
        .pointer("/properties/nodeResourceGroup")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let among_nodes = format!("/resourcegroups/{}/", nodes.to_lowercase());
    let of_kubelet = kubelet
        .into_iter()
        .flatten()
        .filter_map(|(_, one)| one["resourceId"].as_str())
        .filter(|id| !id.to_lowercase().contains(&among_nodes));
    own.into_iter()
        .flatten()
        .map(|(id, _)| id.to_lowercase())
        .chain(of_kubelet.map(str::to_lowercase))
        .collect()
}

/// The resource group that something is in.
fn parent_group(id: &ResourceId) -> Option<ResourceId> {
    ResourceId::resource_group(id.subscription()?, id.resource_group_name()?).ok()
}
