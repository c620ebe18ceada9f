//! Reads the objects of a cluster, or of the whole fleet: lists by label, and then whatever these refer to. A Secret is never read.

use std::collections::BTreeSet;

use futures::{StreamExt, stream};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams},
};
use serde_json::{Value, json};
use slipway_insight::{Catalogue, Id, Link, Objects, Part};

use super::connect::{Connection, Served};

const CORE: &str = "cluster.x-k8s.io";
const CLUSTER_LABEL: &str = "cluster.x-k8s.io/cluster-name";
/// Of one answer to a list.
const PAGE: u32 = 500;
/// At a time.
const QUESTIONS: usize = 16;
/// How often references of what references led to are followed.
const ROUNDS: usize = 6;
/// Machines are read for this many clusters that are on their way, to tell their pace.
const PACED: usize = 50;

/// A list that was read, as it can be watched.
#[derive(Clone, Debug)]
pub struct Source {
    pub served: Served,
    /// Empty for every namespace, or for a kind without.
    pub namespace: String,
    pub labels: Option<String>,
    /// One object alone.
    pub name: Option<String>,
}

/// What was read, and where.
#[derive(Default)]
pub struct Collected {
    pub objects: Objects,
    pub sources: Vec<Source>,
}

pub struct Reader<'a> {
    pub connection: &'a Connection,
    pub catalogue: &'a Catalogue,
}

