//! What to do for one KThreesConfig: pure, from what is known of its owner and its cluster.

use std::fmt;

use kube::ResourceExt;
use slipway_capi::frame::Plan;
use slipway_runtime::Class;

use super::{
    observe::{Observed, Userdata},
    render::Role,
};
use crate::api::conditions::reason;

/// One idempotent call. The userdata itself is not in it: it holds secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take the init lock, then reconcile again.
    TakeLock,
    /// Delete the init lock of a machine that will never initialise, then reconcile again.
    BreakLock { holder: String },
    /// Delete the init lock of a cluster that is initialised.
    ReleaseLock,
    /// Store the userdata in the data Secret.
    StoreData { role: Role, secret: String },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakeLock => formatter.write_str("take the init lock"),
            Self::BreakLock { holder } => write!(formatter, "break the init lock of Machine {holder}"),
            Self::ReleaseLock => formatter.write_str("release the init lock"),
            Self::StoreData { role, secret } => {
                let role = match role {
                    Role::Init => "the first server",
                    Role::JoinServer => "a further server",
                    Role::Worker => "a worker",
                };
                write!(formatter, "store the bootstrap data of {role} in Secret {secret}")
            }
        }
    }
}

pub fn plan(observed: &Observed) -> Plan<Action> {
    let mut plan = Plan::new();
    if observed.owner.is_none() {
        return plan;
    }
    match decide(&observed.situation) {
        Decision::Exists { .. } => {}
        Decision::Wait { reason, message } => {
            plan.wait(reason, message);
        }
        Decision::TakeLock => {
            plan.then(
                Action::TakeLock,
                "the cluster is to be initialised, and nobody does",
            );
        }
        Decision::BreakLock { holder } => {
            let why = format!("Machine {holder} is gone and will never initialise the cluster");
            plan.then(Action::BreakLock { holder }, why);
        }
        Decision::Render { role, release_lock } => {
            if release_lock {
                plan.then(Action::ReleaseLock, "the control plane is initialised");
            }
            match &observed.userdata {
                Userdata::Made(_) => {
                    let secret = observed.config.name_any();
                    plan.then(Action::StoreData { role, secret }, "the machine waits for it");
                }
                Userdata::Missing(what) => {
                    plan.wait(reason::DATA_SECRET_GENERATION_FAILED, what);
                }
                Userdata::Unusable(why) => {
                    plan.blocked(reason::DATA_SECRET_GENERATION_FAILED, why, Class::Terminal);
                }
                Userdata::Unread => {}
            }
        }
    }
    plan
}

/// What is known of the owner, the cluster and the init lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Situation {
    pub infrastructure_ready: bool,
    pub control_plane_initialized: bool,
    pub endpoint_known: bool,
    /// The owner is a control-plane machine.
    pub is_server: bool,
    /// The owner already has bootstrap data: this object was moved or restored without its status.
    pub owners_secret: Option<String>,
    /// The status says that the data exists.
    pub ready: bool,
    pub data_secret_name: Option<String>,
    pub lock: Lock,
}

/// Who may initialise the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// Nobody holds it.
    #[default]
    Free,
    Ours,
    /// A machine that exists holds it.
    Theirs(String),
    /// A machine that is gone, or on its way out, holds it.
    Abandoned(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The data exists: nothing is ever made again, whatever the spec says now.
    Exists {
        secret: String,
    },
    Wait {
        reason: &'static str,
        message: String,
    },
    /// Take the lock, then reconcile again.
    TakeLock,
    /// The holder will never initialise: let it go, then reconcile again.
    BreakLock {
        holder: String,
    },
    Render {
        role: Role,
        release_lock: bool,
    },
}

/// Whether it matters who holds the lock: most reconciles find data that exists, or wait for something else.
pub fn turns_on_the_lock(situation: &Situation) -> bool {
    let free = Situation {
        lock: Lock::Free,
        ..situation.clone()
    };
    matches!(decide(&free), Decision::TakeLock | Decision::Render { .. })
}

