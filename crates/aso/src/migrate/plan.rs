//! What is left to do of a migration, and why: forward until the Cluster refers to inline resources that are only read, then what a
//! confirmation does, or the way back. Pure.

use std::fmt;

use super::facts::{Facts, Mark, Object};
use crate::command::objects::{CLASSIC_PLANE, INLINE_PLANE, KindName};

/// Where a migration goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The Cluster refers to inline resources, which are only read. It can be undone.
    Prepare,
    /// The classic objects are gone, and the inline ones are managed.
    Confirm,
    /// As it was before.
    Undo,
}

/// One step: one idempotent write, or something that is waited for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Pause the Cluster, and note on it that it is migrated.
    Pause(Mark),
    /// Controllers let go of these objects.
    AwaitPause(Vec<String>),
    /// Pause an object by itself, whoever resumes the Cluster.
    Disarm(Box<Object>),
    CopyCredential(String),
    /// Read Azure, and make the inline objects that are missing.
    Make(Vec<String>),
    /// Let a Secret belong to another control plane.
    HandOver {
        secret: String,
        to: KindName,
    },
    /// Let a MachinePool refer to another kind of pool.
    SwapPool {
        machine_pool: String,
        to: KindName,
    },
    /// Let the Cluster refer to other kinds.
    SwapCluster {
        to: KindName,
    },
    /// The Cluster goes on.
    Resume,
    /// From now on there is no way back.
    MarkConfirmed(Mark),
    ReleaseFinalizers(Box<Object>),
    /// Delete an object that nothing holds any more, if it is still as it was read.
    Delete(Box<Object>),
    AwaitGone(Vec<String>),
    ReleaseIdentity(String),
    /// Let the controllers manage what is only read.
    Manage(Box<Object>),
    /// Take the pause off a classic object.
    Rearm(Box<Object>),
    RemoveCredential(String),
    /// Take the note off the Cluster, and resume it if it was not paused before.
    Finish {
        resume: bool,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause(_) => formatter.write_str("pause the Cluster"),
            Self::AwaitPause(objects) => write!(formatter, "wait for {}", objects.join(", ")),
            Self::Disarm(object) => write!(formatter, "pause {}", object.display()),
            Self::CopyCredential(name) => write!(formatter, "copy the credential to Secret {name}"),
            Self::Make(objects) => write!(formatter, "make {}", objects.join(", ")),
            Self::HandOver { secret, to } => write!(formatter, "hand Secret {secret} to the {}", to.kind),
            Self::SwapPool { machine_pool, to } => {
                write!(
                    formatter,
                    "let MachinePool {machine_pool} refer to an {}",
                    to.kind
                )
            }
            Self::SwapCluster { to } => write!(formatter, "let the Cluster refer to an {}", to.kind),
            Self::Resume => formatter.write_str("resume the Cluster"),
            Self::MarkConfirmed(_) => formatter.write_str("note that the migration is confirmed"),
            Self::ReleaseFinalizers(object) => {
                write!(formatter, "take the finalizers off {}", object.display())
            }
            Self::Delete(object) => write!(formatter, "delete {}", object.display()),
            Self::AwaitGone(objects) => write!(formatter, "wait until {} are gone", objects.join(", ")),
            Self::ReleaseIdentity(name) => write!(formatter, "let go of AzureClusterIdentity {name}"),
            Self::Manage(object) => write!(formatter, "let {} be managed", object.display()),
            Self::Rearm(object) => write!(formatter, "resume {}", object.display()),
            Self::RemoveCredential(name) => write!(formatter, "delete Secret {name}"),
            Self::Finish { resume: true } => {
                formatter.write_str("resume the Cluster, and take the note off it")
            }
            Self::Finish { resume: false } => formatter.write_str("take the note off the Cluster"),
        }
    }
}

/// A step and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct MigrationStep {
    pub action: Action,
    pub why: &'static str,
}

impl fmt::Display for MigrationStep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.action, self.why)
    }
}

/// What is left to do, in order. Empty: the goal is reached. An error says why it cannot be, and what to do.
pub fn plan(facts: &Facts, goal: Goal) -> Result<Vec<MigrationStep>, String> {
    match goal {
        Goal::Prepare => prepare(facts),
        Goal::Confirm => confirm(facts),
        Goal::Undo => undo(facts),
    }
}

#[derive(Default)]
struct Steps(Vec<MigrationStep>);