impl Reader<'_> {
    /// Everything of one Cluster.
    pub async fn cluster(&self, namespace: &str, name: &str) -> Result<Collected, String> {
        let clusters = self.core("Cluster")?;
        let mut found = Collected::default();
        let cluster = get(self.connection, clusters, namespace, name).await?;
        let Some(cluster) = cluster else {
            return Err(format!(
                "there is no Cluster {name} in namespace {namespace}: `slipway describe --all-namespaces` shows all there are"
            ));
        };
        found.objects.insert(cluster);
        found.sources.push(Source {
            served: clusters.clone(),
            namespace: namespace.to_owned(),
            labels: None,
            name: Some(name.to_owned()),
        });
        let by_field = self.named_by_field();
        let mut lists = Vec::new();
        for served in self.of_fleet() {
            let resource = &served.resource;
            let kind = self
                .catalogue
                .kind(&Id::new(&resource.group, &resource.kind, "", ""));
            let is_root = resource.group == CORE && resource.kind == "Cluster";
            if !served.is_namespaced || is_root || kind.stands_alone {
                continue;
            }
            let is_by_field = by_field.contains(&(resource.group.as_str(), resource.kind.as_str()));
            lists.push(Source {
                served: served.clone(),
                namespace: namespace.to_owned(),
                labels: (!is_by_field).then(|| format!("{CLUSTER_LABEL}={name}")),
                name: None,
            });
        }
        self.lists(lists, &mut found).await?;
        self.follow(&mut found).await?;
        Ok(found)
    }

    /// One object, its Cluster with everything of it, and what it refers to.
    pub async fn around(
        &self,
        served: &Served,
        namespace: &str,
        name: &str,
    ) -> Result<(Id, Collected), String> {
        let namespace = if served.is_namespaced { namespace } else { "" };
        let Some(object) = get(self.connection, served, namespace, name).await? else {
            let place = if namespace.is_empty() {
                String::new()
            } else {
                format!(" in namespace {namespace}")
            };
            return Err(format!("there is no {} {name}{place}", served.resource.kind));
        };
        let id = Id::of(&object);
        let mut found = Collected::default();
        found.objects.insert(object);
        self.follow(&mut found).await?;
        let mut owners = found.objects.cluster_of(&id);
        if owners.is_none() {
            // Its Cluster may be named by it alone.
            let named = found.objects.get(&id).and_then(|object| {
                object["metadata"]["labels"][CLUSTER_LABEL]
                    .as_str()
                    .or_else(|| object["spec"]["clusterName"].as_str())
                    .map(str::to_owned)
            });
            owners = named.map(|name| Id::new(CORE, "Cluster", &id.namespace, &name));
        }
        if let Some(cluster) = owners
            && let Ok(of_cluster) = self.cluster(&cluster.namespace, &cluster.name).await
        {
            for (_, object) in of_cluster.objects.iter() {
                found.objects.insert(object.clone());
            }
            found.sources.extend(of_cluster.sources);
        }
        Ok((id, found))
    }

    /// What the table of all clusters needs.
    pub async fn fleet(&self, namespace: Option<&str>) -> Result<Collected, String> {
        let mut found = Collected::default();
        let source = |served: &Served| Source {
            served: served.clone(),
            namespace: namespace.unwrap_or_default().to_owned(),
            labels: None,
            name: None,
        };
        let core = ["Cluster", "MachineDeployment", "MachinePool"].map(|kind| self.core(kind).map(source));
        let core: Vec<Source> = core.into_iter().collect::<Result<_, _>>()?;
        let control_planes = self.connection.served.iter().filter(|served| {
            let id = Id::new(&served.resource.group, &served.resource.kind, "", "");
            let part = self.catalogue.kind(&id).part;
            served.can_be_listed
                && (part == Part::ControlPlane
                    || (served.resource.group == "controlplane.cluster.x-k8s.io" && part != Part::Template))
        });
        let lists = core.into_iter().chain(control_planes.map(source)).collect();
        self.lists(lists, &mut found).await?;
        self.machines_of_those_on_their_way(namespace, &mut found).await?;
        Ok(found)
    }

    /// The pace of a rollout is told by its machines; those of clusters at rest are not needed.
    async fn machines_of_those_on_their_way(
        &self,
        namespace: Option<&str>,
        found: &mut Collected,
    ) -> Result<(), String> {
        let now = jiff::Timestamp::now();
        let rows = slipway_insight::fleet(&found.objects, self.catalogue, now).rows;
        let moving = rows.into_iter().filter(|row| row.progress.is_some());
        let names: BTreeSet<String> = moving.take(PACED).map(|row| row.id.name).collect();
        if names.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = names.into_iter().collect();
        let labels = Some(format!("{CLUSTER_LABEL} in ({})", names.join(",")));
        let mut lists = Vec::new();
        for kind in ["Machine", "MachineSet"] {
            lists.push(Source {
                served: self.core(kind)?.clone(),
                namespace: namespace.unwrap_or_default().to_owned(),
                labels: labels.clone(),
                name: None,
            });
        }
        self.lists(lists, found).await
    }

    fn core(&self, kind: &str) -> Result<&Served, String> {
        self.connection.kind(CORE, kind).ok_or_else(|| {
            format!(
                "the cluster serves no {kind} of {CORE}: is this a management cluster? `clusterctl init` makes one, and \
                 `slipway up` starts one on this machine"
            )
        })
    }

    /// The kinds that belong to fleets: Cluster API's groups, and those that somebody registered.
    fn of_fleet(&self) -> impl Iterator<Item = &Served> {
        of_fleet(&self.connection.served, self.catalogue)
    }

    /// Kinds whose objects are found by a field of theirs, so not by a label.
    fn named_by_field(&self) -> BTreeSet<(&str, &str)> {
        let links = self
            .catalogue
            .kinds()
            .flat_map(|kind| kind.children.iter().chain(kind.needs));
        links
            .filter_map(|link| match link {
                // Those of core carry their Cluster's label as well, and there are many of them.
                Link::Naming { group, kind, .. }
                    if !["Machine", "MachineDeployment", "MachinePool"].contains(kind) =>
                {
                    Some((*group, *kind))
                }
                _ => None,
            })
            .collect()
    }

    async fn lists(&self, sources: Vec<Source>, found: &mut Collected) -> Result<(), String> {
        let connection = self.connection;
        let mut answers = stream::iter(sources)
            .map(|source| async move { (list(connection, &source).await, source) })
            .buffer_unordered(QUESTIONS);
        while let Some((answer, source)) = answers.next().await {
            let resource = &source.served.resource;
            match answer {
                Ok(objects) => {
                    for object in objects {
                        found.objects.insert(object);
                    }
                    found.sources.push(source);
                }
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    found
                        .objects
                        .cannot_read(&resource.group, &resource.kind, &status.message);
                }
                // Not served any more, or not yet.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(format!("{} cannot be listed: {error}", resource.plural)),
            }
        }
        Ok(())
    }

    /// Reads what the objects refer to and is not here yet.
    pub async fn follow(&self, found: &mut Collected) -> Result<(), String> {
        let mut tried: BTreeSet<Id> = BTreeSet::new();
        for _ in 0..ROUNDS {
            let mut missing: BTreeSet<Id> = BTreeSet::new();
            for (id, _) in found.objects.iter() {
                let kind = self.catalogue.kind(id);
                for link in kind.children.iter().chain(kind.needs) {
                    if let Link::Reference(_) | Link::Name { .. } = link {
                        let references = found.objects.follow(id, *link).into_iter();
                        missing.extend(references.map(|reference| reference.id));
                    }
                }
                missing.extend(owners(found.objects.get(id), &id.namespace));
            }
            missing.retain(|id| {
                found.objects.get(id).is_none() && id.kind != "Secret" && tried.insert(id.clone())
            });
            if missing.is_empty() {
                return Ok(());
            }
            let connection = self.connection;
            let questions: Vec<(Served, Id)> = missing
                .into_iter()
                .filter_map(|id| {
                    let served = connection
                        .kind(&id.group, &id.kind)
                        .or_else(|| connection.named(&id.kind).into_iter().next())?;
                    Some((served.clone(), id))
                })
                .collect();
            let mut answers = stream::iter(questions)
                .map(|(served, id)| async move {
                    (
                        get_raw(connection, &served, &id.namespace, &id.name).await,
                        served,
                        id,
                    )
                })
                .buffer_unordered(QUESTIONS);
            let mut read = Vec::new();
            while let Some((answer, served, id)) = answers.next().await {
                match answer {
                    Ok(Some(object)) => read.push((object, served, id)),
                    Ok(None) => {}
                    Err(kube::Error::Api(status)) if status.code == 403 => {
                        found.objects.cannot_read(&id.group, &id.kind, &status.message);
                    }
                    Err(error) => return Err(format!("{id} cannot be read: {error}")),
                }
            }
            drop(answers);
            for (object, served, id) in read {
                found.objects.insert(object);
                found.sources.push(Source {
                    namespace: if served.is_namespaced {
                        id.namespace
                    } else {
                        String::new()
                    },
                    served,
                    labels: None,
                    name: Some(id.name),
                });
            }
        }
        Ok(())
    }
}

