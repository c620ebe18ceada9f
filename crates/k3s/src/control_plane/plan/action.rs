//! What a plan can ask for: one idempotent call each, in words that logs, events and `/debug/plans` show.

use std::fmt;

use slipway_capi::secret::Purpose;

use super::super::observed::RemediationRecord;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    ScaleDown,
    Rollout,
    Remediation(RemediationRecord),
}

/// One idempotent call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take over a control-plane machine that belongs to nobody.
    Adopt {
        machine: String,
    },
    /// Put our pre-terminate hook onto a server that has none of ours.
    AddHook {
        machine: String,
    },
    /// Forget a remediation whose replacement exists.
    ForgetRemediation,
    /// Take back the remediation mark of a machine that is healthy again.
    ClearRemediationMark {
        machine: String,
    },
    /// Say on the machine why it is not replaced.
    ExplainRemediation {
        machine: String,
        impossible: bool,
        reason: String,
    },
    /// Wait until every server that an operation relies on was heard from after this.
    AskServers {
        operation: String,
    },
    CreateServer {
        failure_domain: Option<String>,
        remediation_for: Option<RemediationRecord>,
    },
    DeleteServer {
        machine: String,
        why: Why,
    },
    /// Ask k3s to remove a member, through its node.
    RemoveMember {
        node: String,
        member: String,
        /// The machine that is being deleted, if it is its member.
        machine: Option<String>,
    },
    /// Take back a request to remove a member that no longer holds.
    WithdrawRemoval {
        node: String,
        member: String,
    },
    /// Say that a member is nobody's and will be removed.
    AnnounceOrphan {
        member: String,
        address: String,
    },
    /// Ask k3s to remove a member that has no node, through a placeholder.
    RemoveOrphan {
        member: String,
        address: String,
        machine: Option<String>,
    },
    /// Take away a placeholder that has done its work.
    DeletePlaceholder {
        node: String,
    },
    /// Let the host of a deleted server go.
    ReleaseHook {
        machine: String,
    },
    /// Ask the update extension whether it can bring a server up to date.
    AskInPlace {
        machine: String,
    },
    /// Start, or carry on, an update in place.
    UpdateInPlace {
        machine: String,
    },
    /// Keep the Cluster's ranges with the control plane, before the first server exists.
    RecordNetwork {
        record: String,
    },
    /// Note that the first server has answered: status does not survive a move.
    MarkInitialized,
    /// Make a CA of the cluster, and never again once servers trust it.
    MakeCa {
        purpose: Purpose,
    },
    /// Make the token that servers or agents join with.
    MakeToken {
        secret: String,
    },
    /// Become the owner of a Secret that would go with the first server's configuration.
    TakeOverSecret {
        secret: String,
    },
    /// Make, or make again, the administrator's kubeconfig.
    WriteKubeconfig {
        renew: bool,
    },
    /// Bring labels, annotations and what never needs a new server to an object of a running one.
    Sync {
        machine: String,
        part: Part,
    },
    /// Set the conditions we keep on a Machine.
    SetMachineConditions {
        machine: String,
        conditions: Vec<MachineCondition>,
    },
}

/// Which object of a server is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Machine,
    Config,
    InfraMachine,
}