impl Steps {
    fn then(&mut self, action: Action, why: &'static str) {
        self.0.push(MigrationStep { action, why });
    }
}

/// Why a Cluster cannot be migrated, and what to do.
pub fn obstacle(facts: &Facts) -> Option<String> {
    let name = facts.name();
    if facts.is_topology() {
        return Some(format!(
            "Cluster {name} is made from a ClusterClass, and Cluster API lets nobody give it a class whose templates are of other kinds: write the \
             class of inline resources (clusterctl generate cluster {name} --flavor aks-aso-topology shows one), and adopt the AKS cluster in another \
             namespace once this Cluster is paused, as docs/guides/migrate-aks.md says"
        ));
    }
    if facts.mark().is_none() && facts.is_swapped() {
        return Some(format!(
            "Cluster {name} refers to inline resources already: there is nothing to migrate"
        ));
    }
    let planes = [CLASSIC_PLANE, INLINE_PLANE];
    if !facts.plane.refers_to.is_some_and(|kind| planes.contains(&kind)) {
        return Some(format!(
            "the control plane of Cluster {name} is no AzureManagedControlPlane: only those are migrated"
        ));
    }
    if facts.infrastructure.refers_to.is_none() {
        return Some(format!(
            "the infrastructure of Cluster {name} is no AzureManagedCluster: only those are migrated"
        ));
    }
    if let Some(pool) = facts.pools.iter().find(|pool| pool.pair.refers_to.is_none()) {
        return Some(format!(
            "MachinePool {} is no pool of AKS: take it out of the Cluster, or leave the Cluster as it is",
            pool.machine_pool_name()
        ));
    }
    if !facts.cluster["metadata"]["deletionTimestamp"].is_null() {
        return Some(format!("Cluster {name} is being deleted"));
    }
    if let Some(stray) = facts.stray.first() {
        return Some(format!(
            "{} has no MachinePool: make one that refers to it, or delete it, before the Cluster is migrated",
            stray.display()
        ));
    }
    if facts.pools.is_empty() {
        return Some(format!(
            "Cluster {name} has no MachinePool: make one with an AzureManagedMachinePool for each of its node pools first"
        ));
    }
    if !facts.operated.is_empty() {
        return Some(format!(
            "{} of Azure Service Operator stand for it: let Slipway take the Cluster over first, as docs/guides/takeover-aks.md says",
            facts.operated.join(", ")
        ));
    }
    None
}

fn prepare(facts: &Facts) -> Result<Vec<MigrationStep>, String> {
    if let Some(obstacle) = obstacle(facts) {
        return Err(obstacle);
    }
    let mark = facts.mark();
    if mark.is_some_and(|mark| mark.confirmed) {
        return Err("the migration is confirmed: go on with --confirm".to_owned());
    }
    if let Some(object) = facts.classic().find(|object| object.is_deleting()) {
        return Err(format!(
            "{} is being deleted: a Cluster that loses an object is not migrated. If it was deleted by mistake, leave the Cluster paused, take the \
             finalizers off it by hand, and adopt the AKS cluster (docs/guides/adopt-aks.md)",
            object.display()
        ));
    }
    let lost = |name: &str, kind: KindName| {
        format!(
            "{} {name} is not there: adopt the AKS cluster instead (docs/guides/adopt-aks.md)",
            kind.kind
        )
    };
    if facts.plane.classic.is_none() && facts.plane.inline.is_none() {
        return Err(lost(&facts.plane.name, CLASSIC_PLANE));
    }
    if let Some(object) = facts.inline().find(|object| !object.is_migrated()) {
        return Err(format!(
            "there is an {} that no migration made: delete or rename it first",
            object.display()
        ));
    }
    let mut steps = Steps::default();
    let held: Vec<String> = facts
        .classic()
        .filter(|object| object.blocks_move())
        .map(Object::display)
        .collect();
    if !held.is_empty() {
        steps.then(
            Action::AwaitPause(held),
            "its controller lets go of what is paused, and takes the move block off",
        );
    }
    for object in facts.classic().filter(|object| !object.is_disarmed()) {
        steps.then(
            Action::Disarm(Box::new(object.clone())),
            "nothing is written or deleted in Azure for it, whoever resumes the Cluster",
        );
    }
    if !facts.has_credential {
        let why = "inline resources sign in with a Secret of their namespace";
        steps.then(Action::CopyCredential(facts.credential_name()), why);
    }
    let missing = facts.missing();
    if !missing.is_empty() {
        steps.then(
            Action::Make(missing),
            "they are what Azure shows, and are only read",
        );
    }
    for secret in facts
        .secrets
        .iter()
        .filter(|secret| secret.owner == CLASSIC_PLANE.kind)
    {
        let action = Action::HandOver {
            secret: secret.name.clone(),
            to: INLINE_PLANE,
        };
        steps.then(action, "it stays when the classic control plane goes");
    }
    swap(facts, true, &mut steps);
    Ok(paused_for(facts, steps, true))
}

