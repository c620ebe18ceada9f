//! What to do about one Cluster: pure. Whether its workload cluster is scaled from here, what is missing for that, and what its
//! condition says.

use slipway_capi::{
    condition::{Report, Status},
    names::reason,
};

/// On a Cluster: whether its workload cluster is scaled from here.
pub const CONDITION: &str = "AutoscalerRunning";

/// Our kinds in the workload cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Definitions {
    #[default]
    Unknown,
    Served,
    /// These are missing, or not served yet.
    Missing(Vec<String>),
}

/// What became of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// Nobody can connect with it, and why.
    Refused(String),
    /// Not asked yet.
    Unknown,
    /// It does not answer, and why.
    Silent(String),
    Answers,
}

/// The connection that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// It was made of the kubeconfig that is there now.
    pub is_current: bool,
    pub connection: Connection,
    pub definitions: Definitions,
}

/// What a decision is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub is_chosen: bool,
    pub is_deleting: bool,
    pub is_paused: bool,
    pub is_initialized: bool,
    pub has_kubeconfig: bool,
    pub connected: Option<Connected>,
    /// Our kinds are to be installed where they are missing.
    pub installs: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stops its controllers and gives its connection up.
    Leave,
    Connect,
    /// Waits for the cluster to answer. Controllers that run go on, and find it again by themselves.
    Wait,
    /// Asks for our kinds.
    Look,
    Install,
    /// Nobody says when missing kinds come: asks again later.
    LookLater,
    Run,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub action: Action,
    /// What the condition says; none where it is taken away.
    pub report: Option<Report>,
}

pub fn plan(observed: &Observed) -> Plan {
    let told = |action, status, reason: &str, message: &str| Plan {
        action,
        report: Some(Report::new(CONDITION, status, reason, message)),
    };
    let stopped = |reason: &str, message: &str| told(Action::Leave, Status::False, reason, message);
    if !observed.is_chosen || observed.is_deleting {
        return Plan {
            action: Action::Leave,
            report: None,
        };
    }
    if observed.is_paused {
        return stopped(reason::PAUSED, "the Cluster is paused, and so is its scaling");
    }
    if !observed.is_initialized {
        return stopped(
            "ControlPlaneNotInitialized",
            "its control plane has not answered yet",
        );
    }
    if !observed.has_kubeconfig {
        return stopped(
            "KubeconfigNotFound",
            "there is no Secret with its kubeconfig and the label cluster.x-k8s.io/cluster-name",
        );
    }
    let Some(connected) = observed.connected.as_ref().filter(|one| one.is_current) else {
        return told(Action::Connect, Status::Unknown, "Connecting", "");
    };
    match (&connected.connection, &connected.definitions) {
        (Connection::Refused(why), _) => told(Action::Wait, Status::False, "InvalidKubeconfig", why),
        (Connection::Unknown, _) => told(Action::Wait, Status::Unknown, "Connecting", ""),
        (Connection::Silent(why), _) => {
            let message = format!("its apiserver does not answer: {why}");
            told(Action::Wait, Status::False, "ApiServerUnreachable", &message)
        }
        (Connection::Answers, Definitions::Unknown) => told(Action::Look, Status::Unknown, "Connecting", ""),
        (Connection::Answers, Definitions::Missing(_)) if observed.installs => {
            told(Action::Install, Status::Unknown, "InstallingDefinitions", "")
        }
        (Connection::Answers, Definitions::Missing(names)) => {
            let message = format!(
                "it does not serve {}: install them (slipway manifests --crds), or let --autoscaler-install-crds do it",
                names.join(", ")
            );
            told(Action::LookLater, Status::False, "DefinitionsMissing", &message)
        }
        (Connection::Answers, Definitions::Served) => told(Action::Run, Status::True, "Running", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_work() -> Observed {
        Observed {
            is_chosen: true,
            is_deleting: false,
            is_paused: false,
            is_initialized: true,
            has_kubeconfig: true,
            connected: Some(Connected {
                is_current: true,
                connection: Connection::Answers,
                definitions: Definitions::Served,
            }),
            installs: false,
        }
    }

    #[test]
    fn a_cluster_is_scaled_as_long_as_everything_is_there() {
        let connected = |is_current, connection, definitions| {
            Some(Connected {
                is_current,
                connection,
                definitions,
            })
        };
        let answers = |definitions| connected(true, Connection::Answers, definitions);
        let missing = || Definitions::Missing(vec!["nodepools.karpenter.sh".to_owned()]);
        let cases: Vec<(Observed, Action, Option<&str>)> = vec![
            (at_work(), Action::Run, Some("Running")),
            (
                Observed {
                    is_chosen: false,
                    ..at_work()
                },
                Action::Leave,
                None,
            ),
            (
                Observed {
                    is_deleting: true,
                    ..at_work()
                },
                Action::Leave,
                None,
            ),
            (
                Observed {
                    is_paused: true,
                    ..at_work()
                },
                Action::Leave,
                Some("Paused"),
            ),
            (
                Observed {
                    is_initialized: false,
                    ..at_work()
                },
                Action::Leave,
                Some("ControlPlaneNotInitialized"),
            ),
            (
                Observed {
                    has_kubeconfig: false,
                    ..at_work()
                },
                Action::Leave,
                Some("KubeconfigNotFound"),
            ),
            (
                Observed {
                    connected: None,
                    ..at_work()
                },
                Action::Connect,
                Some("Connecting"),
            ),
            (
                Observed {
                    connected: connected(false, Connection::Answers, Definitions::Served),
                    ..at_work()
                },
                Action::Connect,
                Some("Connecting"),
            ),
            (
                Observed {
                    connected: connected(
                        true,
                        Connection::Refused("it runs a program".to_owned()),
                        Definitions::Unknown,
                    ),
                    ..at_work()
                },
                Action::Wait,
                Some("InvalidKubeconfig"),
            ),
            (
                Observed {
                    connected: connected(
                        true,
                        Connection::Silent("refused".to_owned()),
                        Definitions::Served,
                    ),
                    ..at_work()
                },
                Action::Wait,
                Some("ApiServerUnreachable"),
            ),
            (
                Observed {
                    connected: answers(Definitions::Unknown),
                    ..at_work()
                },
                Action::Look,
                Some("Connecting"),
            ),
            (
                Observed {
                    connected: answers(missing()),
                    ..at_work()
                },
                Action::LookLater,
                Some("DefinitionsMissing"),
            ),
            (
                Observed {
                    connected: answers(missing()),
                    installs: true,
                    ..at_work()
                },
                Action::Install,
                Some("InstallingDefinitions"),
            ),
        ];
        for (observed, action, reason) in cases {
            let plan = plan(&observed);
            let found = plan.report.as_ref().map(|report| report.reason.as_str());
            assert_eq!((plan.action, found), (action, reason), "{observed:?}");
        }
    }
}
