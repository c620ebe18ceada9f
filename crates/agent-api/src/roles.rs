//! Who may call what: one table. A method that is not in it is refused to everybody.

use crate::Identity;

/// What an identity may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Operator,
    Host,
    Reader,
    Anonymous,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Operator, Self::Host, Self::Reader, Self::Anonymous];

    pub fn of(identity: &Identity) -> Self {
        match identity {
            Identity::Operator { .. } => Self::Operator,
            Identity::Host { .. } => Self::Host,
            Identity::Reader { .. } => Self::Reader,
            Identity::Anonymous => Self::Anonymous,
        }
    }
}

/// Whether a role may call the method at `path`, such as `/slipway.agent.v1.Agent/Start`.
pub fn may_call(role: Role, path: &str) -> bool {
    let Some((service, method)) = path
        .strip_prefix("/slipway.agent.v1.")
        .and_then(|rest| rest.split_once('/'))
    else {
        return false;
    };
    match (service, method) {
        (
            "Agent",
            "GetHost" | "ListImages" | "WaitForImage" | "GetOperation" | "ListOperations" | "WatchOperation",
        ) => matches!(role, Role::Operator | Role::Reader),
        ("Agent", "Start" | "CancelOperation") => role == Role::Operator,
        ("Blobs", "Locate" | "Read") | ("Enrolment", "Renew") => role == Role::Host,
        ("Enrolment", "Join") => role == Role::Anonymous,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::proto::METHODS;

    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for method in METHODS {
            let who: Vec<_> = Role::ALL
                .into_iter()
                .filter(|role| may_call(*role, method))
                .map(|role| format!("{role:?}"))
                .collect();
            writeln!(
                table,
                "{} {}",
                method.trim_start_matches("/slipway.agent.v1."),
                who.join(" ")
            )
            .unwrap();
        }
        // A method that was added and has nobody who may call it stands out here.
        assert_eq!(
            table,
            "Agent/GetHost Operator Reader\n\
             Agent/ListImages Operator Reader\n\
             Agent/WaitForImage Operator Reader\n\
             Agent/Start Operator\n\
             Agent/CancelOperation Operator\n\
             Agent/GetOperation Operator Reader\n\
             Agent/ListOperations Operator Reader\n\
             Agent/WatchOperation Operator Reader\n\
             Blobs/Locate Host\n\
             Blobs/Read Host\n\
             Enrolment/Join Anonymous\n\
             Enrolment/Renew Host\n"
        );
    }

    #[test]
    fn a_path_that_is_not_a_method_is_nobodys() {
        for path in [
            "",
            "/",
            "/slipway.agent.v1.Agent",
            "/slipway.agent.v1.Agent/",
            "/slipway.agent.v1.Agent/Start/",
            "/slipway.agent.v1.agent/Start",
            "//slipway.agent.v1.Agent/Start",
        ] {
            for role in Role::ALL {
                assert!(!may_call(role, path), "{role:?} may call {path:?}");
            }
        }
    }
}