/// The swaps that are left, in one direction.
fn swap(facts: &Facts, to_inline: bool, steps: &mut Steps) {
    use crate::command::objects::{CLASSIC_CLUSTER, CLASSIC_POOL, INLINE_CLUSTER, INLINE_POOL};
    let (pool_kind, plane_kind, cluster_kind) = if to_inline {
        (INLINE_POOL, INLINE_PLANE, INLINE_CLUSTER)
    } else {
        (CLASSIC_POOL, CLASSIC_PLANE, CLASSIC_CLUSTER)
    };
    let why = "it goes on with the same nodes";
    for pool in facts
        .pools
        .iter()
        .filter(|pool| pool.pair.refers_to != Some(pool_kind))
    {
        let action = Action::SwapPool {
            machine_pool: pool.machine_pool_name().to_owned(),
            to: pool_kind,
        };
        steps.then(action, why);
    }
    if facts.plane.refers_to != Some(plane_kind) || facts.infrastructure.refers_to != Some(cluster_kind) {
        steps.then(
            Action::SwapCluster { to: plane_kind },
            "it goes on with the same AKS cluster",
        );
    }
}

/// Steps that are taken while the Cluster is paused; it resumes when there are none left.
fn paused_for(facts: &Facts, steps: Steps, keeps_note: bool) -> Vec<MigrationStep> {
    let mark = facts.mark().unwrap_or(Mark {
        was_paused: facts.is_paused(),
        confirmed: false,
    });
    let mut all = Steps::default();
    if !steps.0.is_empty() && (!facts.is_paused() || facts.mark().is_none()) {
        all.then(Action::Pause(mark), "nothing else is changed meanwhile");
    }
    let resumes = !mark.was_paused && (facts.is_paused() || !steps.0.is_empty());
    all.0.extend(steps.0);
    if !keeps_note {
        return all.0;
    }
    if resumes {
        all.then(
            Action::Resume,
            "the inline objects are read, and show that nothing differs",
        );
    }
    all.0
}

fn confirm(facts: &Facts) -> Result<Vec<MigrationStep>, String> {
    let Some(mark) = facts.mark() else {
        return Err(format!(
            "Cluster {0} is not being migrated: begin with slipway migrate {0}",
            facts.name()
        ));
    };
    if !mark.confirmed {
        let left = prepare(facts)?;
        if let Some(step) = left.first() {
            return Err(format!(
                "the migration is not there yet ({step}): go on with slipway migrate {}",
                facts.name()
            ));
        }
    }
    let mut steps = Steps::default();
    if !mark.confirmed {
        let confirmed = Mark {
            confirmed: true,
            ..mark
        };
        steps.then(Action::MarkConfirmed(confirmed), "what follows cannot be undone");
    }
    if facts.identity_is_held {
        let name = facts
            .identity
            .as_ref()
            .and_then(|one| one["metadata"]["name"].as_str())
            .unwrap_or_default();
        let why = "the control plane that keeps it goes, and signs in no more";
        steps.then(Action::ReleaseIdentity(name.to_owned()), why);
    }
    let mut gone = Vec::new();
    for object in facts.classic() {
        if !object.is_disarmed() {
            steps.then(
                Action::Disarm(Box::new(object.clone())),
                "nothing is deleted in Azure when it goes",
            );
        }
        if !object.is_let_go() {
            let why = "its controller leaves it alone, and would hold it for ever";
            steps.then(Action::ReleaseFinalizers(Box::new(object.clone())), why);
        }
        if !object.is_deleting() {
            steps.then(
                Action::Delete(Box::new(object.clone())),
                "the inline object stands for it now",
            );
        }
        gone.push(object.display());
    }
    if !gone.is_empty() {
        steps.then(Action::AwaitGone(gone), "one resource has one writer");
    }
    for object in facts.inline().filter(|object| object.awaits_confirmation()) {
        steps.then(
            Action::Manage(Box::new(object.clone())),
            "the migration is confirmed",
        );
    }
    let resume = facts.is_paused() && !mark.was_paused;
    steps.then(Action::Finish { resume }, "the migration is done");
    Ok(steps.0)
}