/// Of the kinds that a cluster serves those that belong to fleets.
pub fn of_fleet<'a>(
    served: &'a [Served],
    catalogue: &Catalogue,
) -> impl Iterator<Item = &'a Served> + use<'a> {
    let registered: BTreeSet<&'static str> = catalogue.kinds().map(|kind| kind.group).collect();
    served.iter().filter(move |served| {
        let group = served.resource.group.as_str();
        let is_of_fleet = group == CORE || group.ends_with(".cluster.x-k8s.io") || registered.contains(group);
        is_of_fleet && served.can_be_listed && served.resource.kind != "Secret"
    })
}

/// The owners that an object names.
fn owners(object: Option<&Value>, namespace: &str) -> Vec<Id> {
    let owners = object.and_then(|object| object["metadata"]["ownerReferences"].as_array());
    owners
        .into_iter()
        .flatten()
        .filter_map(|owner| {
            let api_version = owner["apiVersion"].as_str()?;
            let group = api_version.split_once('/').map_or("", |(group, _)| group);
            Some(Id::new(
                group,
                owner["kind"].as_str()?,
                namespace,
                owner["name"].as_str()?,
            ))
        })
        .collect()
}

pub fn api(connection: &Connection, served: &Served, namespace: &str) -> Api<DynamicObject> {
    if served.is_namespaced && !namespace.is_empty() {
        Api::namespaced_with(connection.client.clone(), namespace, &served.resource)
    } else {
        Api::all_with(connection.client.clone(), &served.resource)
    }
}

/// As plain JSON, with the type that items of a list are without.
pub fn plain(served: &Served, mut object: DynamicObject) -> Value {
    object.managed_fields_mut().clear();
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value["apiVersion"] = json!(served.resource.api_version);
    value["kind"] = json!(served.resource.kind);
    value
}

async fn list(connection: &Connection, source: &Source) -> Result<Vec<Value>, kube::Error> {
    let api = api(connection, &source.served, &source.namespace);
    let mut parameters = ListParams::default().limit(PAGE);
    parameters.label_selector.clone_from(&source.labels);
    let mut all = Vec::new();
    loop {
        let page = api.list(&parameters).await?;
        all.extend(page.items.into_iter().map(|object| plain(&source.served, object)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(all),
        }
    }
}

async fn get_raw(
    connection: &Connection,
    served: &Served,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, kube::Error> {
    let found = api(connection, served, namespace).get_opt(name).await?;
    Ok(found.map(|object| plain(served, object)))
}

async fn get(
    connection: &Connection,
    served: &Served,
    namespace: &str,
    name: &str,
) -> Result<Option<Value>, String> {
    get_raw(connection, served, namespace, name)
        .await
        .map_err(|error| format!("{} {name} cannot be read: {error}", served.resource.kind))
}