pub fn decide(situation: &Situation) -> Decision {
    if let Some(secret) = situation
        .data_secret_name
        .clone()
        .filter(|_| situation.ready)
        .or_else(|| situation.owners_secret.clone())
    {
        return Decision::Exists { secret };
    }
    let wait = |reason, message: &str| Decision::Wait {
        reason,
        message: message.to_owned(),
    };
    if !situation.infrastructure_ready || !situation.endpoint_known {
        return wait(
            reason::WAITING_FOR_CLUSTER_INFRASTRUCTURE,
            "waiting for the cluster's infrastructure and its control plane endpoint",
        );
    }
    if situation.control_plane_initialized {
        let role = if situation.is_server {
            Role::JoinServer
        } else {
            Role::Worker
        };
        return Decision::Render {
            role,
            release_lock: situation.lock != Lock::Free,
        };
    }
    if !situation.is_server {
        return wait(
            reason::WAITING_FOR_CONTROL_PLANE_AVAILABLE,
            "waiting for the first server to answer",
        );
    }
    match &situation.lock {
        Lock::Free => Decision::TakeLock,
        Lock::Ours => Decision::Render {
            role: Role::Init,
            release_lock: false,
        },
        Lock::Abandoned(holder) => Decision::BreakLock {
            holder: holder.clone(),
        },
        Lock::Theirs(holder) => wait(
            reason::WAITING_FOR_CONTROL_PLANE_AVAILABLE,
            &format!("waiting for machine {holder} to initialise the cluster"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::owner::Owner;
    use super::*;
    use crate::api::KThreesConfig;

    fn printed(situation: Situation, userdata: Userdata) -> String {
        let mut config = KThreesConfig::default();
        config.metadata.name = Some("edge-0".to_owned());
        let observed = Observed {
            config,
            owner: Some(Owner::default()),
            situation,
            userdata,
            ..Observed::default()
        };
        plan(&observed).to_string()
    }

    #[test]
    fn a_plan_says_why_and_never_what_is_in_the_userdata() {
        let join = Situation {
            control_plane_initialized: true,
            lock: Lock::Abandoned("old".into()),
            ..ready()
        };
        let canary = "canary-8f2a";
        for (situation, userdata, expected) in [
            (
                ready(),
                Userdata::Unread,
                "1. take the init lock: the cluster is to be initialised, and nobody does\n",
            ),
            (
                Situation {
                    lock: Lock::Abandoned("old".into()),
                    ..ready()
                },
                Userdata::Unread,
                "1. break the init lock of Machine old: Machine old is gone and will never initialise the cluster\n",
            ),
            (
                join.clone(),
                Userdata::Made(canary.into()),
                "1. release the init lock: the control plane is initialised\n\
                 2. store the bootstrap data of a further server in Secret edge-0: the machine waits for it\n",
            ),
            (
                join.clone(),
                Userdata::Missing("Secret edge-token does not exist".into()),
                "1. release the init lock: the control plane is initialised\n\
                 2. wait DataSecretGenerationFailed: Secret edge-token does not exist\n",
            ),
            (
                join.clone(),
                Userdata::Unusable("no such version".into()),
                "1. release the init lock: the control plane is initialised\n\
                 2. blocked DataSecretGenerationFailed (terminal): no such version\n",
            ),
            (
                Situation {
                    ready: true,
                    data_secret_name: Some("edge-0".into()),
                    ..join
                },
                Userdata::Unread,
                "nothing to do\n",
            ),
        ] {
            let shown = printed(situation, userdata);
            assert_eq!(shown, expected);
            assert!(!shown.contains(canary));
        }
        assert!(!format!("{:?}", Userdata::Made(canary.into())).contains(canary));
    }

    fn ready() -> Situation {
        Situation {
            infrastructure_ready: true,
            endpoint_known: true,
            is_server: true,
            ..Situation::default()
        }
    }

    /// S-15: exactly one machine initialises; the lock of a machine that is gone is broken.
    #[test]
    fn one_machine_initialises_under_a_lock_that_dies_with_it() {
        assert_eq!(decide(&ready()), Decision::TakeLock);
        let held = |lock| decide(&Situation { lock, ..ready() });
        assert!(matches!(
            held(Lock::Ours),
            Decision::Render { role: Role::Init, .. }
        ));
        assert!(
            matches!(held(Lock::Theirs("a".into())), Decision::Wait { message, .. } if message.contains("machine a"))
        );
        assert_eq!(
            held(Lock::Abandoned("a".into())),
            Decision::BreakLock { holder: "a".into() }
        );
    }

    /// Where nobody asks who holds the lock, it makes no difference.
    #[test]
    fn the_lock_is_read_wherever_it_makes_a_difference() {
        let flags = [false, true];
        let locks = [
            Lock::Free,
            Lock::Ours,
            Lock::Theirs("a".into()),
            Lock::Abandoned("a".into()),
        ];
        let (mut asked, mut spared) = (0, 0);
        for bits in 0..64_u32 {
            let flag = |bit: u32| flags[usize::from(bits & (1 << bit) != 0)];
            let observed = |lock: &Lock| Situation {
                infrastructure_ready: flag(0),
                control_plane_initialized: flag(1),
                endpoint_known: flag(2),
                is_server: flag(3),
                owners_secret: flag(4).then(|| "s".to_owned()),
                ready: flag(5),
                data_secret_name: flag(5).then(|| "s".to_owned()),
                lock: lock.clone(),
            };
            let differs = locks
                .iter()
                .any(|lock| decide(&observed(lock)) != decide(&observed(&Lock::Free)));
            let asks = turns_on_the_lock(&observed(&Lock::Free));
            assert!(asks || !differs, "{:?}", observed(&Lock::Free));
            *(if asks { &mut asked } else { &mut spared }) += 1;
        }
        assert!(asked > 0 && spared > 0, "{asked} asked, {spared} spared");
    }

    /// S-17: servers and workers join once the control plane has answered, and release the lock.
    #[test]
    fn joining_waits_for_the_first_server() {
        let worker = Situation {
            is_server: false,
            ..ready()
        };
        assert!(matches!(
            decide(&worker),
            Decision::Wait {
                reason: "WaitingForControlPlaneAvailable",
                ..
            }
        ));
        let initialized = |observed: Situation| {
            decide(&Situation {
                control_plane_initialized: true,
                lock: Lock::Theirs("a".into()),
                ..observed
            })
        };
        assert_eq!(
            initialized(worker),
            Decision::Render {
                role: Role::Worker,
                release_lock: true
            }
        );
        assert_eq!(
            initialized(ready()),
            Decision::Render {
                role: Role::JoinServer,
                release_lock: true
            }
        );
    }

    /// S-38, S-55, S-58: data that exists is never made again, also after a move that lost the status.
    #[test]
    fn data_that_exists_stays() {
        let moved = Situation {
            owners_secret: Some("s".into()),
            ..Situation::default()
        };
        assert_eq!(decide(&moved), Decision::Exists { secret: "s".into() });
        let done = Situation {
            ready: true,
            data_secret_name: Some("s".into()),
            ..ready()
        };
        assert_eq!(decide(&done), Decision::Exists { secret: "s".into() });
    }

    #[test]
    fn nothing_starts_before_the_infrastructure() {
        let early = Situation {
            infrastructure_ready: false,
            ..ready()
        };
        assert!(matches!(
            decide(&early),
            Decision::Wait {
                reason: "WaitingForClusterInfrastructure",
                ..
            }
        ));
    }
}