fn undo(facts: &Facts) -> Result<Vec<MigrationStep>, String> {
    let Some(mark) = facts.mark() else {
        return Err(format!(
            "Cluster {} is not being migrated: there is nothing to undo",
            facts.name()
        ));
    };
    if mark.confirmed {
        return Err(format!(
            "the migration of Cluster {0} is confirmed, and cannot be undone: go on with slipway migrate --confirm {0}",
            facts.name()
        ));
    }
    let lost: Vec<&str> = [&facts.plane, &facts.infrastructure]
        .into_iter()
        .chain(facts.pools.iter().map(|pool| &pool.pair))
        .filter(|pair| pair.classic.as_ref().is_none_or(Object::is_deleting))
        .map(|pair| pair.name.as_str())
        .collect();
    if !lost.is_empty() {
        return Err(format!(
            "the classic objects of {} are gone, or being deleted: there is no way back. Go on with slipway migrate {}",
            lost.join(", "),
            facts.name()
        ));
    }
    let mut steps = Steps::default();
    let held: Vec<String> = facts
        .inline()
        .filter(|object| object.blocks_move())
        .map(Object::display)
        .collect();
    if !held.is_empty() {
        steps.then(
            Action::AwaitPause(held),
            "its controller lets go of what is paused, and takes the move block off",
        );
    }
    swap(facts, false, &mut steps);
    for secret in facts
        .secrets
        .iter()
        .filter(|secret| secret.owner == INLINE_PLANE.kind)
    {
        let action = Action::HandOver {
            secret: secret.name.clone(),
            to: CLASSIC_PLANE,
        };
        steps.then(action, "it stays when the inline control plane goes");
    }
    let mut gone = Vec::new();
    for object in facts.inline().filter(|object| object.is_migrated()) {
        if !object.is_disarmed() {
            steps.then(
                Action::Disarm(Box::new(object.clone())),
                "nothing is done in Azure for it, whoever resumes the Cluster",
            );
        }
        if object.has_finalizers() {
            let why = "it was only read, and has nothing to clean up";
            steps.then(Action::ReleaseFinalizers(Box::new(object.clone())), why);
        }
        if !object.is_deleting() {
            steps.then(
                Action::Delete(Box::new(object.clone())),
                "the classic object stands for it again",
            );
        }
        gone.push(object.display());
    }
    if !gone.is_empty() {
        steps.then(Action::AwaitGone(gone), "one resource has one writer");
    }
    for object in facts.classic().filter(|object| object.is_disarmed_by_us()) {
        steps.then(Action::Rearm(Box::new(object.clone())), "its controller goes on");
    }
    if facts.has_credential {
        let why = "nothing signs in with it any more";
        steps.then(Action::RemoveCredential(facts.credential_name()), why);
    }
    let mut all = Steps(paused_for(facts, steps, false));
    let resume = !mark.was_paused;
    all.then(Action::Finish { resume }, "everything is as it was");
    Ok(all.0)
}

