//! What to do for one KThreesConfig: pure, from what is known of its owner and its cluster.

use super::render::Role;
use crate::api::conditions::reason;

/// What is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
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
    /// The data exists: nothing is ever made anew, whatever the spec says now.
    Exists {
        secret: String,
    },
    Wait {
        reason: &'static str,
        message: String,
    },
    /// Take the lock, then look again.
    TakeLock,
    /// The holder will never initialise: let it go, then look again.
    BreakLock {
        holder: String,
    },
    Render {
        role: Role,
        release_lock: bool,
    },
}

/// Whether it matters who holds the lock: most looks are at data that exists, or wait for something else.
pub fn turns_on_the_lock(observed: &Observed) -> bool {
    let free = Observed {
        lock: Lock::Free,
        ..observed.clone()
    };
    matches!(decide(&free), Decision::TakeLock | Decision::Render { .. })
}

pub fn decide(observed: &Observed) -> Decision {
    if let Some(secret) = observed
        .data_secret_name
        .clone()
        .filter(|_| observed.ready)
        .or_else(|| observed.owners_secret.clone())
    {
        return Decision::Exists { secret };
    }
    let wait = |reason, message: &str| Decision::Wait {
        reason,
        message: message.to_owned(),
    };
    if !observed.infrastructure_ready || !observed.endpoint_known {
        return wait(
            reason::WAITING_FOR_CLUSTER_INFRASTRUCTURE,
            "waiting for the cluster's infrastructure and its control plane endpoint",
        );
    }
    if observed.control_plane_initialized {
        let role = if observed.is_server {
            Role::JoinServer
        } else {
            Role::Worker
        };
        return Decision::Render {
            role,
            release_lock: observed.lock != Lock::Free,
        };
    }
    if !observed.is_server {
        return wait(
            reason::WAITING_FOR_CONTROL_PLANE_AVAILABLE,
            "waiting for the first server to answer",
        );
    }
    match &observed.lock {
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
    use super::*;

    fn ready() -> Observed {
        Observed {
            infrastructure_ready: true,
            endpoint_known: true,
            is_server: true,
            ..Observed::default()
        }
    }

    /// S-15: exactly one machine initialises; the lock of a machine that is gone is broken.
    #[test]
    fn one_machine_initialises_under_a_lock_that_dies_with_it() {
        assert_eq!(decide(&ready()), Decision::TakeLock);
        let held = |lock| decide(&Observed { lock, ..ready() });
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
            let observed = |lock: &Lock| Observed {
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
        let worker = Observed {
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
        let initialized = |observed: Observed| {
            decide(&Observed {
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

    /// S-38, S-55, S-58: data that exists is never made anew, also after a move that lost the status.
    #[test]
    fn data_that_exists_stays() {
        let moved = Observed {
            owners_secret: Some("s".into()),
            ..Observed::default()
        };
        assert_eq!(decide(&moved), Decision::Exists { secret: "s".into() });
        let done = Observed {
            ready: true,
            data_secret_name: Some("s".into()),
            ..ready()
        };
        assert_eq!(decide(&done), Decision::Exists { secret: "s".into() });
    }

    #[test]
    fn nothing_starts_before_the_infrastructure() {
        let early = Observed {
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
