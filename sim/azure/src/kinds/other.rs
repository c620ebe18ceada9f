//! Types that clusters refer to and that are kept as sent: enough for a reference to resolve.

use serde_json::json;
use uuid::Uuid;

use super::{Kind, PLAIN, polled};
use crate::{arm_id::ArmId, operation::Style, wire::Response};

pub const WORKSPACE: &str = "Microsoft.OperationalInsights/workspaces";

/// What a workspace answers `sharedKeys` with.
pub fn workspace_keys(id: &ArmId) -> Response {
    let key = |name: &str| Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("{id}/{name}").as_bytes()).to_string();
    let body = json!({"primarySharedKey": key("primary"), "secondarySharedKey": key("secondary")});
    Response::json(200, &body)
}

pub const KINDS: &[Kind] = &[
    Kind {
        path: "Microsoft.MachineLearningServices/workspaces",
        style: Style::MachineLearning,
        create: polled(202, true, true, None),
        update: polled(202, true, true, None),
        unchanged: polled(202, true, true, None),
        ..PLAIN
    },
    Kind {
        path: WORKSPACE,
        ..PLAIN
    },
];