/// What whoever migrates should know before.
pub fn caveats(facts: &Facts) -> Vec<String> {
    let name = facts.name();
    let mut caveats = vec![
        "a tool that applies the old manifests from a repository has to stop before, and gets the new ones (kubectl get -o yaml) after: it would \
         bring the old objects back"
            .to_owned(),
        format!("Secret {name}-kubeconfig-user goes with the classic control plane; ask for operatorSpec.secrets.userCredentials instead"),
    ];
    if let Some(identity) = &facts.identity
        && let Some(caveat) = super::credential::caveat(identity, &facts.key())
    {
        caveats.push(caveat);
    }
    let scaled = facts.pools.iter().filter(|pool| {
        let annotations = &pool.machine_pool["metadata"]["annotations"];
        annotations.get("cluster.x-k8s.io/replicas-managed-by").is_some()
    });
    let scaled: Vec<&str> = scaled.map(super::facts::Pool::machine_pool_name).collect();
    if !scaled.is_empty() {
        caveats.push(format!(
            "the annotation cluster.x-k8s.io/replicas-managed-by of {} becomes \"aks\"",
            scaled.join(", ")
        ));
    }
    caveats
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        command::objects::{CLASSIC_CLUSTER, CLASSIC_POOL, INLINE_CLUSTER, INLINE_POOL},
        migrate::{
            MIGRATED_FROM, MIGRATION,
            facts::{HeldSecret, Pair, Pool},
        },
    };
    use serde_json::{Value, json};

    fn object(kind: KindName, name: &str, metadata: &Value) -> Object {
        let mut value = json!({"kind": kind.kind, "metadata": {"name": name, "namespace": "default", "uid": format!("{}-{name}", kind.kind)}});
        for (key, member) in metadata.as_object().into_iter().flatten() {
            value["metadata"][key] = member.clone();
        }
        Object { kind, value }
    }

    /// A classic cluster with one pool, as its controllers work on it.
    fn classic() -> Facts {
        let held =
            json!({"finalizers": ["f"], "annotations": {"clusterctl.cluster.x-k8s.io/block-move": ""}});
        let pair = |kind: KindName, name: &str, metadata: &Value| Pair {
            classic: Some(object(kind, name, metadata)),
            inline: None,
            refers_to: Some(kind),
            name: name.to_owned(),
        };
        Facts {
            cluster: json!({"metadata": {"name": "fleet", "namespace": "default"}, "spec": {}}),
            infrastructure: pair(CLASSIC_CLUSTER, "fleet", &json!({})),
            plane: pair(CLASSIC_PLANE, "fleet", &held),
            pools: vec![Pool {
                machine_pool: json!({"metadata": {"name": "system"}}),
                pair: pair(CLASSIC_POOL, "system", &held),
            }],
            secrets: vec![HeldSecret {
                name: "fleet-kubeconfig".to_owned(),
                owner: CLASSIC_PLANE.kind.to_owned(),
            }],
            ..Facts::default()
        }
    }

    fn marked(mut facts: Facts, confirmed: bool) -> Facts {
        let mark = Mark {
            was_paused: false,
            confirmed,
        };
        facts.cluster["metadata"]["annotations"] = json!({(MIGRATION): mark.text()});
        facts
    }

    /// The same once it was prepared.
    fn prepared() -> Facts {
        let mut facts = marked(classic(), false);
        let paused =
            json!({"finalizers": ["f"], "annotations": {"cluster.x-k8s.io/paused": "slipway-migration"}});
        let turn = |pair: &mut Pair, from: KindName, to: KindName| {
            pair.classic = Some(object(from, &pair.name, &paused));
            let made = json!({"annotations": {(MIGRATED_FROM): from.kind}, "finalizers": ["f"]});
            pair.inline = Some(object(to, &pair.name, &made));
            pair.refers_to = Some(to);
        };
        turn(&mut facts.infrastructure, CLASSIC_CLUSTER, INLINE_CLUSTER);
        turn(&mut facts.plane, CLASSIC_PLANE, INLINE_PLANE);
        turn(&mut facts.pools[0].pair, CLASSIC_POOL, INLINE_POOL);
        facts.has_credential = true;
        facts.secrets[0].owner = INLINE_PLANE.kind.to_owned();
        facts
    }

    fn lines(facts: &Facts, goal: Goal) -> Vec<String> {
        let steps = plan(facts, goal).unwrap();
        steps.iter().map(|step| step.action.to_string()).collect()
    }

    #[test]
    fn nothing_is_swapped_before_what_could_delete_is_paused_by_itself() {
        assert_eq!(
            lines(&classic(), Goal::Prepare),
            [
                "pause the Cluster",
                "wait for AzureManagedMachinePool system, AzureManagedControlPlane fleet",
                "pause AzureManagedMachinePool system",
                "pause AzureManagedControlPlane fleet",
                "pause AzureManagedCluster fleet",
                "copy the credential to Secret fleet-sign-in",
                "make AzureASOManagedCluster fleet, AzureASOManagedControlPlane fleet, AzureASOManagedMachinePool system",
                "hand Secret fleet-kubeconfig to the AzureASOManagedControlPlane",
                "let MachinePool system refer to an AzureASOManagedMachinePool",
                "let the Cluster refer to an AzureASOManagedControlPlane",
                "resume the Cluster",
            ]
        );
        assert_eq!(lines(&prepared(), Goal::Prepare), [""; 0]);
    }

    #[test]
    fn a_confirmation_deletes_what_is_paused_and_held_by_nobody() {
        let steps = lines(&prepared(), Goal::Confirm);
        assert_eq!(
            steps,
            [
                "note that the migration is confirmed",
                "take the finalizers off AzureManagedMachinePool system",
                "delete AzureManagedMachinePool system",
                "take the finalizers off AzureManagedControlPlane fleet",
                "delete AzureManagedControlPlane fleet",
                "take the finalizers off AzureManagedCluster fleet",
                "delete AzureManagedCluster fleet",
                "wait until AzureManagedMachinePool system, AzureManagedControlPlane fleet, AzureManagedCluster fleet are gone",
                "take the note off the Cluster",
            ]
        );
        let mut resumed = marked(prepared(), true);
        resumed.plane.classic = Some(object(CLASSIC_PLANE, "fleet", &json!({"finalizers": ["f"]})));
        assert!(lines(&resumed, Goal::Confirm).contains(&"pause AzureManagedControlPlane fleet".to_owned()));
    }

    #[test]
    fn an_undo_swaps_back_before_it_deletes() {
        assert_eq!(
            lines(&prepared(), Goal::Undo),
            [
                "pause the Cluster",
                "let MachinePool system refer to an AzureManagedMachinePool",
                "let the Cluster refer to an AzureManagedControlPlane",
                "hand Secret fleet-kubeconfig to the AzureManagedControlPlane",
                "pause AzureASOManagedMachinePool system",
                "take the finalizers off AzureASOManagedMachinePool system",
                "delete AzureASOManagedMachinePool system",
                "pause AzureASOManagedControlPlane fleet",
                "take the finalizers off AzureASOManagedControlPlane fleet",
                "delete AzureASOManagedControlPlane fleet",
                "pause AzureASOManagedCluster fleet",
                "take the finalizers off AzureASOManagedCluster fleet",
                "delete AzureASOManagedCluster fleet",
                "wait until AzureASOManagedMachinePool system, AzureASOManagedControlPlane fleet, AzureASOManagedCluster fleet are gone",
                "resume AzureManagedMachinePool system",
                "resume AzureManagedControlPlane fleet",
                "resume AzureManagedCluster fleet",
                "delete Secret fleet-sign-in",
                "resume the Cluster, and take the note off it",
            ]
        );
    }

    #[test]
    fn what_cannot_be_migrated_is_refused_with_what_to_do() {
        let changed = |change: fn(&mut Facts)| {
            let mut facts = classic();
            change(&mut facts);
            facts
        };
        let error = |facts: Facts, goal: Goal| plan(&facts, goal).unwrap_err();
        for (facts, goal, words) in [
            (
                changed(|facts| facts.cluster["spec"]["topology"] = json!({})),
                Goal::Prepare,
                "ClusterClass",
            ),
            (
                changed(|facts| facts.pools.clear()),
                Goal::Prepare,
                "make one with an AzureManagedMachinePool",
            ),
            (
                changed(|facts| facts.plane.refers_to = None),
                Goal::Prepare,
                "no AzureManagedControlPlane",
            ),
            (
                changed(|facts| facts.pools[0].pair.refers_to = None),
                Goal::Prepare,
                "no pool of AKS",
            ),
            (
                changed(|facts| facts.stray = vec![object(CLASSIC_POOL, "lost", &json!({}))]),
                Goal::Prepare,
                "has no MachinePool",
            ),
            (
                changed(|facts| facts.operated = vec!["ManagedCluster fleet".to_owned()]),
                Goal::Prepare,
                "takeover-aks.md",
            ),
            (
                changed(|facts| facts.cluster["metadata"]["deletionTimestamp"] = json!("now")),
                Goal::Prepare,
                "is being deleted",
            ),
            (
                changed(|facts| {
                    facts.plane.classic = Some(object(
                        CLASSIC_PLANE,
                        "fleet",
                        &json!({"deletionTimestamp": "now"}),
                    ));
                }),
                Goal::Prepare,
                "adopt the AKS cluster",
            ),
            (
                changed(|facts| facts.plane.inline = Some(object(INLINE_PLANE, "fleet", &json!({})))),
                Goal::Prepare,
                "no migration made",
            ),
            (classic(), Goal::Confirm, "begin with slipway migrate fleet"),
            (marked(classic(), false), Goal::Confirm, "not there yet"),
            (classic(), Goal::Undo, "nothing to undo"),
            (marked(prepared(), true), Goal::Undo, "cannot be undone"),
            (marked(prepared(), true), Goal::Prepare, "go on with --confirm"),
        ] {
            let error = error(facts, goal);
            assert!(error.contains(words), "{words}: {error}");
        }
        let mut lost = prepared();
        lost.plane.classic = None;
        assert!(plan(&lost, Goal::Undo).unwrap_err().contains("no way back"));
    }
}
