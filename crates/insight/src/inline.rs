//! Resources that are no objects of their own: an object holds them, and its status says how each stands.

use serde_json::Value;

use crate::{Catalogue, Id, Inline, Judgement, Node, Part, State, objects, path};

/// A node for each that an object holds.
pub(crate) fn nodes(holder: &Id, object: &Value, inline: &Inline, catalogue: &Catalogue) -> Vec<Node> {
    path::all(object, inline.at)
        .into_iter()
        .filter_map(|item| {
            let id = objects::reference(path::all(item, inline.resource).first()?, &holder.namespace)?;
            Some(node(id, judge(item, holder, inline, catalogue)))
        })
        .collect()
}

fn judge(item: &Value, holder: &Id, inline: &Inline, catalogue: &Catalogue) -> Judgement {
    let text = |pointer| path::text(item, pointer).unwrap_or_default();
    let (reason, message) = (text(inline.reason), text(inline.message));
    let is_ready = path::all(item, inline.ready)
        .first()
        .is_some_and(|ready| **ready == Value::Bool(true));
    let state = match catalogue.reason(&holder.kind, reason, message) {
        _ if is_ready => State::Ready,
        Some(known) => known.state.max(State::Progressing),
        None => State::Waiting,
    };
    Judgement {
        since: path::time(item, inline.since),
        ..Judgement::own(state, reason, message.to_owned())
    }
}

fn node(id: Id, judgement: Judgement) -> Node {
    Node {
        noteworthy: judgement.state != State::Ready,
        judgement,
        ..Node::bare(id, Part::Detail)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Actor, Insight, Reason};

    #[test]
    fn each_stands_as_the_status_of_its_holder_says() {
        let inline = Inline {
            at: "/status/resources/*",
            resource: "/resource",
            ready: "/ready",
            reason: "/state",
            message: "/message",
            since: "/since",
        };
        let reasons = vec![Reason::stuck(
            "Locked",
            "a lock forbids it",
            Actor::Cloud,
            "remove it",
        )];
        let catalogue = Catalogue::new(
            [Insight {
                kinds: Vec::new(),
                reasons,
            }],
            [],
        );
        let resource =
            |name: &str| json!({"group": "network.azure.com", "kind": "VirtualNetwork", "name": name});
        let object = json!({"status": {"resources": [
            {"resource": resource("a"), "ready": true, "state": "Succeeded"},
            {"resource": resource("b"), "ready": false, "state": "Locked", "message": "by hand",
                "since": "2026-01-01T00:00:00Z"},
            {"ready": false},
        ]}});
        let found = nodes(&Id::new("g", "Holder", "shop", "h"), &object, &inline, &catalogue);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0].id,
            Id::new("network.azure.com", "VirtualNetwork", "shop", "a")
        );
        assert!(!found[0].noteworthy && found[1].noteworthy);
        assert_eq!(found[1].judgement.state, State::Stuck);
        assert_eq!(found[1].judgement.message, "by hand");
        assert!(found[1].judgement.since.is_some());
    }
}