/// One condition of a Machine, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCondition {
    pub type_: &'static str,
    pub status: &'static str,
    pub reason: String,
    pub message: String,
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adopt { machine } => write!(formatter, "adopt Machine {machine}"),
            Self::AddHook { machine } => write!(formatter, "add the pre-terminate hook to Machine {machine}"),
            Self::ForgetRemediation => formatter.write_str("forget the last remediation"),
            Self::ClearRemediationMark { machine } => {
                write!(formatter, "clear OwnerRemediated of Machine {machine}")
            }
            Self::ExplainRemediation { machine, reason, .. } => {
                write!(
                    formatter,
                    "set OwnerRemediated of Machine {machine} to False ({reason})"
                )
            }
            Self::AskServers { operation } => {
                write!(formatter, "wait to hear from the servers before: {operation}")
            }
            Self::CreateServer { failure_domain, .. } => match failure_domain {
                Some(domain) => write!(formatter, "create a server in failure domain {domain}"),
                None => formatter.write_str("create a server"),
            },
            Self::DeleteServer { machine, .. } => write!(formatter, "delete Machine {machine}"),
            Self::RemoveMember { node, member, .. } => {
                write!(formatter, "remove etcd member {member} through node {node}")
            }
            Self::WithdrawRemoval { member, .. } => {
                write!(formatter, "withdraw the request to remove etcd member {member}")
            }
            Self::AnnounceOrphan { member, address } => {
                write!(
                    formatter,
                    "announce the removal of orphaned etcd member {member} at {address}"
                )
            }
            Self::RemoveOrphan { member, .. } => {
                write!(formatter, "remove etcd member {member} through a placeholder")
            }
            Self::DeletePlaceholder { node } => write!(formatter, "delete placeholder node {node}"),
            Self::ReleaseHook { machine } => write!(formatter, "release the host of Machine {machine}"),
            Self::AskInPlace { machine } => {
                write!(formatter, "ask the update extension about Machine {machine}")
            }
            Self::UpdateInPlace { machine } => write!(formatter, "update Machine {machine} in place"),
            Self::RecordNetwork { record } => write!(formatter, "record the cluster's ranges {record}"),
            Self::MarkInitialized => formatter.write_str("mark the control plane as initialised"),
            Self::MakeCa { purpose } => write!(formatter, "make the CA {}", purpose.as_str()),
            Self::MakeToken { secret } => write!(formatter, "make the token in Secret {secret}"),
            Self::TakeOverSecret { secret } => write!(formatter, "take over Secret {secret}"),
            Self::WriteKubeconfig { renew: false } => formatter.write_str("make the kubeconfig"),
            Self::WriteKubeconfig { renew: true } => formatter.write_str("renew the kubeconfig"),
            Self::Sync { machine, part } => match part {
                Part::Machine => write!(formatter, "sync Machine {machine}"),
                Part::Config => write!(formatter, "sync the KThreesConfig of Machine {machine}"),
                Part::InfraMachine => write!(formatter, "sync the InfraMachine of Machine {machine}"),
            },
            Self::SetMachineConditions { machine, .. } => {
                write!(formatter, "set conditions of Machine {machine}")
            }
        }
    }
}

impl Action {
    /// The event that says that it was done, and whether it is a warning.
    pub(super) fn event(&self) -> Option<(&'static str, bool)> {
        let reason = match self {
            Self::CreateServer { .. } => "ServerCreated",
            Self::DeleteServer { why, .. } => match why {
                Why::ScaleDown => "ScaleDown",
                Why::Rollout => "Rollout",
                Why::Remediation(_) => "Remediation",
            },
            Self::WithdrawRemoval { .. } => "RemovalWithdrawn",
            Self::AnnounceOrphan { .. } => "OrphanedEtcdMember",
            Self::UpdateInPlace { .. } => "SuccessfulStartInPlaceUpdate",
            _ => return None,
        };
        Some((reason, matches!(self, Self::AnnounceOrphan { .. })))
    }

    /// Whether the action changes the servers or the members of etcd: of those there is at most one at a time.
    pub fn is_operation(&self) -> bool {
        matches!(
            self,
            Self::CreateServer { .. }
                | Self::DeleteServer { .. }
                | Self::RemoveMember { .. }
                | Self::RemoveOrphan { .. }
                | Self::ReleaseHook { .. }
                | Self::UpdateInPlace { .. }
        )
    }

    /// Whether the action changes nothing that a server or its member depends on: what the watches show is enough for it.
    pub fn is_upkeep(&self) -> bool {
        matches!(
            self,
            Self::RecordNetwork { .. }
                | Self::MarkInitialized
                | Self::MakeCa { .. }
                | Self::MakeToken { .. }
                | Self::TakeOverSecret { .. }
                | Self::WriteKubeconfig { .. }
                | Self::Sync { .. }
                | Self::SetMachineConditions { .. }
        )
    }
}
