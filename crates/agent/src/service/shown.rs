//! What is shown of an operation while it runs and after its end: in memory, and not more than a limit of it.

use slipway_agent_api::client::has_ended;
use slipway_agent_api::proto::Operation;
use tokio::sync::watch;

use super::said::Said;

/// How many bytes of output of all ended operations are remembered.
const REMEMBERED: usize = 8 << 20;

/// An operation as it stands, and what its programs said.
#[derive(Clone, Default)]
pub struct Shown {
    pub operation: Operation,
    pub said: Said,
}

/// The output of the latest operations is kept, up to a limit.
pub fn forget_output<'a>(operations: impl Iterator<Item = &'a watch::Sender<Shown>>) {
    let mut with_output: Vec<_> = operations
        .filter_map(|sender| {
            let Shown { operation, said } = &*sender.borrow();
            let result = operation.command.as_ref();
            let length = said.len() + result.map_or(0, |command| command.output.len());
            let forgettable = length > 0 && has_ended(operation);
            forgettable.then(|| ((operation.ended_at, operation.id.clone()), length, sender))
        })
        .collect();
    with_output.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
    let mut total: usize = with_output.iter().map(|(_, length, _)| length).sum();
    for (_, length, sender) in with_output {
        if total <= REMEMBERED {
            return;
        }
        total -= length;
        // Nobody is woken for it: the operation has long ended.
        sender.send_if_modified(|Shown { operation, said }| {
            said.forget();
            if let Some(command) = &mut operation.command {
                command.output = Vec::new();
                command.truncated = true;
            }
            false
        });
    }
}

/// An operation as a reader sees it.
pub fn withhold_output(mut operation: Operation) -> Operation {
    if let Some(command) = &mut operation.command {
        command.output.clear();
    }
    operation
}
