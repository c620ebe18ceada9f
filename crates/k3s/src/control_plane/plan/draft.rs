//! A plan in the making: actions in order, waits after them, and when to reconcile again.

use std::time::Duration;

use slipway_capi::frame::Entry;

use super::{Action, Plan};

/// The infrastructure template is not watched.
const TEMPLATE: Duration = Duration::from_mins(1);

/// What is decided so far. In the plan the waits come last: they hold up nothing.
#[derive(Default)]
pub struct Draft {
    pub(super) plan: Plan,
    waits: Vec<(&'static str, String)>,
}

impl Draft {
    pub(in crate::control_plane) fn act(mut self, action: Action, why: impl Into<String>) -> Self {
        self.entry(action, why);
        self
    }

    pub(in crate::control_plane) fn entry(
        &mut self,
        action: Action,
        why: impl Into<String>,
    ) -> &mut Entry<Action> {
        if matches!(action, Action::CreateServer { .. }) {
            self.plan.revisit(
                TEMPLATE,
                "nobody tells when an infrastructure template that is missing comes",
            );
        }
        let event = action.event();
        let entry = self.plan.then(action, why);
        match event {
            Some((reason, true)) => entry.warned(reason),
            Some((reason, false)) => entry.announced(reason),
            None => entry,
        }
    }

    /// Something began, or came to its end.
    pub(in crate::control_plane) fn report(&mut self, reason: &'static str, why: impl Into<String>) {
        self.plan.report(reason, why);
    }

    pub(in crate::control_plane) fn wait(mut self, reason: &'static str, why: impl Into<String>) -> Self {
        self.waits.push((reason, why.into()));
        self
    }

    pub(super) fn wait_all(mut self, reason: &'static str, why: Vec<String>) -> Self {
        self.waits.extend(why.into_iter().map(|why| (reason, why)));
        self
    }

    pub(super) fn again_in(self, after: Duration) -> Self {
        self.again_because(after, "no event tells when what is waited for has come")
    }

    pub(super) fn again_because(mut self, after: Duration, why: &str) -> Self {
        self.plan.revisit(after, why);
        self
    }

    pub(in crate::control_plane) fn release_finalizer(mut self, why: &str) -> Self {
        self.plan.release_finalizer(why);
        self
    }

    /// An action that waits for nobody.
    pub(in crate::control_plane) fn regardless(&mut self, action: Action, why: &str) -> &mut Entry<Action> {
        self.plan.regardless(action, why)
    }

    pub(in crate::control_plane) fn finish(mut self) -> Plan {
        for (reason, why) in self.waits {
            self.plan.wait(reason, why);
        }
        self.plan
    }
}
