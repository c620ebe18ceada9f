//! Where the API server answers and with what one signs in to it: the endpoint on the object, kubeconfigs and CA in Secrets.

use jiff::Timestamp;
use slipway_azure::{
    reconcile::ResourceKind,
    workload::{
        joining,
        kubeconfig::{self, KubeconfigKind},
        stored::Verdict,
    },
};
use slipway_capi::frame::Plan;

use super::{Action, Observed, sign_in};
use crate::status::condition_of;

/// Who runs the cluster's workloads keeps its kubeconfig, whatever becomes of the next change.
pub(super) fn connect(observed: &Observed, plan: &mut Plan<Action>, now: Timestamp) {
    let Some((host, port)) = observed.endpoint() else {
        return;
    };
    let known = observed.plane.spec.control_plane_endpoint.as_ref();
    if known.is_none_or(|known| known.host != host || known.port != port) {
        let before = known.map_or_else(
            || "none".to_owned(),
            |known| format!("{}:{}", known.host, known.port),
        );
        let after = format!("{host}:{port}");
        plan.regardless(Action::SetEndpoint { host, port }, "the API server answers there")
            .changing("spec.controlPlaneEndpoint", before, after);
    }
    for kind in kubeconfigs(observed) {
        write_kubeconfig(observed, plan, kind, now);
    }
    let verdict = judge(observed, KubeconfigKind::Administrator, now);
    if matches!(verdict, Some(Verdict::Good(_))) {
        write_ca(observed, plan);
    }
}

/// The kubeconfigs that the cluster has: people have one of their own where they sign in with Entra.
pub(super) fn kubeconfigs(observed: &Observed) -> Vec<KubeconfigKind> {
    let mut kinds = vec![KubeconfigKind::Administrator];
    if sign_in(observed.cluster_state()).0 {
        kinds.push(KubeconfigKind::User);
    }
    kinds
}

fn judge(observed: &Observed, kind: KubeconfigKind, now: Timestamp) -> Option<Verdict> {
    let (host, port) = observed.endpoint()?;
    let found = match kind {
        KubeconfigKind::Administrator => observed.administrator.as_ref(),
        KubeconfigKind::User => observed.user.as_ref(),
    };
    let (plane, endpoint) = (&observed.plane.metadata, format!("{host}:{port}"));
    Some(kubeconfig::judge(
        found,
        plane,
        &observed.cluster_name,
        &endpoint,
        now,
    ))
}

fn write_kubeconfig(observed: &Observed, plan: &mut Plan<Action>, kind: KubeconfigKind, now: Timestamp) {
    let (why, replace) = match judge(observed, kind, now) {
        Some(Verdict::Write(why)) => (why, false),
        Some(Verdict::Replace(why)) => (why, true),
        Some(Verdict::Good(renew)) => return renew_token(plan, renew),
        Some(Verdict::Foreign) | None => return,
    };
    let only_entra = sign_in(observed.cluster_state()).1;
    let action = Action::WriteKubeconfig {
        kind,
        with_token: kind == KubeconfigKind::Administrator && only_entra,
        replace,
    };
    plan.regardless(action, why)
        .shown_in(condition_of(ResourceKind::ManagedCluster));
}

/// Nobody tells when half the life of a token is over.
pub(super) fn renew_token(plan: &mut Plan<Action>, renew: Option<Timestamp>) {
    if let Some(renew) = renew {
        let entry = plan.wait("TokenRenewal", "the token in the kubeconfig is renewed then");
        entry.until(renew).group = None;
    }
}

pub(super) fn write_ca(observed: &Observed, plan: &mut Plan<Action>) {
    let Some(ca) = observed
        .administrator
        .as_ref()
        .and_then(|stored| stored.ca.as_deref())
    else {
        return;
    };
    let (plane, cluster) = (&observed.plane.metadata, observed.cluster_name.as_str());
    let (why, replace) = match joining::judge(observed.ca.as_ref(), plane, cluster, ca) {
        Verdict::Write(why) => (why, false),
        Verdict::Replace(why) => (why, true),
        Verdict::Good(_) | Verdict::Foreign => return,
    };
    plan.regardless(Action::WriteCa { replace }, why)
        .shown_in(condition_of(ResourceKind::ManagedCluster));
}
