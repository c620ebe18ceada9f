//! The actions of the control plane controller: each is one idempotent call, or none where nothing differs.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use secrecy::SecretString;
use serde_json::{Value, json};
use slipway_azure::{Answer, ArmError, Priority, ResourceId};
use slipway_capi::owner;
use slipway_runtime::Context;

use super::observe::{Scene, sign_in};
use crate::{
    error::Error,
    frame, joining,
    kubeconfig::{self, Person, SERVER_SCOPE, Token, Verdict},
    plan::{Action, Part, Wanted, control_plane::endpoint},
    render::ids,
    seen::{self, Taken},
    status::Step,
};

/// What became of the kubeconfigs.
#[derive(Debug, Default)]
pub struct Written {
    pub administrator: bool,
    /// When the first token in them is renewed.
    pub renew: Option<Timestamp>,
}

pub struct Hands<'a> {
    pub scene: Scene,
    pub context: &'a Context,
}

impl Hands<'_> {
    /// Notes what is going to be asked for before it is, so that nothing we make is ever unknown to us.
    pub async fn intend(&mut self, plan: &[Action]) -> Result<(), Error> {
        for action in plan {
            let Action::Ensure(wanted) = action else { continue };
            let api_version = seen::api_version(&wanted.manifest)?;
            self.scene
                .records
                .intend(&wanted.id, &api_version, self.scene.seen.sight(&wanted.id));
        }
        self.store_records().await
    }

    /// Stores what was applied, if it changed.
    pub async fn store_records(&mut self) -> Result<(), Error> {
        if let Some(patch) = self.scene.records.patch() {
            let stored = self
                .context
                .patch(&self.scene.observed.plane, &patch)
                .await
                .map_err(Error::api("storing what was applied to Azure"))?;
            self.scene.observed.plane.metadata = stored.metadata;
            self.scene.records.stored();
        }
        Ok(())
    }

    pub async fn ensure(&mut self, wanted: &Wanted) -> Taken {
        let taken = seen::ensure(
            &self.scene.session.arm,
            &wanted.id,
            &wanted.manifest,
            &mut self.scene.seen,
            &mut self.scene.records,
            self.scene.max_age,
        )
        .await;
        let (plane, part) = (&self.scene.observed.plane, format!("{:?}", wanted.part));
        frame::tell_sent(plane, &part, &wanted.id, &taken, self.context);
        taken
    }

    pub async fn delete(&mut self, part: Part, id: &str) -> Taken {
        let key = id.to_lowercase();
        let api_version = self.scene.api_versions.get(&key).cloned().unwrap_or_default();
        if part == Part::ResourceGroup {
            match self.others_in(id).await {
                Ok(others) if others.is_empty() => {}
                Ok(others) => {
                    let note = format!("{id} stays: it also holds {}", others.join(", "));
                    self.context.events.warning(
                        &self.scene.observed.plane,
                        "ResourceGroupInUse",
                        "Delete",
                        note,
                    );
                    self.scene.records.forget(id);
                    return Taken::done(Step::Deleted);
                }
                Err(error) => return Taken::failed(error),
            }
        }
        seen::delete(
            &self.scene.session.arm,
            id,
            &api_version,
            &mut self.scene.seen,
            &mut self.scene.records,
        )
        .await
    }

    /// The AKS clusters in a resource group: by the time the group goes, ours is gone.
    async fn others_in(&self, group: &str) -> Result<Vec<String>, Error> {
        let observed = &self.scene.observed;
        let cluster = ids::managed_cluster(&observed.facts());
        let api_version = self
            .scene
            .api_versions
            .get(&cluster.to_lowercase())
            .cloned()
            .unwrap_or_default();
        let path = format!("{group}/providers/Microsoft.ContainerService/managedClusters");
        let scope = ResourceId::parse(&cluster).map_err(ArmError::from)?;
        let arm = &self.scene.session.arm;
        let listed = arm
            .client()
            .list(&scope, &path, &api_version, Priority::Change)
            .await;
        let found = match listed {
            Err(ArmError::Refused { refusal, .. }) if refusal.status == 404 => Vec::new(),
            other => other?,
        };
        Ok(found
            .iter()
            .filter_map(|item| item["id"].as_str())
            .filter(|id| !id.eq_ignore_ascii_case(&cluster))
            .map(str::to_owned)
            .collect())
    }

    /// Writes where the API server answers.
    pub async fn set_endpoint(&mut self, host: &str, port: i32) -> Result<(), Error> {
        let patch = json!({"spec": {"controlPlaneEndpoint": {"host": host, "port": port}}});
        let stored = self
            .context
            .patch(&self.scene.observed.plane, &patch)
            .await
            .map_err(Error::api("writing the control plane endpoint"))?;
        self.scene.observed.plane.metadata = stored.metadata;
        self.scene.observed.plane.spec = stored.spec;
        Ok(())
    }

    /// Brings both kubeconfig Secrets up to date.
    pub async fn write_kubeconfigs(&mut self, now: Timestamp) -> Result<Written, Error> {
        let cluster = self.scene.observed.cluster_sight();
        let (entra, only_entra) = sign_in(cluster);
        let Some((host, port)) = endpoint(&self.scene.observed.plane, cluster) else {
            return Ok(Written::default());
        };
        let endpoint = format!("{host}:{port}");
        let mut written = Written::default();
        let mut people = vec![(Person::Administrator, self.scene.administrator.take())];
        if entra {
            people.push((Person::User, self.scene.user.take()));
        }
        let mut authority = None;
        for (person, found) in people {
            let observed = &self.scene.observed;
            let plane = &observed.plane.metadata;
            let verdict = kubeconfig::judge(found.as_ref(), plane, &observed.cluster_name, &endpoint, now);
            let (renew, stored) = match verdict {
                Verdict::Foreign => (None, None),
                Verdict::Good(renew) => (renew, found),
                Verdict::Write | Verdict::Replace => {
                    let with_token = person == Person::Administrator && only_entra;
                    let made = self.fetch(person, with_token, &endpoint, now).await?;
                    let patch = kubeconfig::patch(&made, &observed.cluster_name);
                    self.store(found.as_ref(), &made, &patch, verdict == Verdict::Replace)
                        .await?;
                    match kubeconfig::judge(Some(&made), plane, &observed.cluster_name, &endpoint, now) {
                        Verdict::Good(renew) => (renew, Some(made)),
                        _ => (None, Some(made)),
                    }
                }
            };
            if person == Person::Administrator {
                authority = stored.as_ref().and_then(kubeconfig::authority);
            }
            written.administrator |= person == Person::Administrator;
            written.renew = [written.renew, renew].into_iter().flatten().min();
        }
        if let Some(authority) = authority {
            self.write_authority(&authority).await?;
        }
        Ok(written)
    }

    /// Brings the Secret of the cluster's certificate authority up to date.
    async fn write_authority(&mut self, authority: &[u8]) -> Result<(), Error> {
        let found = self.scene.authority.take();
        let observed = &self.scene.observed;
        let plane = &observed.plane.metadata;
        let verdict = joining::judge(found.as_ref(), plane, &observed.cluster_name, authority);
        let Some(controller) = owner::controller_reference(&observed.plane)
            .filter(|_| matches!(verdict, Verdict::Write | Verdict::Replace))
        else {
            return Ok(());
        };
        let namespace = observed.plane.namespace().unwrap_or_default();
        let made = joining::make(&namespace, &observed.cluster_name, controller, authority);
        let patch = joining::patch(&made, &observed.cluster_name);
        self.store(found.as_ref(), &made, &patch, verdict == Verdict::Replace)
            .await
    }

    /// Asks AKS for a kubeconfig, and Entra for a token where nothing else signs in.
    async fn fetch(
        &self,
        person: Person,
        with_token: bool,
        endpoint: &str,
        now: Timestamp,
    ) -> Result<Secret, Error> {
        let observed = &self.scene.observed;
        let id = ids::managed_cluster(&observed.facts());
        let api_version = self
            .scene
            .api_versions
            .get(&id.to_lowercase())
            .cloned()
            .unwrap_or_default();
        let action = if person == Person::Administrator && !with_token {
            "listClusterAdminCredential"
        } else {
            "listClusterUserCredential"
        };
        let parsed = ResourceId::parse(&id).map_err(ArmError::from)?;
        let client = self.scene.session.arm.client();
        let answer = match client.post(&parsed, action, &api_version, None).await? {
            Answer::Done(answer) => answer,
            Answer::Throttled(after) | Answer::Busy { after, .. } | Answer::Accepted { after, .. } => {
                return Err(ArmError::Budget {
                    doing: "asking",
                    target: id,
                    after,
                }
                .into());
            }
            Answer::NotFound => return Err(Error::NoKubeconfig { action }),
        };
        let text = kubeconfig::from_answer(&answer, action)?;
        let token = if with_token {
            Some(self.token().await?)
        } else {
            None
        };
        let controller =
            owner::controller_reference(&observed.plane).ok_or(Error::NoKubeconfig { action })?;
        kubeconfig::make(
            &observed.plane.namespace().unwrap_or_default(),
            &observed.cluster_name,
            person,
            controller,
            endpoint,
            &text,
            token.as_ref().map(|token| (token, now)),
        )
        .ok_or(Error::NoKubeconfig { action })
    }

    /// A token that has its whole life before it.
    async fn token(&self) -> Result<Token, Error> {
        let tokens = self.scene.session.tokens(SERVER_SCOPE)?;
        tokens.refused();
        let token = tokens.token().await?;
        Ok(Token {
            secret: SecretString::clone(&token.secret),
            expires: token.expires,
        })
    }

    async fn store(
        &self,
        found: Option<&Secret>,
        made: &Secret,
        patch: &Value,
        replace: bool,
    ) -> Result<(), Error> {
        let namespace = made.namespace().unwrap_or_default();
        let name = made.name_any();
        let api: Api<Secret> = Api::namespaced(self.context.client.clone(), &namespace);
        let doing = format!("writing Secret {name}");
        let found = match found {
            Some(found) if replace => {
                let same = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: found.uid(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                match api.delete(&name, &same).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => {
                        other.map_err(Error::api(format!("replacing Secret {name}")))?;
                    }
                }
                None
            }
            other => other,
        };
        let stored = match found {
            None => api.create(&PostParams::default(), made).await,
            Some(_) => {
                api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                    .await
            }
        }
        .map_err(Error::api(doing))?;
        self.context.writes().saw(&stored);
        Ok(())
    }
}

/// Actions of one group do not wait for each other; those of a later group wait for all of an earlier one.
pub fn group(part: Part) -> u8 {
    match part {
        Part::ResourceGroup => 0,
        Part::VirtualNetwork => 1,
        Part::Subnet => 2,
        Part::ManagedCluster => 3,
        Part::PrivateEndpoint | Part::FleetMember | Part::Extension => 4,
        Part::AgentPool => 5,
    }
}
